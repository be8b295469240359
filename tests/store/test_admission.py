"""The rules of admission, without a store: facts in, a decision out. They ask for no fact that does not matter."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.events import codec
from holdfast.events.ids import Key, MessageId, Owner, Position, RequestId, SessionId, TaskId, ToolCallId, TurnId
from holdfast.events.inbox import (
    Answer,
    InboxItem,
    Item,
    Message,
    PermissionAnswer,
    Rewind,
    Stop,
    ToBackground,
    ToolAnswer,
)
from holdfast.events.role import RoleBounds
from holdfast.store.admission import (
    NOT_QUEUED,
    REUSED,
    SHORT_ANSWER_BYTES,
    Decision,
    EditPlan,
    Fact,
    Plan,
    Put,
    SessionFacts,
    StoredItem,
    admit,
    admit_edit,
    encode_put,
    end_of_line,
)
from holdfast.store.admission import decided as run_rule
from holdfast.store.grants import MAX_GRANTS, Grant, GrantOrigin, NewGrants
from holdfast.store.store import Accepted, Refused
from holdfast.store.turn_limits import NO_LIMITS, Stored, TurnLimits, Turns

KEY = Key(Owner("ann"), SessionId("s"))
TURN = TurnId("turn")
NOW = 1000
IDLE = SessionFacts(turn_id=None, head=Position(7), status="idle", is_runnable=False, is_held=False, is_counted=True)
RUNNING = SessionFacts(
    turn_id=TURN, head=Position(7), status="running", is_runnable=True, is_held=True, is_counted=True
)
WAITING = SessionFacts(
    turn_id=TURN, head=Position(7), status="waiting", is_runnable=False, is_held=False, is_counted=True
)
QUEUED = SessionFacts(turn_id=None, head=Position(7), status="queued", is_runnable=True, is_held=False, is_counted=True)
LIMITS = TurnLimits(running=2, in_flight=4)

NOTHING_KNOWN: dict[str, Any] = {}


def message(text: str = "hello", message_id: str = "m") -> Message:
    return Message(message_id=MessageId(message_id), text=text)


def called(item: Item, **options: Any) -> Put:
    given: dict[str, Any] = {
        "item_key": "key",
        "queue_limit": 3,
        "only_if_idle": False,
        "stop_first": None,
        "limits": NO_LIMITS,
        "now": NOW,
    }
    return encode_put(KEY, item, **(given | options))


def decided(
    call: Put, session: SessionFacts, facts: dict[str, Any] = NOTHING_KNOWN, found: StoredItem | None = None
) -> Decision:
    """Run the rules on these facts. A fact that is not among them must not be asked for."""
    return run_rule(admit(call, session, found), lambda fact: facts[fact.name])


def planned(decision: Decision) -> Plan:
    assert isinstance(decision, Plan)
    return decision


def code_of(decision: Decision) -> str:
    assert isinstance(decision, Refused)
    return decision.code


def turns(running: int = 0, queued: int = 0, lingering: int = 0) -> Turns:
    return Turns(running=running, queued=queued, lingering=lingering)


def stored(call: Put, **changes: Any) -> StoredItem:
    about: dict[str, Any] = {"state": "accepted", "outcome": "", "while_running": False}
    receipt = InboxItem(sequence=1, key=call.item_key, accepted_at=1, item=call.item, **(about | changes))
    return StoredItem(receipt, call.payload, len(call.payload))


def item(key: str) -> InboxItem:
    return InboxItem(
        sequence=1, key=key, state="accepted", outcome="", accepted_at=1, while_running=False, item=message()
    )


# Messages


def test_message_to_an_idle_session_wakes_it_and_tells_the_head() -> None:
    plan = planned(decided(called(message()), IDLE, {"waiting": 0}))
    assert [new.key for new in plan.adds] == ["key"]
    assert (plan.wakes, plan.rests, plan.since) == (True, False, None)
    assert (plan.found_idle, plan.head, plan.waits_for_slot) == (True, Position(7), False)


@pytest.mark.parametrize(("session", "waiting"), [(RUNNING, 0), (QUEUED, 1), (WAITING, 0)])
def test_message_to_a_busy_session_waits_or_is_refused_as_asked(session: SessionFacts, waiting: int) -> None:
    assert not planned(decided(called(message()), session, {"waiting": waiting})).found_idle
    assert code_of(decided(called(message(), only_if_idle=True), session, {"waiting": waiting})) == "busy"


def test_full_queue_refuses_a_message_unless_the_message_empties_it() -> None:
    assert code_of(decided(called(message()), RUNNING, {"waiting": 3})) == "queue_full"
    facts = {"waiting": 3, "has_item": False, "queue": (item("a"), item("b"))}
    plan = planned(decided(called(message(), stop_first="stop"), RUNNING, facts))
    assert [new.key for new in plan.adds] == ["stop", "key"]
    assert [(removed.key, removed.state, removed.outcome) for removed in plan.removes] == [
        ("a", "removed", "stopped"),
        ("b", "removed", "stopped"),
    ]
    assert plan.removed_by == "stop"


def test_stop_before_a_message_that_was_accepted_earlier_is_not_put_again() -> None:
    plan = planned(decided(called(message(), stop_first="stop"), RUNNING, {"waiting": 0, "has_item": True}))
    assert ([new.key for new in plan.adds], plan.removes) == (["key"], ())


def test_owner_that_stores_too_much_is_refused() -> None:
    call = called(message(), limits=TurnLimits(stored_bytes=1000))
    room = 1000 - len(call.payload)
    full, fits = (Stored(sessions=1, stored_bytes=size) for size in (room + 1, room))
    assert code_of(decided(call, IDLE, {"waiting": 0, "owner_alone": None, "stored": full})) == "storage_full"
    assert planned(decided(call, IDLE, {"waiting": 0, "owner_alone": None, "stored": fits})).wakes


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        (turns(running=1), False),
        (turns(running=2), True),
        (turns(running=1, queued=1), True),
        (turns(running=1, lingering=1), False),
        (turns(running=2, queued=1), True),
        (turns(running=2, queued=2), "too_many_turns"),
    ],
)
def test_message_that_starts_a_turn_takes_a_slot_waits_for_one_or_is_refused(now: Turns, outcome: bool | str) -> None:
    facts = {"waiting": 0, "owner_alone": None, "turns": now, "last_in_line": None}
    decision = decided(called(message(), limits=LIMITS), IDLE, facts)
    assert (decision.code if isinstance(decision, Refused) else planned(decision).waits_for_slot) == outcome


@pytest.mark.parametrize("session", [RUNNING, WAITING])
def test_message_that_joins_a_turn_is_not_counted(session: SessionFacts) -> None:
    facts = {"waiting": 0, "owner_alone": None, "last_in_line": None}
    assert not planned(decided(called(message(), limits=LIMITS), session, facts)).waits_for_slot


def test_message_to_a_session_in_line_waits_while_all_slots_are_taken() -> None:
    for taken, waits in ((1, False), (2, True)):
        facts = {"waiting": 1, "owner_alone": None, "turns": turns(lingering=taken), "last_in_line": 5}
        assert planned(decided(called(message(), limits=LIMITS), QUEUED, facts)).waits_for_slot is waits


def test_sub_session_and_unlimited_owner_take_no_slot() -> None:
    inner = SessionFacts(
        turn_id=None, head=Position(7), status="idle", is_runnable=False, is_held=False, is_counted=False
    )
    assert not planned(decided(called(message(), limits=LIMITS), inner, {"waiting": 0})).waits_for_slot
    free = TurnLimits(running=0, in_flight=0, unlimited=frozenset({KEY.owner}))
    assert not planned(decided(called(message(), limits=free), IDLE, {"waiting": 0})).waits_for_slot


@pytest.mark.parametrize(("last", "place"), [(None, NOW), (5, NOW), (NOW, NOW + 1), (2 * NOW, 2 * NOW + 1)])
def test_session_is_last_in_its_owner_s_line_at_any_clock_time(last: int | None, place: int) -> None:
    assert end_of_line(last, NOW) == place
    facts = {"waiting": 0, "owner_alone": None, "turns": turns(), "last_in_line": last}
    assert planned(decided(called(message(), limits=LIMITS), IDLE, facts)).since == place


# Answers, stops and the rest


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"request": None}, "request_not_found"),
        ({"request": "closed"}, "request_closed"),
        ({"request": "open", "is_stopping": True}, "stopping"),
    ],
)
def test_answer_that_comes_too_late_is_refused(facts: dict[str, Any], code: str) -> None:
    assert code_of(decided(called(answer("1")), WAITING, facts)) == code


def answer(answer_id: str, decision: Any = "approved", by: str = "") -> Answer:
    content = PermissionAnswer(decision=decision)
    return Answer(request_id=RequestId("r"), answer_id=answer_id, content=content, answered_by=by)


def test_answer_to_an_open_request_wakes_the_session() -> None:
    assert planned(decided(called(answer("1")), WAITING, {"request": "open", "is_stopping": False})).wakes


def long_answer(size: int) -> Answer:
    """An answer of so many bytes, as stored."""
    empty = Answer(request_id=RequestId("r"), answer_id="1", content=ToolAnswer(content="xx" * 128))
    return replace(empty, content=ToolAnswer(content="x" * (256 + size - len(codec.encode_item(empty)))))


def test_long_answer_needs_room_in_the_inbox_and_in_the_log_and_a_short_one_needs_none() -> None:
    waits = {"request": "open", "is_stopping": False}
    long = called(long_answer(SHORT_ANSWER_BYTES + 1), limits=TurnLimits(stored_bytes=10_000))
    assert len(long.payload) == SHORT_ANSWER_BYTES + 1
    long = replace(long, limits=TurnLimits(stored_bytes=20_000))
    room = 20_000 - 3 * len(long.payload) - 2 * 1_000
    full, fits = (Stored(sessions=1, stored_bytes=size) for size in (room + 1, room))
    waits |= {"owner_alone": None, "answers": 1_000}
    refusal = decided(long, WAITING, {**waits, "stored": full})
    assert isinstance(refusal, Refused)
    assert (refusal.code, "4,096 bytes always have room" in refusal.message) == ("storage_full", True)
    assert planned(decided(long, WAITING, {**waits, "stored": fits})).wakes
    again = stored(long)
    assert decided(long, WAITING, found=again) == Accepted(again.receipt, duplicate=True)
    short = called(long_answer(SHORT_ANSWER_BYTES), limits=TurnLimits(stored_bytes=0))
    assert planned(decided(short, WAITING, {"request": "open", "is_stopping": False})).wakes


def test_decision_with_rules_and_a_reason_is_a_short_answer() -> None:
    content = PermissionAnswer(
        decision="approved-for-session",
        feedback="x" * 1_000,
        rules=tuple(f"shell(git {name} *)" for name in ("add", "commit", "diff", "log", "push") * 10),
        place="/home/ann/" + "d" * 200,
    )
    item = Answer(request_id=RequestId("r" * 64), answer_id="a" * 64, content=content, answered_by="b" * 200)
    assert len(codec.encode_item(item)) <= SHORT_ANSWER_BYTES


def test_grants_of_an_answer_are_planned_once_and_only_with_it() -> None:
    grants = NewGrants(place="/work", rules=("write", "read"), origin=GrantOrigin("s", "ann", 1))
    held = Grant(place="/work", rule="read", origin=grants.origin)
    asked = replace(called(answer("1")), grants=grants)
    waits = {"request": "open", "is_stopping": False, "owner_alone": None}
    plan = planned(decided(asked, WAITING, {**waits, "grants": (held,)}))
    assert plan.grants == (Grant(place="/work", rule="write", origin=grants.origin),)
    full = tuple(replace(held, rule=f"read({number})") for number in range(MAX_GRANTS))
    refusal = decided(asked, WAITING, {**waits, "grants": full})
    assert isinstance(refusal, Refused)
    assert (refusal.code, "Revoke some" in refusal.message) == ("too_many_permissions", True)
    again = stored(asked)
    assert decided(asked, WAITING, found=again) == Accepted(again.receipt, duplicate=True)


def test_grants_are_read_when_no_other_transaction_can_add_any() -> None:
    grants = NewGrants(place="", rules=("write",), origin=GrantOrigin("s", "ann", 1))
    facts = {"request": "open", "is_stopping": False, "owner_alone": None, "grants": ()}
    looked_up: list[str] = []

    def look(fact: Fact) -> Any:
        looked_up.append(fact.name)
        return facts[fact.name]

    run_rule(admit(replace(called(answer("1")), grants=grants), WAITING, None), look)
    assert looked_up == ["request", "is_stopping", "owner_alone", "grants"]


def test_first_answer_wins_and_the_same_answer_gets_the_same_receipt() -> None:
    first = stored(called(answer("1", by="bob")))
    assert decided(called(answer("1", by="bob")), WAITING, found=first) == Accepted(first.receipt, duplicate=True)
    assert decided(called(answer("1", "denied-interactively-by-user")), WAITING, found=first) == REUSED
    other = decided(called(answer("2")), WAITING, found=first)
    assert isinstance(other, Refused)
    assert (other.code, "bob" in other.message) == ("answered_already", True)


@pytest.mark.parametrize(
    ("session", "queue", "outcome"),
    [(RUNNING, ("a",), ""), (IDLE, (), "nothing_running"), (QUEUED, ("a",), "dequeued")],
)
def test_stop_ends_the_running_turn_and_clears_the_queue(
    session: SessionFacts, queue: tuple[str, ...], outcome: str
) -> None:
    plan = planned(decided(called(Stop(stop_id="key")), session, {"queue": tuple(map(item, queue))}))
    (new,) = plan.adds
    assert isinstance(new.item, Stop)
    assert (new.item.turn_id, new.outcome, new.state) == (
        session.turn_id,
        outcome,
        "promoted" if outcome else "accepted",
    )
    assert (plan.wakes, plan.rests) == (not outcome, True)
    assert tuple(removed.key for removed in plan.removes) == queue


def test_stop_that_keeps_the_queue_or_comes_too_late_removes_nothing() -> None:
    assert planned(decided(called(Stop(stop_id="key", keep_queued=True)), RUNNING)).removes == ()
    late = planned(decided(called(Stop(stop_id="key", meant_for=TurnId("earlier"))), RUNNING))
    assert (late.removes, late.adds[0].outcome, late.wakes) == ((), "turn_ended_before", False)


def test_rewind_wakes_the_session() -> None:
    plan = planned(decided(called(Rewind(rewind_id="key", kept=Position(1))), IDLE))
    assert (plan.wakes, [new.item for new in plan.adds]) == (True, [Rewind(rewind_id="key", kept=Position(1))])


@pytest.mark.parametrize(
    "asked",
    [
        Rewind(rewind_id="key", kept=Position(1)),
        ToBackground(tool_call_id=ToolCallId("call"), task_id=TaskId("task")),
    ],
)
def test_item_that_can_wait_is_refused_when_the_storage_is_full_and_a_repeated_one_is_not(asked: Item) -> None:
    call = called(asked, limits=TurnLimits(stored_bytes=1000))
    room = 1000 - len(call.payload)
    full, fits = (Stored(sessions=1, stored_bytes=size) for size in (room + 1, room))
    assert code_of(decided(call, RUNNING, {"owner_alone": None, "stored": full})) == "storage_full"
    assert planned(decided(call, RUNNING, {"owner_alone": None, "stored": fits})).wakes
    assert decided(call, RUNNING, {}, stored(call, state="promoted")) == Accepted(
        stored(call, state="promoted").receipt, duplicate=True
    )


def test_rewind_that_stops_the_turn_is_one_plan_with_the_stop() -> None:
    call = called(Rewind(rewind_id="key", kept=Position(1)), stop_first="stop", limits=TurnLimits(stored_bytes=1000))
    facts = {"has_item": False, "queue": (item("a"),), "owner_alone": None}
    plan = planned(decided(call, RUNNING, {**facts, "stored": Stored(sessions=1, stored_bytes=0)}))
    assert ([new.key for new in plan.adds], [removed.key for removed in plan.removes]) == (["stop", "key"], ["a"])
    full = {**facts, "stored": Stored(sessions=1, stored_bytes=1000)}
    assert code_of(decided(call, RUNNING, full)) == "storage_full", "the turn goes on"
    room = {**facts, "stored": Stored(sessions=1, stored_bytes=1000 - len(call.payload))}
    assert code_of(decided(call, RUNNING, room)) == "storage_full", "there is no room for the stop"


def test_stop_that_ends_something_is_never_refused_for_want_of_room() -> None:
    full = TurnLimits(stored_bytes=0)
    planned(decided(called(Stop(stop_id="key"), limits=full), RUNNING, {"queue": (), "is_stopping": False}))
    planned(decided(called(Stop(stop_id="key"), limits=full), QUEUED, {"queue": (item("a"),)}))


@pytest.mark.parametrize(
    ("session", "asked", "is_stopping", "outcome"),
    [
        (IDLE, Stop(stop_id="key"), False, "nothing_running"),
        (RUNNING, Stop(stop_id="key", meant_for=TurnId("earlier")), False, "turn_ended_before"),
        (RUNNING, Stop(stop_id="key"), True, ""),
    ],
)
def test_stop_without_effect_is_not_stored_for_want_of_room(
    session: SessionFacts, asked: Stop, is_stopping: bool, outcome: str
) -> None:
    call = called(asked, limits=TurnLimits(stored_bytes=1000))
    facts = {"queue": (), "is_stopping": is_stopping, "owner_alone": None}
    full, room = (Stored(sessions=1, stored_bytes=size) for size in (1000, 0))
    decision = decided(call, session, {**facts, "stored": full})
    assert isinstance(decision, Accepted)
    assert (decision.item.outcome, decision.removed) == (outcome, ())
    assert planned(decided(call, session, {**facts, "stored": room})).adds[0].outcome == outcome


# Edits


def edited(text: str, found: StoredItem | None, stored_bytes: int) -> EditPlan | Refused:
    def look(fact: Fact) -> Any:
        return Stored(sessions=1, stored_bytes=stored_bytes) if fact.name == "stored" else None

    return run_rule(admit_edit(KEY, text, found, TurnLimits(stored_bytes=1000)), look)


def test_edit_counts_the_new_text_beside_the_one_that_was_sent() -> None:
    sent = stored(called(message(text="a" * 100)))
    plan = edited("b" * 50, sent, 0)
    assert isinstance(plan, EditPlan)
    assert plan.added_bytes == len(plan.payload)
    assert codec.decode_item(plan.payload) == message(text="b" * 50)
    again = edited("c" * 60, StoredItem(sent.receipt, sent.sent, sent.size + plan.added_bytes), 0)
    assert isinstance(again, EditPlan)
    assert again.added_bytes == 10


def test_edit_that_needs_more_room_than_there_is_is_refused_and_a_shorter_one_is_not() -> None:
    sent = stored(called(message(text="a" * 100)))
    before = StoredItem(sent.receipt, sent.sent, 2 * sent.size)
    assert edited("b" * 101, before, 1000) == Refused("storage_full", TurnLimits(stored_bytes=1000).quota_sentence(""))
    assert isinstance(edited("b" * 100, before, 1000), EditPlan)


@pytest.mark.parametrize("found", [None, "promoted", "a stop"])
def test_only_a_waiting_message_is_edited(found: str | None) -> None:
    items = {
        "promoted": stored(called(message()), state="promoted"),
        "a stop": stored(called(Stop(stop_id="key"))),
    }
    assert edited("x", items[found] if found else None, 0) == NOT_QUEUED


# Repeated puts


def test_repeated_message_gets_its_receipt_and_whether_it_still_waits_for_a_slot() -> None:
    call = called(message(), limits=LIMITS)
    first = stored(call)
    for running, waits in ((1, False), (2, True)):
        again = decided(call, QUEUED, {"turns": turns(running=running)}, first)
        assert again == Accepted(first.receipt, duplicate=True, waits_for_slot=waits)
    promoted = stored(call, state="promoted")
    assert decided(call, RUNNING, found=promoted) == Accepted(promoted.receipt, duplicate=True)


def test_repeated_stop_returns_what_it_removed() -> None:
    call = called(Stop(stop_id="key"))
    first, removed = stored(call, state="promoted"), (item("a"),)
    assert decided(call, IDLE, {"removed_by": removed}, first) == Accepted(
        first.receipt, duplicate=True, removed=removed
    )


def test_other_content_under_a_used_key_is_refused() -> None:
    assert decided(called(message("other")), IDLE, found=stored(called(message()))) == REUSED


# Bounds of roles


def test_the_bounds_of_an_editor_take_the_place_of_those_of_the_sender() -> None:
    sender, editor = RoleBounds(tools=("view",)), RoleBounds(tools=("view", "create"))
    for first, second, kept in ((sender, editor, editor), (None, editor, editor), (sender, None, sender)):
        found = stored(called(replace(message(), bounds=first)))
        plan = run_rule(admit_edit(KEY, "other", found, NO_LIMITS, second), lambda fact: None)
        assert isinstance(plan, EditPlan)
        assert codec.decode_item(plan.payload) == replace(message("other"), bounds=kept)
