"""The invariants that must hold after any crash, each as a function from the evidence to a list of violations."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import msgspec

from holdfast.events import compaction, inbox, message, request, session, task, tool, turn
from holdfast.events.body import Body
from holdfast.events.context import AssistantTurn, ContextMessage, ToolOutcome
from holdfast.events.event import RECORDS, Event, type_of
from holdfast.events.ids import MessageId, Position
from holdfast.events.message import AssistantMessage, ToolCallBlock
from holdfast.events.session import SessionError
from holdfast.events.webhook import report_of
from holdfast.live.live import Delta
from holdfast.session import fold as folding
from holdfast.session.history import context
from holdfast.session.state import IllegalTransition, Phase, State, next_phase, people_in
from proof.crash.client import TRIMMED_AT, is_silent
from proof.crash.evidence import Evidence
from proof.crash.journal import (
    Acknowledged,
    Asked,
    Died,
    Ended,
    Failed,
    Occupied,
    Opened,
    Read,
    Sent,
    Shown,
    Unanswered,
)
from proof.crash.stage import OWN_TOOLS, REPEATABLE
from proof.crash.trial import Violation

Invariant = Callable[[Evidence], Iterator[str]]

_Body = TypeVar("_Body", bound=Body)


def check(evidence: Evidence) -> tuple[Violation, ...]:
    """All violations."""
    return tuple(Violation(named.__name__, text) for named in INVARIANTS for text in named(evidence))


def check_all(found: Sequence[Evidence]) -> tuple[Violation, ...]:
    """All violations in any session of a trial."""
    if len(found) == 1:
        return check(found[0])
    return tuple(
        Violation(violation.invariant, f"{evidence.scenario.key.session}: {violation.text}")
        for evidence in found
        for violation in check(evidence)
    )


def _followed(events: Sequence[Event]) -> Iterator[tuple[Event, State]]:
    """Each event with the state after it, as a process has it: after a rewind into what a compaction covers, the log is
    folded again without that compaction."""
    state = State()
    for index, event in enumerate(events, 1):
        folding.apply(state, event)
        state = _with_what_was_undone(events[:index], state)
        yield event, state


def _folded(events: Sequence[Event]) -> State:
    return _with_what_was_undone(events, folding.fold(events))


def _with_what_was_undone(events: Sequence[Event], state: State) -> State:
    if not state.is_behind:
        return state
    ends = [
        (event.position, event.body.up_to)
        for event in events
        if isinstance(event.body, compaction.CompactionEnded) and event.body.success
    ]
    rewinds = [(event.position, event.body.kept) for event in events if isinstance(event.body, session.Truncated)]
    again = folding.fold(events, State(undone=folding.undone_compactions(ends, rewinds)))
    again.is_behind, again.undone = False, ()
    return again


def _of(evidence: Evidence, kind: type[_Body]) -> list[_Body]:
    return [event.body for event in evidence.events if isinstance(event.body, kind)]


def _acknowledged(evidence: Evidence, verb: str) -> list[Acknowledged]:
    return [
        entry for entry in evidence.journal if isinstance(entry, Acknowledged) and entry.step.partition(" ")[0] == verb
    ]


# The invariants


def nothing_fails_by_itself(evidence: Evidence) -> Iterator[str]:
    """No process got stuck, raised, or logged an exception of its own; and the store left no write unanswered, except
    those of a frozen process, whose transactions the database may have ended meanwhile."""
    for entry in evidence.journal:
        if isinstance(entry, Failed):
            yield f"process {entry.process}: {entry.text}"
        elif isinstance(entry, Unanswered) and entry.process not in evidence.frozen:
            yield f"process {entry.process} was not told what came of {entry.step}: {entry.code}"


def accepted_means_committed(evidence: Evidence) -> Iterator[str]:
    """Each acknowledged message is in the log exactly once, at its place, with its own text; or was taken back."""
    said = [(body.message_id, body.content) for body in _of(evidence, message.UserMessage)]
    if said != list(evidence.scenario.says):
        yield f"the log says {said}, not {list(evidence.scenario.says)}"
    if evidence.scenario.is_deleted:
        return
    receipts = {item.key: item for item in evidence.inbox}
    for entry in _acknowledged(evidence, "send"):
        message_id = entry.step.partition(" ")[2]
        found = receipts.get(f"message:{message_id}")
        if entry.refused:
            yield f"{message_id} was refused: {entry.refused}"
        elif found is None:
            yield f"{message_id} was acknowledged and has no receipt"
        elif (found.state == "removed") != (message_id in evidence.scenario.removed):
            yield f"{message_id} was {found.state}"


def lasting_permissions_come_and_go_with_their_writes(evidence: Evidence) -> Iterator[str]:
    """An acknowledged approval for always has granted its rule; a revoked rule stays revoked. Of two processes at once,
    one may look for the rule when the other has revoked it."""
    for entry in _acknowledged(evidence, "held"):
        expected = "0 held" if entry.step.endswith("revocation") else "1 held"
        is_alone = evidence.trial.kind in ("calm", "kill")
        if entry.outcome != expected and (is_alone or entry.outcome != "0 held"):
            yield f"{entry.step}: {entry.outcome}, not {expected}"


def turns_stay_within_the_bounds_of_their_senders(evidence: Evidence) -> Iterator[str]:
    """No turn starts with rules that the sender of one of its messages may not grant. A later change of the session
    reaches the turn that runs."""
    state = State()
    granted: set[str] | None = None
    for event in evidence.events:
        folding.apply(state, event)
        match event.body:
            case turn.TurnStarted():
                granted = None
            case message.UserMessage(bounds=bounds) if bounds is not None:
                granted = set(bounds.rules or ())
            case turn.StepStarted():
                if granted is not None and not granted.issuperset(state.allow):
                    yield f"the step at {event.position} has the rules {state.allow}; its sender may grant {granted}"
                granted = None
            case _:
                pass


def every_turn_ends(evidence: Evidence) -> Iterator[str]:
    """Each turn that started ended visibly, as its scenario says; and nothing is left to do."""
    started = [body.turn_id for body in _of(evidence, turn.TurnStarted)]
    ended = [body.turn_id for body in _of(evidence, turn.TurnEnded)]
    if started != ended:
        yield f"turns {started} started, turns {ended} ended"
    reasons = {body.turn_id: body.reason for body in _of(evidence, turn.TurnEnded)}
    turn_of = {str(body.message_id): body.turn_id for body in _of(evidence, message.UserMessage)}
    for message_id, allowed in evidence.scenario.ends.items():
        reason = reasons.get(turn_of[message_id]) if message_id in turn_of else None
        if reason not in allowed:
            yield f"the turn of {message_id} ended with {reason}, not {' or '.join(allowed)}"
    yield from _invisible_endings(evidence)
    yield from _leftovers(evidence)


def _invisible_endings(evidence: Evidence) -> Iterator[str]:
    shown = False
    for event in evidence.events:
        match event.body:
            case turn.TurnStarted():
                shown = False
            case AssistantMessage(blocks=blocks, interrupted=False):
                shown = any(isinstance(block, message.TextBlock) and block.text.strip() for block in blocks)
            case SessionError() | turn.Aborted():
                shown = True
            case turn.TurnEnded(turn_id=turn_id) if not shown:
                yield f"turn {turn_id} ended in silence"


def _leftovers(evidence: Evidence) -> Iterator[str]:
    session, row = evidence.session, evidence.row
    if session and (session.is_runnable or session.lease_holder):
        yield f"the session is runnable ({session.is_runnable}) or held ({session.lease_holder})"
    if row and (row.status != "idle" or row.turn_id is not None):
        yield f"the session is {row.status}, its turn {row.turn_id}"
    if evidence.requests:
        yield f"requests are open: {evidence.requests}"
    if evidence.segments:
        yield f"segments are left: {evidence.segments}"
    if waiting := [item.key for item in evidence.inbox if item.state == "accepted" and not is_silent(item)]:
        yield f"these still wait: {waiting}"


def answered_once(evidence: Evidence) -> Iterator[str]:
    """A turn with a complete answer is not answered again, unless a client sent another message."""
    is_answered = False
    for event in evidence.events:
        match event.body:
            case AssistantMessage(interrupted=False) as said:
                calls = any(isinstance(block, ToolCallBlock) for block in said.blocks)
                text = any(isinstance(block, message.TextBlock) and block.text.strip() for block in said.blocks)
                is_answered = not calls and text
            case message.UserMessage() | turn.TurnEnded():
                is_answered = False
            case turn.StepStarted() if is_answered:
                yield f"another step starts at {event.position}, after the answer"
            case _:
                pass


def effects_happen_once(evidence: Evidence) -> Iterator[str]:
    """A call has one result; a tool that can't be repeated had its effect at most once, and once if it succeeded."""
    results = Counter(body.tool_call_id for body in _of(evidence, tool.ToolCompleted))
    succeeded = {body.tool_call_id for body in _of(evidence, tool.ToolCompleted) if body.success}
    calls = {
        block.tool_call_id: block.name
        for said in _of(evidence, AssistantMessage)
        for block in said.blocks
        if isinstance(block, ToolCallBlock)
    }
    effects = Counter(effect.tool_call_id for effect in evidence.effects)
    for call, name in calls.items():
        if results[call] != 1:
            yield f"{name} {call} has {results[call]} results"
        if effects[call] > 1 and name not in REPEATABLE:
            yield f"{name} {call} had its effect {effects[call]} times"
        if call in succeeded and name in _LOCAL and not effects[call]:
            yield f"{name} {call} succeeded without an effect"
    attempts = {(body.tool_call_id, body.attempt) for body in _of(evidence, tool.ToolAttempted)}
    for effect in evidence.effects:
        if not evidence.scenario.is_deleted and (effect.tool_call_id, effect.attempt) not in attempts:
            yield f"{effect.tool} {effect.tool_call_id} had an effect that no attempt was written for"


_LOCAL = frozenset(OWN_TOOLS)


def answers_count_once(evidence: Evidence) -> Iterator[str]:
    """Each request is closed once; one answer to it was accepted at most, and that is the one in the log."""
    closed: dict[str, list[str]] = {}
    for event in evidence.events:
        match event.body:
            case (
                request.PermissionCompleted(request_id=request_id, answered_by=by)
                | request.ExternalToolCompleted(request_id=request_id, answered_by=by)
                | request.UserInputCompleted(request_id=request_id, answered_by=by)
            ):
                closed.setdefault(request_id, []).append(by)
            case _:
                pass
    accepted: dict[str, set[str]] = {}
    for entry in _acknowledged(evidence, "answer"):
        if not entry.refused:
            accepted.setdefault(entry.about, set()).add(entry.step.partition(" ")[2])
    for asked, closings in closed.items():
        if len(closings) != 1:
            yield f"request {asked} was closed {len(closings)} times"
    for asked, answers in accepted.items():
        if closed.get(asked, []) != sorted(answers):
            yield f"{sorted(answers)} were accepted for {asked}; the log has {closed.get(asked)}"
    made = sum(isinstance(event.body, _ASKED) for event in evidence.events)
    if made != len(closed):
        yield f"{made} requests were made and {len(closed)} closed"


_ASKED = (request.PermissionRequested, request.ExternalToolRequested, request.UserInputRequested)


def the_log_is_whole(evidence: Evidence) -> Iterator[str]:
    """Positions are dense, ids unique and every event legal where it stands."""
    positions = [event.position for event in evidence.events]
    if positions != list(range(1, len(positions) + 1)):
        yield f"positions are {positions}"
    if evidence.row and evidence.row.head != len(positions):
        yield f"the head is {evidence.row.head}, and there are {len(positions)} events"
    if len({event.id for event in evidence.events}) != len(positions):
        yield "two events have the same id"
    phase = Phase.IDLE
    for event in evidence.events:
        try:
            phase = next_phase(phase, event.body)
        except IllegalTransition as error:
            yield f"at {event.position}: {error}"


def folding_in_parts_is_the_same(evidence: Evidence) -> Iterator[str]:
    """Folding a prefix and then the rest gives the same state as folding the whole log; so does the stored snapshot."""
    whole = folding.dump(_folded(evidence.events))
    for cut in range(0, len(evidence.events), 1 + len(evidence.events) // 8):
        start = folding.restore(folding.dump(_folded(evidence.events[:cut])))
        both = _with_what_was_undone(evidence.events, folding.fold(evidence.events[cut:], start))
        if folding.dump(both) != whole:
            yield f"folded in two parts at {cut} it is another state"
    kept = evidence.snapshot
    if kept and folding.dump(_folded(evidence.events[: kept.position])) != kept.state:
        yield f"the snapshot at {kept.position} is not the state there"


def what_was_shown_stays(evidence: Evidence) -> Iterator[str]:
    """Every piece that a reader was shown is a part, byte for byte, of the message in the log; every event too."""
    if evidence.scenario.is_deleted:
        return
    texts = {
        (said.message_id, number): _text(block)
        for said in _of(evidence, AssistantMessage)
        for number, block in enumerate(said.blocks)
    }
    ids = {event.position: event.id for event in evidence.events}
    for entry in evidence.journal:
        if isinstance(entry, Shown):
            final = texts.get((MessageId(entry.message_id), entry.block), "").encode()
            shown = entry.text.encode()
            if final[entry.offset : entry.offset + len(shown)] != shown:
                yield f"of {entry.message_id} {entry.text!r} was shown at {entry.offset}; the log has {final!r}"
        elif isinstance(entry, Read) and ids.get(Position(entry.position)) != entry.event_id:
            yield f"event {entry.event_id} was read at {entry.position} and is not there"


def _text(block: message.Block) -> str:
    return block.arguments if isinstance(block, ToolCallBlock) else block.text


def reading_in_parts_is_the_same(evidence: Evidence) -> Iterator[str]:
    """The text that readers received, process after process, and the text read again from any cursor, are the same."""
    readings = [reading for reading, _ in evidence.readings]
    after = {cursor: readings[number + 1 :] for number, (_, cursor) in enumerate(evidence.readings)}
    for cursor, again in evidence.rereadings:
        if list(again) != after[cursor]:
            yield f"from {cursor} other things are read than the first time"
    if _is_read_in_turn(evidence) and not evidence.scenario.is_deleted:
        yield from _read_across_crashes(evidence, [found for found in readings if isinstance(found, Event | Delta)])


def _is_read_in_turn(evidence: Evidence) -> bool:
    """Whether one process came after the other."""
    return evidence.trial.kind in ("calm", "kill") and not evidence.is_shared


def _read_across_crashes(evidence: Evidence, whole: list[Event | Delta]) -> Iterator[str]:
    """A reader that was cut off may have missed the end, and nothing else."""
    given = [entry.event_id for entry in evidence.journal if isinstance(entry, Read)]
    events = [found.id for found in whole if isinstance(found, Event)]
    if given != events[: len(given)]:
        yield f"events were read in another order, or not at all: {given}, not {events}"
    texts: dict[tuple[str, int], str] = {}
    for entry in evidence.journal:
        if isinstance(entry, Shown):
            place = (entry.message_id, entry.block)
            texts[place] = texts.get(place, "") + entry.text
    final = {(str(found.message_id), found.block): found.text for found in whole if isinstance(found, Delta)}
    for place, text in texts.items():
        if not final.get(place, "").startswith(text):
            yield f"of {place} first {text!r} was read, and then {final.get(place)!r}"


def the_model_is_told_the_same(evidence: Evidence) -> Iterator[str]:
    """In the history for the model each call has one result, and each history begins with the previous one, except
    after a rewind, a compaction or a change of the mode, which the system text names."""
    before: tuple[ContextMessage, ...] = ()
    compactions = 0
    for event, state in _followed(evidence.events):
        if isinstance(event.body, session.Truncated | session.ModeChanged):
            before = ()
        if not isinstance(event.body, turn.StepStarted | message.Noted):
            continue
        sent = context(state)
        if sent[: len(before)] != before and state.compactions == compactions:
            yield f"at {event.position} the model is sent another beginning"
        yield from _unpaired_calls(sent, event.position)
        before, compactions = sent, state.compactions


def each_call_begins_as_the_one_before(evidence: Evidence) -> Iterator[str]:
    """The messages of each call of the model are the beginning of those of the next one, across crashes too. Only a
    compaction, a rewind or a change of the mode changes that, once each."""
    if not _is_read_in_turn(evidence) or len(evidence.scenario.stories) > 1:
        return
    calls = [entry.messages for entry in evidence.journal if isinstance(entry, Sent)]
    changed = sum(after[: len(before)] != before for before, after in pairwise(calls))
    allowed = sum(body.success for body in _of(evidence, compaction.CompactionEnded))
    allowed += len(_of(evidence, session.Truncated)) + len(_of(evidence, session.ModeChanged))
    if changed > allowed:
        yield f"the beginning of {changed} calls changed; {allowed} compactions, rewinds and changes took effect"


def a_compaction_takes_effect_once_or_not_at_all(evidence: Evidence) -> Iterator[str]:
    """One compaction goes on at a time. It ends once, and only its end changes the context. A later attempt follows the
    one before. One whose holder died between two turns rests until the next message if a stop emptied the inbox."""
    under_way, attempt, up_to = "", 0, Position(0)
    for event in evidence.events:
        match event.body:
            case compaction.CompactionStarted(compaction_id=started):
                expected = attempt + 1 if started == under_way else 1
                if (under_way and started != under_way) or event.body.attempt != expected:
                    yield f"at {event.position} {started} starts as attempt {event.body.attempt} beside {under_way!r}"
                under_way, attempt, up_to = started, event.body.attempt, event.body.up_to
            case compaction.CompactionEnded(compaction_id=ended):
                if ended != under_way:
                    yield f"at {event.position} {ended} ends, and {under_way!r} is under way"
                if event.body.method == "cut" and event.body.trigger in ("threshold", "manual"):
                    yield f"at {event.position} a part that still fits is left out without a summary"
                under_way, attempt = "", 0
            case session.Truncated(kept=kept) if kept < up_to:
                under_way, attempt = "", 0
            case _:
                pass
    rests = any(isinstance(item.item, inbox.Stop) and item.outcome == "dequeued" for item in evidence.inbox)
    if under_way and not rests:
        yield f"{under_way} never ends"


def no_word_of_a_person_is_lost_to_the_model(evidence: Evidence) -> Iterator[str]:
    """At each call of the model, each message of a person is in the context as it was typed, or a summary covers its
    position; pinned ones and those of the turn that runs are always in the context."""
    pinned: frozenset[str] = frozenset()
    said: dict[Position, message.UserMessage] = {}
    for event, state in _followed(evidence.events):
        match event.body:
            case message.UserMessage() as body:
                said[event.position] = body
            case session.Truncated(kept=kept):
                said = {position: body for position, body in said.items() if position <= kept}
            case compaction.MessagePinned(message_id=pinned_id, pinned=is_pinned):
                pinned = pinned | {pinned_id} if is_pinned else pinned - {pinned_id}
            case turn.StepStarted() | compaction.CompactionEnded():
                kept_words = {person.message_id for person in people_in(state.history)}
                current = state.turn.message_ids if state.turn is not None else ()
                for position, body in said.items():
                    is_covered = position <= state.covered and body.message_id not in {*current, *pinned}
                    if body.message_id not in kept_words and not is_covered:
                        yield f"at {event.position} the model is not sent {body.message_id}"
            case _:
                pass


def compactions_meet_their_window(evidence: Evidence) -> Iterator[str]:
    """A session that outgrows its window is compacted, and its provider refuses it at most once, if at all."""
    if evidence.scenario.window is None or evidence.trial.aims:
        return
    refused = [body for body in _of(evidence, message.CallFailed) if body.error_code == "model_context_exceeded"]
    if len(refused) > (0 if evidence.scenario.tells_window else 1):
        yield f"the provider refused {len(refused)} calls as too long"
    if not any(body.success for body in _of(evidence, compaction.CompactionEnded)):
        yield "nothing was compacted"


def _unpaired_calls(sent: tuple[ContextMessage, ...], position: int) -> Iterator[str]:
    wanted: list[str] = []
    for told in sent:
        if isinstance(told, ToolOutcome):
            if not wanted or wanted.pop(0) != told.tool_call_id:
                yield f"at {position} the result of {told.tool_call_id} stands where it does not belong"
            continue
        if wanted:
            yield f"at {position} the calls {wanted} have no result"
        wanted = [use.tool_call_id for use in told.tool_calls] if isinstance(told, AssistantTurn) else []
    if wanted:
        yield f"at {position} the calls {wanted} have no result"


def a_stop_ends_its_own_turn(evidence: Evidence) -> Iterator[str]:
    """A stop that was accepted ended the turn that it was meant for, unless that ended first, and no other."""
    reasons = {body.turn_id: body.reason for body in _of(evidence, turn.TurnEnded)}
    stops = [(item, item.item) for item in evidence.inbox if isinstance(item.item, inbox.Stop)]
    ended = {
        (stop.turn_id, "interrupted" if stop.cause == "not continued" else "stopped")
        for item, stop in stops
        if item.outcome == "stopped" and stop.turn_id
    }
    stopped = {(turn_id, reason) for turn_id, reason in reasons.items() if reason in ("stopped", "interrupted")}
    if ended != stopped:
        yield f"stops ended the turns {sorted(ended)}; stopped are {sorted(stopped)}"
    receipts = {stop.stop_id: item for item, stop in stops}
    for entry in _acknowledged(evidence, "stop"):
        found = receipts.get(entry.step.partition(" ")[2])
        if found is None or found.state != "promoted":
            yield f"{entry.step} was acknowledged as {entry.outcome}; its receipt says {found}"


def every_attempt_is_booked_once(evidence: Evidence) -> Iterator[str]:
    """The ledger has one entry for each try at a model call that the log knows of. Of a message that was cut, the log
    does not say whether a dead holder or the one after it had shown it."""
    if evidence.scenario.is_deleted:
        return
    wanted: set[tuple[str, int]] = set()
    cut_by_either: list[set[tuple[str, int]]] = []
    cut = {body.message_id for body in _of(evidence, message.CallFailed) if body.error_code == "model_cut"}
    for event, state in _followed(evidence.events):
        match event.body:
            case message.Usage(message_id=message_id, attempt=attempt):
                wanted.add((message_id, attempt))
            case message.CallFailed(message_id=message_id, attempt=attempt):
                wanted.add((message_id, attempt))
            case turn.Claimed() if state.turn is not None and state.phase is Phase.CALLING_MODEL:
                wanted.add((state.turn.message_id, state.turn.attempts))
            case AssistantMessage(message_id=message_id, interrupted=True) if message_id not in cut:
                attempts = state.turn.attempts if state.turn is not None else 0
                if (message_id, attempts) in wanted:
                    cut_by_either.append({(message_id, attempts), (message_id, attempts + 1)})
                else:
                    wanted.add((message_id, attempts + 1))
            case compaction.CompactionStarted(compaction_id=compaction_id, attempt=attempt) if attempt > 1:
                wanted.add((compaction.call_of(compaction_id), attempt - 1))
            case compaction.CompactionEnded(compaction_id=compaction_id, attempt=attempt) as ended if ended.is_called:
                wanted.add((compaction.call_of(compaction_id), attempt))
            case _:
                pass
    booked = Counter(
        (entry.message_id, entry.attempt) for entry in evidence.ledger if not entry.message_id.startswith("title:")
    )
    possible = wanted.union(*cut_by_either)
    is_booked = wanted <= booked.keys() <= possible and all(booked.keys() & either for either in cut_by_either)
    if not is_booked or set(booked.values()) - {1}:
        yield f"booked are {dict(booked)}; the log has {sorted(wanted)}"


def no_money_is_spent_twice(evidence: Evidence) -> Iterator[str]:
    """What a session was charged is what its ledger says, nothing stays reserved for calls that are over, and all
    sessions of an owner together keep within their budget."""
    calls, cost = sum(row.calls for row in evidence.spending), sum(row.cost for row in evidence.spending)
    known = sum(entry.cost_microdollars or 0 for entry in evidence.ledger)
    if (calls, cost) != (len(evidence.ledger), known):
        yield f"{calls} calls are charged with {cost}; the ledger has {len(evidence.ledger)} with {known}"
    if evidence.reserved and (evidence.row is None or evidence.row.status == "idle"):
        yield f"still reserved: {evidence.reserved}"
    cap = evidence.scenario.limits.spend.day
    if cap is not None and evidence.owner_charged > cap:
        yield f"{evidence.owner_charged} microdollars were charged, of {cap}"


def titles_do_not_fight(evidence: Evidence) -> Iterator[str]:
    """A model names a session at most once, never replaces a name that a person chose, and the row has the last name.
    Each call for a title is in the ledger, except those that a crash interrupted."""
    named = _of(evidence, session.TitleChanged)
    made = [body for body in named if body.by_model]
    if len(made) > 1:
        yield f"a model named it {len(made)} times: {[body.title for body in made]}"
    for one, next_one in pairwise(named):
        if one.chosen and not next_one.chosen:
            yield f"{next_one.title!r} replaced {one.title!r}, which somebody chose"
    if evidence.row and named and evidence.row.title != named[-1].title:
        yield f"the row says {evidence.row.title!r}, the log {named[-1].title!r}"
    if made and not any(entry.message_id.startswith("title:") for entry in evidence.ledger):
        yield "a title was made, and is not on the books"


def notes_are_kept(evidence: Evidence) -> Iterator[str]:
    """Acknowledged read positions, pins and metadata are stored."""
    row = evidence.row
    if row is None:
        return
    for entry in _acknowledged(evidence, "see"):
        if row.seen < int(entry.step.split()[1]):
            yield f"{entry.step} was acknowledged; it is seen up to {row.seen}"
    for entry in _acknowledged(evidence, "annotate"):
        if not row.pinned or not row.metadata.keys() >= set(entry.step.split()[1:]):
            yield f"{entry.step} was acknowledged; the row has {row.pinned} and {row.metadata}"


def keys_are_kept(evidence: Evidence) -> Iterator[str]:
    """A key that was returned to its creator exists; and a revoked key stays revoked."""
    revoked = {row.key_id: row.revoked_at is not None for row in evidence.keys}
    for entry in _acknowledged(evidence, "key"):
        if entry.step.split()[1] not in revoked:
            yield f"{entry.step} was acknowledged and is not there"
    for entry in _acknowledged(evidence, "revoke"):
        if not revoked.get(entry.step.split()[1], False):
            yield f"{entry.step} was acknowledged and can still be used"


def every_act_is_told_with_itself(evidence: Evidence) -> Iterator[str]:
    """The audit log has one entry for each key that was created, for each that was revoked and for the deletion of the
    session, and none for what did not take place. A trim removes the old entries, and tells of itself."""
    told = [(entry.action, entry.target) for entry in evidence.audit]
    deleted = ("session.deleted", str(evidence.scenario.key.session))
    acts: list[tuple[str, str]] = [("key.created", row.key_id) for row in evidence.keys]
    acts += [("key.revoked", row.key_id) for row in evidence.keys if row.revoked_at is not None]
    if evidence.session is not None and evidence.session.is_deleted:
        acts.append(deleted)
    about_these = [act for act in told if act[0].startswith("key.") or act == deleted]
    if sorted(about_these) != sorted(acts):
        yield f"these acts took place: {sorted(acts)}; told is: {sorted(about_these)}"
    steps = [entry.step for entry in _acknowledged(evidence, "audit")]
    if "audit new" in steps and ("session.exported", "1") not in told:
        yield "an entry was acknowledged and is not there"
    is_trimmed = ("session.exported", str(TRIMMED_AT)) not in told
    # Of two processes at once, one may write the old entry again after the other has trimmed it.
    may_be_again = evidence.is_shared or evidence.trial.kind in ("pair", "freeze")
    is_told = ("audit.trimmed", "") in told
    if "audit old" in steps and (is_trimmed != is_told) and not (is_told and may_be_again):
        yield "old entries are gone without a word, or there although they were trimmed"


def files_and_their_objects_agree(evidence: Evidence) -> Iterator[str]:
    """Every file has its object, an acknowledged one is not lost, and after the last sweep there is nothing else."""
    expected = evidence.scenario.files
    if expected is None:
        return
    there = {str(row.file_id): row for row in evidence.files}
    for name, row in there.items():
        if evidence.contents.get(row.content_id) != "stored" or row.content_id not in evidence.objects:
            yield f"the file {name} has the content {evidence.contents.get(row.content_id)} and no object"
    if tuple(sorted(there)) != expected:
        yield f"the files {sorted(there)} are left, and not {list(expected)}"
    needed = {str(row.content_id) for row in evidence.files}
    if set(evidence.contents) != needed or set(evidence.objects) != needed:
        yield f"beside {sorted(needed)} there are {evidence.contents} and {evidence.objects}"
    if evidence.scenario.is_deleted and evidence.used:
        yield f"the deleted session still uses {evidence.used}"


def what_is_replaced_is_taken_back(evidence: Evidence) -> Iterator[str]:
    """A replacement message is in the log once for each time that it was accepted, right after the event that takes the
    old one back."""
    bodies = [event.body for event in evidence.events]
    said: set[MessageId] = set()
    replaced = 0
    for index, body in enumerate(bodies):
        if not isinstance(body, message.UserMessage):
            continue
        if body.message_id in said:
            replaced += 1
            if not isinstance(bodies[index - 2], session.Truncated):
                yield f"{body.message_id} is said again, and what was said before is not taken back"
        said.add(body.message_id)
    accepted = {entry.step for entry in _acknowledged(evidence, "instead") if not entry.refused}
    if replaced != len(accepted):
        yield f"{sorted(accepted)} were accepted in the place of others, and {replaced} took it"


def fences_only_rise(evidence: Evidence) -> Iterator[str]:
    """Each process finds a fence, and a log, at least as high as the one before; each takeover has a higher one."""
    found = [entry for entry in evidence.journal if isinstance(entry, Opened)]
    if _is_read_in_turn(evidence):
        for one, next_one in pairwise(found):
            # A claim is not synced by itself: after a power cut it may never have been.
            has_fallen = next_one.fence < one.fence and not evidence.trial.loses_power
            if has_fallen or (next_one.head is not None and next_one.head < (one.head or 0)):
                yield f"first {one} was found, and then {next_one}"
        if found and evidence.session and evidence.session.fence < found[-1].fence:
            yield f"{found[-1]} was found, and the fence is {evidence.session.fence}"
    claims = [body.fence for body in _of(evidence, turn.Claimed)]
    if claims != sorted(set(claims)):
        yield f"the log has claims with the fences {claims}"


def deleted_stays_deleted(evidence: Evidence) -> Iterator[str]:
    """Once a delete is acknowledged there is nothing left, and the id never comes back."""
    if not evidence.scenario.is_deleted:
        return
    if evidence.session is None or not evidence.session.is_deleted:
        yield f"the session is {evidence.session}"
    if evidence.leftovers:
        yield f"{evidence.leftovers} rows of it are left"
    for verb, code in (("send", "session_not_found"), ("create", "session_deleted")):
        late = [entry for entry in _acknowledged(evidence, verb) if entry.step in ("send m2", "create again")]
        for entry in late:
            if entry.refused != code:
                yield f"{entry.step} was answered with {entry.outcome or entry.refused!r}"


def receipts_can_be_read_again(evidence: Evidence) -> Iterator[str]:
    """The receipt of a promoted message matches the log; where its text was replaced, each time."""
    said: dict[MessageId, list[str]] = {}
    for body in _of(evidence, message.UserMessage):
        said.setdefault(body.message_id, []).append(body.delivery)
    for item in evidence.inbox:
        if isinstance(item.item, inbox.Message) and item.state == "promoted":
            deliveries = said.get(item.item.message_id)
            delivery = deliveries.pop(0) if deliveries else None
            if delivery != item.outcome:
                yield f"the receipt of {item.item.message_id} says {item.outcome}, the log {delivery}"


def a_live_holder_keeps_its_session(evidence: Evidence) -> Iterator[str]:
    """While no process dies or freezes, a session changes its holder only after it was released to wait."""
    if evidence.trial.kind not in ("calm", "pair") or evidence.trial.aims or evidence.scenario.kills_itself:
        return
    if evidence.is_shared:
        return  # A process that has finished its own part hands over the sessions of the other's part.
    before: Body | None = None
    for event in evidence.events:
        if isinstance(event.body, turn.Claimed) and not isinstance(before, turn.TurnWaiting):
            last = type_of(before) if before else "nothing"
            yield f"at {event.position} somebody took over after {last}, although the holder lived"
        if not isinstance(event.body, RECORDS):
            before = event.body


# Several sessions, owners and nodes


def slots_are_never_exceeded(evidence: Evidence) -> Iterator[str]:
    """No more sessions of one owner run tools at a time than it has slots, over all processes; and none runs twice. A
    frozen process does not know that its lease has expired."""
    if evidence.trial.kind == "freeze":
        return
    running: list[Occupied] = []
    for entry in evidence.journal:
        match entry:
            case Occupied(enters=True):
                running.append(entry)
                of_owner = [each.session for each in running if each.owner == entry.owner]
                if len(of_owner) > (evidence.scenario.limits.running or len(of_owner)):
                    yield f"{entry.owner} has these running at a time: {of_owner}"
                if of_owner.count(entry.session) > 1:
                    yield f"session {entry.session} of {entry.owner} is run twice at a time"
            case Occupied():
                running.remove(msgspec.structs.replace(entry, enters=True))
            case Died(process=process) | Ended(process=process):
                running = [each for each in running if each.process != process]
            case _:
                pass


def sessions_run_where_they_can(evidence: Evidence) -> Iterator[str]:
    """A session with files runs on the node that has them, and one that needs a tool where that is."""
    needs = set(evidence.scenario.options.tools or ())
    host = evidence.row.host if evidence.row else None
    by_process = {begun.process: begun for begun in evidence.cast}
    for effect in evidence.effects:
        begun = by_process.get(effect.process)
        if begun is None:
            continue
        if host is not None and begun.node != host:
            yield f"{effect.tool} of a session on {host} ran on {begun.node}"
        if missing := needs.difference(begun.tools):
            yield f"a session that needs {sorted(missing)} ran on {begun.node}, which has none of it"
    started = {body.tool_call_id: body.tool_name for body in _of(evidence, tool.ToolStarted)}
    for body in _of(evidence, tool.ToolCompleted):
        if body.error == "unknown_tool" and started.get(body.tool_call_id) in needs:
            yield f"{started[body.tool_call_id]} was called where it is not, though the session needs it"


# Commands


def commands_run_once(evidence: Evidence) -> Iterator[str]:
    """Each command ran as often as it may, which is once, whichever processes died meanwhile."""
    for name, allowed in evidence.scenario.runs.items():
        if evidence.lines.get(name, 0) not in allowed:
            yield f"{name} ran {evidence.lines.get(name, 0)} times"


def no_command_runs_on(evidence: Evidence) -> Iterator[str]:
    """All of them have ended, or were killed with their turn or their session."""
    for command in evidence.alive:
        yield f"it still runs: {command}"


def every_task_is_told_once(evidence: Evidence) -> Iterator[str]:
    """The outcome of each task is in the log once, as its scenario says, with the true exit code."""
    notices = [body.notice for body in _of(evidence, task.TaskNotified)]
    told = [f"{found.kind} {found.exit_code}{' silent' if found.silent else ''}" for found in notices]
    told += [f"{item.notice.kind} {item.notice.exit_code} silent" for item in _silent_items(evidence)]
    if told != list(evidence.scenario.tasks):
        yield f"the log tells {told}, not {list(evidence.scenario.tasks)}"
    started = [body.task_id for body in _of(evidence, task.TaskStarted)]
    ended = [found.task_id for found in notices if found.kind != "stalled"]
    ended += [item.notice.task_id for item in _silent_items(evidence)]
    if sorted(started) != sorted(ended):
        yield f"tasks {started} started, of {ended} the end was told"


def _silent_items(evidence: Evidence) -> list[inbox.TaskNews]:
    """News that no turn waits for: the next message promotes it."""
    waiting = [item for item in evidence.inbox if item.state == "accepted" and is_silent(item)]
    return [item.item for item in waiting if isinstance(item.item, inbox.TaskNews)]


def the_model_hears_of_its_tasks(evidence: Evidence) -> Iterator[str]:
    """Every notice was in a call to the model, never twice in one; and the list of running tasks was correct."""
    calls = [entry for entry in evidence.journal if isinstance(entry, Asked)]
    heard = {notice for entry in calls for notice in entry.notices}
    for body in _of(evidence, task.TaskNotified):
        name = f"{body.notice.task_id} {body.notice.kind}"
        if (name in heard) == body.notice.silent:
            yield f"the model {'heard' if body.notice.silent else 'never heard'} of {name}"
    for entry in calls:
        if len(set(entry.notices)) != len(entry.notices):
            yield f"the model was told twice at once: {entry.notices}"
        ended = {notice.split()[0] for notice in entry.notices if not notice.endswith(" stalled")}
        if over := ended.intersection(entry.running):
            yield f"{over} were on the list of those that run, after their end"


def rows_of_tasks_agree_with_the_log(evidence: Evidence) -> Iterator[str]:
    """No task is left to be watched, and the rows match the reported outcomes."""
    for found in evidence.commands:
        if found.status == "running" or found.kill_asked or not found.is_settled:
            yield f"somebody still has to look after {found}"
    if evidence.scenario.is_deleted or evidence.scenario.retention_seconds < 1:
        if evidence.commands:
            yield f"these should be forgotten: {evidence.commands}"
        if evidence.scenario.is_deleted and evidence.records:
            yield f"{evidence.records} commands of a deleted session are still on disk"
        return
    behind = [found for found in evidence.commands if not found.is_foreground]
    tasks = {found.task_id: f"{found.status} {found.exit_code}" for found in behind}
    notices = [body.notice for body in _of(evidence, task.TaskNotified)]
    notices += [item.notice for item in _silent_items(evidence)]
    told = {str(found.task_id): f"{found.kind} {found.exit_code}" for found in notices if found.kind != "stalled"}
    if tasks != told:
        yield f"the rows say {tasks}, the log {told}"
    state = folding.fold(evidence.events)
    if running := state.tasks.keys() - {found.task_id for found in notices}:
        yield f"the model takes {running} for running"


def only_news_wakes_a_session(evidence: Evidence) -> Iterator[str]:
    """A turn without a message begins with news."""
    for one, next_one in pairwise(evidence.events):
        is_woken = isinstance(one.body, turn.TurnStarted) and one.body.woken
        if is_woken and not isinstance(next_one.body, task.TaskNotified):
            yield f"at {one.position} a turn was started for nothing"


def webhooks_report_every_event_in_order(evidence: Evidence) -> Iterator[str]:
    """A receiver that drops repeats by their ids gets every event of the log that is reported, once and in order; each
    request is signed, and every attempt at an event has the same body."""
    if not evidence.scenario.has_webhook:
        return
    told = [event.id for event in evidence.events if report_of(evidence.scenario.key.session, event, ()) is not None]
    taken = [found.id for found in evidence.received if found.is_accepted and found.session]
    if list(dict.fromkeys(taken)) != told:
        yield f"the log has {told}, the receiver {taken}"
    if len({(found.id, found.digest) for found in evidence.received}) > len({found.id for found in evidence.received}):
        yield "an event arrived with two bodies"
    if not all(found.is_verified for found in evidence.received):
        yield "a request was not signed"


INVARIANTS: tuple[Invariant, ...] = (
    accepted_means_committed,
    lasting_permissions_come_and_go_with_their_writes,
    turns_stay_within_the_bounds_of_their_senders,
    every_turn_ends,
    answered_once,
    files_and_their_objects_agree,
    effects_happen_once,
    answers_count_once,
    the_log_is_whole,
    folding_in_parts_is_the_same,
    what_was_shown_stays,
    reading_in_parts_is_the_same,
    the_model_is_told_the_same,
    each_call_begins_as_the_one_before,
    a_compaction_takes_effect_once_or_not_at_all,
    no_word_of_a_person_is_lost_to_the_model,
    compactions_meet_their_window,
    a_stop_ends_its_own_turn,
    every_attempt_is_booked_once,
    no_money_is_spent_twice,
    titles_do_not_fight,
    notes_are_kept,
    keys_are_kept,
    every_act_is_told_with_itself,
    what_is_replaced_is_taken_back,
    fences_only_rise,
    deleted_stays_deleted,
    receipts_can_be_read_again,
    a_live_holder_keeps_its_session,
    commands_run_once,
    no_command_runs_on,
    every_task_is_told_once,
    the_model_hears_of_its_tasks,
    rows_of_tasks_agree_with_the_log,
    only_news_wakes_a_session,
    slots_are_never_exceeded,
    sessions_run_where_they_can,
    webhooks_report_every_event_in_order,
    nothing_fails_by_itself,
)
