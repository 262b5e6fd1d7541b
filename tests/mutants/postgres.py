"""Defects of the room of Postgres: what many writers and a server that goes away make necessary."""

from tests.mutants.mutant import Edit, Mutant

SCHEMA = "edgeoutbox/storage/postgres.sql"
CLAIMING = "edgeoutbox/storage/postgres/claiming.py"
COMMITTER = "edgeoutbox/storage/postgres/committer.py"
SETTLING = "edgeoutbox/storage/postgres/settling.py"

STORY = "tests/conformance/test_postgres.py::TestPostgres::"
LANES = "tests/postgres/test_lanes.py::"
RULES = "tests/postgres/test_schema.py::"
WAKING = "tests/postgres/test_waking.py::"
BATCHES = "tests/storage/test_postgres_batches.py::"
FAILURES = "tests/storage/test_postgres_failures.py::"

MUTANTS = (
    Mutant(
        "postgres-lane-not-locked-by-an-insert",
        "Two programs write to one conversation at once, and the later message is sent first.",
        (
            Edit(
                SCHEMA,
                "        PERFORM pg_advisory_xact_lock(hashtextextended(NEW.lane_key, TG_RELID::bigint));\n",
                "",
            ),
        ),
        (LANES + "test_p5_within_a_lane_the_order_of_ids_is_the_order_of_commits",),
    ),
    Mutant(
        "postgres-head-passed-on-before-the-commit",
        "What is enqueued while the one before it ends heads no lane, and is never sent.",
        (
            Edit(
                SCHEMA,
                "AFTER UPDATE OF state ON agent_action\n    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW",
                "AFTER UPDATE OF state ON agent_action\n    DEFERRABLE INITIALLY IMMEDIATE FOR EACH ROW",
            ),
        ),
        (LANES + "test_p5_a_transaction_can_see_the_new_head_before_it_commits[ended]",),
    ),
    Mutant(
        "postgres-lane-not-locked-by-an-end",
        "What is enqueued at the moment at which the one before it ends heads no lane, and is never sent.",
        (Edit(SCHEMA, "  PERFORM pg_advisory_xact_lock(hashtextextended(lane, -TG_RELID::bigint));\n", ""),),
        (
            LANES + "test_p5_an_insert_that_commits_while_the_end_commits_waits_and_becomes_head",
            LANES + "test_p5_an_end_that_commits_while_the_insert_commits_waits_and_passes_the_lane_on",
        ),
    ),
    Mutant(
        "postgres-lane-index-not-unique",
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
        "postgres-kind-loosened-beside-a-fence",
        "A configuration that is changed while an email is being sent lets it be sent again.",
        (
            Edit(
                SCHEMA,
                "    PERFORM pg_advisory_xact_lock_shared("
                "hashtextextended(NEW.kind, TG_RELID::bigint + 4294967296));\n",
                "    NULL;\n",
            ),
        ),
        (RULES + "test_p8_a_kind_is_not_loosened_while_a_fence_is_being_committed",),
    ),
    Mutant(
        "postgres-next-of-a-lane-wakes-nobody",
        "Each message of a conversation waits for seconds after the one before it.",
        (Edit(SCHEMA, "AFTER UPDATE OF state, is_head, due_at ON", "AFTER UPDATE OF state, due_at ON"),),
        (WAKING + "test_the_next_of_a_lane_wakes",),
    ),
    Mutant(
        "postgres-claim-fails-over-what-is-held",
        "An application that holds one row keeps every executor from everything else.",
        (
            Edit(
                CLAIMING,
                "WHERE {IS_DUE} ORDER BY due_at, id LIMIT ? FOR NO KEY UPDATE SKIP LOCKED\n",
                "WHERE {IS_DUE} ORDER BY due_at, id LIMIT ? FOR NO KEY UPDATE NOWAIT\n",
            ),
        ),
        (BATCHES + "test_a_claim_passes_over_what_is_held_and_is_told_to_look_again",),
    ),
    Mutant(
        "postgres-fence-of-any-epoch",
        "An attempt that was overtaken on another host still gets its fence, and both post.",
        (
            Edit(
                CLAIMING,
                "WHERE action.epoch = asked.epoch AND lease_owner = asked.owner",
                "WHERE lease_owner = asked.owner",
            ),
        ),
        (STORY + "test_p6_a_stale_fence_after_a_retry_claimed_by_the_same_owner_is_refused",),
    ),
    Mutant(
        "postgres-fence-judged-before-its-wait",
        "A fence that waited for a row begins a write that outlives its lease, and another host writes too.",
        (
            Edit(
                CLAIMING,
                "    yield Ahead(LOCK, (json.dumps([attempt[0] for attempt in attempts]),))\n",
                "",
            ),
        ),
        (BATCHES + "test_p7_a_fence_that_waited_for_its_row_is_judged_by_the_time_after_that",),
    ),
    Mutant(
        "postgres-settle-of-any-epoch",
        "The late answer to a first attempt ends the action under the second, which still writes.",
        (
            Edit(
                SETTLING,
                "WHERE action.epoch = said.epoch AND lease_owner = said.owner",
                "WHERE lease_owner = said.owner",
            ),
        ),
        (STORY + "test_p6_stale_settle_after_a_retry_and_claim_of_the_same_owner_changes_nothing",),
    ),
    Mutant(
        "postgres-fence-not-durable",
        "On a server that is set to be fast, a power cut takes the mark of a write, and the email is sent again.",
        (Edit(COMMITTER, "current_setting('synchronous_commit') NOT IN ({AT_LEAST_ON})", "false"),),
        (FAILURES + "test_p7_a_fence_is_durable_whatever_the_server_prefers",),
    ),
    Mutant(
        "postgres-fence-answered-before-its-commit",
        "A connection that breaks just then makes an executor send what is not marked, and another sends it too.",
        (
            Edit(
                COMMITTER,
                "    return [answers[operation] for operation in batch]\n",
                "    for operation in batch:\n"
                "        operation.answer(answers[operation])\n"
                "    return [answers[operation] for operation in batch]\n",
            ),
        ),
        (FAILURES + "test_p9_a_commit_whose_answer_is_lost_is_looked_up[before]",),
    ),
    Mutant(
        "postgres-lost-answer-taken-for-failure",
        "A connection that breaks just after a commit ends a confirmed email UNCERTAIN.",
        (
            Edit(
                COMMITTER,
                "if xid is not None and not await self._committed(xid, session.life):\n",
                "if xid is not None:\n",
            ),
        ),
        (FAILURES + "test_p9_a_commit_whose_answer_is_lost_is_looked_up[behind]",),
    ),
    Mutant(
        "postgres-fate-of-a-crash-believed",
        "A server that crashes says of a lost fence that it is stored, and the email is sent twice.",
        (
            Edit(
                COMMITTER,
                "                                fate = None\n",
                "                                pass\n",
            ),
        ),
        (FAILURES + "test_p7_an_id_that_a_crash_gave_to_another_proves_nothing",),
    ),
)
