"""The application of a simulation, and its people: they enqueue, decide, pause and erase."""

from collections.abc import Callable

from edgeoutbox.errors import EdgeoutboxError
from edgeoutbox.model import ActionRequest
from edgeoutbox.outbox import Outbox, enqueue_sync
from edgeoutbox.testing.simulation import plan as plans
from edgeoutbox.testing.simulation.disk import Disk
from edgeoutbox.testing.simulation.model import SECRET, Model
from edgeoutbox.testing.simulation.observer import Observer
from edgeoutbox.testing.simulation.plan import Enqueue
from edgeoutbox.testing.simulation.seen import Actor

APPLICATION = Actor("app")


class Application:
    """A program with an outbox, and with transactions of its own."""

    def __init__(
        self,
        outbox: Outbox,
        disk: Disk,
        model: Model,
        observer: Observer,
        note: Callable[[str], None],
        judge: Callable[[Callable[[], None]], None],
    ) -> None:
        self.connection = disk.open()
        self._outbox = outbox
        self._clock = disk.clock
        self._model = model
        self._observer = observer
        self._note = note
        self._judge = judge

    async def ask(self, what: plans.What) -> None:
        """Do what an event says. Raises what the outbox raises."""
        outbox = self._outbox
        match what:
            case Enqueue():
                await self._enqueue(what)
            case plans.Erase(subject=subject):
                self._model.erased.add(subject)
                try:
                    await outbox.erase(subject)
                finally:
                    self._model.erased.discard(subject)
            case plans.Pause(kind=kind, by=None):
                await outbox.resume(kind)
            case plans.Pause(kind=kind, by=str(by)):
                await outbox.pause(kind, by)
            case plans.Decide():
                await self._decide(what)

    async def _decide(self, what: plans.Decide) -> None:
        held = self._observer.held_by(what.key)
        if held is None:
            return
        match what.verdict:
            case "admit":
                action = await self._outbox.get(held)
                if action is not None:
                    await self._outbox.admit(held, "ann", str(action.payload_digest))
            case "refuse":
                await self._outbox.refuse(held, "ann")
            case "withdraw":
                await self._outbox.withdraw(held)
            case "withdraw_lost":
                await self._outbox.withdraw(held, lost=True)
            case "forget":
                self._model.forgotten.add(held)
                await self._outbox.forget(what.key)

    async def _enqueue(self, want: Enqueue) -> None:
        now = self._clock.milliseconds
        request = ActionRequest(
            kind=want.kind,
            idempotency_key=want.key,
            payload={"notice": want.notice, "secret": SECRET},
            lane_key=want.lane,
            subject_account_id=want.subject,
            due_at=None if want.due_in is None else now + round(want.due_in * 1000),
            expires_at=None if want.expires_in is None else now + round(want.expires_in * 1000),
            max_attempts=want.max_attempts,
        )
        if want.via in {"commit", "rollback"}:
            self._in_own_transaction(request, rolls_back=want.via == "rollback")
            return
        proposed, supersede = want.via == "proposal", want.supersede
        asked = self._model.asks(request, proposed=proposed, supersede=supersede)
        try:
            if proposed:
                answer = await self._outbox.propose(request)
            else:
                answer = await self._outbox.enqueue(request, supersede=supersede)
        except EdgeoutboxError:
            self._judge(lambda: self._model.answered(asked, None))
            raise
        self._judge(lambda: self._model.answered(asked, answer))

    def _in_own_transaction(self, request: ActionRequest, *, rolls_back: bool) -> None:
        own = self.connection
        try:
            own.execute("BEGIN IMMEDIATE")
        except Exception:  # noqa: BLE001 - somebody holds the lock
            self._note("refused: locked")
            return
        asked = self._model.asks(request)
        try:
            answer = enqueue_sync(request, own.raw)
        except EdgeoutboxError:
            own.execute("ROLLBACK")
            self._judge(lambda: self._model.answered(asked, None))
            raise
        try:
            own.execute("ROLLBACK" if rolls_back else "COMMIT")
        except Exception:  # noqa: BLE001 - the disk is full
            own.execute("ROLLBACK")
            self._note("refused: full")
            rolls_back = True
        self._judge(lambda: self._observer.look(APPLICATION))
        self._judge(lambda: self._model.answered(asked, answer, rolled_back=rolls_back))
