"""Slack posts all the way: enqueued, claimed, fenced, posted, lost, looked for and ended."""

from typing import Any, Literal

import pytest

from edgeoutbox import ActionRequest, Executor, Outbox, State
from edgeoutbox.testing import drain, until
from edgeoutbox_slack import Post, SlackAdapter, SlackNotice
from edgeoutbox_slack.testing import Drop, Hang, Limit, On, Refuse, SlackServer, duplicates
from tests.adapters.slack_building import CHANNEL, HISTORY, JANE, POST, REPLIES, an_adapter
from tests.executor.world import World, outcome, the

OTHER = "C0OTHER"


@pytest.fixture(autouse=True)
def _brisk_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reap fifty times a second, so that no test waits for the next full one."""
    monkeypatch.setattr("edgeoutbox.executor.upkeep.TICK", 0.02)


async def a_slack(world: World, *script: On, **options: Any) -> SlackServer:
    """A server on the world's clock, with two channels and a person."""
    server = SlackServer(*script, now=world.clock.wall, **options)
    for channel in (CHANNEL, OTHER):
        server.add_channel(channel)
    server.add_person(JANE)
    return await world.stack.enter_async_context(server)


async def post(outbox: Outbox, adapter: SlackAdapter, key: str, channel: str = CHANNEL, **fields: Any) -> int:
    """Enqueue a literal message, with these fields, in its natural lane."""
    payload = adapter.kind.variants.validate({"notice": "message", "channel": channel, "text": key, **fields})
    lane = adapter.lane(payload)
    request = ActionRequest(kind="slack_post", idempotency_key=key, lane_key=lane, payload=payload)
    return (await outbox.enqueue(request)).id


async def results(outbox: Outbox, action: int) -> list[str | None]:
    """What each attempt of an action said."""
    return [attempt.result for attempt in await outbox.attempts(action)]


async def test_a_lost_answer_is_read_back(world: World) -> None:
    """The post exists once, and its action is DONE with what was found."""
    slack = await a_slack(world, On(POST, Drop(), call=1, keeps=True))
    adapter = an_adapter(slack)
    outbox, executor = await world.running(adapter)
    action = await post(outbox, adapter, "a", JANE)
    await drain(executor, world.clock)
    ended = await the(outbox, action)
    [posted] = slack.posts
    assert outcome(ended) == ("DONE", "READ_BACK")
    assert ended.readback_ref == f"D0JANE:{posted.ts}"
    assert await results(outbox, action) == ["Reread", "Done"]


async def test_a_post_that_shows_late_is_read_back(world: World) -> None:
    """A history that does not show it yet is looked at again."""
    slack = await a_slack(world, On(POST, Drop(), keeps=True, hidden=200.0))
    adapter = an_adapter(slack)
    outbox, executor = await world.running(adapter)
    action = await post(outbox, adapter, "a")
    await drain(executor, world.clock)
    assert outcome(await the(outbox, action)) == ("DONE", "READ_BACK")
    assert (await results(outbox, action))[:2] == ["Reread", "Reread"]
    assert slack.calls(POST) == 1


async def test_a_limit_met_by_a_look_keeps_the_fence(world: World) -> None:
    """The kind rests, the attempt does not count, and the action still knows that a post may exist."""
    slack = await a_slack(world, On(POST, Drop(), call=1, keeps=True), On(HISTORY, Limit("45"), call=1))
    adapter = an_adapter(slack)
    outbox, executor = await world.running(adapter)
    action = await post(outbox, adapter, "a")
    await executor.until_idle()
    fenced_at = (await the(outbox, action)).write_started_at
    await world.passes(11)
    await until(lambda: slack.calls(HISTORY) == 1)
    await executor.until_idle()
    resting = await the(outbox, action)
    assert (resting.state, resting.write_started_at, resting.attempt) == (State.EXECUTING, fenced_at, 1)
    assert fenced_at is not None
    assert "cools down" in await outbox.why(await post(outbox, adapter, "b", OTHER))
    await drain(executor, world.clock)
    assert outcome(await the(outbox, action)) == ("DONE", "READ_BACK")
    assert await results(outbox, action) == ["Reread", "Defer", "Done"]
    assert duplicates(slack.posts) == {}


async def test_a_limit_cools_the_kind_in_every_process(world: World) -> None:
    """One met it, and no other asks before the rest is over; no attempt is spent."""
    slack = await a_slack(world, On(POST, Limit("45"), call=1))
    first, one = await world.running(an_adapter(slack))
    action = await post(first, an_adapter(slack), "a")
    await one.until_idle()
    second, other = await world.running(an_adapter(slack))
    later = await post(second, an_adapter(slack), "b", OTHER)
    for executor in (one, other):
        await executor.until_idle()
    assert slack.calls(POST) == 1
    await world.passes(46)
    await until(lambda: slack.calls(POST) == 3)
    for executor in (one, other):
        await executor.until_idle()
    assert [outcome(await the(first, id_)) for id_ in (action, later)] == [("DONE", "CONFIRMED")] * 2
    assert (await the(first, action)).attempt == 1
    assert len(slack.posts) == 2


async def test_a_refused_token_cools_the_kind(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is spent and nothing is posted until the token is accepted again."""
    slack = await a_slack(world)
    accepted, slack.token = slack.token, "xoxb-another"
    adapter = an_adapter(slack, token=accepted)
    outbox, executor = await world.running(adapter)
    actions = [await post(outbox, adapter, key, channel) for key, channel in (("a", CHANNEL), ("b", OTHER))]
    await executor.until_idle()
    waiting = [await the(outbox, action) for action in actions]
    assert [(action.state, action.attempt) for action in waiting] == [(State.ADMITTED, 0)] * 2
    assert slack.calls(POST) == 0
    assert len([record for record in caplog.records if record.name == "edgeoutbox.slack"]) == 1
    slack.token = accepted
    await drain(executor, world.clock)
    assert [outcome(await the(outbox, action)) for action in actions] == [("DONE", "CONFIRMED")] * 2


async def test_a_channel_keeps_its_order(world: World) -> None:
    """What follows a post whose answer was lost waits until it is known; another channel does not."""
    slack = await a_slack(world, On(POST, Drop(), call=2, channel=CHANNEL, keeps=True))
    adapter = an_adapter(slack)
    outbox = await world.outbox(adapter)
    actions = [await post(outbox, adapter, key) for key in "abcde"]
    elsewhere = await post(outbox, adapter, "other", OTHER)
    executor = await world.executor(outbox)
    await executor.until_idle()
    assert outcome(await the(outbox, elsewhere)) == ("DONE", "CONFIRMED")
    await drain(executor, world.clock)
    assert {outcome(await the(outbox, action))[0] for action in actions} == {"DONE"}
    assert [posted.text for posted in slack.posts if posted.channel == CHANNEL] == [*"abcde"]


class Alone(SlackNotice[Any]):
    """A notice whose actions wait for no other."""

    notice: Literal["alone"] = "alone"

    async def prepare(self, app: Any) -> Post:  # noqa: ARG002 - the signature of a notice
        """A short post."""
        return Post(channel=CHANNEL, text="alone")


async def test_an_enqueue_without_a_lane_keeps_the_order_of_its_channel(world: World) -> None:
    """Its lane is the channel's, so it waits for a post whose answer was lost; a notice without a lane does not."""
    slack = await a_slack(world, On(POST, Drop(), call=1, keeps=True))
    outbox, executor = await world.running(an_adapter(slack, notices=[Alone], concurrency=8))
    messages = [{"notice": "message", "channel": CHANNEL, "text": text} for text in "abc"]
    first = await outbox.enqueue(ActionRequest(kind="slack_post", idempotency_key="a", payload=messages[0]))
    await slack.reached(POST)
    await executor.until_idle()
    requests = [
        ActionRequest(kind="slack_post", idempotency_key=key, payload=payload)
        for key, payload in (("b", messages[1]), ("c", messages[2]), ("d", {"notice": "alone"}))
    ]
    ids = [first.id, *(added.id for added in await outbox.enqueue_many(requests))]
    assert [(await the(outbox, id_)).lane_key for id_ in ids] == [f"slack_post:{CHANNEL}"] * 3 + [None]
    await until(lambda: slack.calls(POST) == 2)
    await drain(executor, world.clock)
    assert {outcome(await the(outbox, id_))[0] for id_ in ids} == {"DONE"}
    assert [posted.text for posted in slack.posts] == ["a", "alone", "b", "c"]


@pytest.mark.parametrize("keeps", [True, False], ids=["deleted", "never there"])
async def test_the_last_attempt_ends_uncertain(world: World, keeps: bool) -> None:
    """It is in no history, and that proves nothing: it ends UNCERTAIN, and the lane goes on."""
    slack = await a_slack(world, On(POST, Drop(), call=1, keeps=keeps))
    adapter = an_adapter(slack, max_attempts=3)
    outbox, executor = await world.running(adapter)
    action = await post(outbox, adapter, "a")
    await executor.until_idle()
    for posted in slack.posts:
        slack.delete(posted)
    following = await post(outbox, adapter, "b")
    await drain(executor, world.clock)
    assert outcome(await the(outbox, action)) == ("UNCERTAIN", "READBACK_EXHAUSTED")
    assert await results(outbox, action) == ["Reread"] * 3
    assert outcome(await the(outbox, following)) == ("DONE", "CONFIRMED")
    assert slack.calls(POST) == 2


@pytest.mark.parametrize("method", [HISTORY, REPLIES])
async def test_the_last_attempt_ends_uncertain_where_nothing_can_be_read(world: World, method: str) -> None:
    """The post is there and no scope lets us see it: it ends UNCERTAIN, is not made again, and the lane goes on."""
    slack = await a_slack(world, On(POST, Drop(), call=1, keeps=True), On(method, Refuse("missing_scope")))
    fields = {"thread_ts": slack.say(CHANNEL).ts} if method == REPLIES else {}
    adapter = an_adapter(slack, max_attempts=3)
    outbox, executor = await world.running(adapter)
    actions = [await post(outbox, adapter, key, **fields) for key in "ab"]
    await drain(executor, world.clock)
    ended = [outcome(await the(outbox, action)) for action in actions]
    assert ended == [("UNCERTAIN", "READBACK_EXHAUSTED"), ("DONE", "CONFIRMED")]
    assert await results(outbox, actions[0]) == ["Reread"] * 3
    assert (slack.calls(method), [posted.text for posted in slack.posts]) == (2, ["a", "b"])


async def test_an_attempt_that_a_shutdown_cut_off_is_read_back(world: World) -> None:
    """Its process ended while Slack was silent; the next one looks, and does not post."""
    slack = await a_slack(world, On(POST, Hang(), keeps=True))
    first = await world.outbox(an_adapter(slack))
    async with Executor(first, grace=0.01, clock=world.clock):
        action = await post(first, an_adapter(slack), "a")
        await slack.reached(POST)
    assert (await the(first, action)).write_started_at is not None
    _, executor = await world.running(an_adapter(slack))
    await drain(executor, world.clock)
    assert outcome(await the(first, action)) == ("DONE", "READ_BACK")
    assert len(slack.posts) == 1


async def test_a_refusal_fails_the_action_and_frees_the_lane(world: World) -> None:
    """The next post of the channel is made."""
    slack = await a_slack(world, On(POST, Refuse("msg_blocks_too_long"), call=1))
    adapter = an_adapter(slack)
    outbox, executor = await world.running(adapter)
    actions = [await post(outbox, adapter, key) for key in "ab"]
    await drain(executor, world.clock)
    assert [outcome(await the(outbox, action)) for action in actions] == [("FAILED", "REJECTED"), ("DONE", "CONFIRMED")]


async def test_many_posts_with_many_losses_are_each_made_once(world: World) -> None:
    """A fifth of the answers is lost and a twentieth limited: no post twice, each channel in order, nothing unknown."""
    slack = await a_slack(world, On(POST, Drop(), chance=0.2, keeps=True), On(POST, Limit("1"), chance=0.05))
    channels = [f"C{number:03d}" for number in range(10)]
    for channel in channels:
        slack.add_channel(channel)
    adapter = an_adapter(slack, concurrency=16)
    outbox = await world.outbox(adapter)
    actions = [await post(outbox, adapter, f"{number:03d}", channels[number % 10]) for number in range(100)]
    await drain(await world.executor(outbox), world.clock)
    ended = [await the(outbox, action) for action in actions]
    assert {outcome(action) for action in ended} == {("DONE", "CONFIRMED"), ("DONE", "READ_BACK")}
    assert {action.readback_ref for action in ended} == {f"{posted.channel}:{posted.ts}" for posted in slack.posts}
    assert duplicates(slack.posts) == {}
    for channel in channels:
        texts = [posted.text for posted in slack.posts if posted.channel == channel]
        assert texts == sorted(texts)
        assert len(texts) == 10
