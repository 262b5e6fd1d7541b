"""`enqueue` and `propose`."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from edgeoutbox.cli import given
from edgeoutbox.cli.commands import JsonOption, Place, command
from edgeoutbox.cli.exits import Exit
from edgeoutbox.cli.opening import with_adapters
from edgeoutbox.cli.output import say, write, write_json
from edgeoutbox.errors import InvalidRequest
from edgeoutbox.model import ActionRequest, Enqueued

PANEL = "Enqueue"

Kind = Annotated[str, typer.Argument(metavar="KIND", help="What sort of effect, such as email", show_default=False)]
Key = Annotated[
    str,
    typer.Argument(metavar="KEY", help="The idempotency key: the same key is the same effect", show_default=False),
]
Payload = Annotated[
    str,
    typer.Argument(metavar="PAYLOAD", help="A JSON object, @FILE, or - for standard input", show_default=False),
]
Lane = Annotated[str | None, typer.Option("--lane", help="Never two of a lane at once, and in order")]
Due = Annotated[str | None, typer.Option("--due", metavar="TIME", help="Not before: 2026-12-24T18:00, or +10m")]
Expires = Annotated[str | None, typer.Option("--expires", metavar="TIME", help="Not after: the action is cancelled")]
Run = Annotated[str | None, typer.Option("--run", help="The agent's run that it belongs to")]
Subject = Annotated[str | None, typer.Option("--subject", help="The account that it concerns; see erase")]
MaxAttempts = Annotated[int | None, typer.Option("--max-attempts", help="Instead of the kind's own", min=1)]
Workspace = Annotated[str, typer.Option("--workspace", help="Whose it is, in a database of several")]


@command(
    "enqueue",
    panel=PANEL,
    example="""edgeoutbox enqueue email order:42:receipt --lane mail:acc-7 \\
  '{"notice": "message", "to": "jane@example.com", "subject": "Thanks", "text": "Paid."}'""",
)
async def enqueue(  # noqa: PLR0913, PLR0917 - each is an option
    place: Place,
    kind: Kind,
    key: Key,
    payload: Payload,
    lane: Lane = None,
    due: Due = None,
    expires: Expires = None,
    run: Run = None,
    subject: Subject = None,
    max_attempts: MaxAttempts = None,
    workspace: Workspace = "default",
    supersede: Annotated[
        bool, typer.Option("--supersede", help="First cancel everything of the lane that has not started")
    ] = False,
    if_running: Annotated[
        str, typer.Option("--if-running", metavar="enqueue|refuse", help="With --supersede, when the lane is executing")
    ] = "enqueue",
    as_json: JsonOption = False,
) -> None:
    """Store one effect, to be carried out by an executor.

    A key that exists changes nothing; when it holds another lane or payload, the exit code is 1.
    """
    running = _either(if_running)
    if running == "refuse" and not supersede:
        raise InvalidRequest("if-running: goes with --supersede")
    request = _request(kind, key, payload, lane, due, expires, run, subject, max_attempts, workspace)
    async with with_adapters(place) as outbox:
        answer = await outbox.enqueue(request, supersede=supersede, if_running=running)
    _answer(request, answer, as_json=as_json)


@command(
    "propose",
    panel=PANEL,
    example="edgeoutbox propose email run-9:letter @letter.json --run run-9",
)
async def propose(  # noqa: PLR0913, PLR0917 - each is an option
    place: Place,
    kind: Kind,
    key: Key,
    payload: Payload,
    lane: Lane = None,
    due: Due = None,
    expires: Expires = None,
    run: Run = None,
    subject: Subject = None,
    max_attempts: MaxAttempts = None,
    workspace: Workspace = "default",
    as_json: JsonOption = False,
) -> None:
    """Store one effect that waits until a person admits or refuses it."""
    request = _request(kind, key, payload, lane, due, expires, run, subject, max_attempts, workspace)
    async with with_adapters(place) as outbox:
        answer = await outbox.propose(request)
    _answer(request, answer, as_json=as_json)


def _request(  # noqa: PLR0917 - the options of both commands
    kind: str,
    key: str,
    payload: str,
    lane: str | None,
    due: str | None,
    expires: str | None,
    run: str | None,
    subject: str | None,
    max_attempts: int | None,
    workspace: str,
) -> ActionRequest:
    fields: dict[str, Any] = {
        "kind": kind,
        "idempotency_key": key,
        "payload": given.payload(payload),
        "lane_key": lane,
        "due_at": given.time(due, "due"),
        "expires_at": given.time(expires, "expires"),
        "run_id": run,
        "subject_account_id": subject,
        "max_attempts": max_attempts,
        "workspace_id": workspace,
    }
    return ActionRequest(**fields)


def _either(text: str) -> Literal["enqueue", "refuse"]:
    match text:
        case "enqueue" | "refuse":
            return text
        case _:
            raise InvalidRequest("if-running: choose enqueue or refuse")


def _answer(request: ActionRequest, answer: Enqueued, *, as_json: bool) -> None:
    if not answer.validated:
        say(f"note: no adapter of kind {request.kind} is configured here, so the payload was not checked")
    if as_json:
        write_json(asdict(answer))
    elif answer.created:
        write(f"Action {answer.id} is {answer.state}.")
    elif answer.same_content:
        write(f"Action {answer.id} holds this key already and is {answer.state}; nothing was changed.")
    else:
        write(f"Action {answer.id} holds this key already with another lane or payload; nothing was changed.")
    if answer.superseded and not as_json:
        write(f"It supersedes {', '.join(map(str, answer.superseded))}.")
    if not answer.same_content:
        raise typer.Exit(Exit.NOT_POSSIBLE)
