"""State to the next step. Pure: the same state and inputs always give the same action.

A turn only ever runs by being decided: after a crash the log is folded again and decided again, and nobody needs to
know that there was a crash. What came into the inbox is looked at first (answers, then a stop), then what the phase
asks for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from holdfast.events import message, request, session, task, tool, turn
from holdfast.events.body import Body
from holdfast.events.ids import Fence, MessageId, RequestId, ToolCallId, TurnId
from holdfast.events.inbox import (
    Answer,
    InboxItem,
    Message,
    PermissionAnswer,
    QuestionAnswer,
    Rewind,
    Stop,
    StopCause,
    TaskNews,
    ToBackground,
    ToolAnswer,
    UnknownItem,
)
from holdfast.events.message import Block, Delivery, SealCause
from holdfast.events.request import PermissionAsk, RequestKind
from holdfast.events.task import TaskNotice
from holdfast.session.bounds import Bounds
from holdfast.session.fold import INTERRUPTED, NO_WORKER
from holdfast.session.permissions import NOBODY_COULD, judge, session_rule
from holdfast.session.state import Call, Phase, Reply, State, Turn, same_call_key

MODEL = "model"
"""What a running model call is called among the running activities; a running tool goes by its call's id."""

TITLE_CHARACTERS = 60

_Id = TypeVar("_Id", bound=str)

SEALED_LINE = "Your reply was interrupted; answer again."
STOPPED_LINE = "The user stopped your work here, before this turn was finished."
EMPTY_LINE = "You ended without a visible answer. Sum up for the user, in a line or two, what was done and found."
LAST_ROUND_LINE = "This is the last round of this turn: sum up what was done, without calling tools."
REPEATED_LINE = (
    "You made the same tool call with the same arguments many times. Do something else, or answer with what you have."
)
CLOSING_LINE = "(The model ended this turn without an answer.)"
NO_WORKER_LINE = (
    "This message waits: no process is running that has this session's tools and can use its model. Start one, or "
    "choose another model."
)
DENIED = "Permission denied and could not request permission from user"
REJECTED = "The user rejected this tool call."
NO_MORE_ROUNDS = "This was the last round of this turn: no tool is run in it."
UNKNOWN_OUTCOME = (
    "The runtime was interrupted while this tool ran. Whether it took effect is unknown: check before doing it again."
)


class CallFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the tools say of a call, beyond what the log says."""

    where: Literal["here", "client", "person", "nowhere"]
    ask: PermissionAsk | None = None
    repeatable: bool = False
    error: str = ""
    """Why it can't be run, for `nowhere`."""
    error_code: tool.ToolError = "unknown_tool"
    error_origin: tool.Origin = "runtime"
    """Whose words that is: the runtime's, or those of the tool's own code."""
    code: str = ""
    """The stable name of why, where there is one."""
    question: str = ""
    choices: tuple[str, ...] = ()
    allow_freeform: bool = True


class InterruptedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call whose tool was told to end because its turn is being ended."""

    has_ended: bool
    """False: it does not heed that, or takes its time."""
    known: str = ""
    """What its tool said of how it ended, or gave back."""
    origin: tool.Origin = "tool"
    """Where that is from."""


class Inputs(msgspec.Struct, kw_only=True):
    """What a decision is made on beside the state."""

    new_id: Callable[[], str]
    now: int
    bounds: Bounds
    inbox: tuple[InboxItem, ...] = ()
    shown: tuple[Block, ...] = ()
    """Blocks of the message in flight that were committed, and so may have been seen."""
    running: frozenset[str] = frozenset()
    facts: Mapping[ToolCallId, CallFacts] = {}
    interrupted: Mapping[ToolCallId, InterruptedCall] = {}
    """Calls that this holder interrupted, in order to end the turn."""
    claims_without_progress: int = 0
    eligible: bool = True
    granted: frozenset[str] = frozenset()
    """The rules that hold now where the session works: one that was taken back since it was noted does not count."""
    readable: tuple[str, ...] = ()
    """Rules for what a session may read wherever it lies: the output of its own commands."""
    backgrounded: frozenset[str] = frozenset()
    """Running calls that were asked to go on in the background, or can't be any more; each is asked once."""
    deciders: tuple[frozenset[RequestId], ...] = ()
    """For each present client that can decide permissions, the requests that it declined."""
    denying: frozenset[RequestId] = frozenset()
    """Requests whose denial this holder has put."""
    takeover: tuple[Fence, str] | None = None
    """This holder has just claimed the session (its fence and node) and has not written yet."""


class Opened(msgspec.Struct, frozen=True):
    request_id: RequestId
    kind: RequestKind
    tool_call_id: ToolCallId
    title: str


class Promoted(msgspec.Struct, frozen=True):
    sequence: int
    outcome: str
    refused: bool = False


class Append(msgspec.Struct, kw_only=True):
    """Write this, as one unit, and decide again."""

    events: list[Body] = []
    promotes: list[Promoted] = []
    opens: list[Opened] = []
    closes: list[RequestId] = []
    drops_segments: bool = False
    ends_commands: bool = False
    """What the turn waits for in the foreground is to be killed, by whoever can."""
    supposes_head: bool = False
    """Only if the log is as the state has it: no record came in between."""


class CallModel(msgspec.Struct, frozen=True):
    """Make the call whose answer is the message `message_id`, after a pause if it failed before."""

    message_id: MessageId
    attempt: int
    delay_seconds: float = 0


class RunTools(msgspec.Struct, frozen=True):
    calls: tuple[Call, ...]


class GoToBackground(msgspec.Struct, frozen=True):
    """Let this running call end now, while what it started goes on."""

    tool_call_id: ToolCallId


class Deny(msgspec.Struct, frozen=True):
    """Put the denial of these permissions, as an answer that loses against any that was accepted before."""

    request_ids: tuple[RequestId, ...]


class Interrupt(msgspec.Struct, frozen=True):
    """End whatever runs, at once."""


class Pause(msgspec.Struct, frozen=True):
    """Something runs: decide again when it ends or when something is put."""


class Release(msgspec.Struct, frozen=True):
    """Nothing to do: let go of the session. `for_another`: there is, but not for this process. `for_newer`: the inbox
    has items that only a newer release can promote."""

    for_another: bool = False
    for_newer: bool = False


Action = Append | CallModel | RunTools | GoToBackground | Deny | Interrupt | Pause | Release


def decide(state: State, inputs: Inputs) -> Action:
    """What the holder of the session does next."""
    action = _decide(state, inputs)
    if action == Release() and any(isinstance(item.item, UnknownItem) for item in inputs.inbox):
        action = Release(for_newer=True)
    if inputs.takeover is None or state.turn is None:
        return action
    fence, node = inputs.takeover
    claimed = turn.Claimed(fence=fence, node=node)
    if isinstance(action, Append):
        action.events.insert(0, claimed)
        return action
    return Append(events=[claimed])


def _decide(state: State, inputs: Inputs) -> Action:
    if action := _answers(state, inputs) or _stop(state, inputs) or _rewind(state, inputs):
        return action
    if moved := _to_background(state, inputs):
        return moved
    if not inputs.eligible:
        return _for_another(state, inputs)
    if declined := _declined(state, inputs):
        return Deny(declined)
    if state.turn is None:
        return _start_turn(state, inputs)
    if inputs.claims_without_progress > inputs.bounds.max_claims_without_progress:
        return _poisoned(state, inputs, state.turn)
    match state.phase:
        case Phase.BETWEEN_STEPS | Phase.IDLE:
            return Append(events=_next_step(state, inputs, state.turn), promotes=_taken_in(inputs))
        case Phase.CALLING_MODEL:
            return _call_model(state, inputs, state.turn)
        case Phase.RUNNING_TOOLS | Phase.WAITING:
            return _run_tools(state, inputs, state.turn)


# What came into the inbox


def _answers(state: State, inputs: Inputs) -> Append | None:
    """Accepted answers, up to the first stop, close their requests."""
    found = Append()
    for item in inputs.inbox:
        match item.item:
            case Stop():
                break
            case Answer() as answer:
                _answer(state, inputs, item, answer, found)
            case Message() | Rewind() | TaskNews() | ToBackground() | UnknownItem():
                continue
    return found if found.promotes else None


def _answer(state: State, inputs: Inputs, item: InboxItem, answer: Answer, found: Append) -> None:
    opened = state.requests.get(answer.request_id)
    if opened is None:
        found.promotes.append(Promoted(item.sequence, "request_closed", refused=True))
        return
    found.promotes.append(Promoted(item.sequence, "answered"))
    found.closes.append(opened.request_id)
    by = answer.answered_by
    match answer.content:
        case PermissionAnswer(decision=decision, feedback=feedback, rules=rules):
            found.events.append(
                request.PermissionCompleted(
                    request_id=opened.request_id,
                    tool_call_id=opened.tool_call_id,
                    decision=decision,
                    feedback=feedback,
                    answered_by=by,
                    rules=rules,
                )
            )
            if decision == NOBODY_COULD:
                found.events.append(_refusal(opened.tool_call_id, DENIED, "denied"))
            elif decision not in ("approved", "approved-for-session"):
                text = f"{REJECTED} {feedback}".strip()
                found.events.append(_refusal(opened.tool_call_id, text, "rejected", "person"))
        case ToolAnswer(content=content, success=success, error=error, images=images):
            found.events.append(request.ExternalToolCompleted(request_id=opened.request_id, answered_by=by))
            found.events.append(
                tool.ToolCompleted(
                    tool_call_id=opened.tool_call_id,
                    success=success,
                    content=content,
                    preview=preview(content, inputs.bounds.max_tool_characters, opened.tool_call_id),
                    origin="client",
                    error=None if success else error or "failed",
                    images=images,
                )
            )
        case QuestionAnswer(answer=text, failed=True):
            found.events.append(
                request.UserInputCompleted(request_id=opened.request_id, answered_by=by, cancelled=True)
            )
            refused = f"The user could not be asked: {text}"
            found.events.append(_refusal(opened.tool_call_id, refused, "failed", "client"))
        case QuestionAnswer(answer=text, was_freeform=freeform):
            found.events.append(
                request.UserInputCompleted(
                    request_id=opened.request_id, answer=text, was_freeform=freeform, answered_by=by
                )
            )
            said = f"User responded: {text}" if freeform else f"User selected: {text}"
            found.events.append(
                tool.ToolCompleted(tool_call_id=opened.tool_call_id, success=True, content=said, origin="person")
            )


def _stop(state: State, inputs: Inputs) -> Append | Interrupt | None:
    """The first stop in the inbox ends the turn that it was meant for, and no other."""
    found = next((item for item in inputs.inbox if isinstance(item.item, Stop)), None)
    if found is None:
        return None
    assert isinstance(found.item, Stop)
    if state.turn is None or state.turn.turn_id != found.item.turn_id:
        return Append(promotes=[Promoted(found.sequence, "turn_ended_before")])
    if inputs.running:
        return Interrupt()
    ending = _ended_by(state, inputs, state.turn, found.item.cause)
    ending.promotes.append(Promoted(found.sequence, "stopped"))
    return ending


def _rewind(state: State, inputs: Inputs) -> Append | None:
    found = next((item for item in inputs.inbox if isinstance(item.item, Rewind)), None)
    if found is None:
        return None
    assert isinstance(found.item, Rewind)
    if state.turn is not None:
        return Append(promotes=[Promoted(found.sequence, "busy", refused=True)])
    kept = min(found.item.kept, state.head)
    return Append(events=[session.Truncated(kept=kept)], promotes=[Promoted(found.sequence, "rewound")])


def _to_background(state: State, inputs: Inputs) -> Append | GoToBackground | None:
    """A call that somebody no longer wants to wait for. Its own result says what became of it."""
    reply = state.reply()
    for found in inputs.inbox:
        if not isinstance(found.item, ToBackground):
            continue
        call = reply.call(found.item.tool_call_id) if reply else None
        if call is None or call.result is not None:
            outcome = "backgrounded" if found.item.task_id in state.tasks else "ended_before"
            return Append(promotes=[Promoted(found.sequence, outcome)])
        if call.tool_call_id in inputs.running - inputs.backgrounded:
            return GoToBackground(call.tool_call_id)
    return None


def declined_by_all(deciders: Sequence[frozenset[RequestId]]) -> frozenset[RequestId]:
    """The requests that every present client able to decide permissions has declined; none without such a client."""
    return frozenset.intersection(*deciders) if deciders else frozenset()


def _declined(state: State, inputs: Inputs) -> tuple[RequestId, ...]:
    """The open permissions among them. With no client present that can decide, a permission waits: the next client that
    comes may."""
    declined = declined_by_all(inputs.deciders) - inputs.denying
    return tuple(
        opened.request_id
        for opened in state.requests.values()
        if opened.kind == "permission" and opened.request_id in declined
    )


def _ended_by(state: State, inputs: Inputs, current: Turn, cause: StopCause) -> Append:
    match cause:
        case "stopped":
            aborted = turn.Aborted(reason="user_initiated")
            stopping = Ending(why="Session aborted", by="The user stopped the turn", note=STOPPED_LINE)
            return end_early(state, inputs, current, "stopped", stopping, first=[aborted])
        case "suspended":
            suspending = Ending(why="Session suspended", by="The session was suspended")
            return end_early(state, inputs, current, "stopped", suspending)
        case "not continued":
            resuming = Ending(why="The session was resumed without it", by="The session was resumed without this turn")
            return end_early(state, inputs, current, "interrupted", resuming)


def _for_another(state: State, inputs: Inputs) -> Action:
    """Nobody who could run it came for a minute: whoever waits should be told, in the turn or before it began."""
    if state.turn and not state.turn.no_worker_noted:
        return Append(events=[turn.TurnWaiting(turn_id=state.turn.turn_id, reason="no eligible worker")])
    waits = any(isinstance(item.item, Message) for item in inputs.inbox)
    if state.turn is None and waits and not state.no_worker_noted:
        return Append(events=[session.SessionInfo(info_type=NO_WORKER, message=NO_WORKER_LINE)])
    if state.turn is None and not waits and isinstance(_wake(state, inputs), Release):
        return Release()  # Nothing waits for another process either: left runnable, it would count as a turn in line.
    return Release(for_another=True)


# How turns start and end


def _start_turn(state: State, inputs: Inputs) -> Append | Release:
    """The first message that waits starts a turn; those that would steer it are taken in with it, and so is what became
    of tasks."""
    waiting = [(item, item.item) for item in inputs.inbox if isinstance(item.item, Message)]
    if not waiting:
        return _wake(state, inputs)
    first = waiting[0]
    taken = [first, *(pair for pair in waiting[1:] if pair[1].delivery == "steer")]
    turn_id = _new(TurnId, inputs)
    started = turn.TurnStarted(turn_id=turn_id, unattended=all(sent.unattended for _, sent in taken))
    begun = Append(events=[started, *_news(inputs)], promotes=_news_promotions(inputs), supposes_head=True)
    if first[1].rewinds_to is not None:
        begun.events.insert(0, session.Truncated(kept=min(first[1].rewinds_to, state.head)))
    for item, sent in taken:
        delivery: Delivery = "queued" if item.while_running else "idle"
        begun.events.append(_user_message(sent, turn_id, delivery))
        begun.promotes.append(Promoted(item.sequence, delivery))
    if not state.title:
        begun.events.append(session.TitleChanged(title=_title(state, inputs, first[1].text)))
    begun.events.append(turn.StepStarted(turn_id=turn_id, step=1, message_id=_new(MessageId, inputs)))
    return begun


def _wake(state: State, inputs: Inputs) -> Append | Release:
    """One turn for all that became of tasks meanwhile, though nobody wrote. After many of them in a row the rest waits:
    a model and its tasks must not keep each other busy for ever."""
    news = [item.item.notice for item in inputs.inbox if isinstance(item.item, TaskNews)]
    told = [notice for notice in news if not notice.silent]
    if not news or (told and state.woken_turns >= inputs.bounds.max_woken_turns):
        return Release()
    if not told:
        return Append(events=_news(inputs), promotes=_news_promotions(inputs), supposes_head=True)
    turn_id = _new(TurnId, inputs)
    tasks = [state.tasks.get(notice.task_id) for notice in told]
    unattended = all(found is not None and found.unattended for found in tasks)
    started = turn.TurnStarted(turn_id=turn_id, unattended=unattended, woken=True)
    step = turn.StepStarted(turn_id=turn_id, step=1, message_id=_new(MessageId, inputs))
    return Append(events=[started, *_news(inputs), step], promotes=_news_promotions(inputs), supposes_head=True)


def _news(inputs: Inputs) -> list[Body]:
    return [task.TaskNotified(notice=item.item.notice) for item in inputs.inbox if isinstance(item.item, TaskNews)]


def _news_promotions(inputs: Inputs) -> list[Promoted]:
    return [Promoted(item.sequence, "told") for item in inputs.inbox if isinstance(item.item, TaskNews)]


def tasks_of_another(state: State) -> list[Body]:
    """For a copy of a session: its tasks run on, but not here, and nobody will tell this one of their end."""
    return [
        task.TaskNotified(
            notice=TaskNotice(
                task_id=task_id,
                kind="lost",
                command=found.command,
                description=found.description,
                detail="It belongs to the session that this one is a copy of.",
            )
        )
        for task_id, found in state.tasks.items()
    ]


def _poisoned(state: State, inputs: Inputs, current: Turn) -> Append:
    error = session.SessionError(
        error_type="poisoned",
        message=f"This turn was given up: {inputs.bounds.max_claims_without_progress} processes in a row died or "
        "failed while they ran it. What was done so far is kept; send a message to go on.",
        retryable=True,
    )
    return end_early(state, inputs, current, "error", last=[error])


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a turn that is ended early, and not by a crash."""

    why: str = ""
    """For whoever was asked something."""
    by: str = ""
    """For the model, of calls that are left without a result: the first half of a sentence. Empty: a crash."""
    note: str = ""
    """A line for the model, where no call tells it of the end."""


def end_early(
    state: State,
    inputs: Inputs,
    current: Turn,
    reason: turn.EndReason,
    ending: Ending = Ending(),  # noqa: B008
    *,
    first: Iterable[Body] = (),
    last: Iterable[Body] = (),
) -> Append:
    """End a turn wherever it is: what was shown is kept, and everything open is closed. What ended it stands `first`,
    or, where it is the outcome, `last`. What became of tasks meanwhile is taken in, so that it is told next time and
    does not start a turn right behind the one that somebody stopped."""
    written = Append(drops_segments=True, ends_commands=True, events=list(first), promotes=_news_promotions(inputs))
    if state.phase is Phase.CALLING_MODEL and inputs.shown:
        written.events.extend(cut_message(current.message_id, inputs.shown))
    for opened in state.requests.values():
        written.events.append(_cancelled(opened.request_id, opened.kind, opened.tool_call_id, ending.why))
        written.closes.append(opened.request_id)
    reply = state.reply()
    unfinished = reply.unfinished() if reply else []
    written.events.extend(_interrupted(state, inputs, call, ending.by) for call in unfinished)
    if state.phase is not Phase.BETWEEN_STEPS:
        written.events.append(turn.StepEnded(turn_id=current.turn_id, step=current.step))
    written.events.extend(_news(inputs))
    if ending.note and (not unfinished or state.conventions == "copilot"):
        written.events.append(message.Noted(text=ending.note, reason="stopped"))
    written.events.extend(last)
    written.events.append(_turn_ended(inputs, current, reason))
    return written


def cut_message(message_id: MessageId, shown: Iterable[Block]) -> list[Body]:
    """A message that was cut keeps what readers saw; the calls that it began are closed."""
    blocks = tuple(shown)
    cut: list[Body] = [message.AssistantMessage(message_id=message_id, blocks=blocks, interrupted=True)]
    for block in blocks:
        if isinstance(block, message.ToolCallBlock):
            cut.append(_refusal(block.tool_call_id, INTERRUPTED, "interrupted"))
    return cut


def sealed(
    message_id: MessageId,
    shown: Iterable[Block],
    next_message_id: MessageId,
    cause: SealCause,
) -> list[Body]:
    """Close a message that was cut, so that the call can be made again as another one."""
    return [
        *cut_message(message_id, shown),
        message.Sealed(message_id=message_id, next_message_id=next_message_id, cause=cause),
        message.Noted(text=SEALED_LINE, reason="interrupted"),
    ]


def _interrupted(state: State, inputs: Inputs, call: Call, by: str) -> Body:
    origin: tool.Origin = "runtime"
    if state.conventions == "copilot":
        text = INTERRUPTED
    elif by:
        found = inputs.interrupted.get(call.tool_call_id)
        text = _how_far_it_came(call, found, by)
        origin = found.origin if found and found.known else "runtime"
    else:
        text = INTERRUPTED if call.attempts == 0 else UNKNOWN_OUTCOME
    return tool.ToolCompleted(
        tool_call_id=call.tool_call_id,
        success=False,
        content=text,
        preview=preview(text, inputs.bounds.max_tool_characters, call.tool_call_id),
        origin=origin,
        error="interrupted",
    )


def _how_far_it_came(call: Call, found: InterruptedCall | None, by: str) -> str:
    if call.attempts == 0:
        return f"{by} before this tool was run."
    if found is None:
        return f"{by} while this tool ran. Whether it took effect is unknown: check before doing it again."
    if not found.has_ended:
        return f"{by} while this tool ran. It was told to end, but was still running then: it may still take effect."
    if not found.known:
        return (
            f"{by} while this tool ran, which was ended. What it had done by then stays: check before doing it again."
        )
    return f"{by} while this tool ran, which was ended. What is known of it:\n{found.known}"


def _cancelled(request_id: RequestId, kind: RequestKind, tool_call_id: ToolCallId, why: str) -> Body:
    match kind:
        case "permission":
            return request.PermissionCompleted(
                request_id=request_id, tool_call_id=tool_call_id, decision="cancelled", feedback=why
            )
        case "client_tool":
            return request.ExternalToolCompleted(request_id=request_id, cancelled=True)
        case "question":
            return request.UserInputCompleted(request_id=request_id, cancelled=True)


# The model call


def _call_model(state: State, inputs: Inputs, current: Turn) -> Action:
    if MODEL in inputs.running:
        return Pause()
    failure = current.failure
    if failure and _gives_up(current, inputs.bounds):
        error = session.SessionError(
            error_type=failure.code,
            message=failure.message,
            retryable=failure.retryable,
            status_code=failure.status_code,
        )
        return end_early(state, inputs, current, "error", last=[error])
    if inputs.shown:
        failed = failure is not None and failure.message_id == current.message_id
        cause: SealCause = "provider error" if failed else "crash"
        events = sealed(current.message_id, inputs.shown, _new(MessageId, inputs), cause)
        return Append(events=events, drops_segments=True)
    if failure is None:
        return CallModel(current.message_id, attempt=1)
    return CallModel(current.message_id, failure.attempt + 1, _pause_before_retry(current, inputs.bounds))


def _gives_up(current: Turn, bounds: Bounds) -> bool:
    failure = current.failure
    if failure is None:
        return False
    too_long = (failure.retry_after_ms or 0) > bounds.max_retry_after_seconds * 1000
    return not failure.retryable or too_long or current.failures_since_answer >= bounds.max_model_attempts


def _pause_before_retry(current: Turn, bounds: Bounds) -> float:
    backoff = bounds.backoff_seconds * 2.0 ** (current.failures_since_answer - 1)
    asked = (current.failure.retry_after_ms or 0) / 1000 if current.failure else 0
    return max(min(backoff, bounds.max_backoff_seconds), asked)


def after_answer(state: State, inputs: Inputs, current: Turn, text: str) -> list[Body]:
    """What follows an answer that calls no tools: the end of the turn, unless more is to be said."""
    ended = turn.StepEnded(turn_id=current.turn_id, step=current.step)
    if not text.strip():
        if "empty answer" in current.notes or current.last_step or state.conventions == "copilot":
            return [ended, *_closing_line(inputs, current), _turn_ended(inputs, current, "completed")]
        return [ended, message.Noted(text=EMPTY_LINE, reason="empty answer"), *_step(state, inputs, current)]
    if _steering(inputs):
        return [ended, *_next_step(state, inputs, current)]
    return [ended, _turn_ended(inputs, current, "completed")]


def _closing_line(inputs: Inputs, current: Turn) -> list[Body]:
    """A turn never ends in silence: one last line, said by the runtime."""
    message_id = _new(MessageId, inputs)
    step = current.step + 1
    return [
        turn.StepStarted(turn_id=current.turn_id, step=step, message_id=message_id),
        message.AssistantMessage(
            message_id=message_id, blocks=(message.TextBlock(text=CLOSING_LINE),), model="holdfast"
        ),
        turn.StepEnded(turn_id=current.turn_id, step=step),
    ]


def _next_step(state: State, inputs: Inputs, current: Turn) -> list[Body]:
    """What became of tasks and what people sent meanwhile, then the next model call."""
    sent = [item.item for item in _steering_items(inputs)]
    said: list[Body] = [_user_message(found, current.turn_id, "steering") for found in sent]
    return [*_news(inputs), *said, *_step(state, inputs, current)]


def _step(state: State, inputs: Inputs, current: Turn) -> list[Body]:
    number = current.step + 1
    last = number > inputs.bounds.max_rounds
    started = turn.StepStarted(turn_id=current.turn_id, step=number, message_id=_new(MessageId, inputs), last=last)
    if last and "last round" not in current.notes:
        return [message.Noted(text=LAST_ROUND_LINE, reason="last round"), started]
    return [started]


class SteeringItem(msgspec.Struct, frozen=True):
    sequence: int
    item: Message


def _steering_items(inputs: Inputs) -> list[SteeringItem]:
    return [
        SteeringItem(found.sequence, found.item)
        for found in inputs.inbox
        if isinstance(found.item, Message) and found.item.delivery == "steer"
    ]


def _steering(inputs: Inputs) -> list[Promoted]:
    return [Promoted(found.sequence, "steering") for found in _steering_items(inputs)]


def steering_promotions(events: list[Body], inputs: Inputs) -> list[Promoted]:
    """The promotions that belong to what `after_answer` gave."""
    return _taken_in(inputs) if any(isinstance(body, message.UserMessage) for body in events) else []


def _taken_in(inputs: Inputs) -> list[Promoted]:
    """The promotions that belong to `_next_step`."""
    return [*_news_promotions(inputs), *_steering(inputs)]


# The tools


def _run_tools(state: State, inputs: Inputs, current: Turn) -> Action:
    reply = state.reply()
    if reply is None or not reply.unfinished():
        return _end_step(state, inputs, current, reply)
    if _repeats(reply, current, inputs.bounds) and "repeated call" in current.notes:
        return _repeated(state, inputs, current)
    written = Append()
    startable: list[Call] = []
    for call in reply.unfinished():
        _next_for_call(state, inputs, current, call, written, startable)
    if written.events:
        return written
    if startable:
        return RunTools(tuple(startable))
    if inputs.running:
        return Pause()
    if state.phase is Phase.RUNNING_TOOLS or current.no_worker_noted:
        waiting = turn.TurnWaiting(turn_id=current.turn_id, reason="requests", request_ids=tuple(state.requests))
        return Append(events=[waiting])
    return Release()


def _end_step(state: State, inputs: Inputs, current: Turn, reply: Reply | None) -> Append:
    if reply is None or not reply.calls or current.last_step:
        text = reply.text if reply else ""
        events = after_answer(state, inputs, current, text)
        return Append(events=events, promotes=steering_promotions(events, inputs), drops_segments=True)
    ended: list[Body] = [turn.StepEnded(turn_id=current.turn_id, step=current.step)]
    if _ends_the_turn(state, reply) and not _steering(inputs):
        return Append(events=[*ended, _turn_ended(inputs, current, "completed")])
    if _repeats(reply, current, inputs.bounds):
        ended.append(message.Noted(text=REPEATED_LINE, reason="repeated call"))
    return Append(events=[*ended, *_next_step(state, inputs, current)], promotes=_taken_in(inputs))


def _ends_the_turn(state: State, reply: Reply) -> bool:
    """The model called a tool with which everything is said."""
    last = {tool.name for tool in state.client_tools if tool.ends_turn}
    return any(call.name in last for call in reply.calls)


def _next_for_call(
    state: State, inputs: Inputs, current: Turn, call: Call, written: Append, startable: list[Call]
) -> None:
    """One call's next move: refuse it, ask about it, hand it out, start it, or leave it be."""
    if call.tool_call_id in inputs.running or call.request_id is not None:
        return
    facts = inputs.facts[call.tool_call_id]
    if current.last_step:
        # The call was made without tools. A model that asks for one all the same would never come to an end.
        written.events.append(_refusal(call.tool_call_id, NO_MORE_ROUNDS, "denied"))
    elif call.attempts and not facts.repeatable:
        written.events.append(_refusal(call.tool_call_id, UNKNOWN_OUTCOME, "interrupted"))
    elif facts.where == "nowhere":
        refused = _refusal(call.tool_call_id, facts.error, facts.error_code, facts.error_origin, facts.code)
        written.events.append(refused)
    elif facts.ask and call.approved_for != f"{facts.ask.kind} {facts.ask.subject}":
        # Also when it was approved for something else: a link may lead elsewhere by now.
        _ask(state, inputs, current, call, facts, facts.ask, written, startable)
    else:
        _hand_out(inputs, call, facts, written, startable)


def _ask(
    state: State,
    inputs: Inputs,
    current: Turn,
    call: Call,
    facts: CallFacts,
    ask: PermissionAsk,
    written: Append,
    startable: list[Call],
) -> None:
    asks_always = state.conventions == "copilot"
    allow = [*state.allow, *(rule for rule in state.place_rules if rule in inputs.granted), *inputs.readable]
    match judge(ask, tool_name=call.name, allow=allow, unattended=current.unattended, asks_always=asks_always):
        case "allow":
            _hand_out(inputs, call, facts, written, startable)
        case "deny":
            written.events.append(_refusal(call.tool_call_id, DENIED, "denied"))
        case "ask":
            request_id = _new(RequestId, inputs)
            asked = request.PermissionRequested(
                request_id=request_id,
                tool_call_id=call.tool_call_id,
                tool_name=call.name,
                kind=ask.kind,
                subject=ask.subject,
                rule=session_rule(ask, call.name),
                details=ask.details,
            )
            _open(written, asked, Opened(request_id, "permission", call.tool_call_id, f"{ask.kind} {ask.subject}"))


def _hand_out(inputs: Inputs, call: Call, facts: CallFacts, written: Append, startable: list[Call]) -> None:
    if facts.where == "here":
        startable.append(call)
        return
    request_id = _new(RequestId, inputs)
    if facts.where == "client":
        handed: Body = request.ExternalToolRequested(
            request_id=request_id, tool_call_id=call.tool_call_id, tool_name=call.name, arguments=call.arguments
        )
        _open(written, handed, Opened(request_id, "client_tool", call.tool_call_id, call.name))
    else:
        handed = request.UserInputRequested(
            request_id=request_id,
            tool_call_id=call.tool_call_id,
            question=facts.question,
            choices=facts.choices,
            allow_freeform=facts.allow_freeform,
        )
        _open(written, handed, Opened(request_id, "question", call.tool_call_id, facts.question))


def _open(written: Append, asked: Body, opened: Opened) -> None:
    written.events.append(asked)
    title = opened.title if len(opened.title) <= 200 else opened.title[:199] + "…"
    written.opens.append(Opened(opened.request_id, opened.kind, opened.tool_call_id, title))


def _repeats(reply: Reply, current: Turn, bounds: Bounds) -> bool:
    return any(current.same_calls.get(same_call_key(call), 0) > bounds.max_same_calls for call in reply.calls)


def _repeated(state: State, inputs: Inputs, current: Turn) -> Action:
    if inputs.running:
        return Interrupt()
    error = session.SessionError(
        error_type="repeated_call",
        message="The model kept making the same tool call after it was warned, so the turn was ended. "
        "Say what you want done differently.",
        retryable=True,
    )
    return end_early(state, inputs, current, "error", Ending(by="The turn was ended"), last=[error])


# Small words


def preview(text: str, limit: int, tool_call_id: ToolCallId) -> str | None:
    """The beginning and the end of a text that is too long, with a line between that says how to read the rest."""
    if len(text) <= limit:
        return None
    head, tail = limit * 3 // 4, limit // 4
    left_out = len(text) - head - tail
    marker = (
        f"\n\n[… {left_out:,} of {len(text):,} characters are left out here. The whole result is kept: read more of "
        f"it with read_tool_output, tool_call_id {tool_call_id}, offset {head} …]\n\n"
    )
    return text[:head] + marker + text[len(text) - tail :]


def _title(state: State, inputs: Inputs, text: str) -> str:
    return text[: inputs.bounds.max_name_characters] if state.conventions == "copilot" else title_from(text)


def title_from(text: str) -> str:
    """The first words of a message, as a title."""
    words = " ".join(text.split())
    if len(words) <= TITLE_CHARACTERS:
        return words
    return words[:TITLE_CHARACTERS].rsplit(" ", 1)[0] + "…"


def _refusal(
    tool_call_id: ToolCallId, text: str, error: tool.ToolError, origin: tool.Origin = "runtime", code: str = ""
) -> tool.ToolCompleted:
    return tool.ToolCompleted(
        tool_call_id=tool_call_id, success=False, content=text, error=error, origin=origin, code=code
    )


def _user_message(sent: Message, turn_id: TurnId, delivery: Delivery) -> message.UserMessage:
    return message.UserMessage(
        message_id=sent.message_id,
        turn_id=turn_id,
        content=sent.text,
        delivery=delivery,
        model_text=sent.model_text,
        added=_added(sent),
        images=sent.images,
        attachments=sent.attachments,
        agent_mode=sent.agent_mode,
        model=sent.model,
        thinking=sent.thinking,
    )


def _added(sent: Message) -> str:
    page = sent.context.as_text() if sent.context else ""
    return f"{sent.added}\n\n{page}" if sent.added and page else sent.added or page


def _turn_ended(inputs: Inputs, current: Turn, reason: turn.EndReason) -> turn.TurnEnded:
    return turn.TurnEnded(turn_id=current.turn_id, reason=reason, duration_ms=max(0, inputs.now - current.started_at))


def _new(kind: Callable[[str], _Id], inputs: Inputs) -> _Id:
    return kind(inputs.new_id())
