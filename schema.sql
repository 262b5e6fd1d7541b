-- edgeoutbox: effects on the outside world, as rows of your own SQLite database. SQLite 3.37.2 or later.
--
--     sqlite3 app.db < schema.sql
--
-- One row of agent_action is one effect: an email, a Slack post, a webhook call. A program enqueues it in the
-- transaction that makes the change it belongs to; an executor carries it out afterwards. Any program in any language
-- may enqueue:
--
--     INSERT INTO agent_action (kind, idempotency_key, payload, lane_key)
--     VALUES ('email', 'order:42:receipt', '{"notice": "message", "to": "jane@example.com", "subject": "Receipt",
--             "text": "Thank you!"}', 'mail:acc-7')
--     ON CONFLICT (idempotency_key) DO NOTHING;
--
-- may propose, for a person to decide about (state 'PROPOSED'), and may withdraw what has not started:
--
--     UPDATE agent_action SET state = 'CANCELLED', stop_reason = 'WITHDRAWN', payload = NULL
--     WHERE idempotency_key = 'order:42:receipt' AND state IN ('PROPOSED', 'ADMITTED');
--
-- Everything else is the executors' business. Times are integer milliseconds since 1970 UTC, always read from the
-- database's clock in the statement that uses them.
--
-- A connection that writes here first runs PRAGMA wal_autocheckpoint = 0, and the four others that docs/operations.md
-- lists: SQLite before 3.51.3 can lose committed rows when several connections make checkpoints.
--
-- THE TABLES
--   agent_action              one effect each; the row is kept after the effect, without its payload, until the
--                             retention of its kind passes, so that a late repeat still finds its idempotency key
--   agent_action_attempt      the dispatch log: one row per action and epoch; says what each attempt came to, and why
--   agent_action_kind         the policy of each kind (what it promises, whether people approve it, how long it is
--                             kept) and its weather (cooling down after a rate limit or outage, paused by a person)
--   agent_action_ended        ended hooks that are owed: the application has not yet heard that the action ended
--   agent_action_executor     the executors that run, which kinds and variants they carry out, when last seen
--   agent_action_transition, agent_action_stop_reason
--                             the lifecycle as data; the triggers below look every step up in them
--   agent_action_insertion    one row: whether the row being inserted found its key taken (see REPLACE below)
--   agent_action_schema       the version of all this
--
-- THE LIFE OF AN ACTION
--   PROPOSED or ADMITTED      it waits: for approval, for due_at, for its turn in its lane
--   EXECUTING                 one claim owns it, until lease_expires_at. Each claim raises epoch and attempt by one, and
--                             a later write is only for who holds the action by its epoch and owner: a stale one
--                             changes nothing
--   DONE, UNCERTAIN, FAILED, CANCELLED
--                             ended, for the stop_reason. An ended action never changes and has no payload
--
-- LANES. Actions with one lane_key run one at a time, in the order of their ids. is_head marks the earliest action of
-- the lane that has not ended; only a head can be claimed, so what waits for its retry, its time or its approval holds
-- its lane. Triggers keep is_head after an insert, an end and a delete. Without a lane_key an action is alone.
--
-- THE FENCE. Just before the provider is called, write_started_at is committed durably. From then on a write may exist.
-- It is cleared only with the proof that the provider holds nothing. The guard refuses to claim a fenced action of an
-- at-most-once kind: if its holder dies, it ends UNCERTAIN and is never sent twice.
--
-- THE GUARD. The triggers named guard_... refuse every step that is not in the tables, whoever tries it. SQLite fires
-- the applicable triggers of a statement in no defined order, so each stands alone. What they refuse they RAISE(ABORT),
-- which undoes the statement and leaves the transaction to its owner.
--
-- REPLACE. INSERT OR REPLACE would delete the row that holds the key, without telling anybody. A BEFORE trigger cannot
-- refuse that, since it also runs for ON CONFLICT DO NOTHING, where a taken key is fine. So it notes whether the key
-- was taken, and an AFTER trigger, which runs only when a row did come in, refuses the statement if it was.

BEGIN IMMEDIATE;

CREATE TABLE IF NOT EXISTS agent_action_schema (
  version INTEGER NOT NULL,
  readable_from INTEGER NOT NULL   -- the earliest build, by its schema version, that may open this database
) STRICT;

INSERT INTO agent_action_schema (version, readable_from)
SELECT 1, 1 WHERE NOT EXISTS (SELECT 1 FROM agent_action_schema);

CREATE TABLE IF NOT EXISTS agent_action_transition (
  from_state TEXT NOT NULL,
  to_state TEXT NOT NULL,
  PRIMARY KEY (from_state, to_state)
) STRICT, WITHOUT ROWID;

INSERT OR IGNORE INTO agent_action_transition (from_state, to_state) VALUES
  ('PROPOSED', 'ADMITTED'),
  ('PROPOSED', 'CANCELLED'),
  ('ADMITTED', 'EXECUTING'),
  ('ADMITTED', 'CANCELLED'),
  ('EXECUTING', 'EXECUTING'),
  ('EXECUTING', 'ADMITTED'),
  ('EXECUTING', 'DONE'),
  ('EXECUTING', 'UNCERTAIN'),
  ('EXECUTING', 'FAILED'),
  ('EXECUTING', 'CANCELLED');

CREATE TABLE IF NOT EXISTS agent_action_stop_reason (
  state TEXT NOT NULL,
  stop_reason TEXT NOT NULL,
  PRIMARY KEY (state, stop_reason)
) STRICT, WITHOUT ROWID;

INSERT OR IGNORE INTO agent_action_stop_reason (state, stop_reason) VALUES
  ('DONE', 'CONFIRMED'),
  ('DONE', 'READ_BACK'),
  ('UNCERTAIN', 'NO_CONFIRMATION'),
  ('UNCERTAIN', 'ERROR_AFTER_WRITE'),
  ('UNCERTAIN', 'LEASE_LOST_AFTER_WRITE'),
  ('UNCERTAIN', 'READBACK_EXHAUSTED'),
  ('FAILED', 'ATTEMPTS_EXHAUSTED'),
  ('FAILED', 'REJECTED'),
  ('FAILED', 'UNDELIVERABLE'),
  ('FAILED', 'INVALID_PAYLOAD'),
  ('FAILED', 'NOT_CONFIGURED'),
  ('CANCELLED', 'EXPIRED'),
  ('CANCELLED', 'REFUSED'),
  ('CANCELLED', 'WITHDRAWN'),
  ('CANCELLED', 'SUPERSEDED'),
  ('CANCELLED', 'NOT_NEEDED'),
  ('CANCELLED', 'ABSENT');

CREATE TABLE IF NOT EXISTS agent_action_kind (
  kind TEXT NOT NULL PRIMARY KEY,
  delivery TEXT NOT NULL DEFAULT 'at_most_once'
    CONSTRAINT "delivery is one of the four" CHECK (delivery IN ('at_most_once', 'reads_back', 'repeatable', 'writes_nothing')),
  instance_level INTEGER NOT NULL DEFAULT 0 CHECK (instance_level IN (0, 1)),
  requires_approval INTEGER NOT NULL DEFAULT 0 CHECK (requires_approval IN (0, 1)),
  retention_days INTEGER NOT NULL DEFAULT 30 CHECK (retention_days > 0),
  has_ended_hook INTEGER NOT NULL DEFAULT 0 CHECK (has_ended_hook IN (0, 1)),
  cooling_since INTEGER,
  cooling_until INTEGER,           -- no claim of the kind, in any process, before this time
  cooling_reason TEXT,
  paused_by TEXT,                  -- no claim of the kind until somebody resumes it
  settings_digest TEXT             -- salted and cut to two bytes: tells changed settings apart, reveals none
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS agent_action (
  -- what was meant: given at enqueue, never changed afterwards
  id INTEGER PRIMARY KEY AUTOINCREMENT CONSTRAINT "id is above zero" CHECK (id > 0),
  kind TEXT NOT NULL
    CONSTRAINT "kind has 1 to 64 lower-case letters, digits or underscores, and starts with a letter"
    CHECK (kind GLOB '[a-z]*' AND kind NOT GLOB '*[^a-z0-9_]*' AND length(kind) <= 64),
  workspace_id TEXT DEFAULT 'default',
  lane_key TEXT
    CONSTRAINT "lane_key has 1 to 512 characters" CHECK (length(lane_key) BETWEEN 1 AND 512 AND instr(lane_key, char(0)) = 0),
  idempotency_key TEXT NOT NULL UNIQUE
    CONSTRAINT "idempotency_key has 1 to 512 characters" CHECK (length(idempotency_key) BETWEEN 1 AND 512 AND instr(idempotency_key, char(0)) = 0),
  run_id TEXT,
  payload TEXT
    CONSTRAINT "payload is a JSON object" CHECK (payload IS NULL OR (json_valid(payload) AND json_type(payload) = 'object'))
    CONSTRAINT "payload has at most 256 KiB" CHECK (payload IS NULL OR length(CAST(payload AS BLOB)) <= 262144),
  payload_digest TEXT              -- 'sha256:' of the canonical JSON; the first claim fills it when it is missing
    CONSTRAINT "payload_digest is sha256: and 64 hex digits" CHECK (payload_digest GLOB 'sha256:*' AND length(payload_digest) = 71),
  subject_account_id TEXT,         -- whom it concerns: erasing that person deletes the row
  max_attempts INTEGER
    CONSTRAINT "max_attempts is at least 1" CHECK (max_attempts >= 1),
  expires_at INTEGER
    CONSTRAINT "expires_at is in milliseconds; this would be seconds" CHECK (expires_at NOT BETWEEN 1000000000 AND 99999999999),
  trace_parent TEXT,
  created_at INTEGER NOT NULL DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)),

  -- where it stands
  state TEXT NOT NULL DEFAULT 'ADMITTED',
  is_head INTEGER NOT NULL DEFAULT 1,
  epoch INTEGER NOT NULL DEFAULT 0,
  attempt INTEGER NOT NULL DEFAULT 0
    CONSTRAINT "attempt is not below 0" CHECK (attempt >= 0),
  due_at INTEGER NOT NULL DEFAULT (CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER))
    CONSTRAINT "due_at is in milliseconds; this would be seconds" CHECK (due_at NOT BETWEEN 1000000000 AND 99999999999),
  lease_owner TEXT,
  lease_expires_at INTEGER,
  write_started_at INTEGER,        -- the fence: the first write that is not proven empty
  readback_ref TEXT,
  last_error TEXT,
  decided_by TEXT,
  decided_at INTEGER,
  decision_note TEXT,
  forget_at_end INTEGER NOT NULL DEFAULT 0 CHECK (forget_at_end IN (0, 1)),
  admitted_at INTEGER,

  -- how it ended
  stop_reason TEXT,
  ended_at INTEGER,

  CONSTRAINT "an ended action has a stop_reason, others have none"
    CHECK ((stop_reason IS NOT NULL) = (state IN ('DONE', 'UNCERTAIN') OR state IN ('FAILED', 'CANCELLED'))),
  CONSTRAINT "an ended action has no payload, others have one"
    CHECK ((payload IS NULL) = (stop_reason IS NOT NULL)),
  CONSTRAINT "only an ended action has ended_at"
    CHECK (ended_at IS NULL OR stop_reason IS NOT NULL),
  CONSTRAINT "only an executing action has a lease"
    CHECK (state <> 'EXECUTING' OR lease_expires_at IS NOT NULL),
  CONSTRAINT "an action that waits has no lease and no fence"
    CHECK (state NOT IN ('PROPOSED', 'ADMITTED') OR (lease_owner IS NULL AND lease_expires_at IS NULL AND write_started_at IS NULL))
) STRICT;

CREATE TABLE IF NOT EXISTS agent_action_attempt (
  action_id INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  owner TEXT NOT NULL,
  started_at INTEGER NOT NULL,
  lease_expires_at INTEGER NOT NULL,   -- as it was claimed
  write_started_at INTEGER,            -- this attempt's own first write
  settled_at INTEGER,                  -- never, when its process died
  result TEXT,
  reason TEXT,
  evidence TEXT
    CONSTRAINT "evidence is JSON of at most 4 KiB" CHECK (evidence IS NULL OR (json_valid(evidence) AND length(CAST(evidence AS BLOB)) <= 4096)),
  readback_ref TEXT,
  recorded INTEGER CHECK (recorded IN (0, 1)),   -- whether the result changed the action, or came too late
  PRIMARY KEY (action_id, epoch)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS agent_action_ended (
  action_id INTEGER NOT NULL PRIMARY KEY,
  kind TEXT NOT NULL,
  due_at INTEGER NOT NULL,
  tries INTEGER NOT NULL DEFAULT 0,
  forget INTEGER NOT NULL DEFAULT 0 CHECK (forget IN (0, 1))   -- delete the action once its hook has run
) STRICT;

CREATE TABLE IF NOT EXISTS agent_action_executor (
  owner TEXT NOT NULL PRIMARY KEY,
  version TEXT NOT NULL,
  kinds TEXT NOT NULL CHECK (json_valid(kinds)),   -- an object: kind -> the condition that its rows must fulfil
  started_at INTEGER NOT NULL,
  seen_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS agent_action_insertion (
  one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
  key_taken INTEGER NOT NULL
) STRICT;

INSERT OR IGNORE INTO agent_action_insertion (one, key_taken) VALUES (1, 0);

-- Never two executing actions in one lane, at no commit.
CREATE UNIQUE INDEX IF NOT EXISTS ux_agent_action_lane_executing ON agent_action (lane_key) WHERE state = 'EXECUTING';

-- The claim: due heads, kind first, so that rows of unknown kinds cost nothing.
CREATE INDEX IF NOT EXISTS ix_agent_action_head ON agent_action (kind, due_at, id) WHERE state = 'ADMITTED' AND is_head = 1;

-- The reclaim and the reaper: leases that ended.
CREATE INDEX IF NOT EXISTS ix_agent_action_lease ON agent_action (kind, lease_expires_at, id) WHERE state = 'EXECUTING';

-- The next head of a lane, and everything that is open. Said without the state, so that a claim leaves it alone.
CREATE INDEX IF NOT EXISTS ix_agent_action_open ON agent_action (lane_key, id) WHERE stop_reason IS NULL;

-- The reaper: what expired before it started.
CREATE INDEX IF NOT EXISTS ix_agent_action_expiry ON agent_action (kind, expires_at)
  WHERE expires_at IS NOT NULL AND state IN ('PROPOSED', 'ADMITTED');

-- The sweep: ended actions by age.
CREATE INDEX IF NOT EXISTS ix_agent_action_retention ON agent_action (kind, ended_at) WHERE ended_at IS NOT NULL;

-- What people look for: an agent's run, a person, what went wrong.
CREATE INDEX IF NOT EXISTS ix_agent_action_run ON agent_action (run_id, id) WHERE run_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS ix_agent_action_subject ON agent_action (subject_account_id, id) WHERE subject_account_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS ix_agent_action_trouble ON agent_action (state, id) WHERE state IN ('UNCERTAIN', 'FAILED');

-- The sweep: what is to be deleted as soon as it has ended.
CREATE INDEX IF NOT EXISTS ix_agent_action_forget ON agent_action (id) WHERE forget_at_end = 1;

CREATE INDEX IF NOT EXISTS ix_agent_action_ended_due ON agent_action_ended (kind, due_at);

-- ---------------------------------------------------------------------------------------------------------------------
-- The guard: what may be inserted

CREATE TRIGGER IF NOT EXISTS guard_agent_action_id BEFORE INSERT ON agent_action
WHEN NEW.id IS NOT -1   -- what SQLite shows here for an id that it will assign itself
BEGIN
  SELECT RAISE(ABORT, 'agent_action.id is assigned by the database; leave it out');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_born BEFORE INSERT ON agent_action
WHEN NEW.state NOT IN ('PROPOSED', 'ADMITTED') OR NEW.epoch <> 0 OR NEW.attempt <> 0 OR NEW.is_head <> 1
  OR NEW.readback_ref IS NOT NULL OR NEW.last_error IS NOT NULL OR NEW.decided_by IS NOT NULL OR NEW.decided_at IS NOT NULL
BEGIN
  SELECT RAISE(ABORT, 'agent_action: a new action is PROPOSED or ADMITTED, and epoch, attempt, is_head, readback_ref, last_error, decided_by and decided_at come later; leave them out');
END;

-- REPLACE puts a column's default in the place of NULL after the BEFORE triggers, whose comparisons NULL would pass.
CREATE TRIGGER IF NOT EXISTS guard_agent_action_no_null_inserted BEFORE INSERT ON agent_action
WHEN NEW.state IS NULL OR NEW.is_head IS NULL OR NEW.epoch IS NULL OR NEW.attempt IS NULL OR NEW.due_at IS NULL
  OR NEW.forget_at_end IS NULL OR NEW.created_at IS NULL
BEGIN
  SELECT RAISE(ABORT, 'agent_action: state, is_head, epoch, attempt, due_at, forget_at_end and created_at take no NULL; leave them out');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_no_null
BEFORE UPDATE OF state, is_head, epoch, attempt, due_at, forget_at_end ON agent_action
WHEN NEW.state IS NULL OR NEW.is_head IS NULL OR NEW.epoch IS NULL OR NEW.attempt IS NULL OR NEW.due_at IS NULL
  OR NEW.forget_at_end IS NULL
BEGIN
  SELECT RAISE(ABORT, 'agent_action: state, is_head, epoch, attempt, due_at and forget_at_end take no NULL');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_workspace BEFORE INSERT ON agent_action
WHEN NEW.workspace_id IS NULL
  AND NOT EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = NEW.kind AND instance_level = 1)
BEGIN
  SELECT RAISE(ABORT, 'agent_action.workspace_id: only an instance-level kind has no workspace');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_proposed BEFORE INSERT ON agent_action
WHEN NEW.state = 'ADMITTED'
  AND EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = NEW.kind AND requires_approval = 1)
BEGIN
  SELECT RAISE(ABORT, 'agent_action: this kind requires approval; insert it as PROPOSED');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_insertion BEFORE INSERT ON agent_action
WHEN (SELECT key_taken FROM agent_action_insertion)
  IS NOT EXISTS (SELECT 1 FROM agent_action WHERE idempotency_key = NEW.idempotency_key)
BEGIN
  INSERT OR IGNORE INTO agent_action_insertion (one, key_taken) VALUES (1, 0);
  UPDATE agent_action_insertion
  SET key_taken = EXISTS (SELECT 1 FROM agent_action WHERE idempotency_key = NEW.idempotency_key);
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_replace AFTER INSERT ON agent_action
WHEN (SELECT key_taken FROM agent_action_insertion) = 1
BEGIN
  SELECT RAISE(ABORT, 'agent_action: REPLACE would delete the action that holds this idempotency_key; use ON CONFLICT (idempotency_key) DO NOTHING');
END;

-- ---------------------------------------------------------------------------------------------------------------------
-- The guard: what may change

-- Not UPDATE OF id: a statement can also name the column rowid.
CREATE TRIGGER IF NOT EXISTS guard_agent_action_same_id BEFORE UPDATE ON agent_action
WHEN NEW.id <> OLD.id
BEGIN
  SELECT RAISE(ABORT, 'agent_action.id never changes');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_given
BEFORE UPDATE OF kind, workspace_id, lane_key, idempotency_key, run_id, subject_account_id, max_attempts, expires_at, trace_parent, created_at ON agent_action
WHEN NEW.kind IS NOT OLD.kind OR NEW.workspace_id IS NOT OLD.workspace_id OR NEW.lane_key IS NOT OLD.lane_key
  OR NEW.idempotency_key IS NOT OLD.idempotency_key OR NEW.run_id IS NOT OLD.run_id
  OR NEW.subject_account_id IS NOT OLD.subject_account_id OR NEW.max_attempts IS NOT OLD.max_attempts
  OR NEW.expires_at IS NOT OLD.expires_at OR NEW.trace_parent IS NOT OLD.trace_parent
  OR NEW.created_at IS NOT OLD.created_at
BEGIN
  SELECT RAISE(ABORT, 'agent_action: what was given at enqueue never changes');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_payload BEFORE UPDATE OF payload, payload_digest ON agent_action
WHEN (NEW.payload IS NOT NULL AND NEW.payload IS NOT OLD.payload)
  OR (OLD.payload_digest IS NOT NULL AND NEW.payload_digest IS NOT OLD.payload_digest)
BEGIN
  SELECT RAISE(ABORT, 'agent_action: the payload and its digest never change; an end removes the payload');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_forget BEFORE UPDATE OF forget_at_end ON agent_action
WHEN NEW.forget_at_end < OLD.forget_at_end
BEGIN
  SELECT RAISE(ABORT, 'agent_action.forget_at_end cannot be taken back');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_over BEFORE UPDATE ON agent_action
WHEN OLD.ended_at IS NOT NULL
BEGIN
  SELECT RAISE(ABORT, 'agent_action: an ended action never changes');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_transition BEFORE UPDATE OF state ON agent_action
WHEN NOT EXISTS (SELECT 1 FROM agent_action_transition WHERE from_state = OLD.state AND to_state = NEW.state)
BEGIN
  SELECT RAISE(ABORT, 'agent_action: the lifecycle has no such step; see agent_action_transition');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_stop_reason BEFORE UPDATE OF stop_reason ON agent_action
WHEN NEW.stop_reason IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM agent_action_stop_reason WHERE state = NEW.state AND stop_reason = NEW.stop_reason)
BEGIN
  SELECT RAISE(ABORT, 'agent_action: this stop_reason does not belong to this state; see agent_action_stop_reason');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_end BEFORE UPDATE OF state ON agent_action
WHEN NEW.ended_at IS NOT NULL AND (NEW.ended_at <> CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) OR NEW.is_head = 1 OR NEW.lease_owner IS NOT NULL OR NEW.lease_expires_at IS NOT NULL)
BEGIN
  SELECT RAISE(ABORT, 'agent_action.ended_at: leave it out, and the database also clears is_head and the lease');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_claim BEFORE UPDATE OF state, epoch ON agent_action
WHEN NEW.state = 'EXECUTING'
  AND (NEW.epoch <> OLD.epoch + 1 OR NEW.attempt <> OLD.attempt + 1 OR NEW.lease_owner IS NULL)
BEGIN
  SELECT RAISE(ABORT, 'agent_action: a claim raises epoch and attempt by one and names its owner');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_epoch BEFORE UPDATE OF epoch ON agent_action
WHEN NEW.state <> 'EXECUTING' AND NEW.epoch <> OLD.epoch
BEGIN
  SELECT RAISE(ABORT, 'agent_action.epoch changes only with a claim');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_owner BEFORE UPDATE OF lease_owner ON agent_action
WHEN NEW.lease_owner IS NOT NULL AND NEW.lease_owner IS NOT OLD.lease_owner AND NEW.epoch = OLD.epoch
BEGIN
  SELECT RAISE(ABORT, 'agent_action.lease_owner changes only with a claim');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_attempt BEFORE UPDATE OF attempt ON agent_action
WHEN NEW.epoch = OLD.epoch AND NEW.attempt <> OLD.attempt
  AND (OLD.state <> 'EXECUTING' OR NEW.attempt <> OLD.attempt - 1)
BEGIN
  SELECT RAISE(ABORT, 'agent_action.attempt rises with a claim, and falls by one when that attempt does not count');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_claim_head BEFORE UPDATE OF epoch ON agent_action
WHEN NEW.state = 'EXECUTING' AND OLD.is_head = 0
BEGIN
  SELECT RAISE(ABORT, 'agent_action: an earlier action of the lane has not ended');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_claim_expired BEFORE UPDATE OF state ON agent_action
WHEN NEW.state IN ('ADMITTED', 'EXECUTING') AND OLD.state <> 'EXECUTING'
  AND OLD.expires_at <= CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)
BEGIN
  SELECT RAISE(ABORT, 'agent_action: the action has expired');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_reclaim BEFORE UPDATE OF epoch ON agent_action
WHEN NEW.state = 'EXECUTING' AND OLD.state = 'EXECUTING'
  AND OLD.lease_expires_at > CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)
BEGIN
  SELECT RAISE(ABORT, 'agent_action: the lease has not ended');
END;

-- A kind that nobody declared counts as at most once.
CREATE TRIGGER IF NOT EXISTS guard_agent_action_at_most_once BEFORE UPDATE OF epoch ON agent_action
WHEN NEW.state = 'EXECUTING' AND OLD.write_started_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = OLD.kind AND delivery <> 'at_most_once')
BEGIN
  SELECT RAISE(ABORT, 'agent_action: a write of this at-most-once action may exist; it is never claimed again');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_fence BEFORE UPDATE OF write_started_at ON agent_action
WHEN NEW.write_started_at IS NOT OLD.write_started_at
  AND (   (OLD.write_started_at IS NULL AND (OLD.state <> 'EXECUTING' OR NEW.state <> 'EXECUTING' OR NEW.lease_owner IS NULL))
       OR (OLD.write_started_at IS NOT NULL AND NEW.write_started_at IS NOT NULL)
       OR (OLD.write_started_at IS NOT NULL AND NEW.write_started_at IS NULL AND NEW.state = 'EXECUTING'))
BEGIN
  SELECT RAISE(ABORT, 'agent_action.write_started_at is set once by the holder of the lease, and cleared only by the result that proves that nothing was written');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_approval BEFORE UPDATE OF state ON agent_action
WHEN OLD.state = 'PROPOSED' AND NEW.state = 'ADMITTED' AND NEW.decided_by IS NULL
  AND EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = OLD.kind AND requires_approval = 1)
BEGIN
  SELECT RAISE(ABORT, 'agent_action: this kind requires approval; decided_by must say whose');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_head BEFORE UPDATE OF is_head ON agent_action
WHEN NEW.is_head <> CASE
  WHEN NEW.state IN ('DONE', 'UNCERTAIN') OR NEW.state IN ('FAILED', 'CANCELLED') THEN 0
  ELSE NOT EXISTS (
    SELECT 1 FROM agent_action AS earlier
    WHERE earlier.lane_key = NEW.lane_key AND earlier.id < NEW.id AND earlier.stop_reason IS NULL
  )
END
BEGIN
  SELECT RAISE(ABORT, 'agent_action.is_head is kept by the database');
END;

-- ---------------------------------------------------------------------------------------------------------------------
-- What follows from a change

-- An end is seen by its stop_reason: for a longer list than two, SQLite builds a table each time that a trigger fires.

CREATE TRIGGER IF NOT EXISTS agent_action_inserted_behind AFTER INSERT ON agent_action
WHEN EXISTS (
  SELECT 1 FROM agent_action AS earlier
  WHERE earlier.lane_key = NEW.lane_key AND earlier.id < NEW.id AND earlier.stop_reason IS NULL
)
BEGIN
  UPDATE agent_action SET is_head = 0 WHERE id = NEW.id;
END;

CREATE TRIGGER IF NOT EXISTS agent_action_inserted_admitted AFTER INSERT ON agent_action
WHEN NEW.state = 'ADMITTED' AND NEW.admitted_at IS NULL
BEGIN
  UPDATE agent_action SET admitted_at = NEW.created_at WHERE id = NEW.id;
END;

CREATE TRIGGER IF NOT EXISTS agent_action_claimed AFTER UPDATE OF epoch ON agent_action
WHEN NEW.epoch <> OLD.epoch
BEGIN
  INSERT INTO agent_action_attempt (action_id, epoch, attempt, owner, started_at, lease_expires_at)
  VALUES (NEW.id, NEW.epoch, NEW.attempt, NEW.lease_owner, CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER), NEW.lease_expires_at);
END;

CREATE TRIGGER IF NOT EXISTS agent_action_fenced AFTER UPDATE OF write_started_at ON agent_action
WHEN NEW.write_started_at IS NOT NULL AND NEW.state = 'EXECUTING'
BEGIN
  UPDATE agent_action_attempt
  SET write_started_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)
  WHERE action_id = NEW.id AND epoch = NEW.epoch AND write_started_at IS NULL AND settled_at IS NULL;
END;

-- An end that was written by hand need not know about these columns.
CREATE TRIGGER IF NOT EXISTS agent_action_ended_by_hand AFTER UPDATE OF stop_reason ON agent_action
WHEN NEW.stop_reason IS NOT NULL AND NEW.ended_at IS NULL
BEGIN
  UPDATE agent_action
  SET ended_at = CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER), is_head = 0, lease_owner = NULL, lease_expires_at = NULL
  WHERE id = NEW.id;
END;

CREATE TRIGGER IF NOT EXISTS agent_action_ended_head AFTER UPDATE OF stop_reason ON agent_action
WHEN OLD.is_head = 1 AND NEW.stop_reason IS NOT NULL AND NEW.lane_key IS NOT NULL
BEGIN
  UPDATE agent_action SET is_head = 1 WHERE id = (
    SELECT id FROM agent_action
    WHERE lane_key = NEW.lane_key AND stop_reason IS NULL
    ORDER BY id LIMIT 1
  );
END;

CREATE TRIGGER IF NOT EXISTS agent_action_ended_owed AFTER UPDATE OF stop_reason ON agent_action
WHEN NEW.stop_reason IS NOT NULL
  AND EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = NEW.kind AND has_ended_hook = 1)
BEGIN
  INSERT INTO agent_action_ended (action_id, kind, due_at) VALUES (NEW.id, NEW.kind, CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER));
END;

CREATE TRIGGER IF NOT EXISTS agent_action_deleted AFTER DELETE ON agent_action
BEGIN
  DELETE FROM agent_action_attempt WHERE action_id = OLD.id;
  DELETE FROM agent_action_ended WHERE action_id = OLD.id;
END;

CREATE TRIGGER IF NOT EXISTS agent_action_deleted_head AFTER DELETE ON agent_action
WHEN OLD.is_head = 1 AND OLD.lane_key IS NOT NULL
BEGIN
  UPDATE agent_action SET is_head = 1 WHERE is_head = 0 AND id = (
    SELECT id FROM agent_action
    WHERE lane_key = OLD.lane_key AND stop_reason IS NULL
    ORDER BY id LIMIT 1
  );
END;

-- ---------------------------------------------------------------------------------------------------------------------
-- The guard of the dispatch log and of the kinds

CREATE TRIGGER IF NOT EXISTS guard_agent_action_attempt_new BEFORE INSERT ON agent_action_attempt
WHEN EXISTS (SELECT 1 FROM agent_action_attempt WHERE action_id = NEW.action_id AND epoch = NEW.epoch)
BEGIN
  SELECT RAISE(ABORT, 'agent_action_attempt: this attempt is logged already');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_attempt_settled BEFORE UPDATE ON agent_action_attempt
WHEN OLD.settled_at IS NOT NULL OR NEW.action_id <> OLD.action_id OR NEW.epoch <> OLD.epoch
  OR NEW.attempt <> OLD.attempt OR NEW.owner <> OLD.owner OR NEW.started_at <> OLD.started_at
  OR NEW.lease_expires_at <> OLD.lease_expires_at
BEGIN
  SELECT RAISE(ABORT, 'agent_action_attempt: a settled attempt never changes, nor does whose it is');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_attempt_kept BEFORE DELETE ON agent_action_attempt
WHEN EXISTS (SELECT 1 FROM agent_action WHERE id = OLD.action_id)
BEGIN
  SELECT RAISE(ABORT, 'agent_action_attempt: attempts are deleted with their action');
END;

-- Looser is further left in this list of the four deliveries.
CREATE TRIGGER IF NOT EXISTS guard_agent_action_kind_loosened BEFORE UPDATE OF delivery, requires_approval ON agent_action_kind
WHEN (instr('writes_nothing repeatable reads_back at_most_once', NEW.delivery)
        < instr('writes_nothing repeatable reads_back at_most_once', OLD.delivery)
      OR NEW.requires_approval < OLD.requires_approval)
  AND EXISTS (SELECT 1 FROM agent_action WHERE kind = OLD.kind AND state = 'EXECUTING' AND write_started_at IS NOT NULL)
BEGIN
  SELECT RAISE(ABORT, 'agent_action_kind: a write of this kind may exist; loosen it when none of its actions is fenced');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_kind_new BEFORE INSERT ON agent_action_kind
WHEN NEW.delivery <> 'at_most_once'
  AND EXISTS (SELECT 1 FROM agent_action WHERE kind = NEW.kind AND state = 'EXECUTING' AND write_started_at IS NOT NULL)
BEGIN
  SELECT RAISE(ABORT, 'agent_action_kind: a write of this kind may exist; loosen it when none of its actions is fenced');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_kind_again BEFORE INSERT ON agent_action_kind
WHEN EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = NEW.kind)
BEGIN
  SELECT RAISE(ABORT, 'agent_action_kind: this kind is declared already; update it');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_kind_kept BEFORE DELETE ON agent_action_kind
BEGIN
  SELECT RAISE(ABORT, 'agent_action_kind: what a kind promises is kept');
END;

CREATE TRIGGER IF NOT EXISTS guard_agent_action_kind_renamed BEFORE UPDATE OF kind ON agent_action_kind
WHEN NEW.kind <> OLD.kind
BEGIN
  SELECT RAISE(ABORT, 'agent_action_kind: a kind keeps its name');
END;

COMMIT;
