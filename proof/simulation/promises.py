"""The promises at the end of a run: the invariants of the crash campaign on every session, and those that only a world
with many processes, clients and readers can break."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.commands.command import CommandKey
from holdfast.events import compaction, message, task
from holdfast.events.event import Event
from holdfast.events.ids import Key, MessageId
from holdfast.events.inbox import Message, Stop
from holdfast.events.message import AssistantMessage, ToolCallBlock
from holdfast.live.live import Delta
from holdfast.live.local import LocalLive
from holdfast.server.reader import Reader, Reading
from holdfast.session.fold import fold
from holdfast.store.store import Cursor
from holdfast.tasks.desk import command_key
from proof.crash import invariants
from proof.crash.evidence import Evidence
from proof.crash.invariants import Invariant
from proof.crash.kept_session import EVER, SessionRow
from proof.crash.scenario import Scenario
from proof.crash.trial import Trial, Violation
from proof.simulation.clients import Ledger, Sending
from proof.simulation.commands import Running
from proof.simulation.guests import Guest
from proof.simulation.memory import budgets, reading
from proof.simulation.memory.store import Call, MemoryStore
from proof.simulation.memory.tables import Database, SessionRecord
from proof.simulation.readers import Follower
from proof.simulation.real_stores import RealDatabase
from proof.simulation.world import World

OF_THE_CAMPAIGN: tuple[Invariant, ...] = (
    invariants.every_turn_ends,
    invariants.answered_once,
    invariants.effects_happen_once,
    invariants.answers_count_once,
    invariants.the_log_is_whole,
    invariants.folding_in_parts_is_the_same,
    invariants.reading_in_parts_is_the_same,
    invariants.the_model_is_told_the_same,
    invariants.a_compaction_takes_effect_once_or_not_at_all,
    invariants.no_word_of_a_person_is_lost_to_the_model,
    invariants.a_stop_ends_its_own_turn,
    invariants.fences_only_rise,
    invariants.receipts_can_be_read_again,
)

NO_SCENARIO = Scenario(name="simulation", stages=(), rules=(), says=(), ends={})
NO_TRIAL = Trial(scenario="simulation", kind="pair", aims=("-",))
CUTS = 4
"""Positions at which a reading is cut in two."""


def check(
    world: World,
    ledger: Ledger,
    followers: list[Follower],
    guests: list[Guest],
    commands: dict[CommandKey, Running],
) -> tuple[Violation, ...]:
    """All violations, session by session."""
    found = list(world.violations)
    for key, session, evidence in _sessions(world):
        found += [Violation(named.__name__, text) for named in OF_THE_CAMPAIGN for text in named(evidence)]
        sent = {id: sending for id, sending in ledger.sent.items() if sending.key == key}
        found += [Violation("accepted_means_committed", text) for text in _accepted(session, sent, ledger)]
        found += [Violation("one_owner_at_each_position", text) for text in _owners(session)]
        found += [Violation("every_attempt_is_booked", text) for text in _booked(world.db, session)]
        for follower in followers:
            if follower.key == key:
                found += [Violation("readers_see_the_same", text) for text in _read(session, follower)]
        found += [Violation("a_late_stop_takes_nothing", text) for text in _late_stops(session)]
        found += [Violation("tasks_are_told", text) for text in _tasks(world.db, session, commands)]
        found += [Violation("guests_are_offered", text) for text in _offered(session, guests)]
    return tuple(found)


def _tasks(db: Database, session: SessionRecord, commands: dict[CommandKey, Running]) -> Iterator[str]:
    """Every command has ended, its row says how, and the end of a background command is reported once."""
    bodies = [event.body for event in session.events]
    notices = [body.notice for body in bodies if isinstance(body, task.TaskNotified)]
    told = sorted(notice.task_id for notice in notices if notice.kind != "stalled")
    started = sorted(body.task_id for body in bodies if isinstance(body, task.TaskStarted))
    if told != started:
        yield f"tasks {started} went into the background; of {told} the end was told"
    for (key, task_id), record in db.tasks.items():
        found = commands.get(command_key(record.row))
        if key != session.key or found is None:
            continue
        if found.outcome is None:
            yield f"the command of {task_id} still runs, and its row says {record.row.status}"
        elif found.outcome.reason == "exited" and record.row.exit_code not in (found.exit_code, None):
            yield f"the command of {task_id} exited with {found.exit_code}, and its row says {record.row.exit_code}"


def _late_stops(session: SessionRecord) -> Iterator[str]:
    """A stop that named a turn which did not run when it was put took no message back."""
    for key, record in session.inbox.items():
        stop = session.inbox.get(record.removed_by or "")
        if (
            stop is not None
            and isinstance(stop.item.item, Stop)
            and stop.item.item.comes_too_late(stop.item.item.turn_id)
        ):
            yield f"{key} was taken back by {record.removed_by}, which came too late"


def _offered(session: SessionRecord, guests: list[Guest]) -> Iterator[str]:
    """The model is offered the tool of every client whose attachment was confirmed and that has not left."""
    here = [guest for guest in guests if guest.key == session.key and guest.is_attached]
    offered = {tool.name for tool in fold(session.events).client_tools} if here else set()
    for guest in here:
        if guest.tool.name not in offered:
            yield f"{guest.name} is attached as {guest.attachment_id}, and the model is offered only {sorted(offered)}"


def _sessions(world: World) -> Iterator[tuple[Key, SessionRecord, Evidence]]:
    if not isinstance(world.db, RealDatabase):
        for key, session in world.db.sessions.items():
            yield key, session, _evidence(world, key, session)
        return
    for key, (session, kept) in world.db.whole().items():
        for entry in kept.ledger:
            world.db.ledger[key, entry.message_id, entry.attempt] = entry
        collected = Evidence(
            scenario=NO_SCENARIO,
            trial=NO_TRIAL,
            journal=tuple(world.journal.get(key, ())),
            effects=tuple(world.effects.get(key, ())),
            **msgspec.structs.asdict(kept),
        )
        yield key, session, collected


def _evidence(world: World, key: Key, session: SessionRecord) -> Evidence:
    readings = _readings(world.db, key, Cursor())
    step = max(1, len(readings) // CUTS)
    again = [(cursor, tuple(one for one, _ in _readings(world.db, key, cursor))) for _, cursor in readings[::step]]
    return Evidence(
        scenario=NO_SCENARIO,
        trial=NO_TRIAL,
        journal=tuple(world.journal.get(key, ())),
        effects=tuple(world.effects.get(key, ())),
        session=SessionRow(
            fence=session.fence, lease_holder=session.holder, is_runnable=session.is_runnable, is_deleted=False
        ),
        row=reading.row(world.db, key),
        events=tuple(session.events),
        inbox=tuple(found.item for found in session.inbox.values()),
        requests=tuple(session.open_requests()),
        segments=tuple(session.segments),
        snapshot=session.snapshot,
        ledger=reading.ledger(world.db, key.owner, key.session),
        spending=budgets.spending(world.db, *EVER, key.owner, key.session),
        owner_charged=0,
        reserved=(),
        leftovers=0,
        readings=readings,
        rereadings=tuple(again),
    )


def _readings(db: Database, key: Key, cursor: Cursor) -> tuple[tuple[Reading, Cursor], ...]:
    """All that can be read now. A store that answers at once never makes its reader wait."""

    async def read() -> tuple[tuple[Reading, Cursor], ...]:
        reader = Reader(MemoryStore(db, node="", process="reader", carry=_now), LocalLive(), key, cursor)
        return tuple([(found, reader.cursor) async for found in reader.until_now()])

    running = read()
    try:
        running.send(None)
    except StopIteration as done:
        result: tuple[tuple[Reading, Cursor], ...] = done.value
        return result
    raise AssertionError("a reader waited")


async def _now(call: Call) -> Any:
    return call.run()


def _accepted(session: SessionRecord, sent: dict[MessageId, Sending], ledger: Ledger) -> Iterator[str]:
    """Each acknowledged message is in the log once, in its order, with its last text; or was given back."""
    said = [event.body for event in session.events if isinstance(event.body, message.UserMessage)]
    counted = Counter(body.message_id for body in said)
    contents = {body.message_id: body.content for body in said}
    for id, sending in sent.items():
        receipt = session.inbox.get(f"message:{id}")
        if receipt is None:
            if sending.accepted:
                yield f"{id} was acknowledged and has no receipt"
        elif not sending.accepted and not sending.unsure and sending.refused:
            yield f"{id} was refused ({sending.refused}) and is there all the same"
        if receipt is None:
            continue
        state = receipt.item.state
        if counted.pop(id, 0) != (state == "promoted"):
            yield f"{id} is {state} and is {sum(body.message_id == id for body in said)} times in the log"
        if state == "accepted":
            yield f"{id} still waits"
        if state == "promoted":
            yield from _words(id, sending, contents.get(id, ""))
        if state == "removed" and not (sending.removed or session.key in ledger.cleared):
            yield f"{id} was removed, and nobody asked for that"
    if counted:
        yield f"nobody sent {dict(counted)}"
    if session.key not in ledger.reordered:
        yield from _order(session, [body.message_id for body in said])


def _words(id: MessageId, sending: Sending, content: str) -> Iterator[str]:
    if sending.edits_unsure or not sending.edited:
        if content not in (sending.text, *sending.edited):
            yield f"{id} says {content!r}, which nobody wrote"
    elif content != sending.edited[-1]:
        yield f"{id} says {content!r}, and not {sending.edited[-1]!r}, though the edit was acknowledged"


def _order(session: SessionRecord, said: list[MessageId]) -> Iterator[str]:
    """The inbox keeps its rows in the order in which they were accepted."""
    for delivery in ("steer", "enqueue"):
        accepted = [
            found.item.item.message_id
            for found in session.inbox.values()
            if isinstance(found.item.item, Message) and found.item.item.delivery == delivery
        ]
        taken = [id for id in said if id in accepted]
        if taken != [id for id in accepted if id in taken]:
            yield f"accepted were {accepted}; the log has {taken}"


def _owners(session: SessionRecord) -> Iterator[str]:
    """Fences never fall along the log, and each is one process's."""
    highest, holders = 0, dict[int, str]()
    for event, written in zip(session.events, session.written, strict=True):
        if written.fence is None:
            continue
        if written.fence < highest:
            yield f"at {event.position} {written.process} wrote under fence {written.fence}, after {highest}"
        if holders.setdefault(written.fence, written.process) != written.process:
            yield f"at {event.position} {written.process} wrote under the fence of {holders[written.fence]}"
        highest = max(highest, written.fence)


def _booked(db: Database, session: SessionRecord) -> Iterator[str]:
    """The ledger has an entry for each try at a model call that the log knows of."""
    booked = {(id, attempt) for key, id, attempt in db.ledger if key == session.key}
    for event in session.events:
        match event.body:
            case message.Usage(message_id=id, attempt=attempt) | message.CallFailed(message_id=id, attempt=attempt):
                if (id, attempt) not in booked:
                    yield f"attempt {attempt} at {id} is not booked"
            case compaction.CompactionEnded(compaction_id=of, attempt=attempt) as ended if ended.is_called:
                if (compaction.call_of(of), attempt) not in booked:
                    yield f"attempt {attempt} at the summary {of} is not booked"
            case AssistantMessage(message_id=id, interrupted=True):
                if not any(found == id for found, _ in booked):
                    yield f"the cut message {id} is not booked"
            case _:
                pass


def _read(session: SessionRecord, follower: Follower) -> Iterator[str]:
    """A reader received the log and every byte of its messages, however often it was disconnected."""
    events = [found for found in follower.readings if isinstance(found, Event)]
    if events != session.events:
        given, there = [found.position for found in events], len(session.events)
        yield f"{follower.name} was given {given}; the log has {there} events"
    texts: dict[tuple[MessageId, int], bytes] = {}
    for found in follower.readings:
        if isinstance(found, Delta):
            before = texts.get((found.message_id, found.block), b"")
            if found.offset != len(before):
                yield f"{follower.name} was given byte {found.offset} of {found.message_id} after {len(before)}"
            texts[found.message_id, found.block] = before + found.text.encode()
    final = {
        (body.message_id, number): _text(block).encode()
        for body in (event.body for event in session.events)
        if isinstance(body, AssistantMessage)
        for number, block in enumerate(body.blocks)
    }
    for place in sorted(texts.keys() | {place for place, text in final.items() if text}):
        if texts.get(place, b"") != final.get(place, b""):
            yield f"{follower.name} was given {texts.get(place)!r} of {place}; the log has {final.get(place)!r}"


def _text(block: message.Block) -> str:
    return block.arguments if isinstance(block, ToolCallBlock) else block.text
