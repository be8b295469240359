"""When a session's context is compacted, and what is kept. Pure.

A compaction goes on beside everything else. Its start is an event; a summary is made (`turns/summary.py`); its end is
an event, and from the next model call on the model has the summary in place of the older part. Killed at any point, the
session has either the old context or the new one: a compaction that started and did not end is started again by the
next holder, a bounded number of times, and then the older part is left out without a summary.

Near the end of the window the turn waits for the compaction. After a failure there is a pause; a context that does not
fit is shortened all the same, without a model.

Some messages stay whatever is compacted: pinned ones and those of the unfinished turn. What they leave until the turn
would wait is shared: at most a quarter goes to the newest part, a quarter to other messages of people, and a sixth to
the summary. So a third of it is free after a compaction, and the next one comes only when that is used up.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.events.body import Body
from holdfast.events.compaction import CompactionEnded, CompactionError, CompactionStarted, CompactionTrigger
from holdfast.events.ids import CompactionId, Position
from holdfast.events.inbox import CancelCompaction, Compact, InboxItem
from holdfast.session.actions import Append, Promoted, Summarise
from holdfast.session.bounds import Bounds
from holdfast.session.fold import MAX_VERBATIM, TOO_LONG
from holdfast.session.inputs import COMPACTION, Inputs
from holdfast.session.state import Compaction, HistoryItem, ModelReply, Person, State, Summary, people_in
from holdfast.session.tokens import tokens_of

VERBATIM_SHARE: Final = 0.2
SUMMARY_SHARE: Final = 0.125
MAX_PROMPT_SHARE: Final = 0.7
"""If the prompt alone takes up more of the window, the context is shortened only when a provider refuses it: it would
be shortened at every step, and gain nothing."""
PARTS_FOR_TAIL: Final = 4
PARTS_FOR_PEOPLE: Final = 4
PARTS_FOR_SUMMARY: Final = 6
MIN_REST_SHARE: Final = 0.05
"""Where the messages that stay leave a smaller part of the room for the conversation, the older part is left out
without a summary: there would be one at nearly every step."""
MIN_SUMMARY_TOKENS: Final = 64
TIGHTER: Final = 4
"""Each compaction of the same call keeps a newest part that is smaller by this factor."""
MIN_GAIN_SHARE: Final = 0.1
"""A compaction that leaves out less of the room for the conversation waits until there is more to leave out, or until
the window is nearly full: where little but messages that stay fills the window, there would be one at every step."""


def compact(state: State, inputs: Inputs) -> Append | Summarise | None:
    """Start, go on with or give up a compaction; None: nothing is to be done about one now."""
    if COMPACTION in inputs.running:
        return None
    if state.compaction is not None:
        return _go_on(state, inputs, state.compaction)
    trigger = due(state, inputs)
    return None if trigger is None else _begin(state, inputs, trigger)


def due(state: State, inputs: Inputs) -> CompactionTrigger | None:
    """Why a compaction should start now; None: none should."""
    window = window_of(state, inputs.window)
    if window is None or state.turn is None:
        return None
    if is_refused(state):
        return "too_long" if state.turn.too_long <= inputs.bounds.max_refusals_as_too_long else None
    settings = state.compaction_settings
    is_unwanted = state.turn.keeps_context or (settings is not None and not settings.enabled)
    if is_unwanted or inputs.prompt_tokens > window * MAX_PROMPT_SHARE:
        return None
    used = state.context_tokens(inputs.prompt_tokens) * 100
    if used >= window * _wait_percent(state, inputs.bounds):
        return "full"
    is_due = used >= window * _start_percent(state, inputs.bounds) and not _cools_down(state, inputs)
    return "threshold" if is_due else None


def is_refused(state: State) -> bool:
    """Whether the provider refused the current call as too long, and no compaction took effect since."""
    current = state.turn
    if current is None or current.failure is None or current.failure.code != TOO_LONG:
        return False
    return current.too_long > current.shortened


def must_wait(state: State, inputs: Inputs) -> bool:
    """Whether the next model call waits for the compaction that is under way."""
    if state.compaction is None:
        return False
    window = window_of(state, inputs.window)
    if is_refused(state) or window is None:
        return is_refused(state)
    return state.context_tokens(inputs.prompt_tokens) * 100 >= window * _wait_percent(state, inputs.bounds)


def window_of(state: State, known: int | None) -> int | None:
    """The window of the session's model in tokens, as its provider named it or as it is `known`."""
    if known is None:
        return None
    return min(known, state.windows.get(state.model_now() or "", known))


def room_for_conversation(state: State, inputs: Inputs) -> int:
    """The part of the window, in tokens, that the prompt leaves."""
    return max(0, (window_of(state, inputs.window) or 0) - inputs.prompt_tokens)


def rest(state: State, inputs: Inputs) -> int:
    """What the prompt, and the messages that stay whatever is compacted, leave until the turn would wait, in tokens."""
    wall = (window_of(state, inputs.window) or 0) * _wait_percent(state, inputs.bounds) // 100
    stays = sum(person.tokens() for person in _staying(state, people_in(state.history)))
    return max(0, wall - inputs.prompt_tokens - stays)


def given_up(state: State, error: CompactionError = "cancelled") -> list[Body]:
    """The end of the compaction that is under way, if one is, without a change of the context."""
    current = state.compaction
    if current is None:
        return []
    ended = CompactionEnded(
        compaction_id=current.compaction_id,
        trigger=current.trigger,
        success=False,
        error=error,
        attempt=current.attempt,
        tokens_before=current.tokens,
    )
    return [ended]


def undone_by(state: State, kept: Position) -> list[Body]:
    """The end of the compaction that is under way, if a rewind to this position takes back a part that it covers."""
    is_undone = state.compaction is not None and kept < state.compaction.up_to
    return given_up(state, "rewound") if is_undone else []


def requested(state: State, inputs: Inputs) -> Append | None:
    """Promote the first request of a person to compact, or to cancel a compaction."""
    for item in inputs.inbox:
        match item.item:
            case Compact() if not inputs.eligible:
                continue  # It is for a process that can ask the session's model.
            case Compact() as wanted:
                return _by_hand(state, inputs, item, wanted)
            case CancelCompaction(only_manual=only_manual):
                return _cancel(state, inputs, item, only_manual=only_manual)
            case _:
                continue
    return None


def _by_hand(state: State, inputs: Inputs, item: InboxItem, wanted: Compact) -> Append:
    if state.compaction is not None:
        return Append(promotes=[Promoted(item.sequence, "compaction_under_way", refused=True)])
    up_to = cut_position(state, 0)
    if up_to is None or inputs.window is None:
        return Append(promotes=[Promoted(item.sequence, "nothing_to_compact", refused=True)])
    started = _started(state, inputs, wanted.compaction_id, "manual", up_to, instructions=wanted.instructions)
    return Append(events=[started], promotes=[Promoted(item.sequence, "compacting")])


def _cancel(state: State, inputs: Inputs, item: InboxItem, *, only_manual: bool) -> Append:
    current = state.compaction
    if current is None or (only_manual and current.trigger != "manual"):
        return Append(promotes=[Promoted(item.sequence, "nothing_to_cancel")])
    # The end of the compaction may be on its way to the log: this one is then refused, and decided again.
    return Append(events=given_up(state), promotes=[Promoted(item.sequence, "cancelled")], supposes_head=True)


def _go_on(state: State, inputs: Inputs, current: Compaction) -> Append | Summarise:
    """Begin a compaction that this holder started; start one again that another holder, or a cancellation, left."""
    if inputs.owns_compaction:
        return Summarise(current)
    if inputs.window is None:
        return Append(events=given_up(state))
    if current.attempt >= inputs.bounds.max_compaction_attempts:
        failed = ended(state, inputs, current, "", error="failed", message="The processes that summarised it died.")
        return Append(events=[failed])
    again = _started(
        state,
        inputs,
        current.compaction_id,
        current.trigger,
        current.up_to,
        instructions=current.instructions,
        attempt=current.attempt + 1,
    )
    return Append(events=[again])


def _begin(state: State, inputs: Inputs, trigger: CompactionTrigger) -> Append | None:
    assert state.turn is not None
    has_room = rest(state, inputs) >= room_for_conversation(state, inputs) * MIN_REST_SHARE
    if not has_room and (trigger == "full" or (trigger == "too_long" and not state.turn.shortened)):
        left_out = _without_summary(state, inputs, trigger)
        if left_out is not None or trigger == "full":
            return left_out
    tail = room_for_conversation(state, inputs) * inputs.bounds.compaction_tail_percent // 100
    tail = min(tail, rest(state, inputs) // PARTS_FOR_TAIL) // TIGHTER**state.turn.shortened
    match trigger:
        case "too_long":
            up_to = _refused_up_to(state, inputs, tail)
        case "threshold":
            up_to = _gaining_up_to(state, inputs, tail)
        case _:
            up_to = cut_position(state, tail)
    if up_to is None:
        return None
    started = _started(state, inputs, inputs.id_of(CompactionId), trigger, up_to)
    if trigger in ("full", "too_long") and _cools_down(state, inputs):
        return _left_out(state, inputs, started, error="failed", message="A summary failed a moment ago.")
    return Append(events=[started])


def _without_summary(state: State, inputs: Inputs, trigger: CompactionTrigger) -> Append | None:
    """Leave out what stands before the newest reply, because the messages that stay leave no room for a summary; None:
    nothing would be left out. The model has not read the results of that reply yet."""
    replies = (index for index in range(len(state.history) - 1, -1, -1) if isinstance(state.history[index], ModelReply))
    newest = next(replies, len(state.history))
    up_to = cut_position(state, sum(item.tokens() for item in state.history[newest:]))
    if up_to is None:
        return None
    started = _started(state, inputs, inputs.id_of(CompactionId), trigger, up_to)
    return _left_out(state, inputs, started, message="The messages that stay leave no room for a summary.")


def _left_out(
    state: State, inputs: Inputs, started: CompactionStarted, *, error: CompactionError = "", message: str
) -> Append:
    """A compaction that calls no model."""
    current = Compaction(
        started.compaction_id, started.trigger, started.up_to, 0, tokens=started.tokens, started_at=inputs.now
    )
    return Append(events=[started, ended(state, inputs, current, "", error=error, message=message)])


def _gaining_up_to(state: State, inputs: Inputs, tail: int) -> Position | None:
    """Where to cut so that enough is gained."""
    up_to = cut_position(state, tail)
    if up_to is None:
        return None
    room = room_for_conversation(state, inputs)
    kept = set(verbatim(state, up_to, inputs))
    before = (item for item in state.history if item.position <= up_to and not isinstance(item, Summary))
    gained = sum(item.tokens() for item in before if item.position not in kept)
    return up_to if gained >= room * MIN_GAIN_SHARE else None


def _refused_up_to(state: State, inputs: Inputs, tail: int) -> Position | None:
    """Where to cut so that anything is left out: the provider counts more tokens than the estimate, for which all of it
    may be the newest part. A summary that is too large for this window is left out as well, for a new one."""
    while (up_to := cut_position(state, tail)) is None and tail > 0:
        tail //= TIGHTER
    summary = state.summary()
    if up_to is None and summary is not None and _is_too_large(state, inputs, summary):
        after = state.history[1].position - 1 if len(state.history) > 1 else state.head
        up_to = Position(after) if after > summary.position else None
    return up_to


def _is_too_large(state: State, inputs: Inputs, summary: Summary) -> bool:
    """Whether a summary made now would be smaller, because the model has a smaller window than the one of then."""
    kept = verbatim(state, summary.position, inputs)
    longest = summary_tokens(state, inputs, window_of(state, inputs.window) or 0)
    return len(kept) < len(summary.people) or tokens_of((summary.text,)) > 2 * longest


def _started(
    state: State,
    inputs: Inputs,
    compaction_id: CompactionId,
    trigger: CompactionTrigger,
    up_to: Position,
    *,
    instructions: str = "",
    attempt: int = 1,
) -> CompactionStarted:
    return CompactionStarted(
        compaction_id=compaction_id,
        trigger=trigger,
        up_to=up_to,
        attempt=attempt,
        instructions=instructions,
        tokens=state.context_tokens(inputs.prompt_tokens),
        window=window_of(state, inputs.window) or 0,
    )


def cut_position(state: State, tail_tokens: int) -> Position | None:
    """The last position that a summary would stand for, so that the part after it has at most about `tail_tokens`; None
    if nothing would be left out. A reply and the results of its calls stay together, and calls that are not over are
    never left out."""
    history = state.history
    start = len(history)
    if (reply := state.reply()) is not None and reply.unfinished():
        start = next(index for index in range(start - 1, -1, -1) if history[index] is reply)
    left = tail_tokens - sum(item.tokens() for item in history[start:])
    while start > 0 and (left := left - history[start - 1].tokens()) >= 0:
        start -= 1
    if not any(_can_leave_out(state, item) for item in history[:start]):
        return None
    return Position(history[start].position - 1) if start < len(history) else state.head


def _can_leave_out(state: State, item: HistoryItem) -> bool:
    if isinstance(item, Summary):
        return False
    return not (isinstance(item, Person) and _is_current(state, item))


def _is_current(state: State, person: Person) -> bool:
    return state.turn is not None and person.message_id in state.turn.message_ids


def _staying(state: State, people: Iterable[Person]) -> list[Person]:
    """The messages among these that stay whatever is compacted."""
    always = [person for person in people if person.message_id in state.pinned or _is_current(state, person)]
    return always[-MAX_VERBATIM:]


def verbatim(state: State, up_to: Position, inputs: Inputs) -> tuple[Position, ...]:
    """The positions, up to `up_to`, of the messages that the model keeps word for word: those of the unfinished turn,
    pinned ones, and the newest up to a budget."""
    covered = [person for person in people_in(state.history) if person.position <= up_to]
    always = _staying(state, covered)
    most = min(inputs.bounds.max_verbatim_tokens, int(room_for_conversation(state, inputs) * VERBATIM_SHARE))
    left = min(most - sum(person.tokens() for person in always), rest(state, inputs) // PARTS_FOR_PEOPLE)
    kept = {person.position for person in always}
    for person in reversed(covered):
        if person.position in kept:
            continue
        left -= person.tokens()
        if left < 0 or len(kept) == MAX_VERBATIM:
            break
        kept.add(person.position)
    return tuple(sorted(kept))


def ended(
    state: State,
    inputs: Inputs,
    current: Compaction,
    summary: str,
    *,
    error: CompactionError = "",
    message: str = "",
    model: str = "",
) -> CompactionEnded:
    """The end of a compaction: with a summary, without one because none could be made and the context must be shorter,
    or a failure that changes nothing."""
    must_shorten = current.trigger in ("full", "too_long")
    succeeds = bool(summary) or must_shorten
    kept = verbatim(state, current.up_to, inputs) if succeeds else ()
    return CompactionEnded(
        compaction_id=current.compaction_id,
        trigger=current.trigger,
        success=succeeds,
        method="summary" if summary or not succeeds else "cut",
        up_to=current.up_to if succeeds else Position(0),
        summary=summary,
        verbatim=kept,
        removed=_removed(state.history, current.up_to, len(kept)) if succeeds else 0,
        tokens_before=current.tokens,
        tokens_after=_tokens_after(state, inputs, current, summary, kept) if succeeds else 0,
        error=error,
        message=message,
        model=model,
        attempt=current.attempt,
        duration_ms=max(0, inputs.now - current.started_at),
        prompt=inputs.prompt if succeeds and inputs.prompt and inputs.prompt != state.prompt else None,
    )


def _tokens_after(state: State, inputs: Inputs, current: Compaction, summary: str, kept: tuple[Position, ...]) -> int:
    """About how many tokens the next call will have."""
    left_out = tokens_left_out(state, current.up_to)
    people = sum(person.tokens() for person in people_in(state.history) if person.position in kept)
    return inputs.prompt_tokens + max(0, state.size.estimate - left_out) + people + tokens_of((summary,))


def tokens_left_out(state: State, up_to: Position) -> int:
    """About how many tokens the part up to that position has."""
    return sum(item.tokens() for item in state.history if item.position <= up_to)


def summary_tokens(state: State, inputs: Inputs, window: int) -> int:
    """The longest summary of this session that a model with this window makes."""
    fitting = max(MIN_SUMMARY_TOKENS, rest(state, inputs) // PARTS_FOR_SUMMARY)
    return min(inputs.bounds.max_summary_tokens, int(window * SUMMARY_SHARE), fitting)


def _removed(history: Sequence[HistoryItem], up_to: Position, kept: int) -> int:
    return max(0, sum(_messages(item) for item in history if item.position <= up_to) - kept)


def _messages(item: HistoryItem) -> int:
    match item:
        case ModelReply(calls=calls):
            return 1 + len(calls)
        case Summary(people=people):
            return len(people)
        case _:
            return 1


def _start_percent(state: State, bounds: Bounds) -> int:
    chosen = state.compaction_settings.start_percent if state.compaction_settings is not None else None
    return bounds.compact_at_percent if chosen is None else chosen


def _wait_percent(state: State, bounds: Bounds) -> int:
    chosen = state.compaction_settings.wait_percent if state.compaction_settings is not None else None
    return bounds.compaction_wait_percent if chosen is None else chosen


def _cools_down(state: State, inputs: Inputs) -> bool:
    failed_at = state.compaction_failed_at
    return failed_at is not None and inputs.now - failed_at < inputs.bounds.compaction_cooldown_seconds * 1000


def pinned_tokens(people: Iterable[Person], pinned: Iterable[str]) -> int:
    """About how many tokens the pinned messages have."""
    wanted = set(pinned)
    return sum(person.tokens() for person in people if person.message_id in wanted)
