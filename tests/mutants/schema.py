"""Defects of `schema.sql`: what the database itself would no longer refuse or keep."""

from tests.mutants.mutant import Edit, Mutant

SCHEMA = "schema.sql"
STORY = "tests/conformance/test_sqlite.py::TestSqlite::"
LANES = "tests/schema/test_lanes_and_fences.py::"
LIFECYCLE = "tests/schema/test_lifecycle.py::"

MUTANTS = (
    Mutant(
        "lane-index-not-unique",
        "Two executors send two emails of one conversation at the same time.",
        (
            Edit(
                SCHEMA,
                "CREATE UNIQUE INDEX IF NOT EXISTS ux_agent_action_lane_executing",
                "CREATE INDEX IF NOT EXISTS ux_agent_action_lane_executing",
            ),
        ),
        (LANES + "test_p4_two_executing_in_a_lane_break_the_index_too",),
    ),
    Mutant(
        "head-behind-an-executing-one",
        "An action that is enqueued while its lane executes becomes claimable, and overtakes a retry.",
        (
            Edit(
                SCHEMA,
                "earlier.stop_reason IS NULL\n)\nBEGIN\n  UPDATE agent_action SET is_head = 0",
                "earlier.state IN ('PROPOSED', 'ADMITTED')\n)\nBEGIN\n  UPDATE agent_action SET is_head = 0",
            ),
        ),
        ("tests/promises/test_running_promises.py::test_p5_what_comes_while_its_lane_executes_waits",),
    ),
    Mutant(
        "head-passed-on-after-success-alone",
        "After one refused email nothing of its lane is ever sent again.",
        (
            Edit(
                SCHEMA,
                "WHEN OLD.is_head = 1 AND NEW.stop_reason IS NOT NULL",
                "WHEN OLD.is_head = 1 AND NEW.state = 'DONE'",
            ),
        ),
        (LANES + "test_p5_an_end_passes_the_head_on",),
    ),
    Mutant(
        "head-of-a-deleted-one-not-passed-on",
        "Erasing a person stalls every lane in which an action of theirs came next.",
        (
            Edit(
                SCHEMA,
                "WHEN OLD.is_head = 1 AND OLD.lane_key IS NOT NULL\n",
                "WHEN OLD.is_head = 1 AND OLD.lane_key IS NOT NULL AND OLD.ended_at IS NOT NULL\n",
            ),
        ),
        (LANES + "test_p5_a_deleted_head_passes_the_lane_on",),
    ),
    Mutant(
        "guard-without-transitions",
        "A program that mistypes an UPDATE sends an email a second time that was done.",
        (
            Edit(
                SCHEMA,
                "WHEN NOT EXISTS (SELECT 1 FROM agent_action_transition "
                "WHERE from_state = OLD.state AND to_state = NEW.state)",
                "WHEN NOT EXISTS (SELECT 1 FROM agent_action_transition WHERE to_state = NEW.state)",
            ),
        ),
        (LIFECYCLE + "test_p3_every_pair_of_states_is_allowed_exactly_as_the_table_says",),
    ),
    Mutant(
        "guard-of-the-claim-sees-the-epoch-alone",
        "A program that only sets the state makes an email wait for a holder that nobody is.",
        (
            Edit(
                SCHEMA,
                "guard_agent_action_claim BEFORE UPDATE OF state, epoch ON",
                "guard_agent_action_claim BEFORE UPDATE OF epoch ON",
            ),
        ),
        (LIFECYCLE + "test_p6_a_claim_that_leaves_the_epoch_out_is_refused",),
    ),
    Mutant(
        "guard-lets-a-write-be-claimed-again",
        "An older or foreign program reclaims an email that was perhaps sent, and sends it twice.",
        (
            Edit(
                SCHEMA,
                "WHEN NEW.state = 'EXECUTING' AND OLD.write_started_at IS NOT NULL\n",
                "WHEN NEW.state = 'EXECUTING' AND OLD.state = 'ADMITTED' AND OLD.write_started_at IS NOT NULL\n",
            ),
        ),
        (LANES + "test_p8_an_at_most_once_action_is_never_claimed_after_its_write",),
    ),
    Mutant(
        "guard-knows-declared-kinds-alone",
        "A kind that nobody declared in this database is sent again after its write.",
        (
            Edit(
                SCHEMA,
                "AND NOT EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = OLD.kind AND delivery <> 'at_most_once')",
                "AND EXISTS (SELECT 1 FROM agent_action_kind WHERE kind = OLD.kind AND delivery = 'at_most_once')",
            ),
        ),
        ("tests/promises/test_p08_at_most_once.py::test_p8_a_kind_nobody_declared_counts_as_at_most_once",),
    ),
    Mutant(
        "guard-believes-the-promise-of-another-kind",
        "As soon as one kind may be repeated, a crash while an email is sent sends it again.",
        (
            Edit(
                SCHEMA,
                "WHERE kind = OLD.kind AND delivery <> 'at_most_once'",
                "WHERE delivery <> 'at_most_once'",
            ),
        ),
        (LANES + "test_p8_an_at_most_once_action_is_never_claimed_after_its_write",),
    ),
    Mutant(
        "guard-of-the-approval-forgotten",
        "What an agent proposed is sent although nobody approved it.",
        (
            Edit(
                SCHEMA,
                "WHEN OLD.state = 'PROPOSED' AND NEW.state = 'ADMITTED' AND NEW.decided_by IS NULL\n",
                "WHEN OLD.state = 'PROPOSED' AND NEW.state = 'ADMITTED' AND NEW.decided_by = ''\n",
            ),
        ),
        ("tests/schema/test_inserts.py::test_p3_a_kind_that_requires_approval_is_only_proposed",),
    ),
    Mutant(
        "erasure-leaves-the-dispatch-log",
        "A person who asked to be forgotten stays in the log with every attempt to write to them.",
        (
            Edit(
                SCHEMA,
                "  DELETE FROM agent_action_attempt WHERE action_id = OLD.id;\n",
                "",
            ),
        ),
        (
            STORY + "test_p13_erasing_a_subject_deletes_its_actions_in_every_state",
            LANES + "test_p13_attempts_are_deleted_with_their_action_and_not_before",
        ),
    ),
    Mutant(
        "payload-kept-at-the-end",
        "The text of every email stays in the database for as long as the action is kept.",
        (
            Edit(
                SCHEMA,
                "CHECK ((payload IS NULL) = (stop_reason IS NOT NULL)),",
                "CHECK (payload IS NOT NULL OR stop_reason IS NOT NULL),",
            ),
            Edit(
                "edgeoutbox/storage/sqlite/settling.py",
                "SET state = ?, stop_reason = ?, payload = NULL, is_head = 0,",
                "SET state = ?, stop_reason = ?, is_head = 0,",
            ),
        ),
        (
            LIFECYCLE + "test_p3_an_ended_action_keeps_no_payload",
            STORY + "test_an_end_is_recorded_with_its_reason",
        ),
    ),
    Mutant(
        "fence-cleared-while-it-executes",
        "A program that takes back the mark of a write lets the email be sent a second time.",
        (
            Edit(
                SCHEMA,
                "       OR (OLD.write_started_at IS NOT NULL AND NEW.write_started_at IS NULL "
                "AND NEW.state = 'EXECUTING'))\n",
                "      )\n",
            ),
        ),
        (LANES + "test_p8_a_fence_is_not_cleared_while_the_action_executes",),
    ),
)
