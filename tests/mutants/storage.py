"""Defects of the SQLite storage: claims, fences, settlements, hooks, and the commits that they share."""

from tests.mutants.mutant import Edit, Mutant

BACKEND = "edgeoutbox/storage/sqlite/backend.py"
CLAIMING = "edgeoutbox/storage/sqlite/claiming.py"
COMMITTER = "edgeoutbox/storage/sqlite/committer.py"
HOOKS = "edgeoutbox/storage/sqlite/hooks.py"
STATISTICS = "edgeoutbox/storage/sqlite/statistics.py"
VERSIONS = "edgeoutbox/storage/sqlite/schema.py"
ENQUEUEING = "edgeoutbox/storage/statements/enqueueing.py"
KINDS = "edgeoutbox/storage/statements/kinds.py"

STORY = "tests/conformance/test_sqlite.py::TestSqlite::"
DURABLE = "tests/storage/test_durability.py::"
SHARED = "tests/storage/test_committer.py::"

MUTANTS = (
    Mutant(
        "fence-not-synced",
        "After a power cut the mark of a write is gone, and the email is sent a second time.",
        (
            Edit(
                BACKEND,
                "            schema.migrate(connection)\n",
                "            schema.migrate(connection)\n"
                '            connection.execute("PRAGMA synchronous = NORMAL")\n',
            ),
        ),
        (DURABLE + "test_p7_a_fence_survives_the_loss_of_everything_that_was_not_synced",),
    ),
    Mutant(
        "fence-answered-before-its-commit",
        "A process that dies between the call and the commit of its fence makes the call a second time.",
        (
            Edit(
                COMMITTER,
                "            _run_shared(connection, shared)\n",
                "            _run_shared(connection, shared)\n"
                "            self._unanswered = [operation for many in shared.values() for operation in many]\n",
            ),
        ),
        (SHARED + "test_nobody_is_answered_while_the_commit_is_under_way",),
    ),
    Mutant(
        "batch-answered-before-its-commit",
        "An order is confirmed to its customer, and its receipt was never stored.",
        (
            Edit(
                COMMITTER,
                '            connection.execute("COMMIT")\n        except Exception:  # noqa: BLE001 - each runs again',
                "            self._unanswered = batch\n"
                "            self._answer()\n"
                '            connection.execute("COMMIT")\n        except Exception:  # noqa: BLE001 - each runs again',
            ),
        ),
        (SHARED + "test_nobody_is_answered_while_the_commit_is_under_way",),
    ),
    Mutant(
        "half-of-a-failed-operation-kept",
        "A follow-up that was refused half way has superseded what it was to replace.",
        (
            Edit(
                COMMITTER,
                "        if not (operation.single and connection.in_transaction):\n",
                "        if not connection.in_transaction:\n",
            ),
        ),
        (SHARED + "test_an_operation_that_fails_half_way_makes_each_run_alone",),
    ),
    Mutant(
        "failed-batch-not-rolled-back",
        "One refused enqueue makes those fail that happened to share its transaction.",
        (
            Edit(
                COMMITTER,
                "            _roll_back(connection)\n            return False\n",
                "            return False\n",
            ),
        ),
        (SHARED + "test_an_operation_that_fails_half_way_makes_each_run_alone",),
    ),
    Mutant(
        "attempt-of-any-epoch",
        "The late answer to a first attempt ends the action under the second, which still writes.",
        (Edit(CLAIMING, "held.id AND agent_action.epoch = held.epoch AND", "held.id AND"),),
        (
            STORY + "test_p6_stale_settle_after_a_retry_and_claim_of_the_same_owner_changes_nothing",
            STORY + "test_p6_a_stale_fence_after_a_retry_claimed_by_the_same_owner_is_refused",
        ),
    ),
    Mutant(
        "attempt-of-any-owner",
        "A call that outlived its attempt gets a fence while the action waits to be read back, and posts twice.",
        (Edit(CLAIMING, " AND lease_owner = held.owner\n", "\n"),),
        (
            STORY + "test_p6_stale_settle_after_a_reread_changes_nothing",
            STORY + "test_p6_a_stale_fence_after_a_reread_is_refused",
        ),
    ),
    Mutant(
        "statistics-still-known",
        "Somebody analyzed the new and empty database; a month later it sends one email in a second.",
        (Edit(STATISTICS, "            connection.execute(READ_AGAIN)\n", ""),),
        ("tests/storage/test_statistics.py::test_p15_statistics_of_nearly_empty_tables_are_forgotten",),
    ),
    Mutant(
        "claim-takes-a-write-again",
        "After a crash in the middle of sending, the claim asks for the email again, and its kind stands still.",
        (
            Edit(
                CLAIMING,
                "AND (write_started_at IS NULL OR NOT {at_most_once}) AND {condition}",
                "AND (write_started_at IS NULL OR {at_most_once}) AND {condition}",
            ),
        ),
        (
            STORY + "test_p8_a_fenced_action_of_an_at_most_once_kind_is_not_reclaimed",
            STORY + "test_a_fenced_action_of_another_kind_is_reclaimed_with_its_fence",
        ),
    ),
    Mutant(
        "claim-of-its-own-running-attempt",
        "An attempt that overran its lease is run a second time beside itself.",
        (
            Edit(
                CLAIMING,
                "AND lease_expires_at <= {now} AND lease_owner IS NOT ?\n",
                "AND lease_expires_at <= {now} AND ? IS NOT NULL\n",
            ),
        ),
        (STORY + "test_an_owner_never_reclaims_its_own",),
    ),
    Mutant(
        "run-now-overtakes-its-lane",
        "An action that is run by hand overtakes what stands before it.",
        (
            Edit(
                CLAIMING,
                "AND state = 'ADMITTED' AND is_head = 1 AND (expires_at IS NULL OR expires_at > {now})\n"
                "  AND {open_kind}",
                "AND state = 'ADMITTED' AND (expires_at IS NULL OR expires_at > {now})\n  AND {open_kind}",
            ),
        ),
        (STORY + "test_claim_one_ignores_nothing_else",),
    ),
    Mutant(
        "expiry-ignored-by-the-fence",
        "A code that was valid for ten minutes is sent after an hour.",
        (Edit(CLAIMING, "COALESCE(expires_at <= {NOW}, 0)", "0"),),
        (STORY + "test_an_expired_action_is_not_fenced",),
    ),
    Mutant(
        "short-lease-ignored-by-the-fence",
        "A call begins just before its lease ends, and another executor reads back before it has arrived.",
        (
            Edit(
                CLAIMING,
                "        elif lease_left < attempts[place][3]:\n",
                "        elif lease_left < 0:\n",
            ),
        ),
        (STORY + "test_p8_each_window_is_judged_by_itself",),
    ),
    Mutant(
        "cooling-ignored-by-claims",
        "A provider that asked for quiet is called by every process all the same, and closes the account.",
        (Edit(CLAIMING, "(paused_by IS NOT NULL OR cooling_until > {NOW})", "paused_by IS NOT NULL"),),
        (STORY + "test_a_cooling_kind_is_not_claimed",),
    ),
    Mutant(
        "kind-loosened-by-a-declaration",
        "A second program with an old configuration lets emails be sent again that may have arrived.",
        (
            Edit(
                KINDS,
                "stricter = max(stored, kind.delivery, key=lambda delivery: delivery.strictness)",
                "stricter = kind.delivery or stored",
            ),
        ),
        (STORY + "test_p8_two_programs_that_declare_a_kind_differently_get_the_stricter",),
    ),
    Mutant(
        "repeat-changes-the-payload",
        "A second request with the key of a first one changes what is sent, while it waits.",
        (
            Edit(
                ENQUEUEING,
                "ON CONFLICT (idempotency_key) DO NOTHING\n",
                "ON CONFLICT (idempotency_key) DO UPDATE\n"
                "SET payload = excluded.payload, payload_digest = excluded.payload_digest\n",
            ),
            Edit(
                "schema.sql",
                "WHEN (NEW.payload IS NOT NULL AND NEW.payload IS NOT OLD.payload)\n"
                "  OR (OLD.payload_digest IS NOT NULL AND NEW.payload_digest IS NOT OLD.payload_digest)\n",
                "WHEN NEW.payload IS NOT NULL AND OLD.payload IS NULL\n",
            ),
        ),
        (STORY + "test_p2_a_repeat_with_other_content_says_so",),
    ),
    Mutant(
        "repeated-supersede-supersedes",
        "A request that is repeated after a lost answer cancels everything that came after it.",
        (Edit(ENQUEUEING, "        if not holder:\n", "        if not holder or supersede:\n"),),
        (STORY + "test_supersede_repeated_with_the_same_key_supersedes_nothing",),
    ),
    Mutant(
        "hook-after-the-transaction",
        "A process that dies after the end leaves an order unmarked although its receipt was sent.",
        (
            Edit(
                BACKEND,
                "        return await self._with_hooks(\n            {kind: hook}, lambda connection, hooks_: "
                "settling.settle(connection, claim, settlement, hooks_[kind])\n        )\n",
                "        recorded = await self._committer.submit_to(settling.settle_many, (claim, settlement))\n"
                "        await self._with_hooks({kind: hook}, lambda connection, owed: "
                "hooks.run_owed(connection, owed, 20))\n"
                "        return recorded\n",
            ),
        ),
        ("tests/executor/test_hooks.py::test_a_hook_moves_a_domain_row_in_the_ending_transaction",),
    ),
    Mutant(
        "hook-error-undoes-the-end",
        "A defect in the application's own hook takes back that an email was sent.",
        (
            Edit(
                HOOKS,
                "        connection.execute(UNDO)\n",
                "        if isinstance(error, Exception):\n"
                '            raise HookError("the ended hook failed") from None\n'
                "        connection.execute(UNDO)\n",
            ),
        ),
        (STORY + "test_p9_a_hook_that_raises_does_not_undo_the_end",),
    ),
    Mutant(
        "newer-schema-taken-for-readable",
        "An old build works on a database that it does not understand any more.",
        (Edit(VERSIONS, "    if readable_from > build:\n", "    if readable_from > version:\n"),),
        ("tests/schema/test_versions.py::test_a_newer_schema_that_is_not_readable_is_refused_untouched",),
    ),
)
