"""Defects of the executor: time limits, shutdown, and what a result is taken to mean."""

from tests.mutants.mutant import Edit, Mutant

ATTEMPT = "edgeoutbox/executor/attempt.py"
LOOP = "edgeoutbox/executor/loop.py"
RUNNING = "edgeoutbox/executor/running.py"
SETTLEMENTS = "edgeoutbox/settlements.py"

VERDICTS = "tests/values/test_settlements.py::"
TRAPS = "tests/executor/test_traps.py::"
PRIVATE = "tests/promises/test_p12_private.py::"

MUTANTS = (
    Mutant(
        "write-window-not-kept-free",
        "An attempt that prepared for as long as its lease begins a write that outlives it.",
        (
            Edit(
                ATTEMPT,
                "claimed + (self._kind.lease - (self._kind.write_window if writes else 0.0))",
                "claimed + self._kind.lease",
            ),
        ),
        (TRAPS + "test_a_lease_shorter_than_its_window_never_stalls_the_lane",),
    ),
    Mutant(
        "sleep-between-fence-and-call-unseen",
        "A laptop that was closed at the wrong moment sends an email hours after its lease ended.",
        (
            Edit(
                ATTEMPT,
                "        if slept > MOST_SLEEP or before + answer.lease_left / 1000 - after < window:\n",
                "        if slept > MOST_SLEEP and before + answer.lease_left / 1000 - after < 0:\n",
            ),
        ),
        (TRAPS + "test_a_machine_that_slept_between_fence_and_call",),
    ),
    Mutant(
        "exception-after-the-fence-taken-for-proof",
        "A defect in an adapter, after its call went out, lets the email be sent again.",
        (
            Edit(
                SETTLEMENTS,
                "fenced = facts.fenced and outcome.by is not Interruption.ASLEEP\n",
                "fenced = facts.fenced and outcome.by not in {Interruption.ASLEEP, Interruption.ERROR}\n",
            ),
        ),
        (VERDICTS + "test_p8_doubt_never_becomes_a_second_send",),
    ),
    Mutant(
        "deferral-clears-an-earlier-fence",
        "A rate limit while an earlier post is looked for lets it be posted again.",
        (
            Edit(
                SETTLEMENTS,
                "    state = State.EXECUTING if facts.inherited else State.ADMITTED\n"
                '    if outcome.scope == "action":\n',
                '    state = State.ADMITTED\n    if outcome.scope == "action":\n',
            ),
        ),
        (TRAPS + "test_an_inherited_fence_survives_the_next_attempt",),
    ),
    Mutant(
        "reread-of-an-at-most-once-kind",
        "An adapter that cannot read back leaves emails open that nobody may end any more.",
        (
            Edit(
                SETTLEMENTS,
                '        return Verdict(_doubt(outcome), "an at-most-once kind cannot reread")\n',
                '        return Verdict(_read_again(outcome, outcome.reason, facts), "cannot reread")\n',
            ),
        ),
        (VERDICTS + "test_p9_a_result_that_should_not_be_is_recorded_all_the_same",),
    ),
    Mutant(
        "result-lost-on-a-full-disk",
        "A confirmed email ends UNCERTAIN because the disk was full for a moment.",
        (
            Edit(
                RUNNING,
                "            except (DatabaseBusy, DatabaseUnavailable) as error:\n"
                "                self._reports.storage(error)\n"
                "            except ForbiddenByGuard:\n",
                "            except DatabaseBusy as error:\n"
                "                self._reports.storage(error)\n"
                "            except (ForbiddenByGuard, DatabaseUnavailable):\n",
            ),
        ),
        ("tests/power/test_faults.py::test_p9_an_outage_is_waited_for",),
    ),
    Mutant(
        "shutdown-waits-for-no-settlement",
        "Each restart leaves the emails that were under way to their leases, and ends them UNCERTAIN.",
        (
            Edit(
                RUNNING,
                "        if not self._attempts:\n            return\n        # Also those",
                "        for task in self._attempts.values():\n            task.cancel()\n        return\n"
                "        # Also those",
            ),
        ),
        ("tests/executor/test_shutdown.py::test_a_stop_leaves_a_settlement_its_time",),
    ),
    Mutant(
        "shutdown-cancels-a-settlement",
        "A restart just after the provider's confirmation forgets it, and the email ends UNCERTAIN.",
        (
            Edit(
                RUNNING,
                "            if not attempt.settled:\n                attempt.shutting_down = True\n"
                "                task.cancel()\n",
                "            attempt.shutting_down = True\n            task.cancel()\n",
            ),
        ),
        ("tests/executor/test_shutdown.py::test_a_stop_leaves_a_settlement_its_time",),
    ),
    Mutant(
        "leases-believed-after-a-clock-jump",
        "When the clock of a machine is set forward, every running attempt is taken by another executor.",
        (Edit(LOOP, "reclaim=not self._drift.suspicious()", "reclaim=True"),),
        ("tests/executor/test_clocks.py::test_whoever_saw_the_clock_jump_takes_nothing_for_one_lease",),
    ),
    Mutant(
        "payload-in-a-log-line",
        "The text of an email, with its address, is read by everybody who reads logs.",
        (
            Edit(
                ATTEMPT,
                "            why=str(error),\n",
                "            why=str(error),\n            payload=self.claim.action.payload,\n",
            ),
        ),
        (PRIVATE + "test_p12_nothing_private_is_logged_counted_or_stored",),
    ),
    Mutant(
        "message-of-an-exception-stored",
        "A provider's own words, with the password in them, stand in the database and in every report.",
        (
            Edit(
                ATTEMPT,
                "    return Interrupted(Interruption.ERROR, type(error).__name__)\n",
                "    return Interrupted(Interruption.ERROR, str(error))\n",
            ),
        ),
        (PRIVATE + "test_p12_nothing_private_is_logged_counted_or_stored",),
    ),
)
