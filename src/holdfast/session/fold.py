"""Folds events into state. Folding a prefix and then the rest gives the same state as folding all at once.

Every log can be folded: an event that makes no sense at its position changes what it can and nothing else. Folding
takes linear time for every log, because imported logs may be hostile.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from holdfast.events import compaction, message, quote, request, session, task, tool, turn
from holdfast.events.body import Body
from holdfast.events.context import Reasoning
from holdfast.events.event import Event
from holdfast.events.ids import MessageId, Position, RequestId, ToolCallId
from holdfast.session.notices import granted_rules, notice_text, running_tasks
from holdfast.session.permissions import MAX_SESSION_RULES
from holdfast.session.policy import policy_of
from holdfast.session.state import (
    CallFailure,
    Compaction,
    HistoryItem,
    IllegalTransition,
    ModelReply,
    Note,
    OpenRequest,
    Person,
    Phase,
    RunningTask,
    State,
    Summary,
    ToolCall,
    Turn,
    next_phase,
    people_in,
    same_call_key,
    united,
)
from holdfast.session.tokens import tokens_of

NO_WORKER = "no_eligible_worker"
"""The type of the note that tells readers that no process can run their session."""

TOO_LONG = "model_context_exceeded"
"""The error code of a call that the provider refused because the context does not fit into the model's window."""

MAX_VERBATIM = 256
"""A compaction keeps at most so many messages of people word for word: folding many compactions of an imported log then
takes linear time."""

MAX_PINNED = 32
"""A session has at most so many pinned messages: they are sent with every call, for good."""

MIN_WINDOW = 2_000
"""No window is taken to be smaller: nothing could be said in it."""

FOLD_VERSION = 12
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


def undone_compactions(
    compactions: Iterable[tuple[Position, Position]], rewinds: Sequence[tuple[Position, Position]]
) -> tuple[Position, ...]:
    """The positions of the compactions, each given with the last position it covers, that a later rewind (given with
    the position that it kept) reached into."""
    lowest: list[tuple[Position, Position]] = []  # For each rewind from the last to the first: the lowest kept since.
    for position, kept in reversed(rewinds):
        lowest.append((position, min(kept, lowest[-1][1]) if lowest else kept))
    lowest.reverse()
    undone = []
    for position, up_to in compactions:
        later = bisect_right(lowest, position, key=lambda rewind: rewind[0])
        if later < len(lowest) and lowest[later][1] < up_to:
            undone.append(position)
    return tuple(undone)


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
    summary = state.summary()
    said = chain(summary.people if summary else (), state.history)
    people = [item for item in said if isinstance(item, Person) and item.images_at is not None]
    calls = [call for item in state.history if isinstance(item, ModelReply) for call in item.calls]
    return [*people, *(call for call in calls if call.images_at is not None)]


def _without_images(item: HistoryItem) -> HistoryItem:
    """A copy without images. The item itself stays intact: a model call may be using it."""
    match item:
        case Person():
            return replace(item, images=())
        case ModelReply():
            return replace(item, calls=[replace(call, images=()) for call in item.calls])
        case Summary():
            return replace(item, people=[replace(person, images=()) for person in item.people])
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
        case compaction.CompactionStarted():
            _compaction_started(state, body, event)
        case compaction.CompactionEnded():
            _compaction_ended(state, body, event)
        case compaction.MessagePinned():
            _pinned(state, body, event.position)
        case turn.TurnStarted():
            state.no_worker_noted = False
            state.prompt = state.prompt if body.prompt is None else body.prompt
            state.turn = Turn(body.turn_id, event.time, event.position, unattended=body.unattended)
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
            text = body.model_text or body.content
            state.has_files = state.has_files or bool(body.files)
            added = "\n\n".join(filter(None, (body.added, message.attached_files_text(body.files))))
            shown = message.shown_files(body.files)
            _append(state, Person(event.position, text, added, body.images, at, body.message_id, shown))
            if state.turn:
                _joined(state.turn, body)
        case message.Noted():
            _append(state, Note(event.position, body.text))
            if state.turn:
                state.turn.notes.append(body.reason)
        case message.AssistantMessage():
            _answered(state, body, event.position)
        case _:
            if state.turn:
                _take_in_turn(state, state.turn, body, event.position)


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
    state.tasks_listed = ()
    state.size.forget()
    if kept < state.covered:
        state.is_behind = True
    if state.compaction is not None and kept < state.compaction.up_to:
        state.compaction = None
    while state.cuts and state.cuts[-1][1] >= kept:
        state.cuts.pop()
    if not state.cuts or state.cuts[-1][0] < len(state.history):
        state.cuts.append((len(state.history), kept))


def _compaction_started(state: State, body: compaction.CompactionStarted, event: Event) -> None:
    state.compaction = Compaction(
        body.compaction_id,
        body.trigger,
        body.up_to,
        body.attempt,
        body.instructions,
        body.tokens,
        event.time,
    )


def _compaction_ended(state: State, body: compaction.CompactionEnded, event: Event) -> None:
    """Take the outcome of the compaction that is under way. Any other outcome is late: the conversation was rewound, or
    the compaction was given up."""
    if state.compaction is None or state.compaction.compaction_id != body.compaction_id:
        return
    state.compaction = None
    if not body.success:
        if body.error in ("failed", "empty", "too_long"):
            state.compaction_failed_at = event.time
        elif body.error == "cancelled" and state.turn is not None:
            state.turn.keeps_context = True
        return
    state.prompt = state.prompt if body.prompt is None else body.prompt
    state.compactions += 1
    state.compaction_failed_at = event.time if body.error else None
    if state.turn is not None:
        state.turn.shortened += 1
    if event.position not in state.undone and body.up_to > state.covered:
        _shorten(state, body)


def _shorten(state: State, body: compaction.CompactionEnded) -> None:
    """Put the summary in place of the history up to `body.up_to`."""
    if state.cuts:
        state.cut_history()
    start = bisect_right(state.history, body.up_to, key=lambda item: item.position)
    wanted = set(body.verbatim[:MAX_VERBATIM])
    people = [person for person in people_in(state.history[:start]) if person.position in wanted]
    summary = Summary(body.up_to, body.compaction_id, body.method, body.summary, people, _standing(state))
    state.size.forget()
    state.size.drop(sum(item.tokens() for item in state.history[:start]))
    state.size.add(summary.tokens())
    if body.tokens_after > 0:
        # A fold without history can't estimate what is left; the holder could when it wrote this.
        state.size.count(body.tokens_after)
    _drop_old_reasoning(state, start)
    state.history[:start] = [summary]
    state.tasks_listed = tuple(state.tasks)


def _drop_old_reasoning(state: State, start: int) -> None:
    """Providers want reasoning back with the tool calls of the unfinished turn. That of earlier turns goes when the
    beginning changes anyhow."""
    began = state.turn.position if state.turn is not None else state.head
    for index in range(start, len(state.history)):
        item = state.history[index]
        if isinstance(item, ModelReply) and item.reasoning and item.position < began:
            state.size.drop(item.tokens())
            state.history[index] = replace(item, reasoning=())
            state.size.add(state.history[index].tokens())


def _standing(state: State) -> str:
    """What no summary may weaken, stated from the state. The mode stands in the system text."""
    rules = granted_rules((*state.place_rules, *state.allow), state.seed)
    tasks = quote.said(running_tasks(state.tasks.items()), state.seed) if state.tasks else ""
    return "\n".join(part for part in (rules, tasks) if part)


def _pinned(state: State, body: compaction.MessagePinned, position: Position) -> None:
    """Note a pin. The model gets a message that its context has lost again, at the end of the conversation."""
    others = tuple(each for each in state.pinned if each != body.message_id)
    if not body.pinned:
        state.pinned = others
    elif len(others) < MAX_PINNED:
        state.pinned = (*others, body.message_id)
        if body.position <= state.covered and not _is_kept(state, body.message_id):
            _append(state, Person(position, body.content, message_id=body.message_id, said_at=body.position))


def _is_kept(state: State, message_id: MessageId) -> bool:
    return any(person.message_id == message_id for person in people_in(state.history))


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
        _append(state, Note(position, notice_text(notice, state.seed), started))


def _append(state: State, item: HistoryItem) -> None:
    state.history.append(item)
    state.size.add(item.tokens())


def _window_below(state: State) -> int:
    """A window for a model that refused the context as too long without naming its window."""
    refused = state.context_tokens(0)
    known = state.windows.get(state.model_now() or "", refused)
    return max(MIN_WINDOW, int(min(known, refused) * 0.9))


def _list_tasks(state: State, position: Position) -> None:
    """Tell the model which tasks run, at the end of the conversation and only when that changed: what it was sent
    before stays the beginning of what it is sent."""
    running = tuple(state.tasks)
    if running != state.tasks_listed:
        state.tasks_listed = running
        _append(state, Note(position, quote.said(running_tasks(state.tasks.items()), state.seed)))


def _take_in_turn(state: State, current: Turn, body: Body, position: Position) -> None:
    match body:
        case turn.StepStarted():
            _list_tasks(state, position)
            current.step = body.step
            current.last_step = body.last
            current.message_id = body.message_id
            current.failure, current.attempts = None, 0
        case turn.Claimed() if state.phase is Phase.CALLING_MODEL:
            current.attempts += 1
        case turn.TurnWaiting():
            current.no_worker_noted = body.reason == "no eligible worker"
        case message.Sealed():
            current.message_id = body.next_message_id
            current.attempts = current.failure.attempt if current.failure is not None else 0
        case message.CallFailed():
            current.failures_since_answer += 1
            current.attempts = body.attempt
            if body.error_code == TOO_LONG:
                current.too_long += 1
                model = state.model_now() or ""
                current.window_found = body.window is not None and body.window != state.windows.get(model)
                current.shortened = min(current.shortened, current.too_long - 1)  # It was not enough.
                state.windows[model] = body.window or _window_below(state)
            current.failure = CallFailure(
                body.message_id,
                body.attempt,
                body.error_code,
                body.message,
                body.retryable,
                body.retry_after_ms,
                body.status_code,
            )
        case turn.FellBack():
            current.fallback = body.to_model
            current.failures_since_answer = 0
        case message.Usage():
            if body.input_tokens is not None and body.input_tokens > 0:
                state.size.count(body.context_tokens or body.input_tokens + max(0, body.output_tokens or 0))
        case tool.ToolAttempted():
            if call := _call(state, body.tool_call_id):
                call.attempts = body.attempt
        case tool.ToolCompleted():
            if (call := _call(state, body.tool_call_id)) and call.result is None:
                call.result = body.content if body.preview is None else body.preview
                call.origin = body.origin
                call.images = body.images
                call.images_at = state.head if body.images else None
                state.size.add(tokens_of((call.result,), len(call.images)))
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
    reply = ModelReply(position, body.message_id, text, calls, body.interrupted, reasoning, body.reasoning_source)
    _append(state, reply)
    state.calls_open = state.calls_open or bool(calls)
    if state.turn and not body.interrupted:
        state.turn.failure = None
        state.turn.failures_since_answer = state.turn.too_long = state.turn.shortened = 0
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
            state.size.add(tokens_of((INTERRUPTED,)))
