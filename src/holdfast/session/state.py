"""What a session is at one position of its log, and which events may come next.

A session is idle, or in a turn. A turn goes from step to step: between two steps it takes in what people sent
meanwhile and starts a model call; the call's answer is recorded as one message; the tools that it asks for run, all
at once, until each has a result; then the step ends. A turn that has nothing left to do but be answered is waiting,
and nobody holds it. Whatever happens, it ends with `TurnEnded`, and the session is idle again.

`TRANSITIONS` is the whole of it. The holder of the lease checks every progress event against the table before it is
committed; records are legal anywhere and move nothing. Folding, on the other hand, refuses nothing: a log is what it
is, and must be readable.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Literal

import msgspec

from holdfast.events import message, request, session, task, tool, turn
from holdfast.events.body import Body
from holdfast.events.event import RECORDS, Unknown, type_of
from holdfast.events.ids import MessageId, Position, RequestId, SessionId, TaskId, ToolCallId, TurnId
from holdfast.events.message import Image, NoteReason, ToolCallBlock
from holdfast.events.request import RequestKind
from holdfast.events.session import ClientTool, DirectoryIdentity, Mode, Provider
from holdfast.events.tool import Origin
from holdfast.session.policy import HOLDFAST, SessionPolicy


class Phase(StrEnum):
    IDLE = "idle"
    BETWEEN_STEPS = "between steps"
    CALLING_MODEL = "calling model"
    RUNNING_TOOLS = "running tools"
    WAITING = "waiting"


_ANYWHERE_IN_A_TURN = (turn.Claimed, turn.Aborted, session.SessionError)

_STAYS: Mapping[Phase, tuple[type[Body], ...]] = {
    Phase.IDLE: (session.Truncated, task.TaskNotified),
    Phase.BETWEEN_STEPS: (message.UserMessage, message.Noted, task.TaskNotified, *_ANYWHERE_IN_A_TURN),
    Phase.CALLING_MODEL: (message.CallFailed, message.Usage, message.Noted, *_ANYWHERE_IN_A_TURN),
    Phase.RUNNING_TOOLS: (
        message.Usage,
        tool.ToolStarted,
        tool.ToolAttempted,
        tool.ToolCompleted,
        task.TaskStarted,
        request.PermissionRequested,
        request.PermissionCompleted,
        request.ExternalToolRequested,
        request.ExternalToolCompleted,
        request.UserInputRequested,
        request.UserInputCompleted,
        *_ANYWHERE_IN_A_TURN,
    ),
    Phase.WAITING: (turn.Claimed, turn.TurnWaiting),
}

_MOVES: Mapping[tuple[Phase, type[Body]], Phase] = {
    (Phase.IDLE, turn.TurnStarted): Phase.BETWEEN_STEPS,
    (Phase.BETWEEN_STEPS, turn.StepStarted): Phase.CALLING_MODEL,
    (Phase.BETWEEN_STEPS, turn.TurnWaiting): Phase.BETWEEN_STEPS,
    (Phase.BETWEEN_STEPS, turn.TurnEnded): Phase.IDLE,
    (Phase.CALLING_MODEL, message.AssistantMessage): Phase.RUNNING_TOOLS,
    (Phase.CALLING_MODEL, turn.TurnWaiting): Phase.CALLING_MODEL,
    (Phase.CALLING_MODEL, turn.StepEnded): Phase.BETWEEN_STEPS,
    (Phase.RUNNING_TOOLS, message.Sealed): Phase.CALLING_MODEL,
    (Phase.RUNNING_TOOLS, turn.TurnWaiting): Phase.WAITING,
    (Phase.RUNNING_TOOLS, turn.StepEnded): Phase.BETWEEN_STEPS,
    (Phase.WAITING, turn.StepEnded): Phase.BETWEEN_STEPS,
}

TRANSITIONS: Mapping[tuple[Phase, type[Body]], Phase] = {
    **{(phase, kind): phase for phase, kinds in _STAYS.items() for kind in kinds},
    **{(Phase.WAITING, kind): Phase.RUNNING_TOOLS for kind in _STAYS[Phase.RUNNING_TOOLS] if kind is not turn.Claimed},
    **_MOVES,
}
"""From a phase, by a progress event, to the next phase. What is not here is illegal."""

_LEGAL_ANYWHERE: tuple[type[Body], ...] = (*RECORDS, Unknown)


class IllegalTransition(Exception):
    """The runtime was about to write an event that can't follow. Our bug, caught before it is durable."""

    def __init__(self, phase: Phase, body: Body) -> None:
        super().__init__(f"{type_of(body)} can't follow while {phase}")
        self.phase = phase
        self.body = body


def next_phase(phase: Phase, body: Body) -> Phase:
    """The phase after an event; raises `IllegalTransition` for one that can't come now."""
    found = TRANSITIONS.get((phase, type(body)))
    if found is not None:
        return found
    if isinstance(body, _LEGAL_ANYWHERE):
        return phase
    raise IllegalTransition(phase, body)


class Call(msgspec.Struct):
    """A tool call and what is known of it. `result` is what the model is sent; None while there is none."""

    tool_call_id: ToolCallId
    name: str
    arguments: str
    result: str | None = None
    origin: Origin = "unknown"
    """Where the text of the result is from."""
    images: tuple[Image, ...] = ()
    images_at: Position | None = None
    """The event that has them: a snapshot leaves them there."""
    attempts: int = 0
    approved_for: str | None = None
    """What was approved: the kind and the subject of the permission, as they were asked about."""
    request_id: RequestId | None = None


class Person(msgspec.Struct, tag="person"):
    """A message that a person wrote, at its place."""

    position: Position
    text: str
    added: str = ""
    images: tuple[Image, ...] = ()
    images_at: Position | None = None


class Note(msgspec.Struct, tag="note"):
    """A line that only the model sees."""

    position: Position
    text: str
    task_started: Position | None = None
    """For the news of a task: where its start stands. What goes back to a place after that does not undo the news."""


class Reply(msgspec.Struct, tag="reply", dict=True):
    """The model's answer in one step, with the results of the calls that it made. Its calls stay the same ones."""

    position: Position
    message_id: MessageId
    text: str
    calls: list[Call]
    interrupted: bool = False

    def call(self, tool_call_id: ToolCallId) -> Call | None:
        """The call of that id; the first, if a model gave several the same."""
        return self._by_id.get(tool_call_id)

    @cached_property
    def _by_id(self) -> Mapping[ToolCallId, Call]:
        return {call.tool_call_id: call for call in reversed(self.calls)}

    def unfinished(self) -> list[Call]:
        return [call for call in self.calls if call.result is None]


HistoryItem = Person | Note | Reply


def outlives(item: HistoryItem, kept: Position) -> bool:
    """What a rewind leaves: all up to there, and what became since of the tasks that were started up to there."""
    if isinstance(item, Note) and item.task_started is not None:
        return item.task_started <= kept
    return item.position <= kept


class RunningTask(msgspec.Struct):
    """A command in the background, as far as the model was told."""

    command: str
    description: str
    output_file: str
    started_at: int
    position: Position = Position(0)
    """Where its start stands in the log."""
    unattended: bool = False
    """It was started in a turn in which nobody was there to be asked."""


class OpenRequest(msgspec.Struct):
    request_id: RequestId
    kind: RequestKind
    tool_call_id: ToolCallId
    rule: str = ""
    asked_for: str = ""


class Failure(msgspec.Struct):
    """The last failed try at the call that is being made."""

    message_id: MessageId
    attempt: int
    code: str
    message: str
    retryable: bool
    retry_after_ms: int | None
    status_code: int | None = None


class Turn(msgspec.Struct):
    """The unfinished turn."""

    turn_id: TurnId
    started_at: int
    unattended: bool = False
    step: int = 0
    last_step: bool = False
    message_id: MessageId = MessageId("")
    message_ids: list[MessageId] = []
    """What people sent that is in it."""
    model: str | None = None
    """What a message in it chose instead of the session's model."""
    thinking: int | None = None
    failure: Failure | None = None
    failures_since_answer: int = 0
    notes: list[NoteReason] = []
    same_calls: dict[str, int] = {}
    no_worker_noted: bool = False


class State(msgspec.Struct):
    """A session, folded. Everything in it is bounded by what the model is sent, not by the length of the log."""

    head: Position = Position(0)
    phase: Phase = Phase.IDLE
    session_id: SessionId = SessionId("")
    seed: str = ""
    """The id of the session's first event, which is random: what marks text for the model is drawn from it."""
    title: str = ""
    title_chosen: bool = False
    """Somebody gave that name: none that is made up replaces it."""
    title_by_model: bool = False
    wants_title: bool = False
    """A model is to make a title of the first message."""
    model: str | None = None
    system_message: str | None = None
    working_directory: str | None = None
    directory_identity: DirectoryIdentity | None = None
    """Which folder that is; None: not fixed yet."""
    tools: tuple[str, ...] | None = None
    client_tools: tuple[ClientTool, ...] = ()
    dry_run: bool = False
    policy: SessionPolicy = HOLDFAST
    system_mode: Literal["append", "replace"] = "append"
    mode: Mode = "interactive"
    provider: Provider | None = None
    reasoning_effort: str | None = None
    thinking: int | None = None
    """Tokens that the model may think for; 0 is off, None its own habit."""
    stream: bool = True
    client_name: str = ""
    attached_process: str = ""
    """Where the client that came last is, or was, attached; empty where nobody said."""
    started_at: int = 0
    allow: list[str] = []
    place_rules: tuple[str, ...] = ()
    history: list[HistoryItem] = []
    cuts: list[tuple[int, Position]] = []
    """Rewinds that the history does not show yet, within a fold: of so many items from the start, those stay that
    outlive a rewind to that position. Both numbers rise from one to the next. It is empty whenever a fold is over."""
    calls_open: bool = True
    """Whether the last reply may have calls that its step left open."""
    turn: Turn | None = None
    turns: int = 0
    """How many were started."""
    no_worker_noted: bool = False
    """A message waits and nobody can run the session; its readers were told."""
    requests: dict[RequestId, OpenRequest] = {}
    tasks: dict[TaskId, RunningTask] = {}
    woken_turns: int = 0
    """How many turns in a row were started by tasks since a person wrote."""

    def model_now(self) -> str | None:
        """Whom the next call asks: as the turn has it, or else the session."""
        return (self.turn.model if self.turn else None) or self.model

    def thinking_now(self) -> int | None:
        chosen = self.turn.thinking if self.turn else None
        return self.thinking if chosen is None else chosen

    def reply(self) -> Reply | None:
        """The message of the step whose tools are running."""
        return self.last_reply() if self.phase in (Phase.RUNNING_TOOLS, Phase.WAITING) else None

    def last_reply(self) -> Reply | None:
        """The reply that stands last in the history. In a log that the runtime wrote it is near the end while it is of
        any interest: looking for it does not grow with the session."""
        since = self.cuts[-1][0] if self.cuts else 0
        for index in range(len(self.history) - 1, since - 1, -1):
            if isinstance(found := self.history[index], Reply):
                return found
        if self.cuts:
            self.cut_history()
            return self.last_reply()
        return None

    def cut_history(self) -> None:
        """Let the history show all rewinds, in one go however many they were."""
        left, start = [], 0
        for end, kept in self.cuts:
            left += [item for item in self.history[start:end] if outlives(item, kept)]
            start = end
        self.history = left + self.history[start:]
        self.cuts = []


def same_call_key(block: ToolCallBlock | Call) -> str:
    """Two calls with the same key ask for the same thing."""
    return f"{block.name}\0{block.arguments.strip()}"
