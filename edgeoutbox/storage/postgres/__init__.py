"""Postgres: the schema is `postgres.sql`; the rooms beside this file hold the statements that live on it."""
