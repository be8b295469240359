"""The transcript of a session: readings as styled text. Pure: the same log gives the same text, live or loaded later.

Every text from a model, a tool or a person is escaped here first, because a terminal obeys control characters.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from holdfast.cli import context_lines, request_lines
from holdfast.cli.escapes import PROSE, visible
from holdfast.cli.hints import Hints
from holdfast.cli.request_lines import short
from holdfast.events.body import Body
from holdfast.events.compaction import CompactionEnded, CompactionStarted, MessagePinned
from holdfast.events.event import Event
from holdfast.events.ids import RequestId, ToolCallId
from holdfast.events.message import AssistantMessage, CallFailed, Sealed, UserMessage
from holdfast.events.request import (
    Decision,
    ExternalToolRequested,
    PermissionCompleted,
    PermissionRequested,
    UserInputCompleted,
    UserInputRequested,
)
from holdfast.events.session import ModelChanged, SessionError, SessionInfo, Truncated
from holdfast.events.task import NoticeKind, TaskNotice, TaskNotified, TaskStarted
from holdfast.events.tool import ToolCompleted, ToolStarted
from holdfast.events.turn import TurnEnded, TurnStarted, TurnWaiting
from holdfast.live.live import Delta
from holdfast.protocol.reading import Connection, Reading

Style = Literal["text", "reasoning", "user", "good", "bad", "ask", "note"]

_SGR: dict[Style, str] = {
    "text": "",
    "reasoning": "2;3",
    "user": "1;36",
    "good": "32",
    "bad": "31",
    "ask": "1;33",
    "note": "2",
}

MAX_LINE_CHARACTERS = 200
SHOWN_LINES = 12
"""How many lines are shown of a request that the screen has no room for."""
INTERRUPTED = "(interrupted)"
AWAY = "· The connection to the server is lost; trying again."
AGAIN = "· Connected again. Nothing was missed."
WOKEN = "◆ Started by the news of a task, without a message."


class Piece(NamedTuple):
    """A text in one style, which may begin and end anywhere in a line."""

    style: Style
    text: str


def one_line(text: str, limit: int = MAX_LINE_CHARACTERS) -> str:
    words = " ".join(visible(text).split())
    return words if len(words) <= limit else words[: limit - 1] + "…"


def styled(piece: Piece, *, color: bool) -> str:
    """The piece with its escape codes, set and reset in each line, so that a cut leaves no style switched on."""
    code = _SGR[piece.style]
    if not color or not code:
        return piece.text
    lines = piece.text.split("\n")
    return "\n".join(f"\x1b[{code}m{line}\x1b[0m" if line else "" for line in lines)


def print_pieces(pieces: Iterable[Piece], *, color: bool) -> None:
    """Print styled text to stdout, without a line break of its own."""
    sys.stdout.write("".join(styled(piece, color=color) for piece in pieces))
    sys.stdout.flush()


def duration(milliseconds: int) -> str:
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 60_000 else f"{milliseconds // 60_000} min"


class Transcript:
    """Turns readings, in order, into the pieces that show them. Shows nothing twice."""

    def __init__(
        self,
        *,
        shows_user: Callable[[UserMessage], bool] = lambda message: True,
        hints: Hints | None = None,
        fits: Callable[[list[str]], bool] = lambda lines: True,
    ) -> None:
        """`fits` tells whether the screen has room for the lines of a request; without room, the request is cut and
        marked as cut."""
        self.unshown: dict[RequestId, str] = {}
        """The full text of each request of which only the beginning was shown."""
        self._fits = fits
        self._shows_user = shows_user
        self._hints = hints or Hints({})
        self._group = ""
        self._at_line_start = True
        self._calls: dict[ToolCallId, ToolStarted] = {}
        self._questions: set[ToolCallId] = set()

    def take(self, reading: Reading) -> list[Piece]:
        match reading:
            case Delta(kind="text", text=text):
                return list(self._flowing("text", text))
            case Delta(kind="reasoning", text=text):
                return list(self._flowing("reasoning", text))
            case Event(body=body):
                return list(self._event(body))
            case Connection(is_back=is_back):
                return self.say("note", AGAIN if is_back else AWAY)
            case _:
                return []

    @property
    def at_line_start(self) -> bool:
        """Whether the last line is finished."""
        return self._at_line_start

    def say(self, style: Style, text: str) -> list[Piece]:
        """A line that is not from the log, such as the result of a chat command."""
        return list(self._lines("aside", style, text))

    # Groups of lines

    def _flowing(self, style: Literal["text", "reasoning"], text: str) -> Iterator[Piece]:
        shown = visible(text, keep=PROSE)
        if self._group != style:
            shown = shown.lstrip("\n")
        if shown:
            yield from self._begin(style)
            self._at_line_start = shown.endswith("\n")
            yield Piece(style, shown)

    def _lines(self, group: str, style: Style, text: str) -> Iterator[Piece]:
        yield from self._begin(group)
        yield Piece(style, visible(text, keep=PROSE))  # every line passes here, so none reaches the terminal unescaped
        yield Piece("text", "\n")
        self._at_line_start = True

    def _begin(self, group: str) -> Iterator[Piece]:
        """Begin a line of a group. An empty line separates two groups."""
        if group == self._group and group in ("text", "reasoning"):
            return
        if not self._at_line_start:
            yield Piece("text", "\n")
        if self._group and (group != self._group or group == "user"):
            yield Piece("text", "\n")
        self._group = group
        self._at_line_start = True

    # Events

    def _event(self, body: Body) -> Iterator[Piece]:
        match body:
            case UserMessage():
                if self._shows_user(body):
                    yield from self._lines("user", "user", _user_line(body))
            case AssistantMessage(interrupted=interrupted):
                yield from self._end_of_message(interrupted=interrupted)
            case Sealed(cause=cause):
                why = "The process ended here" if cause == "crash" else "The model's stream broke here"
                yield from self._lines("note", "note", f"· {why}; the model is asked again.")
            case CallFailed(retryable=True, message=message):
                yield from self._lines("note", "note", f"· A model call failed: {one_line(message)}")
            case SessionError(error_type=code, message=message):
                yield from self._lines("end", "bad", f"✗ {visible(message)} [{one_line(code)}]")
            case TurnEnded(reason=reason):
                yield from self._end_of_turn(reason)
            case TurnWaiting(reason="no eligible worker"):
                yield from self._lines("note", "note", "· No running process may run this session.")
            case ModelChanged(new_model=model):
                yield from self._lines("note", "note", f"· The model is now {one_line(model)}.")
            case CompactionStarted() | CompactionEnded() | MessagePinned():
                if (line := _context_line(body)) is not None:
                    yield from self._lines("note", "note", line)
            case SessionInfo(message=message):
                yield from self._lines("note", "note", f"· {one_line(message)}")
            case Truncated():
                yield from self._lines("note", "note", "· The conversation was rewound here.")
            case TurnStarted(woken=True):
                yield from self._lines("woken", "user", WOKEN)
            case TaskStarted():
                yield from self._lines("tool", "note", self._background_line(body))
            case TaskNotified(notice=TaskNotice(silent=False) as notice):
                yield from self._lines("woken" if self._group == "woken" else "task", *notice_line(notice))
            case _:
                yield from self._tool_event(body)

    def _tool_event(self, body: Body) -> Iterator[Piece]:
        match body:
            case ToolStarted(tool_call_id=call):
                self._calls[call] = body
            case ToolCompleted(tool_call_id=call, success=True) if call in self._questions:
                self._questions.discard(call)  # the answer was shown, and is the result
            case ToolCompleted(tool_call_id=call):
                yield from self._lines("tool", *_tool_line(body, self._calls.pop(call, None)))
            case PermissionRequested(tool_call_id=call):
                yield from self._request(body, self._calls[call].arguments if call in self._calls else "")
            case PermissionCompleted(decision=decision, feedback=feedback, answered_by=by):
                yield from self._lines("tool", *_decision_line(decision, feedback, by))
            case UserInputRequested(tool_call_id=call):
                self._questions.add(call)
                yield from self._request(body)
            case UserInputCompleted(cancelled=True):
                yield from self._lines("tool", "note", "· The question was withdrawn.")
            case UserInputCompleted(answer=answer):
                yield from self._lines("tool", "good", f"✓ Answered: {one_line(answer)}")
            case ExternalToolRequested(tool_name=name, arguments=arguments, request_id=request):
                yield from self._lines("tool", "ask", f"? {call_line(name, arguments)}")
                yield from self._lines(
                    "tool", "note", f"  Waits for a client that has this tool (request {short(request)})."
                )
            case _:
                pass

    def _request(self, body: PermissionRequested | UserInputRequested, arguments: str = "") -> Iterator[Piece]:
        """The whole request; or its beginning, marked as cut, if the screen has no room for more."""
        first, below = request_lines.first_line(body), request_lines.lines(body, arguments)
        yield from self._lines("tool", "ask", first)
        if self._fits(below):
            for line in below:
                yield from self._lines("tool", "note", line)
            return
        self.unshown[body.request_id] = "\n".join((first, *below, ""))
        for line in below[:SHOWN_LINES]:
            cut = line if len(line) <= MAX_LINE_CHARACTERS else line[: MAX_LINE_CHARACTERS - 1] + "…"
            yield from self._lines("tool", "note", cut)
        size = f"{len(below)} line{'s' if len(below) > 1 else ''}, {sum(map(len, below)):,} characters"
        yield from self._lines("tool", "ask", f"  … This is only the beginning ({size} in all). /show shows all of it.")

    def _background_line(self, body: TaskStarted) -> str:
        how = "It goes on" if body.flipped else "It runs"
        return f"· {how} in the background, task {one_line(body.task_id)}: {self._tail_command(body.task_id)}"

    def _tail_command(self, task_id: str) -> str:
        return visible(self._hints.command("tasks", "tail", one_line(task_id)))

    def _end_of_message(self, *, interrupted: bool) -> Iterator[Piece]:
        if self._group not in ("text", "reasoning"):
            return
        if interrupted:
            yield Piece("note", INTERRUPTED if self._at_line_start else f" {INTERRUPTED}")
        if interrupted or not self._at_line_start:
            yield Piece("text", "\n")
        self._at_line_start = True
        self._group = "message"

    def _end_of_turn(self, reason: str) -> Iterator[Piece]:
        if reason == "stopped":
            yield from self._lines("end", "note", "■ Stopped.")
        elif reason == "interrupted":
            yield from self._lines("end", "note", "■ Interrupted.")
        elif not self._at_line_start:
            yield Piece("text", "\n")
            self._at_line_start = True


# Lines


def call_line(name: str, arguments: str) -> str:
    """A tool call in a few words: its name and its first argument."""
    values = request_lines.decoded_arguments(arguments).values()
    first = next((value for value in values if isinstance(value, str | int | float)), "")
    return f"{one_line(name)} {one_line(str(first), 80)}".strip()


def _context_line(body: CompactionStarted | CompactionEnded | MessagePinned) -> str | None:
    match body:
        case CompactionStarted():
            return context_lines.start_line(body)
        case CompactionEnded():
            return context_lines.end_line(body)
        case MessagePinned():
            return context_lines.pin_line(body)


def _user_line(body: UserMessage) -> str:
    text = visible(body.content, keep=PROSE).strip("\n").replace("\n", "\n  ")
    joined = " (joined the running turn)" if body.delivery == "steering" else ""
    return f"> {text}{joined or (' (was queued)' if body.delivery == 'queued' else '')}"


_BECAME: dict[NoticeKind, tuple[Style, str, str]] = {
    "completed": ("good", "✓", "completed"),
    "failed": ("bad", "✗", "failed"),
    "killed": ("note", "■", "was killed"),
    "lost": ("bad", "✗", "was lost"),
    "stalled": ("ask", "?", "seems stuck: it writes nothing, as if it waited for input"),
}


def notice_line(notice: TaskNotice) -> tuple[Style, str]:
    """The news of a task: its id, how it ended, after how long, its description or command, the cause if known."""
    style, mark, became = _BECAME[notice.kind]
    code = f" · exit code {notice.exit_code}" if notice.exit_code is not None else ""
    what = one_line(notice.description or notice.command, 80)
    why = f" · {one_line(notice.detail)}" if notice.detail else ""
    task = one_line(notice.task_id)
    return style, f"{mark} Task {task} {became}{code} · {duration(notice.duration_ms)} · {what}{why}"


def _tool_line(body: ToolCompleted, started: ToolStarted | None) -> tuple[Style, str]:
    what = call_line(started.tool_name, started.arguments) if started else "a tool call"
    took = f" · {duration(body.duration_ms)}" if body.duration_ms else ""
    if body.success:
        return "good", f"✓ {what}{' · simulated' if body.simulated else ''}{took}"
    return "bad", f"✗ {what}: {one_line(body.content, 120)}{took}"


def _decision_line(decision: Decision, feedback: str, by: str) -> tuple[Style, str]:
    who = f" by {one_line(by)}" if by else ""
    match decision:
        case "approved":
            return "good", f"✓ Approved{who}."
        case "approved-for-session":
            return "good", f"✓ Approved for the rest of the session{who}."
        case "denied-interactively-by-user":
            return "bad", f"✗ Denied{who}{f': {one_line(feedback)}' if feedback else '.'}"
        case "denied-no-approval-rule-and-could-not-request-from-user":
            return "bad", "✗ Denied: no person could be asked."
        case "cancelled":
            return "note", "· The request was withdrawn."
