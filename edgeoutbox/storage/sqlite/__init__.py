"""SQLite: the schema is `schema.sql`; the rooms beside this file hold the statements that live on it."""
