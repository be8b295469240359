"""The state of a session at one position of its log, and the table of events that may follow.

A session is idle or in a turn. A turn goes from step to step. Between two steps it takes in new messages and starts a
model call. The answer becomes one message. The tools that it calls run concurrently until each has a result; then the
step ends. A turn that can only go on with an answer is waiting, and no process holds its session. Every turn ends with
`TurnEnded`, and the session is idle again.

`TRANSITIONS` is the complete state machine. The holder of the lease checks every progress event against it before the
commit; records are legal in every phase and do not change it. Folding refuses nothing: every stored log is readable.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Literal

import msgspec

from holdfast.events import compaction, message, request, session, task, tool, turn
from holdfast.events.body import Body
from holdfast.events.compaction import CompactionMethod, CompactionSettings, CompactionTrigger
from holdfast.events.context import Reasoning
from holdfast.events.event import RECORDS, Unknown, type_of
from holdfast.events.ids import CompactionId, MessageId, Position, RequestId, SessionId, TaskId, ToolCallId, TurnId
from holdfast.events.message import AttachedFile, Image, NoteReason, ToolCallBlock
from holdfast.events.request import RequestKind
from holdfast.events.role import RoleBounds
from holdfast.events.session import ClientTool, DirectoryIdentity, Mode, Provider
from holdfast.events.tool import Origin
from holdfast.session.policy import HOLDFAST, SessionPolicy
from holdfast.session.tokens import BYTES_PER_PAGE, ContextSize, tokens_of


class Phase(StrEnum):
    IDLE = "idle"
    BETWEEN_STEPS = "between steps"
    CALLING_MODEL = "calling model"
    RUNNING_TOOLS = "running tools"
    WAITING = "waiting"


_ANYWHERE_IN_A_TURN = (turn.Claimed, turn.Aborted, session.SessionError)

_COMPACTION = (compaction.CompactionStarted, compaction.CompactionEnded)
"""A compaction goes on beside everything else."""

_STAYS: Mapping[Phase, tuple[type[Body], ...]] = {
    Phase.IDLE: (session.Truncated, task.TaskNotified),
    Phase.BETWEEN_STEPS: (message.UserMessage, message.Noted, task.TaskNotified, *_ANYWHERE_IN_A_TURN),
    Phase.CALLING_MODEL: (message.CallFailed, turn.FellBack, message.Usage, message.Noted, *_ANYWHERE_IN_A_TURN),
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
    **{(phase, kind): phase for phase in Phase for kind in _COMPACTION},
    **_MOVES,
}
"""The next phase for each phase and progress event. Every other pair is illegal."""

_LEGAL_ANYWHERE: tuple[type[Body], ...] = (*RECORDS, Unknown)


class IllegalTransition(Exception):
    """The runtime tried to write an event that may not follow. A bug of ours, caught before the event is durable."""

    def __init__(self, phase: Phase, body: Body) -> None:
        super().__init__(f"{type_of(body)} can't follow while {phase}")
        self.phase = phase
        self.body = body


def next_phase(phase: Phase, body: Body) -> Phase:
    """The phase after an event; raises `IllegalTransition` if the event may not follow."""
    phase_after = TRANSITIONS.get((phase, type(body)))
    if phase_after is not None:
        return phase_after
    if isinstance(body, _LEGAL_ANYWHERE):
        return phase
    raise IllegalTransition(phase, body)


class ToolCall(msgspec.Struct, gc=False):
    """A tool call of a reply. `result` is the text for the model; None until the call has a result."""

    tool_call_id: ToolCallId
    name: str
    arguments: str
    result: str | None = None
    origin: Origin = "unknown"
    """The source of the result's text."""
    images: tuple[Image, ...] = ()
    images_at: Position | None = None
    """The position of the event that holds the images; snapshots leave them out."""
    attempts: int = 0
    approved_for: str | None = None
    """The kind and subject of the permission that was granted for this call."""
    request_id: RequestId | None = None

    def tokens(self) -> int:
        asked = tokens_of((self.name, self.arguments))
        return asked if self.result is None else asked + tokens_of((self.result,), len(self.images))


class Person(msgspec.Struct, tag="person", gc=False):
    """A user message in the history."""

    position: Position
    text: str
    added: str = ""
    images: tuple[Image, ...] = ()
    images_at: Position | None = None
    message_id: MessageId = MessageId("")
    files: tuple[AttachedFile, ...] = ()
    """Those of its files that the model is shown. Their content is in the file store."""
    said_at: Position | None = None
    """For a pinned message that the model gets again: the position where the person said it. A rewind to a later
    position keeps the message."""

    def tokens(self) -> int:
        pages = sum(1 if file.is_picture else 1 + file.size // BYTES_PER_PAGE for file in self.files)
        return tokens_of((self.added, self.text), len(self.images) + pages)


class Note(msgspec.Struct, tag="note", gc=False):
    """A line of the runtime for the model only."""

    position: Position
    text: str
    task_started: Position | None = None
    """For task news: the position of the task's start. A rewind to a later position keeps the news."""

    def tokens(self) -> int:
        return tokens_of((self.text,))


class ModelReply(msgspec.Struct, tag="reply", dict=True):
    """The model's answer in one step, with the results of its calls. The list of calls never changes."""

    position: Position
    message_id: MessageId
    text: str
    calls: list[ToolCall]
    interrupted: bool = False
    reasoning: tuple[Reasoning, ...] = ()
    """The reasoning that its provider wants back."""
    reasoning_source: str = ""

    def call(self, tool_call_id: ToolCallId) -> ToolCall | None:
        """The call with this id; the first one if a model used the id several times."""
        return self._by_id.get(tool_call_id)

    @cached_property
    def _by_id(self) -> Mapping[ToolCallId, ToolCall]:
        return {call.tool_call_id: call for call in reversed(self.calls)}

    def unfinished(self) -> list[ToolCall]:
        return [call for call in self.calls if call.result is None]

    def tokens(self) -> int:
        own = tokens_of((self.text, *(piece.text for piece in self.reasoning if piece.text)))
        return own + sum(call.tokens() for call in self.calls)


class Summary(msgspec.Struct, tag="summary", gc=False):
    """What a compaction left of the conversation up to `position`. It is always the first item of the history."""

    position: Position
    """The last position that it stands for."""
    compaction_id: CompactionId
    method: CompactionMethod
    text: str
    people: list[Person]
    """The messages of people up to there that the model keeps word for word."""
    standing: str = ""
    """What held when it was made and that no summary may weaken: the permission rules, and the tasks that ran."""

    def tokens(self) -> int:
        return tokens_of((self.text, self.standing)) + sum(person.tokens() for person in self.people)


HistoryItem = Summary | Person | Note | ModelReply


def people_in(items: Iterable[HistoryItem]) -> Iterator[Person]:
    """The messages of people that the model is sent word for word, in order."""
    for item in items:
        if isinstance(item, Summary):
            yield from item.people
        elif isinstance(item, Person):
            yield item


def outlives(item: HistoryItem, kept: Position) -> bool:
    """Whether an item survives a rewind to `kept`: items up to there do, news of tasks that started up to there, and
    pinned messages that were said up to there."""
    if isinstance(item, Note) and item.task_started is not None:
        return item.task_started <= kept
    if isinstance(item, Person) and item.said_at is not None:
        return item.said_at <= kept
    return item.position <= kept


class RunningTask(msgspec.Struct):
    """A background command that the model knows as running."""

    command: str
    description: str
    output_file: str
    started_at: int
    position: Position = Position(0)
    """The position of its start in the log."""
    unattended: bool = False
    """It was started in an unattended turn: no person was present to answer requests."""
    bounds: tuple[RoleBounds, ...] = ()
    """The bounds of the turn that started it."""


class OpenRequest(msgspec.Struct):
    request_id: RequestId
    kind: RequestKind
    tool_call_id: ToolCallId
    rule: str = ""
    asked_for: str = ""


class Compaction(msgspec.Struct, frozen=True, gc=False):
    """A compaction that is under way."""

    compaction_id: CompactionId
    trigger: CompactionTrigger
    up_to: Position
    attempt: int
    instructions: str = ""
    tokens: int = 0
    started_at: int = 0


class CallFailure(msgspec.Struct):
    """The last failed attempt at the current model call."""

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
    position: Position = Position(0)
    """The position of its start in the log."""
    unattended: bool = False
    step: int = 0
    last_step: bool = False
    message_id: MessageId = MessageId("")
    message_ids: list[MessageId] = []
    """The user messages that belong to this turn."""
    model: str | None = None
    """The model that one of its messages chose in place of the session's model."""
    bounds: tuple[RoleBounds, ...] = ()
    """The bounds of the senders of its messages, and of the tasks whose news it got; each of them holds. A sender who
    may use anything adds none."""
    thinking: int | None = None
    attempts: int = 0
    """How many attempts at the current model call are over: they failed, or their process died."""
    failure: CallFailure | None = None
    failures_since_answer: int = 0
    fallback: str | None = None
    """The model that the rest of the turn uses, because the first one can't be reached."""
    too_long: int = 0
    """How often the provider refused the current call as too long."""
    window_found: bool = False
    """The last of these refusals named another window than the session knew of."""
    shortened: int = 0
    """How many compactions took effect since the last answer."""
    keeps_context: bool = False
    """A compaction was cancelled: no other starts by itself in this turn, unless the provider refuses a call."""
    notes: list[NoteReason] = []
    same_calls: dict[str, int] = {}
    no_worker_noted: bool = False


class State(msgspec.Struct):
    """A folded session. Its size is bounded by the context that the model is sent, not by the length of the log."""

    head: Position = Position(0)
    phase: Phase = Phase.IDLE
    session_id: SessionId = SessionId("")
    seed: str = ""
    """The random id of the session's first event; the marks around quoted text are derived from it."""
    title: str = ""
    title_chosen: bool = False
    """A person chose the title; a generated one never replaces it."""
    title_by_model: bool = False
    wants_title: bool = False
    """A model generates a title from the first message."""
    model: str | None = None
    system_message: str | None = None
    working_directory: str | None = None
    directory_identity: DirectoryIdentity | None = None
    """Device and inode of the working directory; None until its first use."""
    tools: tuple[str, ...] | None = None
    client_tools: tuple[ClientTool, ...] = ()
    dry_run: bool = False
    policy: SessionPolicy = HOLDFAST
    system_mode: Literal["append", "replace"] = "append"
    mode: Mode = "interactive"
    provider: Provider | None = None
    reasoning_effort: str | None = None
    thinking: int | None = None
    """The budget of thinking tokens; 0 turns thinking off, None leaves it to the model."""
    stream: bool = True
    client_name: str = ""
    attached_process: str = ""
    """The process that the latest client attached to; empty if no client said."""
    started_at: int = 0
    allow: list[str] = []
    place_rules: tuple[str, ...] = ()
    history: list[HistoryItem] = []
    cuts: list[tuple[int, Position]] = []
    """Rewinds not yet applied to the history, as (number of items, kept position): of that many items from the start,
    those that survive a rewind to the position stay. Both numbers rise along the list. Empty after every fold."""
    calls_open: bool = True
    """Whether the last reply may have calls without a result."""
    turn: Turn | None = None
    turns: int = 0
    """The number of turns started so far."""
    no_worker_noted: bool = False
    """The log already says that a message waits and no process can run the session."""
    requests: dict[RequestId, OpenRequest] = {}
    tasks: dict[TaskId, RunningTask] = {}
    tasks_listed: tuple[TaskId, ...] = ()
    """The running tasks that the model was told of last."""
    woken_turns: int = 0
    """The number of turns in a row that task news started, since the last user message."""
    prompt: str = ""
    """The digest of the prompt that the session's turns are held to: see `TurnStarted.prompt`."""
    compaction: Compaction | None = None
    """The compaction that is under way."""
    compactions: int = 0
    has_files: bool = False
    """A message came with files."""
    """How many compactions took effect."""
    compaction_failed_at: int | None = None
    """When the last compaction failed; None after one that took effect."""
    compaction_settings: CompactionSettings | None = None
    size: ContextSize = msgspec.field(default_factory=ContextSize)
    windows: dict[str, int] = {}
    """The windows that providers named when they refused a call as too long, by the name of the model."""
    pinned: tuple[MessageId, ...] = ()
    undone: tuple[Position, ...] = ()
    """The positions of compactions that a later rewind undid; known only when a log is folded again from its start."""
    is_behind: bool = False
    """The conversation was rewound to a position that a compaction had covered: the history lacks what the model is to
    be sent again, and has to be folded anew from the log."""

    def summary(self) -> Summary | None:
        first = self.history[0] if self.history else None
        return first if isinstance(first, Summary) else None

    @property
    def covered(self) -> Position:
        """The last position that a summary stands for; 0 if there is none."""
        summary = self.summary()
        return summary.position if summary is not None else Position(0)

    def model_now(self) -> str | None:
        """The model of the next call: the turn's fall-back, else the turn's choice, else the session's."""
        return (self.turn.fallback or self.turn.model if self.turn else None) or self.model

    def thinking_now(self) -> int | None:
        chosen = self.turn.thinking if self.turn else None
        return self.thinking if chosen is None else chosen

    def reply(self) -> ModelReply | None:
        """The message of the step whose tools are running."""
        return self.last_reply() if self.phase in (Phase.RUNNING_TOOLS, Phase.WAITING) else None

    def last_reply(self) -> ModelReply | None:
        """The last reply in the history. In a log that the runtime wrote it is near the end, so that the search takes
        constant time."""
        since = self.cuts[-1][0] if self.cuts else 0
        for index in range(len(self.history) - 1, since - 1, -1):
            if isinstance(item := self.history[index], ModelReply):
                return item
        if self.cuts:
            self.cut_history()
            return self.last_reply()
        return None

    def cut_history(self) -> None:
        """Apply all pending rewinds to the history in one pass."""
        survivors: list[HistoryItem] = []
        start = 0
        for end, kept in self.cuts:
            for item in self.history[start:end]:
                if outlives(item, kept):
                    survivors.append(item)
                else:
                    self.size.drop(item.tokens())
            start = end
        self.history = survivors + self.history[start:]
        self.cuts = []

    def context_tokens(self, prompt: int) -> int:
        """The size of the next model call in tokens, as far as it is known. `prompt` is an estimate of what stands
        before the conversation."""
        return self.size.now(prompt)


def united(bounds: tuple[RoleBounds, ...], more: tuple[RoleBounds, ...]) -> tuple[RoleBounds, ...]:
    """The bounds together, each of them once."""
    return (*bounds, *(each for each in more if each not in bounds))


def same_call_key(block: ToolCallBlock | ToolCall) -> str:
    """A key that two calls share if they have the same name and arguments."""
    return f"{block.name}\0{block.arguments.strip()}"
