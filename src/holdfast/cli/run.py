"""`holdfast run`: sends one message, asks no one, prints the answer; the exit status tells how the turn ended."""

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final, Literal, Protocol

import msgspec

from holdfast.cli.activity import SessionActivity
from holdfast.cli.errors import WORLD, Refusal
from holdfast.cli.escapes import PROSE, visible
from holdfast.cli.hints import Hints
from holdfast.cli.home import change_model, runs_elsewhere, tasks_of
from holdfast.cli.lookup import find_session
from holdfast.cli.request_lines import short
from holdfast.cli.screen import wants_color
from holdfast.cli.settings import announce_keyed_model
from holdfast.cli.setup import SessionSetup
from holdfast.cli.target import Target, open_home
from holdfast.cli.transcript import AGAIN, AWAY, Transcript, one_line, print_pieces
from holdfast.cli.wait_line import LastLine
from holdfast.client.errors import ClientError, TooMany, Unavailable, Unreachable
from holdfast.events.event import Event
from holdfast.events.ids import MessageId, TurnId
from holdfast.events.message import AssistantMessage, TextBlock, UserMessage
from holdfast.events.session import SessionError
from holdfast.events.turn import TurnEnded, TurnWaiting
from holdfast.live.live import Delta, WaitStatus
from holdfast.protocol.event import EventView
from holdfast.protocol.home import AnySession, Home
from holdfast.protocol.reading import Connection, QueueChanged, Reading
from holdfast.protocol.task import TaskView

RunReason = Literal["completed", "stopped", "error", "interrupted", "timed_out", "waiting"]

EXIT: Final[dict[RunReason, int]] = {
    "completed": 0,
    "stopped": 3,
    "error": 4,
    "interrupted": 4,
    "timed_out": 5,
    "waiting": 6,
}


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `holdfast run`."""

    prompt: str | None
    """None: go on after a turn that ended with an error; a person may be asked then."""
    setup: SessionSetup
    session: str | None = None
    timeout_seconds: float | None = None
    as_json: bool = False


async def run(target: Target, options: RunOptions) -> int:
    hints = target.hints
    if target.server is None and options.session is None:
        announce_keyed_model(target.config)
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    async with open_home(target, work=True) as home:
        session = await _session(home, options)
        message_id = MessageId(str(uuid.uuid4()))
        outcome = RunOutcome(session.id, message_id)
        printer = _printer(options, hints)
        start = (await session.look()).head
        if text is None:
            await session.go_on(message_id=message_id)
        else:
            await session.send(text, message_id=message_id, delivery="enqueue", unattended=True)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, _stopper(session))
        try:
            async with asyncio.timeout(options.timeout_seconds):
                await _follow(session, start, outcome, printer)
        except TimeoutError:
            outcome.reason = "timed_out"
        except (Unreachable, Unavailable, TooMany) as error:
            raise _lost(error, session.id, hints) from None
        outcome.tasks = await _running_tasks(home, session.id)
        printer.end(outcome)
        _explain(home, outcome, options, hints)
        return EXIT[outcome.reason or "interrupted"]


def _lost(error: ClientError, session_id: str, hints: Hints) -> Refusal:
    back = hints.command("chat", "--session", short(session_id))
    message = f"{error.message} Accepted work is kept, and continues on the server. To come back to it: {back}"
    return Refusal(error.code, message, exit_code=WORLD)


async def _session(home: Home, options: RunOptions) -> AnySession:
    setup = options.setup
    if options.session is None:
        return await setup.create(home)
    if setup.allow or setup.dry_run:
        raise Refusal("option_not_usable", "--allow and --dry-run are for new sessions; leave them out with --session.")
    found = await find_session(home, options.session)
    if setup.model is not None:
        await change_model(home, found.id, setup.model)
    return home.open(found.id)


async def _running_tasks(home: Home, session_id: str) -> list[TaskView]:
    """The tasks that continue when this command ends."""
    return [task for task in await tasks_of(home, session_id, foreground=False) if task.is_running]


def _stopper(session: AnySession) -> Callable[[], None]:
    """The handler of Ctrl-C: the first stops the turn; the second leaves, and the next process carries out the stop."""
    stops: list[asyncio.Task[Any]] = []

    def stop() -> None:
        if stops:
            raise KeyboardInterrupt
        stops.append(asyncio.create_task(session.stop(keep_queued=False)))

    return stop


async def _follow(session: AnySession, start: int, outcome: "RunOutcome", printer: "Printer") -> None:
    async with aclosing(session.events(str(start))) as readings:
        async for reading in readings:
            if isinstance(reading, Connection) and not sys.stdout.isatty():
                print(f"holdfast: {(AGAIN if reading.is_back else AWAY).removeprefix('· ')}", file=sys.stderr)
            if isinstance(reading, Event):
                outcome.take(reading)
            printer.take(reading, outcome)
            if outcome.reason is not None and (outcome.reason != "waiting" or await session.requests()):
                return


class RunOutcome:
    """Follows a log to the end of the turn that a message started, and keeps its answer."""

    def __init__(self, session_id: str, message_id: MessageId) -> None:
        self.session_id = session_id
        self._message_id = message_id
        self.turn_id: TurnId | None = None
        self.text = ""
        self.error: SessionError | None = None
        self.reason: RunReason | None = None
        self.tasks: list[TaskView] = []
        """The tasks that still run."""

    @property
    def begun(self) -> bool:
        return self.turn_id is not None

    def take(self, event: Event) -> None:
        match event.body:
            case UserMessage(message_id=message_id, turn_id=turn_id) if message_id == self._message_id:
                self.turn_id = turn_id
            case AssistantMessage(blocks=blocks) if self.begun:
                self.text = "".join(block.text for block in blocks if isinstance(block, TextBlock)) or self.text
            case SessionError() as error if self.begun:
                self.error = error
            case TurnWaiting(turn_id=turn_id, reason="requests") if turn_id == self.turn_id:
                self.reason = "waiting"
            case TurnEnded(turn_id=turn_id, reason=reason) if turn_id == self.turn_id:
                self.reason = reason
            case _:
                pass


# Output


class Printer(Protocol):
    def take(self, reading: Reading, outcome: RunOutcome) -> None: ...

    def end(self, outcome: RunOutcome) -> None: ...


class FinalText:
    """Prints only the last text of the model: for scripts."""

    def take(self, reading: Reading, outcome: RunOutcome) -> None:
        pass

    def end(self, outcome: RunOutcome) -> None:
        if outcome.text:
            print(visible(outcome.text, keep=PROSE))


class LiveText:
    """Prints everything as it comes: for people who watch."""

    def __init__(self, hints: Hints) -> None:
        self._transcript = Transcript(shows_user=lambda message: False, hints=hints)
        self._color = wants_color(is_terminal=True)
        self._activity = SessionActivity()
        self._last_line = LastLine(color=self._color)
        self._can_erase = os.environ.get("TERM", "dumb") != "dumb"

    def take(self, reading: Reading, outcome: RunOutcome) -> None:
        if isinstance(reading, Event):
            self._activity.take(reading)
        if not (outcome.begun or isinstance(reading, Connection)):
            return
        if isinstance(reading, WaitStatus):
            if self._can_erase and self._transcript.at_line_start:
                self._last_line.show(reading, self._activity.running_tools)
        elif not isinstance(reading, QueueChanged):
            self._last_line.erase()
            print_pieces(self._transcript.take(reading), color=self._color)

    def end(self, outcome: RunOutcome) -> None:
        self._last_line.erase()


class JsonLines:
    """Prints one JSON object to a line; the last is the result."""

    def take(self, reading: Reading, outcome: RunOutcome) -> None:
        match reading:
            case Event():
                _print_json({"type": "event", "event": EventView.of(reading)})
            case Delta(message_id=message_id, block=block, kind=kind, text=text):
                _print_json({"type": "delta", "message_id": message_id, "block": block, "kind": kind, "text": text})
            case _:
                pass

    def end(self, outcome: RunOutcome) -> None:
        error = outcome.error
        _print_json(
            {
                "type": "result",
                "session_id": outcome.session_id,
                "turn_id": outcome.turn_id,
                "reason": outcome.reason,
                "text": outcome.text,
                "error": {"code": error.code, "message": error.message} if error else None,
                "tasks": outcome.tasks,
            }
        )


def _print_json(value: dict[str, Any]) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


def _printer(options: RunOptions, hints: Hints) -> Printer:
    if options.as_json:
        return JsonLines()
    return LiveText(hints) if sys.stdout.isatty() else FinalText()


def _explain(home: Home, outcome: RunOutcome, options: RunOptions, hints: Hints) -> None:
    """Print to stderr why the turn did not complete, and how to continue."""
    back = hints.command("chat", "--session", short(outcome.session_id))
    match outcome.reason:
        case "error" if outcome.error is not None and not (options.as_json or sys.stdout.isatty()):
            print(f"holdfast: {visible(outcome.error.message)} [{outcome.error.code}]", file=sys.stderr)
        case "stopped":
            print("holdfast: The turn was stopped. [stopped]", file=sys.stderr)
        case "timed_out":
            late = f"The turn did not end within {options.timeout_seconds:g} s."
            how = "It continues" if runs_elsewhere(home) else "It continues when a process opens the database"
            print(f"holdfast: {late} {how}: {back} [timed_out]", file=sys.stderr)
        case "waiting":
            answers = hints.command("requests", "--session", short(outcome.session_id))
            print(f"holdfast: The turn waits for an answer. To see the request: {answers} [waiting]", file=sys.stderr)
        case _:
            pass
    for task in outcome.tasks:
        what = one_line(task.description or task.command, 60)
        follow = hints.command("tasks", "tail", task.id)
        print(f"holdfast: A task runs on in the background ({what}): {follow}", file=sys.stderr)
    if outcome.tasks:
        when = "" if runs_elsewhere(home) else ", once a process opens it"
        print(f"holdfast: The session gets the news of its end{when}: {back}", file=sys.stderr)
