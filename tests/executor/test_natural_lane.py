"""The natural lane of a kind, for an enqueue that names none."""

from edgeoutbox.testing import ScriptedAdapter, ScriptedPayload
from tests.executor.world import World, request, the


class Channelled(ScriptedAdapter):
    """A kind whose actions belong to a channel."""

    def lane(self, payload: ScriptedPayload) -> str | None:
        """The channel, if the payload has one."""
        extra = payload.model_extra or {}
        return f"channel:{extra['channel']}" if "channel" in extra else None


async def test_an_enqueue_without_a_lane_takes_the_natural_one(world: World) -> None:
    """The adapter names the lane; what the caller names comes first, and a payload without one is alone."""
    outbox = await world.outbox(Channelled())
    natural = await outbox.enqueue(request("a", payload={"channel": "C1"}))
    [named, alone] = await outbox.enqueue_many(
        [request("b", payload={"channel": "C1"}, lane_key="mine"), request("c", payload={})]
    )
    lanes = [(await the(outbox, one.id)).lane_key for one in (natural, named, alone)]
    assert lanes == ["channel:C1", "mine", None]
    assert (await outbox.enqueue(request("a", payload={"channel": "C1"}))).same_content
