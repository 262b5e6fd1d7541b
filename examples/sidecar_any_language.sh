#!/bin/sh
# An application in any language: it enqueues by one INSERT in its own transaction, and a sidecar sends.
# Needs the sqlite3 program, 3.37.2 or later. Nothing leaves this machine: the message becomes a file in captured/.
set -eu

# Once: the configuration, and the tables in the application's database.
edgeoutbox init --dev --database app.db

# The application: the change and its email commit together. docs/operations.md says what the first five lines are for.
sqlite3 -bail app.db >/dev/null <<'SQL'
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA busy_timeout = 5000;
PRAGMA recursive_triggers = ON;
PRAGMA wal_autocheckpoint = 0;
CREATE TABLE orders (id INTEGER PRIMARY KEY, paid INTEGER);
BEGIN IMMEDIATE;
INSERT INTO orders (id, paid) VALUES (42, 1);
INSERT INTO agent_action (kind, idempotency_key, lane_key, payload)
VALUES (
  'email', 'order:42:receipt', 'mail:7',
  json_object('notice', 'message', 'to', 'jane@example.com', 'subject', 'Your receipt', 'text', 'Thank you!')
)
ON CONFLICT (idempotency_key) DO NOTHING;
COMMIT;
SQL

# The sidecar: without --until-idle it would run until it is stopped.
edgeoutbox run --until-idle

edgeoutbox why order:42:receipt
edgeoutbox captured
