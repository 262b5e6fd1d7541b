-- edgeoutbox: effects on the outside world, as rows of your own Postgres database. Postgres 14 or later.
--
--     psql -v ON_ERROR_STOP=1 -f postgres.sql
--
-- makes everything below in the schema that is first in search_path, or brings it up to date. Do so too after that schema
-- was renamed, since the functions know it by name. It waits for open transactions that wrote to the tables, and new ones
-- wait for it: a program that starts looks at agent_action_schema first.
--
-- One row of agent_action is one effect: an email, a Slack post, a webhook call. A program enqueues it in the transaction
-- that makes the change it belongs to; an executor carries it out afterwards. Any program in any language may enqueue:
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
-- Everything else is the executors' business. A role that runs or enqueues needs SELECT, INSERT, UPDATE and DELETE on the
-- tables and USAGE on agent_action_id_seq and the schema, and nothing else; and no more than SELECT on those that the guard
-- decides by: agent_action_schema, agent_action_transition and agent_action_stop_reason.
--
-- WHAT IS THE SAME AS IN SQLITE: the tables, their columns and their meaning, the lifecycle, lanes, fences, and what the
-- guard refuses, in the same words. schema.sql describes them. Times are milliseconds since 1970 UTC and flags are 0 or 1
-- here too, so one statement fits both databases and rows can be copied as they are (with the triggers disabled).
--
-- WHAT DIFFERS
--   The clock     Time is read only through edgeoutbox_now(), so that a test can replace it. It is the time at which the
--                 client's statement began: a statement that waited long for a lock decides by a time that is past. Keep
--                 lock_timeout short where a lease matters.
--   Ids           SQLite has one writer. Here many insert at once, and a sequence alone would let a later commit bear the
--                 lower id. The trigger therefore takes the lane's lock first and the id from the sequence afterwards, and
--                 holds the lock until the commit: within a lane the order of ids is the order of commits, for a plain
--                 INSERT too. Between lanes nothing waits.
--   Heads         See LANES below.
--   Payloads      The column is json, which keeps the text as given. A payload that jsonb could not take (an escaped NUL,
--                 half of a surrogate pair) is refused: reading one field of it would fail, and with it every claim of its
--                 kind. JSON that is none at all is refused by the type, in Postgres's words.
--   The guard     It is three functions, because Postgres tells a function about old and new rows and not about the
--                 columns that a statement names. What it refuses has the SQLSTATE of a check violation (23514), since to
--                 a program it is one: drivers raise their integrity error, and a plain CHECK raises the same.
--   No REPLACE    Postgres has none, so nothing guards against it: there is no agent_action_insertion, and a second row of
--                 one key, kind or attempt is a plain unique violation. A kind may be declared by ON CONFLICT DO UPDATE.
--   TRUNCATE      is refused; it would pass by every trigger.
--   Waking        NOTIFY edgeoutbox, with the name of the schema, when an action can run now, when one ended, and when a
--                 kind was resumed. See NOTIFICATIONS below.
--
-- LANES. is_head marks the lane's earliest open action. Two transactions can miss each other: an INSERT sees the head still
-- open and puts itself behind it, while the head's end, committing at the same moment, does not see the INSERT and passes
-- the lane on to nobody. So the lane is looked at once more at the very end of both, by deferred constraint triggers, one
-- transaction after the other (a second lock of the lane, held only while the transaction commits): whoever is second
-- sees what the first did, and makes the earliest open action the head. A transaction that wants to see that earlier says
--
--     SET CONSTRAINTS agent_action_lane_head IMMEDIATE;             -- after an end
--     SET CONSTRAINTS agent_action_lane_head_deleted IMMEDIATE;     -- after a delete
--     SET CONSTRAINTS agent_action_lane_head_inserted IMMEDIATE;    -- after an insert
--
-- ISOLATION. All this needs to see what others committed, as READ COMMITTED does. A transaction at REPEATABLE READ or
-- SERIALIZABLE may enqueue: where its snapshot is too old to tell who is ahead it fails with 40001, or with a unique
-- violation of ux_agent_action_lane_head when it would make a second head; it is then run again. It cannot see what was
-- inserted behind an action since it began, so it may neither end nor delete the head of a lane, nor loosen a kind: 0A000.
--
-- WAITING. An INSERT into a lane waits for the open transaction that inserted there last, as a second row of one key would.
-- The end of a head waits for the open transaction that changed the action behind it. Both wait at most lock_timeout.
-- A transaction that touches several lanes takes their locks in the order of its statements: two that do so in opposite
-- orders deadlock, and Postgres ends one of them (40P01), so sort by lane_key, then id. Each lane takes a place in the
-- server's table of locks until the commit; many thousands in one transaction need a higher max_locks_per_transaction.
--
-- NOTIFICATIONS. Transactions that notify commit one after the other, database-wide. One that need not wake anybody, such
-- as the settlements of an executor that looks for the next action itself, says SET LOCAL edgeoutbox.quiet = 'on'.
-- A transaction that is prepared for a two-phase commit has to, since Postgres lets none that notified be prepared.
--
-- PRIVACY. A failed CHECK shows the row in the error's DETAIL and in the server's log. What holds of payloads is therefore
-- checked by the guard, whose message shows no value, but other CHECKs of a row do show its payload. Log only the message.

BEGIN ISOLATION LEVEL READ COMMITTED;

SET LOCAL client_min_messages = warning;

-- One migration at a time, and none over a newer one. The functions made below look for their tables where they were
-- made, and never first among a session's temporary tables.
DO $$
DECLARE
  newer bigint;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('edgeoutbox migration', 0));
  IF current_schema() IS NULL THEN
    RAISE EXCEPTION 'edgeoutbox: search_path names no schema that exists';
  END IF;
  PERFORM set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
  IF to_regclass('agent_action_schema') IS NOT NULL THEN
    EXECUTE 'SELECT max(version) FROM agent_action_schema' INTO newer;
    IF newer > 1 THEN
      RAISE EXCEPTION 'edgeoutbox: this database has schema %, and this file is schema 1', newer;
    END IF;
  END IF;
END
$$;

CREATE OR REPLACE FUNCTION edgeoutbox_now() RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint $$;

CREATE TABLE IF NOT EXISTS agent_action_schema (
  version bigint NOT NULL,
  readable_from bigint NOT NULL    -- the earliest build, by its schema version, that may open this database
);

INSERT INTO agent_action_schema (version, readable_from)
SELECT 1, 1 WHERE NOT EXISTS (SELECT 1 FROM agent_action_schema);

CREATE TABLE IF NOT EXISTS agent_action_transition (
  from_state text COLLATE "C" NOT NULL,
  to_state text COLLATE "C" NOT NULL,
  PRIMARY KEY (from_state, to_state)
);

INSERT INTO agent_action_transition (from_state, to_state) VALUES
  ('PROPOSED', 'ADMITTED'),
  ('PROPOSED', 'CANCELLED'),
  ('ADMITTED', 'EXECUTING'),
  ('ADMITTED', 'CANCELLED'),
  ('EXECUTING', 'EXECUTING'),
  ('EXECUTING', 'ADMITTED'),
  ('EXECUTING', 'DONE'),
  ('EXECUTING', 'UNCERTAIN'),
  ('EXECUTING', 'FAILED'),
  ('EXECUTING', 'CANCELLED')
ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS agent_action_stop_reason (
  state text COLLATE "C" NOT NULL,
  stop_reason text COLLATE "C" NOT NULL,
  PRIMARY KEY (state, stop_reason)
);

INSERT INTO agent_action_stop_reason (state, stop_reason) VALUES
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
  ('CANCELLED', 'ABSENT')
ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS agent_action_kind (
  kind text COLLATE "C" NOT NULL PRIMARY KEY,
  delivery text NOT NULL DEFAULT 'at_most_once'
    CONSTRAINT "delivery is one of the four" CHECK (delivery IN ('at_most_once', 'reads_back', 'repeatable', 'writes_nothing')),
  instance_level smallint NOT NULL DEFAULT 0 CHECK (instance_level IN (0, 1)),
  requires_approval smallint NOT NULL DEFAULT 0 CHECK (requires_approval IN (0, 1)),
  retention_days bigint NOT NULL DEFAULT 30 CHECK (retention_days > 0),
  has_ended_hook smallint NOT NULL DEFAULT 0 CHECK (has_ended_hook IN (0, 1)),
  cooling_since bigint,
  cooling_until bigint,            -- no claim of the kind, in any process, before this time
  cooling_reason text,
  paused_by text,                  -- no claim of the kind until somebody resumes it
  settings_digest text             -- salted and cut to two bytes: tells changed settings apart, reveals none
);

CREATE SEQUENCE IF NOT EXISTS agent_action_id_seq AS bigint;

CREATE TABLE IF NOT EXISTS agent_action (
  -- what was meant: given at enqueue, never changed afterwards
  id bigint PRIMARY KEY CONSTRAINT "id is above zero" CHECK (id > 0),
  kind text COLLATE "C" NOT NULL
    CONSTRAINT "kind has 1 to 64 of a-z, 0-9 and _, and starts with a letter" CHECK (kind ~ '^[a-z][a-z0-9_]{0,63}$'),
  workspace_id text DEFAULT 'default',
  lane_key text COLLATE "C"
    CONSTRAINT "lane_key has 1 to 512 characters" CHECK (length(lane_key) BETWEEN 1 AND 512),
  idempotency_key text COLLATE "C" NOT NULL UNIQUE
    CONSTRAINT "idempotency_key has 1 to 512 characters" CHECK (length(idempotency_key) BETWEEN 1 AND 512),
  run_id text COLLATE "C",
  payload json,                    -- an object of at most 256 KiB: the guard looks when it comes, since it never changes
  payload_digest text COLLATE "C"  -- 'sha256:' of the canonical JSON; the first claim fills it when it is missing
    CONSTRAINT "payload_digest is sha256: and 64 hex digits" CHECK (payload_digest LIKE 'sha256:%' AND length(payload_digest) = 71),
  subject_account_id text COLLATE "C",   -- whom it concerns: erasing that person deletes the row
  max_attempts bigint
    CONSTRAINT "max_attempts is at least 1" CHECK (max_attempts >= 1),
  expires_at bigint
    CONSTRAINT "expires_at is in milliseconds; this would be seconds" CHECK (expires_at NOT BETWEEN 1000000000 AND 99999999999),
  trace_parent text,
  created_at bigint NOT NULL DEFAULT edgeoutbox_now(),

  -- where it stands
  state text COLLATE "C" NOT NULL DEFAULT 'ADMITTED',
  is_head smallint NOT NULL DEFAULT 1,
  epoch bigint NOT NULL DEFAULT 0,
  attempt bigint NOT NULL DEFAULT 0
    CONSTRAINT "attempt is not below 0" CHECK (attempt >= 0),
  due_at bigint NOT NULL DEFAULT edgeoutbox_now()
    CONSTRAINT "due_at is in milliseconds; this would be seconds" CHECK (due_at NOT BETWEEN 1000000000 AND 99999999999),
  lease_owner text,
  lease_expires_at bigint,
  write_started_at bigint,         -- the fence: the first write that is not proven empty
  readback_ref text,
  last_error text,
  decided_by text,
  decided_at bigint,
  decision_note text,
  forget_at_end smallint NOT NULL DEFAULT 0 CHECK (forget_at_end IN (0, 1)),
  admitted_at bigint,

  -- how it ended
  stop_reason text COLLATE "C",
  ended_at bigint,

  CONSTRAINT "an ended action has a stop_reason, others have none"
    CHECK ((stop_reason IS NOT NULL) = (state IN ('DONE', 'UNCERTAIN', 'FAILED', 'CANCELLED'))),
  CONSTRAINT "an ended action has no payload, others have one"
    CHECK ((payload IS NULL) = (state IN ('DONE', 'UNCERTAIN', 'FAILED', 'CANCELLED'))),
  CONSTRAINT "only an ended action has ended_at"
    CHECK (ended_at IS NULL OR state IN ('DONE', 'UNCERTAIN', 'FAILED', 'CANCELLED')),
  CONSTRAINT "only an executing action has a lease"
    CHECK (state <> 'EXECUTING' OR lease_expires_at IS NOT NULL),
  CONSTRAINT "an action that waits has no lease and no fence"
    CHECK (state NOT IN ('PROPOSED', 'ADMITTED') OR (lease_owner IS NULL AND lease_expires_at IS NULL AND write_started_at IS NULL))
);

ALTER SEQUENCE agent_action_id_seq OWNED BY agent_action.id;

CREATE TABLE IF NOT EXISTS agent_action_attempt (
  action_id bigint NOT NULL,
  epoch bigint NOT NULL,
  attempt bigint NOT NULL,
  owner text NOT NULL,
  started_at bigint NOT NULL,
  lease_expires_at bigint NOT NULL,    -- as it was claimed
  write_started_at bigint,             -- this attempt's own first write
  settled_at bigint,                   -- never, when its process died
  result text,
  reason text,
  evidence json
    CONSTRAINT "evidence is JSON of at most 4 KiB" CHECK (octet_length(evidence::text) <= 4096),
  readback_ref text,
  recorded smallint CHECK (recorded IN (0, 1)),   -- whether the result changed the action, or came too late
  PRIMARY KEY (action_id, epoch)
);

CREATE TABLE IF NOT EXISTS agent_action_ended (
  action_id bigint NOT NULL PRIMARY KEY,
  kind text COLLATE "C" NOT NULL,
  due_at bigint NOT NULL,
  tries bigint NOT NULL DEFAULT 0,
  forget smallint NOT NULL DEFAULT 0 CHECK (forget IN (0, 1))   -- delete the action once its hook has run
);

CREATE TABLE IF NOT EXISTS agent_action_executor (
  owner text COLLATE "C" NOT NULL PRIMARY KEY,
  version text NOT NULL,
  kinds json NOT NULL,             -- an object: kind -> the condition that its rows must fulfil
  started_at bigint NOT NULL,
  seen_at bigint NOT NULL
);

-- Never two executing actions in one lane, at no commit.
CREATE UNIQUE INDEX IF NOT EXISTS ux_agent_action_lane_executing ON agent_action (lane_key) WHERE state = 'EXECUTING';

-- Never two heads in one lane: what a transaction whose snapshot is too old runs into.
CREATE UNIQUE INDEX IF NOT EXISTS ux_agent_action_lane_head ON agent_action (lane_key)
  WHERE is_head = 1 AND state IN ('PROPOSED', 'ADMITTED', 'EXECUTING');

-- The claim: due heads, kind first, so that rows of unknown kinds cost nothing.
CREATE INDEX IF NOT EXISTS ix_agent_action_head ON agent_action (kind, due_at, id) WHERE state = 'ADMITTED' AND is_head = 1;

-- The reclaim and the reaper: leases that ended.
CREATE INDEX IF NOT EXISTS ix_agent_action_lease ON agent_action (kind, lease_expires_at, id) WHERE state = 'EXECUTING';

-- The next head of a lane, and everything that is open.
CREATE INDEX IF NOT EXISTS ix_agent_action_open ON agent_action (lane_key, id) WHERE state IN ('PROPOSED', 'ADMITTED', 'EXECUTING');

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
-- The guard: what may be inserted, and what may change whatever the statement names

CREATE OR REPLACE FUNCTION guard_agent_action() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off
AS $$
DECLARE
  refused text;
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.id IS NOT NULL THEN
      refused := 'agent_action.id is assigned by the database; leave it out';
    ELSIF NEW.state IS NULL OR NEW.is_head IS NULL OR NEW.epoch IS NULL OR NEW.attempt IS NULL OR NEW.due_at IS NULL
      OR NEW.forget_at_end IS NULL OR NEW.created_at IS NULL
    THEN
      refused := 'agent_action: state, is_head, epoch, attempt, due_at, forget_at_end and created_at take no NULL; leave them out';
    ELSIF NEW.state NOT IN ('PROPOSED', 'ADMITTED') OR NEW.epoch <> 0 OR NEW.attempt <> 0 OR NEW.is_head <> 1
      OR NEW.readback_ref IS NOT NULL OR NEW.last_error IS NOT NULL OR NEW.decided_by IS NOT NULL OR NEW.decided_at IS NOT NULL
    THEN
      refused := 'agent_action: a new action is PROPOSED or ADMITTED, and epoch, attempt, is_head, readback_ref, last_error, decided_by and decided_at come later; leave them out';
    ELSIF NEW.workspace_id IS NULL
      AND NOT EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = NEW.kind AND instance_level = 1)
    THEN
      refused := 'agent_action.workspace_id: only an instance-level kind has no workspace';
    ELSIF NEW.state = 'ADMITTED'
      AND EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = NEW.kind AND requires_approval = 1)
    THEN
      refused := 'agent_action: this kind requires approval; insert it as PROPOSED';
    ELSIF octet_length(NEW.payload::text) > 262144 THEN
      refused := 'agent_action: payload has at most 256 KiB';
    ELSIF jsonb_typeof(NEW.payload::jsonb) <> 'object' THEN
      refused := 'agent_action: payload is a JSON object';
    END IF;
    IF refused IS NULL THEN
      IF NEW.lane_key IS NOT NULL THEN
        -- The lane first, the id afterwards. The query below is a statement of its own: at READ COMMITTED it sees what
        -- was committed while the lock was waited for, and the rows of the same INSERT that came before this one.
        PERFORM pg_advisory_xact_lock(hashtextextended(NEW.lane_key, TG_RELID::bigint));
        IF EXISTS (
          SELECT 1 FROM agent_action
          WHERE lane_key = NEW.lane_key AND state IN ('PROPOSED', 'ADMITTED', 'EXECUTING')
        ) THEN
          NEW.is_head := 0;
        END IF;
      END IF;
      NEW.id := nextval('agent_action_id_seq');
      IF NEW.state = 'ADMITTED' AND NEW.admitted_at IS NULL THEN
        NEW.admitted_at := NEW.created_at;
      END IF;
      RETURN NEW;
    END IF;
  ELSIF OLD.ended_at IS NOT NULL THEN
    refused := 'agent_action: an ended action never changes';
  ELSIF NEW.id IS DISTINCT FROM OLD.id THEN
    refused := 'agent_action.id never changes';
  ELSIF NEW.state IS NULL OR NEW.is_head IS NULL OR NEW.epoch IS NULL OR NEW.attempt IS NULL OR NEW.due_at IS NULL
    OR NEW.forget_at_end IS NULL
  THEN
    refused := 'agent_action: state, is_head, epoch, attempt, due_at and forget_at_end take no NULL';
  ELSIF NEW.forget_at_end < OLD.forget_at_end THEN
    refused := 'agent_action.forget_at_end cannot be taken back';
  ELSIF NEW.state <> 'EXECUTING' AND NEW.epoch <> OLD.epoch THEN
    refused := 'agent_action.epoch changes only with a claim';
  ELSIF NEW.epoch = OLD.epoch AND NEW.attempt <> OLD.attempt
    AND (OLD.state <> 'EXECUTING' OR NEW.attempt <> OLD.attempt - 1)
  THEN
    refused := 'agent_action.attempt rises with a claim, and falls by one when that attempt does not count';
  ELSIF NEW.lease_owner IS NOT NULL AND NEW.lease_owner IS DISTINCT FROM OLD.lease_owner AND NEW.epoch = OLD.epoch THEN
    refused := 'agent_action.lease_owner changes only with a claim';
  ELSIF NEW.write_started_at IS DISTINCT FROM OLD.write_started_at
    AND (   (OLD.write_started_at IS NULL AND (OLD.state <> 'EXECUTING' OR NEW.state <> 'EXECUTING' OR NEW.lease_owner IS NULL))
         OR (OLD.write_started_at IS NOT NULL AND NEW.write_started_at IS NOT NULL)
         OR (OLD.write_started_at IS NOT NULL AND NEW.write_started_at IS NULL AND NEW.state = 'EXECUTING'))
  THEN
    refused := 'agent_action.write_started_at is set once by the holder of the lease, and cleared only by the result that proves that nothing was written';
  ELSIF NEW.is_head <> OLD.is_head
    AND NEW.is_head <> (
      NEW.state IN ('PROPOSED', 'ADMITTED', 'EXECUTING')
      AND NOT EXISTS (
        SELECT 1 FROM agent_action AS earlier
        WHERE earlier.lane_key = NEW.lane_key AND earlier.id < NEW.id AND earlier.state IN ('PROPOSED', 'ADMITTED', 'EXECUTING')
      )
    )::int
  THEN
    refused := 'agent_action.is_head is kept by the database';
  END IF;
  IF refused IS NOT NULL THEN
    RAISE EXCEPTION USING MESSAGE = refused, ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
  END IF;
  IF NEW.write_started_at IS NOT NULL AND OLD.write_started_at IS NULL THEN
    -- Against whoever loosens the kind at this moment; see guard_agent_action_kind().
    PERFORM pg_advisory_xact_lock_shared(hashtextextended(NEW.kind, TG_RELID::bigint + 4294967296));
  END IF;
  RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER guard_agent_action BEFORE INSERT OR UPDATE ON agent_action
FOR EACH ROW EXECUTE FUNCTION guard_agent_action();

-- ---------------------------------------------------------------------------------------------------------------------
-- The guard: what was given

CREATE OR REPLACE FUNCTION guard_agent_action_given() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
  refused text;
BEGIN
  IF NEW.kind IS DISTINCT FROM OLD.kind OR NEW.workspace_id IS DISTINCT FROM OLD.workspace_id
    OR NEW.lane_key IS DISTINCT FROM OLD.lane_key OR NEW.idempotency_key IS DISTINCT FROM OLD.idempotency_key
    OR NEW.run_id IS DISTINCT FROM OLD.run_id OR NEW.subject_account_id IS DISTINCT FROM OLD.subject_account_id
    OR NEW.max_attempts IS DISTINCT FROM OLD.max_attempts OR NEW.expires_at IS DISTINCT FROM OLD.expires_at
    OR NEW.trace_parent IS DISTINCT FROM OLD.trace_parent OR NEW.created_at IS DISTINCT FROM OLD.created_at
  THEN
    refused := 'agent_action: what was given at enqueue never changes';
  ELSIF (NEW.payload IS NOT NULL AND NEW.payload::text IS DISTINCT FROM OLD.payload::text)
    OR (OLD.payload_digest IS NOT NULL AND NEW.payload_digest IS DISTINCT FROM OLD.payload_digest)
  THEN
    refused := 'agent_action: the payload and its digest never change; an end removes the payload';
  ELSE
    RETURN NEW;
  END IF;
  RAISE EXCEPTION USING MESSAGE = refused, ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
END
$$;

CREATE OR REPLACE TRIGGER guard_agent_action_given
BEFORE UPDATE OF kind, workspace_id, lane_key, idempotency_key, run_id, payload, payload_digest, subject_account_id, max_attempts, expires_at, trace_parent, created_at ON agent_action
FOR EACH ROW EXECUTE FUNCTION guard_agent_action_given();

-- ---------------------------------------------------------------------------------------------------------------------
-- The guard: which steps may be taken. It runs when a statement names the state, even to leave it as it is.

CREATE OR REPLACE FUNCTION guard_agent_action_step() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off
AS $$
DECLARE
  refused text;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM agent_action_transition WHERE from_state = OLD.state AND to_state = NEW.state) THEN
    refused := 'agent_action: the lifecycle has no such step; see agent_action_transition';
  ELSIF NEW.state = 'EXECUTING' THEN
    IF NEW.epoch <> OLD.epoch + 1 OR NEW.attempt <> OLD.attempt + 1 OR NEW.lease_owner IS NULL THEN
      refused := 'agent_action: a claim raises epoch and attempt by one and names its owner';
    ELSIF OLD.is_head = 0 THEN
      refused := 'agent_action: an earlier action of the lane has not ended';
    ELSIF OLD.state <> 'EXECUTING' AND OLD.expires_at <= edgeoutbox_now() THEN
      refused := 'agent_action: the action has expired';
    ELSIF OLD.state = 'EXECUTING' AND OLD.lease_expires_at > edgeoutbox_now() THEN
      refused := 'agent_action: the lease has not ended';
    -- A kind that nobody declared counts as at most once.
    ELSIF OLD.write_started_at IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = OLD.kind AND delivery <> 'at_most_once')
    THEN
      refused := 'agent_action: a write of this at-most-once action may exist; it is never claimed again';
    END IF;
  ELSIF NEW.state = 'ADMITTED' THEN
    IF OLD.state = 'PROPOSED' AND OLD.expires_at <= edgeoutbox_now() THEN
      refused := 'agent_action: the action has expired';
    ELSIF OLD.state = 'PROPOSED' AND NEW.decided_by IS NULL
      AND EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = OLD.kind AND requires_approval = 1)
    THEN
      refused := 'agent_action: this kind requires approval; decided_by must say whose';
    END IF;
  ELSIF NEW.stop_reason IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM agent_action_stop_reason WHERE state = NEW.state AND stop_reason = NEW.stop_reason)
  THEN
    refused := 'agent_action: this stop_reason does not belong to this state; see agent_action_stop_reason';
  -- An end that was written by hand need not know about these columns.
  ELSIF NEW.ended_at IS NULL THEN
    NEW.ended_at := edgeoutbox_now();
    NEW.is_head := 0;
    NEW.lease_owner := NULL;
    NEW.lease_expires_at := NULL;
  ELSIF NEW.ended_at <> edgeoutbox_now() OR NEW.is_head = 1 OR NEW.lease_owner IS NOT NULL OR NEW.lease_expires_at IS NOT NULL THEN
    refused := 'agent_action.ended_at: leave it out, and the database also clears is_head and the lease';
  END IF;
  IF refused IS NOT NULL THEN
    RAISE EXCEPTION USING MESSAGE = refused, ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
  END IF;
  RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER guard_agent_action_step BEFORE UPDATE OF state, epoch ON agent_action
FOR EACH ROW EXECUTE FUNCTION guard_agent_action_step();

-- ---------------------------------------------------------------------------------------------------------------------
-- The heads of lanes

CREATE OR REPLACE FUNCTION keep_agent_action_lane_head() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off
AS $$
DECLARE
  lane text := CASE TG_OP WHEN 'DELETE' THEN OLD.lane_key ELSE NEW.lane_key END;
  first record;
BEGIN
  IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
    IF TG_OP <> 'INSERT' THEN
      RAISE EXCEPTION USING
        MESSAGE = 'agent_action: at this isolation level the head of a lane is neither ended nor deleted; use READ COMMITTED',
        ERRCODE = 'feature_not_supported';
    END IF;
    -- If the action that seemed to be ahead was changed since the snapshot, this fails with 40001. If not, its end now
    -- waits for us, and then sees us.
    PERFORM 1 FROM agent_action
    WHERE lane_key = lane AND id < NEW.id AND state IN ('PROPOSED', 'ADMITTED', 'EXECUTING')
    ORDER BY id LIMIT 1
    FOR SHARE;
    RETURN NULL;
  END IF;
  IF TG_OP <> 'INSERT' THEN
    -- Whoever holds the row that follows may itself be waiting for the lane: wait for the row before taking the lane.
    PERFORM 1 FROM agent_action
    WHERE lane_key = lane AND state IN ('PROPOSED', 'ADMITTED', 'EXECUTING')
    ORDER BY id LIMIT 1
    FOR NO KEY UPDATE;
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended(lane, -TG_RELID::bigint));
  LOOP
    SELECT id, is_head INTO first FROM agent_action
    WHERE lane_key = lane AND state IN ('PROPOSED', 'ADMITTED', 'EXECUTING')
    ORDER BY id LIMIT 1;
    EXIT WHEN NOT FOUND OR first.is_head = 1;
    UPDATE agent_action SET is_head = 1
    WHERE id = first.id AND is_head = 0 AND state IN ('PROPOSED', 'ADMITTED', 'EXECUTING');
    EXIT WHEN FOUND;   -- else it ended just now, and another follows
  END LOOP;
  RETURN NULL;
END
$$;

DO $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = 'agent_action'::regclass AND tgname = 'agent_action_lane_head') THEN
    CREATE CONSTRAINT TRIGGER agent_action_lane_head AFTER UPDATE OF state ON agent_action
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.lane_key IS NOT NULL AND OLD.is_head = 1 AND NEW.state IN ('DONE', 'UNCERTAIN', 'FAILED', 'CANCELLED'))
    EXECUTE FUNCTION keep_agent_action_lane_head();

    CREATE CONSTRAINT TRIGGER agent_action_lane_head_inserted AFTER INSERT ON agent_action
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.lane_key IS NOT NULL AND NEW.is_head = 0)
    EXECUTE FUNCTION keep_agent_action_lane_head();

    CREATE CONSTRAINT TRIGGER agent_action_lane_head_deleted AFTER DELETE ON agent_action
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.lane_key IS NOT NULL AND OLD.is_head = 1)
    EXECUTE FUNCTION keep_agent_action_lane_head();
  END IF;
END
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- What follows from a change

CREATE OR REPLACE FUNCTION notify_agent_action() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
  IF current_setting('edgeoutbox.quiet', true) IS DISTINCT FROM 'on' THEN
    PERFORM pg_notify('edgeoutbox', TG_TABLE_SCHEMA);
  END IF;
  RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER agent_action_runnable_inserted AFTER INSERT ON agent_action
FOR EACH ROW WHEN (NEW.state = 'ADMITTED' AND NEW.is_head = 1)
EXECUTE FUNCTION notify_agent_action();

CREATE OR REPLACE TRIGGER agent_action_runnable AFTER UPDATE OF state, is_head, due_at ON agent_action
FOR EACH ROW WHEN (
  NEW.state = 'ADMITTED' AND NEW.is_head = 1
  AND (OLD.state <> 'ADMITTED' OR OLD.is_head = 0 OR NEW.due_at < OLD.due_at)
)
EXECUTE FUNCTION notify_agent_action();

CREATE OR REPLACE TRIGGER agent_action_ended_notified AFTER UPDATE OF state ON agent_action
FOR EACH ROW WHEN (NEW.state IN ('DONE', 'UNCERTAIN', 'FAILED', 'CANCELLED'))
EXECUTE FUNCTION notify_agent_action();

CREATE OR REPLACE TRIGGER agent_action_kind_resumed AFTER UPDATE OF paused_by, cooling_until ON agent_action_kind
FOR EACH ROW WHEN (
  (OLD.paused_by IS NOT NULL AND NEW.paused_by IS NULL)
  OR (OLD.cooling_until IS NOT NULL AND (NEW.cooling_until IS NULL OR NEW.cooling_until < OLD.cooling_until))
)
EXECUTE FUNCTION notify_agent_action();

CREATE OR REPLACE FUNCTION follow_agent_action() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off
AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    DELETE FROM agent_action_attempt WHERE action_id = OLD.id;
    DELETE FROM agent_action_ended WHERE action_id = OLD.id;
  ELSIF NEW.state IN ('DONE', 'UNCERTAIN', 'FAILED', 'CANCELLED') THEN
    INSERT INTO agent_action_ended (action_id, kind, due_at)
    SELECT NEW.id, NEW.kind, edgeoutbox_now() FROM agent_action_kind WHERE kind = NEW.kind AND has_ended_hook = 1;
  ELSIF NEW.epoch <> OLD.epoch THEN
    INSERT INTO agent_action_attempt (action_id, epoch, attempt, owner, started_at, lease_expires_at)
    VALUES (NEW.id, NEW.epoch, NEW.attempt, NEW.lease_owner, edgeoutbox_now(), NEW.lease_expires_at);
  ELSIF NEW.write_started_at IS NOT NULL AND NEW.state = 'EXECUTING' THEN
    UPDATE agent_action_attempt SET write_started_at = edgeoutbox_now()
    WHERE action_id = NEW.id AND epoch = NEW.epoch AND write_started_at IS NULL AND settled_at IS NULL;
  END IF;
  RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER agent_action_followed AFTER UPDATE OF state, epoch, write_started_at OR DELETE ON agent_action
FOR EACH ROW EXECUTE FUNCTION follow_agent_action();

-- ---------------------------------------------------------------------------------------------------------------------
-- The guard of the dispatch log, of the kinds, and against TRUNCATE

CREATE OR REPLACE FUNCTION guard_agent_action_attempt() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off
AS $$
DECLARE
  refused text;
BEGIN
  IF TG_OP = 'DELETE' THEN
    IF NOT EXISTS (SELECT 1 FROM agent_action WHERE id = OLD.action_id) THEN
      RETURN OLD;
    END IF;
    refused := 'agent_action_attempt: attempts are deleted with their action';
  ELSIF OLD.settled_at IS NOT NULL OR NEW.action_id <> OLD.action_id OR NEW.epoch <> OLD.epoch
    OR NEW.attempt <> OLD.attempt OR NEW.owner <> OLD.owner OR NEW.started_at <> OLD.started_at
    OR NEW.lease_expires_at <> OLD.lease_expires_at
  THEN
    refused := 'agent_action_attempt: a settled attempt never changes, nor does whose it is';
  ELSE
    RETURN NEW;
  END IF;
  RAISE EXCEPTION USING MESSAGE = refused, ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
END
$$;

CREATE OR REPLACE TRIGGER guard_agent_action_attempt BEFORE UPDATE OR DELETE ON agent_action_attempt
FOR EACH ROW EXECUTE FUNCTION guard_agent_action_attempt();

CREATE OR REPLACE FUNCTION guard_agent_action_kind() RETURNS trigger
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off
AS $$
DECLARE
  loosened boolean;
  refused text;
BEGIN
  IF TG_OP = 'DELETE' THEN
    refused := 'agent_action_kind: what a kind promises is kept';
  ELSIF TG_OP = 'UPDATE' AND NEW.kind <> OLD.kind THEN
    refused := 'agent_action_kind: a kind keeps its name';
  ELSE
    -- Looser is further left in this list of the four deliveries. A kind that nobody declared counts as at most once.
    loosened := CASE TG_OP
      WHEN 'INSERT' THEN NEW.delivery <> 'at_most_once'
      ELSE strpos('writes_nothing repeatable reads_back at_most_once', NEW.delivery)
             < strpos('writes_nothing repeatable reads_back at_most_once', OLD.delivery)
           OR NEW.requires_approval < OLD.requires_approval
    END;
    IF loosened THEN
      IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION USING
          MESSAGE = 'agent_action_kind: at this isolation level a kind is not loosened; use READ COMMITTED',
          ERRCODE = 'feature_not_supported';
      END IF;
      -- A fence that is not committed yet cannot be seen, but it holds this lock.
      PERFORM pg_advisory_xact_lock(hashtextextended(NEW.kind, 'agent_action'::regclass::oid::bigint + 4294967296));
      IF EXISTS (SELECT 1 FROM agent_action WHERE kind = NEW.kind AND state = 'EXECUTING' AND write_started_at IS NOT NULL) THEN
        refused := 'agent_action_kind: a write of this kind may exist; loosen it when none of its actions is fenced';
      END IF;
    END IF;
  END IF;
  IF refused IS NOT NULL THEN
    RAISE EXCEPTION USING MESSAGE = refused, ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
  END IF;
  RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER guard_agent_action_kind BEFORE INSERT OR UPDATE OF kind, delivery, requires_approval OR DELETE ON agent_action_kind
FOR EACH ROW EXECUTE FUNCTION guard_agent_action_kind();

CREATE OR REPLACE FUNCTION guard_agent_action_truncate() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
  RAISE EXCEPTION USING
    MESSAGE = TG_TABLE_NAME || ': TRUNCATE would pass by the guard; use DELETE',
    ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME;
END
$$;

CREATE OR REPLACE TRIGGER guard_agent_action_truncate BEFORE TRUNCATE ON agent_action
FOR EACH STATEMENT EXECUTE FUNCTION guard_agent_action_truncate();

CREATE OR REPLACE TRIGGER guard_agent_action_attempt_truncate BEFORE TRUNCATE ON agent_action_attempt
FOR EACH STATEMENT EXECUTE FUNCTION guard_agent_action_truncate();

CREATE OR REPLACE TRIGGER guard_agent_action_kind_truncate BEFORE TRUNCATE ON agent_action_kind
FOR EACH STATEMENT EXECUTE FUNCTION guard_agent_action_truncate();

COMMIT;
