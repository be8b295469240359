"""Folds events into state. Folding a prefix and then the rest gives the same state as folding all at once.

Every log can be folded: an event that makes no sense at its position changes what it can and nothing else. Folding
takes linear time for every log, because imported logs may be hostile.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from holdfast.events import message, request, session, task, tool, turn
from holdfast.events.body import Body
from holdfast.events.context import Reasoning
from holdfast.events.event import Event
from holdfast.events.ids import Position, RequestId, ToolCallId
from holdfast.session.notices import notice_text
from holdfast.session.permissions import MAX_SESSION_RULES
from holdfast.session.policy import policy_of
from holdfast.session.state import (
    CallFailure,
    HistoryItem,
    IllegalTransition,
    ModelReply,
    Note,
    OpenRequest,
    Person,
    RunningTask,
    State,
    ToolCall,
    Turn,
    next_phase,
    same_call_key,
    united,
)

NO_WORKER = "no_eligible_worker"
"""The type of the note that tells readers that no process can run their session."""

FOLD_VERSION = 10
"""Raised whenever the meaning of a state changes; snapshots of older versions are ignored."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(State)


def fold(events: Iterable[Event], onto: State | None = None) -> State:
    """The state after these events. `onto` is the state to start from; it is changed in place."""
    state = State() if onto is None else onto
    for event in events:
        _apply(state, event)
    if state.cuts:
        state.cut_history()
    return state


def apply(state: State, event: Event) -> None:
    """Fold one event. An event at or before the head changes nothing."""
    fold((event,), state)


def fold_turn(events: Iterable[Event], onto: State) -> None:
    """Fold with bounded memory: of the history only the last reply is kept, with which of its calls have a result, and
    no text. That is enough to end a turn, or to read settings, however large the events are."""
    for event in events:
        _apply(onto, event)
        _keep_last_reply(onto)
        if isinstance(event.body, tool.ToolCompleted) and (reply := onto.last_reply()):
            _drop_result(reply.call(event.body.tool_call_id))


def drop_texts(state: State) -> None:
    """Leave of the history what `fold_turn` keeps."""
    _keep_last_reply(state)
    reply = state.last_reply()
    for call in reply.calls if reply else ():
        _drop_result(call)


def _keep_last_reply(state: State) -> None:
    if state.cuts:
        state.cut_history()
    last = state.last_reply()
    if last is None:
        state.history = []
    elif len(state.history) > 1 or last.text or last.reasoning:
        last.text, last.reasoning = "", ()
        state.history = [last]
    if state.turn is not None:
        state.turn.same_calls.clear()


def _drop_result(call: ToolCall | None) -> None:
    if call is not None and call.result is not None:
        call.result, call.images = "", ()


def _apply(state: State, event: Event) -> None:
    if event.position <= state.head:
        return
    state.head = event.position
    _take(state, event.body, event)
    try:
        state.phase = next_phase(state.phase, event.body)
    except IllegalTransition:
        return


def dump(state: State) -> bytes:
    """Encode a state for a snapshot, without its images: they are large, and the log has them."""
    if not _pictured(state):
        return _encoder.encode(state)
    return _encoder.encode(replace(state, history=[_without_images(item) for item in state.history]))


def restore(data: bytes) -> State:
    """Decode a snapshot. Its images are still missing: see `images_left`."""
    return _decoder.decode(data)


def restored(data: bytes | None) -> State | None:
    """The state to fold onto: the snapshot's, or an empty state if there is no snapshot. None if the snapshot can't be
    decoded: the log is then folded from its beginning."""
    try:
        return State() if data is None else restore(data)
    except (msgspec.MsgspecError, RecursionError):
        return None


def images_left(state: State) -> dict[Position, Person | ToolCall]:
    """Messages and calls of a restored state that lack their images, by the position of the event that holds them."""
    return {item.images_at: item for item in _pictured(state) if item.images_at is not None and not item.images}


def put_images_back(pictured: Person | ToolCall, event: Event) -> None:
    if isinstance(event.body, (message.UserMessage, tool.ToolCompleted)):
        pictured.images = event.body.images


def _pictured(state: State) -> list[Person | ToolCall]:
    people = [item for item in state.history if isinstance(item, Person) and item.images_at is not None]
    calls = [call for item in state.history if isinstance(item, ModelReply) for call in item.calls]
    return [*people, *(call for call in calls if call.images_at is not None)]


def _without_images(item: HistoryItem) -> HistoryItem:
    """A copy without images. The item itself stays intact: a model call may be using it."""
    match item:
        case Person():
            return replace(item, images=())
        case ModelReply():
            return replace(item, calls=[replace(call, images=()) for call in item.calls])
        case Note():
            return item


def _take(state: State, body: Body, event: Event) -> None:
    match body:
        case session.SessionStarted():
            _session_started(state, body)
            state.seed = event.id
        case session.TitleChanged():
            state.title, state.title_chosen, state.title_by_model = body.title, body.chosen, body.by_model
        case session.ModelChanged():
            state.model = body.new_model
        case session.ModeChanged():
            state.mode = body.new_mode
        case session.SettingsChanged():
            _settings_changed(state, body)
        case session.SessionShutdown():
            state.attached_process = ""
        case session.SessionResumed():
            state.attached_process = body.process or state.attached_process
        case session.SessionInfo(info_type=info_type):
            state.no_worker_noted = state.no_worker_noted or info_type == NO_WORKER
        case session.Truncated():
            _rewound(state, body.kept)
        case turn.TurnStarted():
            state.no_worker_noted = False
            state.turn = Turn(turn_id=body.turn_id, started_at=event.time, unattended=body.unattended)
            state.turns += 1
            state.woken_turns = state.woken_turns + 1 if body.woken else 0
        case turn.TurnEnded():
            state.turn = None
            state.requests = {}
            _close_calls(state)
        case task.TaskStarted():
            _task_started(state, body, event)
        case task.TaskNotified():
            _task_notified(state, body, event.position)
        case message.UserMessage():
            state.woken_turns = 0
            at = event.position if body.images else None
            state.history.append(Person(event.position, body.model_text or body.content, body.added, body.images, at))
            if state.turn:
                _joined(state.turn, body)
        case message.Noted():
            state.history.append(Note(event.position, body.text))
            if state.turn:
                state.turn.notes.append(body.reason)
        case message.AssistantMessage():
            _answered(state, body, event.position)
        case _:
            if state.turn:
                _take_in_turn(state, state.turn, body)


def _session_started(state: State, body: session.SessionStarted) -> None:
    state.session_id = body.session_id
    state.model = body.model
    state.system_message = body.system_message
    state.working_directory = body.working_directory
    state.directory_identity = body.directory_identity
    state.tools = body.tools
    state.client_tools = body.client_tools
    state.dry_run = body.dry_run
    state.policy = policy_of(body.conventions)
    state.client_name = body.client_name
    state.wants_title = body.wants_title
    state.attached_process = body.process
    state.started_at = body.start_time
    state.allow = list(body.allow)


def _joined(current: Turn, body: message.UserMessage) -> None:
    current.message_ids.append(body.message_id)
    current.model = body.model or current.model
    current.thinking = current.thinking if body.thinking is None else body.thinking
    if body.bounds is not None:
        current.bounds = united(current.bounds, (body.bounds,))


def _settings_changed(state: State, body: session.SettingsChanged) -> None:
    if body.working_directory is not UNSET:
        state.directory_identity = None  # It belongs to the previous directory.
    for name in body.__struct_fields__:
        value = getattr(body, name)
        if value is not UNSET:
            setattr(state, name, list(value) if name == "allow" else value)


def _rewound(state: State, kept: Position) -> None:
    """Record a rewind for `cut_history`. It makes earlier rewinds to the same or a later position obsolete."""
    while state.cuts and state.cuts[-1][1] >= kept:
        state.cuts.pop()
    if not state.cuts or state.cuts[-1][0] < len(state.history):
        state.cuts.append((len(state.history), kept))


def _task_started(state: State, body: task.TaskStarted, event: Event) -> None:
    state.tasks[body.task_id] = RunningTask(
        body.command,
        body.description,
        body.output_file,
        event.time,
        event.position,
        unattended=state.turn is not None and state.turn.unattended,
        bounds=state.turn.bounds if state.turn is not None else (),
    )


def _task_notified(state: State, body: task.TaskNotified, position: Position) -> None:
    notice = body.notice
    running = state.tasks.get(notice.task_id)
    if notice.kind != "stalled":
        state.tasks.pop(notice.task_id, None)
    if not notice.silent:
        started = running.position if running is not None else None
        if running is not None and state.turn is not None:
            state.turn.bounds = united(state.turn.bounds, running.bounds)
        state.history.append(Note(position, notice_text(notice, state.seed), started))


def _take_in_turn(state: State, current: Turn, body: Body) -> None:
    match body:
        case turn.StepStarted():
            current.step = body.step
            current.last_step = body.last
            current.message_id = body.message_id
            current.failure = None
        case turn.TurnWaiting():
            current.no_worker_noted = body.reason == "no eligible worker"
        case message.Sealed():
            current.message_id = body.next_message_id
        case message.CallFailed():
            current.failures_since_answer += 1
            current.failure = CallFailure(
                body.message_id,
                body.attempt,
                body.error_code,
                body.message,
                body.retryable,
                body.retry_after_ms,
                body.status_code,
            )
        case tool.ToolAttempted():
            if call := _call(state, body.tool_call_id):
                call.attempts = body.attempt
        case tool.ToolCompleted():
            if (call := _call(state, body.tool_call_id)) and call.result is None:
                call.result = body.content if body.preview is None else body.preview
                call.origin = body.origin
                call.images = body.images
                call.images_at = state.head if body.images else None
        case turn.StepEnded():
            _close_calls(state)
        case _:
            _take_request(state, body)


def _take_request(state: State, body: Body) -> None:
    match body:
        case request.PermissionRequested():
            asked_for = f"{body.kind} {body.subject}"
            _opened(state, OpenRequest(body.request_id, "permission", body.tool_call_id, body.rule, asked_for))
        case request.ExternalToolRequested():
            _opened(state, OpenRequest(body.request_id, "client_tool", body.tool_call_id))
        case request.UserInputRequested():
            _opened(state, OpenRequest(body.request_id, "question", body.tool_call_id))
        case request.PermissionCompleted():
            closed = _closed(state, body.request_id)
            if closed:
                _take_rules(state, body, body.rules or (closed.rule,))
            approved = body.decision in ("approved", "approved-for-session")
            if closed and approved and (call := _call(state, closed.tool_call_id)):
                call.approved_for = closed.asked_for
        case request.ExternalToolCompleted() | request.UserInputCompleted():
            _closed(state, body.request_id)
        case _:
            pass


def _take_rules(state: State, body: request.PermissionCompleted, rules: Sequence[str]) -> None:
    if body.place is not None:
        if body.place in ("", state.working_directory or ""):
            state.place_rules = tuple(sorted({*state.place_rules, *rules}))
    elif body.decision == "approved-for-session":
        # Several answers may be accepted while there is room for one. What has no room is asked about again.
        new = [rule for rule in dict.fromkeys(rules) if rule not in state.allow]
        state.allow.extend(new[: max(0, MAX_SESSION_RULES - len(state.allow))])


def _answered(state: State, body: message.AssistantMessage, position: Position) -> None:
    text = "".join(block.text for block in body.blocks if isinstance(block, message.TextBlock))
    blocks = [block for block in body.blocks if isinstance(block, message.ToolCallBlock)]
    calls = [ToolCall(block.tool_call_id, block.name, block.arguments) for block in blocks]
    reasoning = () if body.interrupted or not body.reasoning_source else _reasoning(body.blocks)
    state.history.append(
        ModelReply(position, body.message_id, text, calls, body.interrupted, reasoning, body.reasoning_source)
    )
    state.calls_open = state.calls_open or bool(calls)
    if state.turn and not body.interrupted:
        state.turn.failure = None
        state.turn.failures_since_answer = 0
        for block in blocks:
            key = same_call_key(block)
            state.turn.same_calls[key] = state.turn.same_calls.get(key, 0) + 1


def _reasoning(blocks: Iterable[message.Block]) -> tuple[Reasoning, ...]:
    """The reasoning with opaque parts, each piece with its place in the answer."""
    found: list[Reasoning] = []
    text_before = calls_before = 0
    for block in blocks:
        match block:
            case message.TextBlock(text=text):
                text_before += len(text)
            case message.ToolCallBlock():
                calls_before += 1
            case message.ReasoningBlock(text=text, opaque=opaque):
                if opaque:
                    found.append(Reasoning(text, opaque, text_before, calls_before))
    return tuple(found)


def _opened(state: State, opened: OpenRequest) -> None:
    state.requests[opened.request_id] = opened
    if call := _call(state, opened.tool_call_id):
        call.request_id = opened.request_id


def _closed(state: State, request_id: RequestId) -> OpenRequest | None:
    closed = state.requests.pop(request_id, None)
    if closed and (call := _call(state, closed.tool_call_id)):
        call.request_id = None
    return closed


def _call(state: State, tool_call_id: ToolCallId) -> ToolCall | None:
    reply = state.reply()
    return reply.call(tool_call_id) if reply else None


INTERRUPTED = "The execution of this tool, or a previous tool was interrupted."


def _close_calls(state: State) -> None:
    """Give calls without a result one that says they were interrupted: their step has ended."""
    if state.calls_open:
        state.calls_open = False
        reply = state.last_reply()
        for call in reply.unfinished() if reply else ():
            call.result, call.origin = INTERRUPTED, "runtime"
