"""Carries out a plan: executors, an application, a provider and a disk, in one thread and in no time."""

import asyncio
import contextlib
import heapq
import itertools
import logging
import random
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from edgeoutbox.errors import EdgeoutboxError, StorageError
from edgeoutbox.executor import Executor
from edgeoutbox.outbox import Outbox
from edgeoutbox.testing.clock import MovableClock
from edgeoutbox.testing.simulation import plan as plans
from edgeoutbox.testing.simulation.application import APPLICATION, Application
from edgeoutbox.testing.simulation.disk import Machine, SimulatedStorage
from edgeoutbox.testing.simulation.loop import NOWHERE, Process, simulated_loop
from edgeoutbox.testing.simulation.model import Model
from edgeoutbox.testing.simulation.observer import Observer
from edgeoutbox.testing.simulation.plan import NEW, Enqueue, Event, Plan
from edgeoutbox.testing.simulation.provider import Executing, HookedAdapter, Provider, SimulatedAdapter
from edgeoutbox.testing.simulation.seen import Actor, Broken

START = 1_767_225_600.0
"""When every simulation begins: 2026-01-01 00:00:00 UTC."""

_NOBODY = Executing("app", lambda: False, lambda _: asyncio.sleep(0), Counter())

ENOUGH = 3 * 86_400.0
"""Seconds after the last fault within which everything must have ended."""

LONGEST_JUMP = 1200.0

FAR = 2.0
"""Seconds by which a clock is set that nobody can overlook."""


@dataclass(frozen=True)
class Outcome:
    """How a simulation went. `simulated` is seconds."""

    plan: Plan
    trace: tuple[str, ...]
    broken: Broken | None
    simulated: float


def simulate(plan: Plan, machine: Machine) -> Outcome:
    """Carry out a plan."""
    world = _World(plan, machine)
    try:
        with _everything_drawn(plan, world.logged), simulated_loop(world.clock, world.idle_until) as loop:
            running = loop.create_task(world.run(loop))
            running.add_done_callback(lambda _: loop.stop())
            loop.run_forever()
            world.end()
            for error in loop.raised:
                raise error
            running.result()
    finally:
        world.observer.close()
    return Outcome(plan, tuple(world.trace), world.broken, world.clock.boot() - world.began)


@contextmanager
def _everything_drawn(plan: Plan, logged: Callable[[str], None]) -> Generator[None]:
    """Let the product draw from the seed too, look again less often than in life, and log to the model."""
    drawn = random.Random(plan.seed)  # noqa: S311 - no secret
    log, handler = logging.getLogger("edgeoutbox"), _Handler(logged)
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        with (
            mock.patch("edgeoutbox.settlements.random", drawn),
            mock.patch.object(secrets, "token_hex", lambda size: f"{drawn.getrandbits(8 * size):0{2 * size}x}"),
            mock.patch("edgeoutbox.executor.upkeep.TICK", plan.tick),
            mock.patch("edgeoutbox.executor.loop.SLOWEST_POLL", plan.tick),
            mock.patch("edgeoutbox.storage.sqlite.watch.POLL_WITH_EVENTS", 60.0),
        ):
            yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


class _Handler(logging.Handler):
    def __init__(self, logged: Callable[[str], None]) -> None:
        super().__init__()
        self._logged = logged

    def emit(self, record: logging.LogRecord) -> None:
        self._logged(record.getMessage())


@dataclass(eq=False)
class _Executor:
    """One life of an executor."""

    actor: Actor
    process: Process
    storage: SimulatedStorage
    executing: Executing
    executor: Executor
    crash_next: plans.Crash | None = None


@dataclass(eq=False)
class _World:
    plan: Plan
    machine: Machine
    trace: list[str] = field(default_factory=list)
    broken: Broken | None = None
    executors: dict[str, _Executor] = field(default_factory=dict)
    lives: Counter[str] = field(default_factory=Counter)
    hook_fails: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.clock = MovableClock(START)
        self.began = self.clock.boot()
        kinds = {kind.name: kind for kind in plans.KINDS}
        whats = [event.what for event in self.plan.events]
        sets = [what.seconds for what in whats if isinstance(what, plans.SetClock)]
        self.model = Model(
            kinds,
            window=round(self.plan.window * 1000),
            lease=round(self.plan.lease * 1000),
            max_attempts=self.plan.max_attempts,
            drift_is_seen=len(sets) == 1
            and abs(sets[0]) > FAR
            and not any(isinstance(what, plans.Disturb) and what.how == "slow" for what in whats),
        )
        self.disk = self.machine.disk(self.plan.driver, self.clock)
        self.observer = Observer(self.disk, self.model, self.note)
        self._locker = self.disk.open()
        wanted = [what for what in whats if isinstance(what, Enqueue)]
        turns: dict[str, tuple[plans.Turn, ...]] = {}
        for want in wanted:
            turns.setdefault(want.key, want.turns)
            self.hook_fails.setdefault(want.key, want.hook_fails)
        self.provider = Provider(self.plan, self.clock, self.model, self.note, self.judge, turns)
        self._appointments: list[tuple[float, int, Callable[[], None]]] = []
        self._suspend_fencing = 0.0
        self._number = itertools.count()
        self._doing: dict[asyncio.Task[None], Process | None] = {}
        self._dead: list[_Executor] = []

    # ---- what is seen ------------------------------------------------------------------------------------------------

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        if self.broken is None:
            self.trace.append(f"{self.clock.boot() - self.began:10.3f}  {line}")

    def judge(self, judgement: Callable[[], None]) -> None:
        """Ask the model; the first promise that is broken ends the simulation."""
        if self.broken is not None:
            return
        try:
            judgement()
        except Broken as broken:
            self.note(f"BROKEN {broken}")
            self.broken = broken
            if not self._over.done():
                self._over.set_result(None)

    def logged(self, line: str) -> None:
        """What the product logs."""
        self.judge(lambda: self.model.logged(line))

    def idle_until(self) -> float:
        """Seconds in which nothing can happen but polls that find nothing."""
        if self.provider.travelling or self._doing or self._storage.runner.busy:
            return 0.0
        if any(life.executor.busy or life.storage.runner.busy for life in self.executors.values()):
            return 0.0
        now = self.clock.milliseconds
        later = [(moment - now) / 1000 for moment in self.observer.moments if moment > now]
        if self._appointments:
            later.append(self._appointments[0][0] - self._loop.time())
        return min(later, default=LONGEST_JUMP)

    # ---- the course of things ----------------------------------------------------------------------------------------

    async def run(self, loop: Any) -> None:
        """Carry out the plan, let everything end, and judge it."""
        self._loop = loop
        self._over: asyncio.Future[None] = loop.create_future()
        self._storage = SimulatedStorage(self.disk, lambda: True, self._application_committed)
        self._outbox = Outbox(self._storage, [self._adapter(kind, NEW, _NOBODY) for kind in self._known(NEW)])
        self._program = Application(self._outbox, self.disk, self.model, self.observer, self.note, self.judge)
        script = loop.create_task(self._script())
        await asyncio.wait([script, self._over], return_when=asyncio.FIRST_COMPLETED)
        if script.done():
            script.result()

    def end(self) -> None:
        """Let nothing of it run any more, and close every connection."""
        for life in [*self.executors.values(), *self._dead]:
            if life.process.alive:
                self._loop.kill(life.process)
            life.storage.die()
        self._storage.die()
        for connection in (self._program.connection, self._locker):
            connection.close()
        self.observer.close()

    async def _script(self) -> None:
        await self._outbox.open()
        for name in self.plan.executors:
            self._start(name)
        for event in self.plan.events:
            self._later(event.at, lambda event=event: self._happen(event))  # type: ignore[misc]
        while self._appointments or self._doing:
            await asyncio.sleep(max(0.001, self._appointments[0][0] - self._loop.time()) if self._appointments else 1.0)
            while self._appointments and self._appointments[0][0] <= self._loop.time() + 1e-6:
                heapq.heappop(self._appointments)[2]()
        self.note("no more faults")
        self._suspend_fencing = 0.0
        for life in self.executors.values():
            life.crash_next = None
        until = self.clock.boot() + ENOUGH
        while not self._is_over() and self.clock.boot() < until:  # noqa: ASYNC110 - the loop's time costs nothing
            await asyncio.sleep(5.0)
        self.judge(self._finish)
        for life in self.executors.values():
            await self._loop.create_task(life.executor.stop(), context=life.process.context)
        self.judge(self._finish)

    def _is_over(self) -> bool:
        try:
            self._finish()
        except Broken:
            return False
        return True

    def _finish(self) -> None:
        builds = [life.actor.build or 0 for life in self.executors.values()]
        self.model.finished(self.clock.milliseconds, builds, [life.actor.name for life in self.executors.values()])

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._appointments, (self._loop.time() + seconds, next(self._number), what))

    # ---- executors ---------------------------------------------------------------------------------------------------

    def _known(self, build: int) -> list[plans.KindPlan]:
        return [kind for kind in self.plan.kinds if kind.since <= build]

    def _adapter(self, kind: plans.KindPlan, build: int, executing: Executing) -> SimulatedAdapter:
        made = HookedAdapter if kind.hooked else SimulatedAdapter
        return made(kind, build, self.plan, self.provider, executing)

    def _start(self, name: str) -> None:
        if name in self.executors or self.broken is not None:
            return
        self.lives[name] += 1
        actor = Actor(f"{name}{self.lives[name]}", self.plan.executors[name], self.clock.boot())
        self.note(f"{actor.name} starts, build {actor.build}")
        storage = SimulatedStorage(self.disk, lambda: self._before(life), lambda: self._after(life))
        executing = Executing(
            actor.name, lambda: storage.in_transaction, lambda moment: self._in_call(life, moment), self.hook_fails
        )
        adapters = [self._adapter(kind, actor.build or 0, executing) for kind in self._known(actor.build or 0)]
        if not adapters:
            adapters = [self._adapter(plans.KINDS[0], actor.build or 0, executing)]
        executor = Executor(Outbox(storage), adapters, owner=actor.name, clock=self.clock, grace=5.0)
        life = _Executor(actor, Process(actor.name), storage, executing, executor)
        self.executors[name] = life
        self._do(self._come_up(name, life), life.process)

    async def _come_up(self, name: str, life: _Executor) -> None:
        try:
            await life.executor.outbox.open()
            await life.executor.start()
        except StorageError as error:
            self.note(f"{life.actor.name} cannot start: {type(error).__name__}")
            self._loop.call_soon(self._crash, name, plans.Crash(name, "now", 5.0), context=NOWHERE)

    def _before(self, life: _Executor) -> bool:
        return not self._crashes_at(life, "before a commit")

    def _after(self, life: _Executor) -> bool:
        self.judge(lambda: self.observer.look(life.actor))
        if self.observer.fenced and self._suspend_fencing:
            self.note("the machine sleeps between fence and call")
            self.clock.suspend(self._suspend_fencing)
            self._suspend_fencing = 0.0
        return not self._crashes_at(life, "after a commit")

    async def _in_call(self, life: _Executor, moment: str) -> None:
        if moment == "calling":
            if self._crashes_at(life, moment):
                await self._loop.create_future()
        elif life.crash_next is not None and life.crash_next.moment == moment:
            # Once the call is on its way.
            self._loop.call_soon(self._crash, life.crash_next.executor, life.crash_next, context=NOWHERE)

    def _crashes_at(self, life: _Executor, moment: str) -> bool:
        crash = life.crash_next
        if crash is None or crash.moment != moment:
            return False
        self._crash(crash.executor, crash)
        return True

    def _crash(self, name: str, crash: plans.Crash) -> None:
        life = self.executors.pop(name, None)
        if life is None:
            return
        self.note(f"{life.actor.name} crashes ({crash.moment})")
        self._loop.kill(life.process)
        life.storage.die()
        self._gone(name, life, crash.back_after)

    def _gone(self, name: str, life: _Executor, back_after: float) -> None:
        for call in life.executing.calls:
            call.over = True
        self._dead.append(life)
        self._doing = {task: process for task, process in self._doing.items() if process is not life.process}
        self._later(back_after, lambda: self._start(name))

    # ---- the application, people and the machine ---------------------------------------------------------------------

    def _do(self, doing: Coroutine[Any, Any, None], process: Process | None = None) -> None:
        task = self._loop.create_task(doing, context=process.context if process is not None else None)
        self._doing[task] = process
        task.add_done_callback(self._did, context=NOWHERE)

    def _did(self, task: asyncio.Task[None]) -> None:
        self._doing.pop(task, None)
        if not task.cancelled():
            task.result()

    def _application_committed(self) -> bool:
        self.judge(lambda: self.observer.look(APPLICATION))
        return True

    def _happen(self, event: Event) -> None:  # noqa: C901 - a table, one row per event
        what = event.what
        self.note(f"[{event.number}] {what}")
        match what:
            case plans.Crash(executor=name):
                life = self.executors.get(name)
                if what.moment == "now":
                    self._crash(name, what)
                elif life is not None:
                    life.crash_next = what
            case plans.Suspend(seconds=seconds, fencing=True):
                self._suspend_fencing = seconds
            case plans.Suspend(seconds=seconds):
                self.clock.suspend(seconds)
            case plans.SetClock(seconds=seconds):
                self.clock.set_wall(seconds)
                self.model.clock_set = self.clock.boot()
            case plans.Disturb():
                self._disturb(what)
            case plans.Stop(executor=name):
                life = self.executors.get(name)
                if life is not None:
                    self._do(self._stop(name, life, what.back_after), life.process)
            case plans.RunNow(executor=name):
                life = self.executors.get(name)
                if life is not None:
                    self._do(self._politely(lambda: self._run_now(life, what)), life.process)
            case _:
                self._do(self._politely(lambda: self._program.ask(what)))

    def _disturb(self, what: plans.Disturb) -> None:
        match what.how:
            case "full":
                self.disk.full = True
            case "slow":
                self.disk.latency = what.latency
            case "locked":
                with contextlib.suppress(Exception):  # it is locked already
                    self._locker.execute("BEGIN IMMEDIATE")
        self._later(what.seconds, self._calm)

    def _calm(self) -> None:
        self.disk.full, self.disk.latency = False, 0.0
        if self._locker.in_transaction:
            self._locker.execute("ROLLBACK")

    async def _stop(self, name: str, life: _Executor, back_after: float) -> None:
        await life.executor.stop()
        self._loop.call_soon(self._stopped, name, life, back_after, context=NOWHERE)

    def _stopped(self, name: str, life: _Executor, back_after: float) -> None:
        if self.executors.get(name) is life:
            self.note(f"{life.actor.name} has stopped")
            del self.executors[name]
            self._loop.kill(life.process)
            life.storage.die()
            self._gone(name, life, back_after)

    async def _politely(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """What is refused is refused."""
        try:
            await ask()
        except (EdgeoutboxError, TimeoutError) as error:
            self.note(f"refused: {type(error).__name__}")

    async def _run_now(self, life: _Executor, what: plans.RunNow) -> None:
        held = self.observer.held_by(what.key)
        if held is not None:
            self.model.hurried.add(held)
            async with asyncio.timeout(what.patience):
                await life.executor.run_now(held)
