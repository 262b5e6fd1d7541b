import asyncio
from collections.abc import Awaitable, Callable

from edgeoutbox.testing import MovableClock
from edgeoutbox.testing.simulation.loop import Process, simulated_loop


def _run(clock: MovableClock, main: Callable[[], Awaitable[None]], idle: Callable[[], float] = lambda: 0.0) -> None:
    with simulated_loop(clock, idle) as loop:
        task = loop.create_task(_awaited(main))
        task.add_done_callback(lambda _: loop.stop())
        loop.run_forever()
        task.result()


async def _awaited(main: Callable[[], Awaitable[None]]) -> None:
    await main()


def test_waiting_takes_no_time() -> None:
    """An hour passes on every clock, and sleepers wake in the order of their times."""
    clock = MovableClock(1000.0)
    woken: list[float] = []

    async def sleeper(seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append(seconds)

    async def main() -> None:
        await asyncio.gather(sleeper(3600.0), sleeper(0.5), sleeper(60.0))

    _run(clock, main)
    assert woken == [0.5, 60.0, 3600.0]
    assert (clock.wall(), clock.boot(), clock.awake()) == (4600.0, 4600.0, 4600.0)


def test_nothing_of_a_dead_process_runs_again() -> None:
    """No `finally`, no callback and no task of it: what is killed cannot clean up."""
    clock = MovableClock()
    ran: list[str] = []

    async def body() -> None:
        asyncio.get_running_loop().call_later(5.0, ran.append, "timer")
        task = asyncio.create_task(asyncio.sleep(5.0))
        task.add_done_callback(lambda _: ran.append("callback"))
        try:
            await task
        finally:
            ran.append("finally")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        process = Process("one")
        other = loop.create_task(body(), context=Process("other").context)
        doomed = loop.create_task(body(), context=process.context)
        await asyncio.sleep(1.0)
        loop.kill(process)  # type: ignore[attr-defined]
        await other
        await asyncio.sleep(60.0)
        assert sorted(ran) == ["callback", "finally", "timer"]
        assert not doomed.done()

    _run(clock, main)


def test_idle_time_is_jumped_over() -> None:
    """A poll that would find nothing for a minute comes a minute late."""
    clock = MovableClock()
    polls = 0

    async def main() -> None:
        nonlocal polls
        until = clock.boot() + 600.0
        while clock.boot() < until:
            polls += 1
            await asyncio.sleep(1.0)

    _run(clock, main, lambda: 60.0)
    assert polls == 10


def test_a_loop_that_waits_for_nothing_says_so() -> None:
    """A simulation in which nothing can happen any more is an error, not an endless one."""
    clock = MovableClock()

    async def main() -> None:
        await asyncio.Event().wait()

    try:
        _run(clock, main)
    except RuntimeError as error:
        assert "stands still" in str(error)  # noqa: PT017 - the loop itself raises, not what it runs
    else:
        raise AssertionError("it ended")
