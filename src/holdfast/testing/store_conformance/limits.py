"""Limits per owner: stored sessions and bytes, admission of turns, slots, and fairness between owners."""

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.events import codec
from holdfast.events.event import Event
from holdfast.events.ids import EventId, Key, MessageId, Owner, Position, RequestId, SessionId
from holdfast.events.inbox import Message, Rewind, Stop, ToolAnswer
from holdfast.events.session import SessionInfo, Truncated
from holdfast.store.store import Claim, Committed, Lease, Promotion, Refused, Rejected, Store, Unit
from holdfast.store.turn_limits import Stored, TurnLimits, Turns
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY,
    TURN,
    OpenStore,
    accepted,
    answer,
    asking,
    create,
    refused,
    reply,
    request,
    rewind,
    send,
    started,
    stop,
)

ANN, BOB, ROOT = KEY.owner, Owner("bob"), Owner("root")
LIMITS = TurnLimits(running=2, in_flight=4, unlimited=frozenset({ROOT}))


def of(name: str, owner: Owner = ANN) -> Key:
    return Key(owner, SessionId(name))


def size_of(message: str, text: str = "hello") -> int:
    return len(codec.encode_item(Message(message_id=MessageId(message), text=text)))


async def sent(store: Store, *names: str, owner: Owner = ANN) -> list[bool]:
    """Create sessions and send each a message; for each, whether its turn waits for a slot."""
    waits = []
    for name in names:
        await create(store, of(name, owner))
        waits.append(accepted(await send(store, "m", key=of(name, owner))).waits_for_slot)
    return waits


async def claimed(store: Store, *, limit: int = MANY) -> list[str]:
    return [claim.lease.key.session for claim in await store.claim(limit=limit)]


async def begin(store: Store, claim: Claim, *, sequence: int = 1) -> Lease:
    """Start the turn of the claimed session."""
    lease = claim.lease
    began = Unit(
        key=lease.key, fence=lease.fence, promotes=(Promotion(sequence, "idle"),), status="running", turn_id=TURN
    )
    assert isinstance(await store.commit(began), Committed)
    return lease


async def end(store: Store, lease: Lease, *, tail: int = 1) -> None:
    """End the turn and release the session."""
    await store.commit(Unit(key=lease.key, fence=lease.fence, status="idle", turn_id=None))
    assert await store.release(lease, seen_tail=tail, how="done")


class LimitConformance:
    """Quotas, admission, slots and the order of claims."""

    @pytest.fixture
    async def limited(self, open_store: OpenStore) -> Store:
        return await open_store(limits=LIMITS)

    # Quotas

    async def test_owner_has_a_session_limit_and_deleting_one_makes_room(self, open_store: OpenStore) -> None:
        store = await open_store(limits=TurnLimits(sessions=2, unlimited=frozenset({ROOT})))
        for name in ("a", "b"):
            assert isinstance(await create(store, of(name)), Committed)
        assert await create(store, of("c")) == Rejected("too_many_sessions")
        assert await store.row(of("c")) is None
        assert await create(store, of("a")) == Rejected("exists"), "a repeated creation gets the same answer"
        assert isinstance(await create(store, of("c", BOB)), Committed)
        for name in ("a", "b", "c"):
            assert isinstance(await create(store, of(name, ROOT)), Committed)
        await store.delete(of("a"))
        assert isinstance(await create(store, of("c")), Committed)
        assert await create(store, of("d")) == Rejected("too_many_sessions")

    async def test_two_processes_share_one_session_limit(self, open_store: OpenStore) -> None:
        stores = [await open_store(limits=TurnLimits(sessions=3)) for _ in range(2)]
        outcomes = await asyncio.gather(*(create(stores[n % 2], of(f"rival {n}")) for n in range(10)))
        assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 3
        assert sum(outcome == Rejected("too_many_sessions") for outcome in outcomes) == 7

    async def test_stored_bytes_of_an_owner_are_counted_exactly(self, open_store: OpenStore) -> None:
        size = len(codec.encode(started(of("a")).body)[2])
        more = Event(Position(0), EventId("e"), 1, SessionInfo(info_type="x", message="é" * 100))
        added = len(codec.encode(more.body)[2]) + 2 * size_of("m")
        store = await open_store(limits=TurnLimits(stored_bytes=2 * size + added, unlimited=frozenset({ROOT})))
        assert isinstance(await create(store, of("a")), Committed)
        accepted(await send(store, "m", key=of("a")))
        assert isinstance(await store.commit(Unit(key=of("a"), fence=None, events=(more,))), Committed)
        accepted(await send(store, "n", key=of("a")))
        assert isinstance(await create(store, of("b")), Committed), "it fits to the last byte"
        assert await store.stored(ANN) == Stored(sessions=2, stored_bytes=2 * size + added)
        assert await create(store, of("c")) == Rejected("storage_full")
        assert refused(await send(store, "o", key=of("b"))) == "storage_full"
        assert accepted(await send(store, "m", key=of("a"))).duplicate, "what was accepted stays accepted"
        await store.delete(of("a"))
        assert isinstance(await create(store, of("c")), Committed)
        accepted(await send(store, "o", key=of("b")))

    async def test_rewound_events_still_count_and_rewinds_end_with_the_room(self, open_store: OpenStore) -> None:
        size = len(codec.encode(started(of("a")).body)[2])
        rewound = Event(Position(0), EventId("e"), 1, Truncated(kept=Position(1)))
        added = len(codec.encode(rewound.body)[2])
        added += len(codec.encode_item(Rewind(rewind_id="first", kept=Position(1))))
        store = await open_store(limits=TurnLimits(stored_bytes=size + added))
        await create(store, of("a"))
        accepted(await rewind(store, "first", key=of("a")))
        (claim,) = await store.claim(limit=MANY)
        unit = Unit(
            key=of("a"), fence=claim.lease.fence, events=(rewound,), promotes=(Promotion(1, "rewound"),), status="idle"
        )
        assert isinstance(await store.commit(unit), Committed)
        assert await store.stored(ANN) == Stored(sessions=1, stored_bytes=size + added)
        assert refused(await rewind(store, "second", key=of("a"))) == "storage_full"
        assert accepted(await rewind(store, "first", key=of("a"))).duplicate, "what was accepted stays accepted"

    async def test_inbox_items_count_until_their_session_is_deleted_also_when_they_are_removed_or_edited(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store(limits=TurnLimits(stored_bytes=1_000_000))
        size = len(codec.encode(started(of("a")).body)[2])
        await create(store, of("a"))
        accepted(await send(store, "m", key=of("a"), text="x" * 100))
        one = size + size_of("m", "x" * 100)
        assert await store.stored(ANN) == Stored(sessions=1, stored_bytes=one)
        accepted(await send(store, "m", key=of("a"), text="x" * 100))
        assert (await store.stored(ANN)).stored_bytes == one, "a repeated put stores nothing"
        for text in ("y" * 50, "z" * 70):  # The first text stays, for a put that is repeated.
            assert await store.edit_item(of("a"), "m", text=text) is None
            assert (await store.stored(ANN)).stored_bytes == one + size_of("m", text)
        edited = one + size_of("m", "z" * 70)
        assert await store.remove_item(of("a"), "m")
        assert (await store.stored(ANN)).stored_bytes == edited
        accepted(await send(store, "n", key=of("a"), stop_first="stop"))
        stopped = 2 * len(codec.encode_item(Stop(stop_id="stop")))
        assert (await store.stored(ANN)).stored_bytes == edited + stopped + size_of("n")
        await store.delete(of("a"))
        assert await store.stored(ANN) == Stored(sessions=0, stored_bytes=0)

    async def test_owner_that_sends_and_removes_messages_runs_out_of_room(self, open_store: OpenStore) -> None:
        store = await open_store(limits=TurnLimits(stored_bytes=10_000))
        await create(store, of("a"))
        codes = []
        for number in range(20):
            outcome = await send(store, f"m{number}", key=of("a"), text="x" * 1_000)
            codes.append(outcome.code if isinstance(outcome, Refused) else "")
            await store.remove_item(of("a"), f"m{number}")
        assert codes == [""] * 9 + ["storage_full"] * 11

    async def test_edit_is_refused_for_want_of_room_unless_it_needs_no_more(self, open_store: OpenStore) -> None:
        store = await open_store(limits=TurnLimits(stored_bytes=2_000))
        await create(store, of("a"))
        accepted(await send(store, "m", key=of("a"), text="x" * 500))
        assert await store.edit_item(of("a"), "m", text="y" * 300) is None
        before = (await store.waiting_items(of("a")), await store.stored(ANN))
        assert refused(await store.edit_item(of("a"), "m", text="z" * 2_000)) == "storage_full"
        assert (await store.waiting_items(of("a")), await store.stored(ANN)) == before
        assert await store.edit_item(of("a"), "m", text="z" * 300) is None
        assert await store.edit_item(of("a"), "m", text="z") is None

    async def test_stop_without_a_turn_is_counted(self, open_store: OpenStore) -> None:
        store = await open_store(limits=TurnLimits(stored_bytes=1_000_000))
        await create(store, of("a"))
        before = (await store.stored(ANN)).stored_bytes
        accepted(await stop(store, "stop", key=of("a")))
        assert (await store.stored(ANN)).stored_bytes == before + 2 * len(codec.encode_item(Stop(stop_id="stop")))

    async def test_long_answer_is_refused_for_want_of_room_and_its_request_stays_open(
        self, open_store: OpenStore
    ) -> None:
        store = await open_store(limits=TurnLimits(stored_bytes=20_000))
        await asking(store)
        long = replace(answer(), content=ToolAnswer(content="x" * 10_000))
        before = (await store.row(KEY), await store.stored(ANN))
        assert refused(await reply(store, long)) == "storage_full"
        assert (await store.row(KEY), await store.stored(ANN)) == before
        assert len(await store.requests(KEY)) == 1
        small = replace(answer(), content=ToolAnswer(content="No room.", success=False))
        accepted(await reply(store, small))
        added = (await store.stored(ANN)).stored_bytes - before[1].stored_bytes
        assert added == len(codec.encode_item(small))

    async def test_answer_is_accepted_in_a_full_storage_if_it_is_short_or_repeated(self, open_store: OpenStore) -> None:
        store = await open_store(limits=TurnLimits(stored_bytes=30_000))
        lease = await asking(store)
        long = replace(answer(), content=ToolAnswer(content="x" * 8_000))
        accepted(await reply(store, long))
        other = RequestId("another")
        filler = Event(Position(0), EventId("e"), 1, SessionInfo(info_type="x", message="x" * 30_000))
        unit = Unit(key=KEY, fence=lease.fence, events=(filler,), opens=(request(other),), turn_id=TURN)
        assert isinstance(await store.commit(unit), Committed)
        assert accepted(await reply(store, long)).duplicate
        accepted(await reply(store, replace(answer(), request_id=other)))

    async def test_long_answers_that_wait_have_their_room_in_the_log_reserved(self, open_store: OpenStore) -> None:
        store = await open_store(limits=TurnLimits(stored_bytes=60_000))
        keys = [of(str(number)) for number in range(3)]
        for key in keys:
            await asking(store, key)
        long = replace(answer(), content=ToolAnswer(content="x" * 9_000))
        accepted(await reply(store, long, key=keys[0]))
        accepted(await reply(store, long, key=keys[1]))
        # The inbox has 18,000 bytes, and the log needs 36,000 for these two: 27,000 more are too many.
        assert refused(await reply(store, long, key=keys[2])) == "storage_full"
        other = Key(Owner("bob"), SessionId("s"))
        await asking(store, other)
        accepted(await reply(store, long, key=other))

    async def test_messages_that_are_sent_at_once_are_counted_together(self, open_store: OpenStore) -> None:
        stores = [await open_store(limits=TurnLimits(stored_bytes=20_000)) for _ in range(3)]
        keys = [of(str(number)) for number in range(9)]
        for key in keys:
            await create(stores[0], key)
        sends = (send(stores[n % 3], "m", key=key, text="x" * 6_000) for n, key in enumerate(keys))
        outcomes = await asyncio.gather(*sends)
        assert sum(not isinstance(outcome, Refused) for outcome in outcomes) == 3

    async def test_sessions_created_concurrently_are_counted_together(self, open_store: OpenStore) -> None:
        size = len(codec.encode(started(of("0")).body)[2])
        store = await open_store(limits=TurnLimits(stored_bytes=3 * size))
        outcomes = await asyncio.gather(*(create(store, of(str(n))) for n in range(8)))
        assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 3

    # Admission

    async def test_turn_beyond_the_limit_is_refused_without_a_trace(self, limited: Store) -> None:
        assert await sent(limited, "a", "b", "c", "d") == [False, False, True, True]
        await create(limited, of("e"))
        before = await limited.row(of("e"))
        assert refused(await send(limited, "m", key=of("e"))) == "too_many_turns"
        assert await limited.row(of("e")) == before
        assert await limited.receipt(of("e"), "m") is None
        assert await limited.turns(ANN) == Turns(running=0, lingering=0, queued=4)
        assert await sent(limited, "e", owner=BOB) == [False], "another owner has limits of their own"

    async def test_repeated_send_gets_the_same_answer_and_is_never_refused(self, limited: Store) -> None:
        await sent(limited, "a", "b", "c", "d")
        first, last = [accepted(await send(limited, "m", key=of(name))) for name in ("a", "d")]
        assert (first.duplicate, last.duplicate) == (True, True)
        for claim in await limited.claim(limit=MANY):
            await begin(limited, claim)
        assert accepted(await send(limited, "m", key=of("d"))).waits_for_slot
        assert not accepted(await send(limited, "m", key=of("a"))).waits_for_slot

    async def test_two_processes_share_one_turn_limit(self, open_store: OpenStore) -> None:
        stores = [await open_store(limits=LIMITS) for _ in range(2)]
        await sent(stores[0], "a", "b", "c")
        rivals = [of(f"rival {number}") for number in range(10)]
        for key in rivals:
            await create(stores[0], key)
        answers = await asyncio.gather(*(send(stores[n % 2], "m", key=key) for n, key in enumerate(rivals)))
        assert sorted(each.code if isinstance(each, Refused) else "" for each in answers) == [
            "",
            *["too_many_turns"] * 9,
        ]
        assert (await stores[1].turns(ANN)).in_flight == 4

    async def test_message_to_a_session_in_flight_needs_no_further_admission(self, limited: Store) -> None:
        await sent(limited, "a", "b", "c", "d")
        (first, second) = await limited.claim(limit=MANY)
        await begin(limited, first)
        assert accepted(await send(limited, "more", key=first.lease.key)).item.while_running
        assert not accepted(await send(limited, "more", key=second.lease.key)).waits_for_slot
        assert accepted(await send(limited, "more", key=of("d"))).waits_for_slot
        assert accepted(await send(limited, "instead", key=of("d"), stop_first="stop")).removed
        assert (await limited.turns(ANN)).in_flight == 4

    async def test_waiting_turn_is_not_in_flight_and_its_answer_is_never_refused(self, limited: Store) -> None:
        lease = await asking(limited)
        assert await limited.turns(ANN) == Turns(running=0, lingering=1, queued=0)
        assert await limited.release(lease, seen_tail=1, how="done")
        assert await limited.turns(ANN) == Turns(running=0, lingering=0, queued=0)
        await sent(limited, "a", "b", "c", "d")
        assert not accepted(await send(limited, "more")).waits_for_slot, "the message joins the waiting turn"
        accepted(await reply(limited, answer()))
        assert (await limited.turns(ANN)).in_flight == 5

    async def test_message_that_interrupts_a_waiting_turn_needs_admission(self, limited: Store) -> None:
        lease = await asking(limited)
        assert await limited.release(lease, seen_tail=1, how="done")
        await sent(limited, "a", "b", "c", "d")
        assert refused(await send(limited, "instead", stop_first="stop")) == "too_many_turns"
        assert await limited.receipt(KEY, "stop") is None, "the waiting turn is not stopped"

    async def test_session_is_idle_at_once_when_its_messages_are_removed(self, limited: Store) -> None:
        await sent(limited, "a", "b", "c", "first")
        await stop(limited)
        row = await limited.row(KEY)
        assert row is not None
        assert row.status == "idle"
        await limited.remove_item(of("c"), "m")
        assert await limited.turns(ANN) == Turns(running=0, lingering=0, queued=2)
        assert await sent(limited, "d", "e") == [True, True]
        assert await claimed(limited) == ["a", "b"]

    async def test_unlimited_owner_has_no_limit(self, limited: Store) -> None:
        names = [f"{number:02}" for number in range(20)]
        assert not any(await sent(limited, *names, owner=ROOT))
        assert sorted(await claimed(limited)) == names
        assert (await limited.turns(ROOT)).running == 20

    # Slots

    async def test_an_owners_turns_run_within_its_slots_in_order_of_arrival(self, open_store: OpenStore) -> None:
        store = await open_store(limits=LIMITS, clock=ManualClock())
        other = await open_store(limits=LIMITS)
        await sent(store, "z", "a", "y", "b")
        first, second = await store.claim(limit=MANY)
        assert [first.lease.key.session, second.lease.key.session] == ["z", "a"], "even at the same clock time"
        assert await other.claim(limit=MANY) == []
        await end(store, await begin(store, first))
        (third,) = await other.claim(limit=MANY)
        assert third.lease.key.session == "y"
        await end(store, await begin(store, second))
        assert await claimed(store) == ["b"]
        found = await store.turns(ANN)
        assert (found.slots, found.queued) == (2, 0)

    async def test_unfinished_turn_is_claimed_before_new_ones(self, limited: Store) -> None:
        lease = await asking(limited)
        assert await limited.release(lease, seen_tail=1, how="done")
        await sent(limited, "a", "b", "c")
        running = [await begin(limited, claim) for claim in await limited.claim(limit=MANY)]
        assert [lease.key.session for lease in running] == ["a", "b"]
        accepted(await reply(limited))
        assert await limited.claim(limit=MANY) == [], "it still needs a slot"
        await end(limited, running[0])
        assert await claimed(limited) == ["first"]
        await end(limited, running[1])
        assert await claimed(limited) == ["c"]

    async def test_turns_of_a_dead_process_resume_first_and_the_queue_keeps_its_order(
        self, limited: Store, open_store: OpenStore
    ) -> None:
        await sent(limited, "d", "c", "b", "a")
        for claim in await limited.claim(limit=MANY):
            await begin(limited, claim)
        await limited.close()
        next_one = await open_store(limits=LIMITS)
        claims = await next_one.claim(limit=MANY)
        assert [claim.lease.key.session for claim in claims] == ["d", "c"]
        await end(next_one, claims[0].lease)
        assert await claimed(next_one) == ["b"]

    async def test_owners_are_served_round_robin_with_or_without_a_limit(self, open_store: OpenStore) -> None:
        clock = ManualClock()
        limited = await open_store(limits=LIMITS, clock=clock)
        names = [f"{number:02}" for number in range(9)]
        for owner, sessions in ((ROOT, names), (ANN, ["a", "b", "c"]), (BOB, ["x", "y"])):
            for name in sessions:
                await sent(limited, name, owner=owner)
                await clock.advance(1)
        assert [await claimed(limited, limit=1) for _ in range(3)] == [["00"], ["a"], ["x"]]
        assert sorted(await claimed(limited, limit=5)) == ["01", "02", "03", "b", "y"]

    async def test_sub_session_runs_in_the_slot_of_its_parents_turn(self, limited: Store) -> None:
        await sent(limited, "a", "b", "c")
        parent, _ = [await begin(limited, claim) for claim in await limited.claim(limit=MANY)]
        for name in ("child", "second child"):
            await create(limited, of(name), parent=parent.key.session)
        assert not accepted(await send(limited, "m", key=of("child"))).waits_for_slot
        assert await claimed(limited) == ["child"]
        assert await limited.turns(ANN) == Turns(running=2, lingering=0, queued=1)
        await end(limited, parent)
        assert (await limited.turns(ANN)).slots == 2, "the child continues in a slot of its own"
        assert await limited.claim(limit=MANY) == []
        assert accepted(await send(limited, "m", key=of("second child"))).waits_for_slot

    async def test_session_forked_by_a_client_needs_its_own_slot(self, limited: Store) -> None:
        await sent(limited, "a", "b", "c")
        parent, _ = [await begin(limited, claim) for claim in await limited.claim(limit=MANY)]
        await create(limited, of("child"), made_from=parent.key.session)
        assert accepted(await send(limited, "m", key=of("child"))).waits_for_slot
        assert await claimed(limited) == []
        row = await limited.row(of("child"))
        assert row is not None
        assert row.parent == parent.key.session

    async def test_stop_needs_no_slot(self, limited: Store) -> None:
        lease = await asking(limited)
        assert await limited.release(lease, seen_tail=1, how="done")
        await sent(limited, "a", "b")
        assert await claimed(limited) == ["a", "b"]
        await stop(limited)
        (claim,) = await limited.claim(limit=MANY)
        assert claim.lease.key == KEY

    async def test_session_waiting_for_a_slot_does_not_count_as_unclaimed(self, open_store: OpenStore) -> None:
        clock = ManualClock()
        store = await open_store(limits=LIMITS, clock=clock)
        await sent(store, "a", "b", "c")
        assert await claimed(store) == ["a", "b"]
        await clock.advance(600)
        assert await store.claim(limit=MANY) == []
        assert await store.oldest_unclaimed() is None, "no worker is missing"

    async def test_changed_limit_applies_from_then_on(self, limited: Store, open_store: OpenStore) -> None:
        await sent(limited, "a", "b", "c", "d")
        assert await claimed(limited) == ["a", "b"]
        fewer = await open_store(limits=TurnLimits(running=1, in_flight=1))
        assert await fewer.claim(limit=MANY) == []
        more = await open_store(limits=TurnLimits(running=3, in_flight=9))
        assert await claimed(more) == ["c"]
        assert await claimed(await open_store()) == ["d"]
