"""Defects of the built-in adapters: what an answer proves, and what comes before the fence."""

from tests.mutants.mutant import Edit, Mutant

TRANSACTION = "adapters/edgeoutbox_smtp/transaction.py"
READBACK = "adapters/edgeoutbox_slack/readback.py"
SLACK_VERDICTS = "adapters/edgeoutbox_slack/verdicts.py"
SLACK_ANSWERS = "adapters/edgeoutbox_slack/answers.py"
WEBHOOK = "adapters/edgeoutbox_webhook/adapter.py"
EXCHANGE = "adapters/edgeoutbox_webhook/exchange.py"

SMTP_TABLE = "tests/adapters/test_smtp_table.py::test_what_a_relay_does_proves_this"

MUTANTS = (
    Mutant(
        "email-fence-after-the-call",
        "A crash while the relay takes a message is taken for one before it, and the email is sent twice.",
        (
            Edit(
                TRANSACTION,
                "            window = (await fence()).seconds\n"
                "            deadline = Deadline.after(window * (1 - _MARGIN))\n"
                "            await self._body(deadline.earlier(window * _FOR_THE_REPLY))\n"
                "            return await self._terminator(deadline)\n",
                "            await self._body(before_fence)\n"
                "            result = await self._terminator(before_fence)\n"
                "            await fence()\n"
                "            return result\n",
            ),
        ),
        (
            "tests/adapters/test_smtp_fence.py::test_the_fence_is_asked_for_just_before_data",
            "tests/adapters/test_smtp_fence.py::test_a_refused_fence_sends_nothing",
        ),
    ),
    Mutant(
        "email-loss-after-the-dot-retried",
        "A connection that breaks after the message was handed over sends it a second time.",
        (
            Edit(
                TRANSACTION,
                '            return Uncertain(f"{broken} after the message was handed over", self._evidence())\n',
                '            return Retry(f"{broken} after the message was handed over", evidence=self._evidence())\n',
            ),
        ),
        (SMTP_TABLE + "[dot-lost,-taken]", SMTP_TABLE + "[dot-hung]"),
    ),
    Mutant(
        "email-confirmation-lost-with-the-connection",
        "Emails that the relay took end UNCERTAIN because it hung up without a farewell.",
        (
            Edit(
                TRANSACTION,
                "            reply = await wire.reply(deadline.left())\n",
                "            reply = await wire.reply(deadline.left())\n"
                "            if reply.code < 300:\n"
                '                await wire.command(b"QUIT", deadline.left())\n',
            ),
        ),
        (SMTP_TABLE + "[QUIT-reset]",),
    ),
    Mutant(
        "email-sent-to-some",
        "One refused address of three, and the others get the email again with each try.",
        (Edit(TRANSACTION, "        if not refused:\n", "        if len(refused) < len(replies):\n"),),
        (SMTP_TABLE + "[RCPT-some-5xx]", SMTP_TABLE + "[RCPT-some-4xx]"),
    ),
    Mutant(
        "email-ends-at-a-dot",
        "A message with a line that holds one dot arrives without its rest.",
        (
            Edit(
                TRANSACTION,
                '        stuffed = _DOTS.sub(b"..", self.composed.content)\n',
                "        stuffed = self.composed.content\n",
            ),
        ),
        ("tests/adapters/test_smtp_fence.py::test_a_big_message_arrives_whole",),
    ),
    Mutant(
        "slack-looks-at-one-page",
        "A post that was made is taken for absent, as soon as its channel is busy.",
        (
            Edit(
                READBACK,
                "            if mark.cursor is None:\n                return Absent(mark.pages, mark.closed)\n",
                "            return Absent(mark.pages, mark.closed)\n",
            ),
        ),
        ("tests/adapters/test_slack_readback.py::test_every_page_is_read",),
    ),
    Mutant(
        "slack-window-too-short",
        "A post of a slow attempt is looked for where it cannot be, and called absent.",
        (
            Edit(
                READBACK,
                "first_write + round((lease + write_window) * 1000) + AFTER",
                "first_write + round(write_window * 1000)",
            ),
        ),
        ("tests/adapters/test_slack_readback.py::test_the_window_covers_every_possible_write",),
    ),
    Mutant(
        "slack-limit-cools-no-kind",
        "Every waiting post asks again at once after a 429, and Slack blocks the app.",
        (
            Edit(
                SLACK_VERDICTS,
                '    return Defer(answer.said, answer.rest, scope="kind", evidence=evidence)\n',
                "    return Defer(answer.said, answer.rest, evidence=evidence)\n",
            ),
        ),
        (
            "tests/adapters/test_slack_table.py::test_a_limit_defers_the_kind_for_as_long_as_slack_says",
            "tests/adapters/test_slack_whole.py::test_a_limit_cools_the_kind_in_every_process",
        ),
    ),
    Mutant(
        "slack-server-error-taken-for-proof",
        "A 500 that followed the post makes it a second time.",
        (
            Edit(
                SLACK_ANSWERS,
                '        return Answer(Meaning.UNCLEAR, f"Slack answered with status {status}", status=status)\n',
                '        return Answer(Meaning.LATER, f"Slack answered with status {status}", status=status)\n',
            ),
        ),
        ("tests/adapters/test_slack_table.py::test_a_server_error_is_reread",),
    ),
    Mutant(
        "webhook-without-a-fence",
        "A crash during a call makes it again, though it was to be made at most once.",
        (
            Edit(
                WEBHOOK,
                "            window = await attempt.begin_write()\n"
                "            verdicts.require_time(attempt.write_started_at)\n"
                "            return window.seconds\n",
                "            verdicts.require_time(attempt.write_started_at)\n"
                "            return self.kind.write_window\n",
            ),
        ),
        ("tests/adapters/test_webhook_whole_way.py::test_a_stopped_executor_leaves_a_doubt",),
    ),
    Mutant(
        "webhook-timeout-retried",
        "An endpoint that is slow to answer is charged twice.",
        (
            Edit(
                EXCHANGE,
                "                late = isinstance(error, TimeoutError)\n",
                "                late = isinstance(error, TimeoutError)\n"
                "                if late:\n"
                "                    return NothingSent()\n",
            ),
        ),
        ("tests/adapters/test_webhook_fence.py::test_an_answer_is_awaited_no_longer_than_the_window",),
    ),
    Mutant(
        "webhook-redirect-followed",
        "An endpoint that was taken over sends a signed call on to wherever it likes.",
        (Edit(EXCHANGE, "allow_redirects=False", "allow_redirects=True"),),
        ("tests/adapters/test_webhook_answers.py::test_a_redirect_is_not_followed",),
    ),
    Mutant(
        "webhook-id-of-each-attempt",
        "An endpoint that deduplicates cannot: each repeat comes with another id.",
        (
            Edit(
                WEBHOOK,
                "webhook_id(self.kind.name, name, action.idempotency_key)",
                'webhook_id(self.kind.name, name, f"{action.idempotency_key}:{action.epoch}")',
            ),
        ),
        ("tests/adapters/test_webhook_whole_way.py::test_a_lost_answer_is_sent_again_where_ids_are_deduplicated",),
    ),
)
