"""Many units in one statement: each unit has its own outcome, and no refusal goes unnoticed."""

import asyncio
from collections.abc import Sequence

import asyncpg
import pytest

from holdfast.events.ids import Fence, Key, Owner, Position, SessionId
from holdfast.events.turn import TurnEnded
from holdfast.store.errors import StoreUnavailable
from holdfast.store.postgres.connections import Link
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.units import Group, UnitJob, Units, waves
from holdfast.store.store import (
    LARGE_UNIT_EVENTS,
    Committed,
    FenceMissed,
    Lease,
    NewSession,
    Outcome,
    Promotion,
    Rejected,
    Unit,
)
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY,
    TURN,
    committed,
    create,
    event,
    info,
    ledger,
    request,
    running,
    said,
    segment,
    send,
)

pytestmark = pytest.mark.anyio

KEYS = [Key(Owner(f"owner {number % 3}"), SessionId(f"session {number}")) for number in range(30)]


async def held(store: PostgresStore) -> dict[Key, Lease]:
    for key in KEYS:
        await create(store, key)
        await send(store, "m", key=key)
    return {claim.lease.key: claim.lease for claim in await store.claim(limit=MANY)}


async def test_unit_with_a_missed_fence_is_refused_and_the_rest_of_the_batch_is_written(
    store: PostgresStore, postgres_url: str
) -> None:
    leases = await held(store)
    lost = KEYS[::4]
    for key in lost:
        await store.release(leases[key], seen_tail=-1, how="handed_over")
    other = await PostgresStore.open(postgres_url, node="here")
    assert {claim.lease.key for claim in await other.claim(limit=MANY)} == set(lost)
    units = [Unit(key=key, fence=leases[key].fence, events=(said("x"),), title="mine") for key in KEYS]
    outcomes = dict(zip(KEYS, await asyncio.gather(*map(store.commit, units)), strict=True))
    assert {key for key, outcome in outcomes.items() if outcome == FenceMissed()} == set(lost)
    assert {key for key, outcome in outcomes.items() if outcome == Committed(Position(2), 1)} == set(KEYS) - set(lost)
    for key in KEYS:
        row = await store.row(key)
        assert row is not None
        assert (row.head, row.title) == ((1, "") if key in lost else (2, "mine"))
    await other.close()


async def test_units_of_one_session_keep_their_order_and_are_refused_one_by_one(store: PostgresStore) -> None:
    lease = await running(store)
    fence = lease.fence
    units = [
        Unit(key=KEY, fence=fence, events=(said("4"), said("5")), segments=(segment("gone", offset=0),)),
        Unit(key=KEY, fence=Fence(fence + 1), events=(said("never"),)),
        Unit(key=KEY, fence=fence, events=(said("6"),), drops_segments=True, segments=(segment("kept", offset=0),)),
        Unit(key=KEY, fence=fence, supposes_head=Position(3), events=(said("never"),)),
        Unit(key=KEY, fence=fence, supposes_head=Position(6), events=(said("7"),)),
        Unit(key=KEY, fence=None, events=(info("8"),)),
        Unit(key=KEY, fence=fence, events=(said("never"),), promotes=(Promotion(7, "x"),)),
        Unit(key=KEY, fence=fence, opens=(request(),), status="waiting", turn_id=TURN),
        Unit(key=KEY, fence=fence, ledger=(ledger("a"),)),
    ]
    outcomes: list[Outcome] = await asyncio.gather(*map(store.commit, units))
    heads = [outcome.head if isinstance(outcome, Committed) else type(outcome) for outcome in outcomes]
    assert heads == [5, FenceMissed, 6, Rejected, 7, 8, Rejected, 8, 8]
    loaded = await store.load(KEY, fold_version=1)
    assert loaded is not None
    assert [getattr(found.body, "content", getattr(found.body, "message", "")) for found in loaded.events[3:]] == [
        *"45678"
    ]
    assert [piece.text for piece in loaded.segments] == ["kept"]
    assert (loaded.row.status, loaded.row.open_requests) == ("waiting", 1)


async def test_last_of_several_units_decides_the_session_row(store: PostgresStore) -> None:
    lease = await running(store)
    ended = event(TurnEnded(turn_id=TURN, reason="completed"))
    units = [
        Unit(key=KEY, fence=lease.fence, events=(said("a"),), title="first", status="running", turn_id=TURN),
        Unit(key=KEY, fence=lease.fence, events=(ended,), title="second", status="idle"),
        Unit(key=KEY, fence=lease.fence, events=(said("b"),), model="model"),
    ]
    await asyncio.gather(*map(store.commit, units))
    row = await store.row(KEY)
    assert row is not None
    assert (row.head, row.title, row.status, row.turn_id, row.model) == (6, "second", "idle", None, "model")


async def test_row_is_changed_by_units_that_follow_one_which_only_appends(store: PostgresStore) -> None:
    lease = await running(store)
    units = [
        Unit(key=KEY, fence=lease.fence, events=(said("plain"),)),
        Unit(key=KEY, fence=lease.fence, status="waiting", turn_id=TURN, title="later"),
    ]
    await asyncio.gather(*map(store.commit, units))
    row = await store.row(KEY)
    assert row is not None
    assert (row.head, row.status, row.title) == (4, "waiting", "later")


async def test_bytes_of_a_session_are_those_of_its_events_however_they_were_written(
    store: PostgresStore, postgres_url: str
) -> None:
    lease = await running(store)
    await asyncio.gather(
        *(store.commit(Unit(key=KEY, fence=lease.fence, events=(said(text), said(2 * text)))) for text in "abc")
    )
    many = tuple(info(str(number)) for number in range(LARGE_UNIT_EVENTS + 1))
    imported = Key(Owner("ann"), SessionId("imported"))
    await store.commit(Unit(key=imported, fence=None, events=many, creates=NewSession(created_at=1)))
    db = await asyncpg.connect(postgres_url)
    try:
        rows = await db.fetch(
            "SELECT id, bytes, (SELECT sum(length(data)) FROM holdfast.event"
            " WHERE event.owner = session.owner AND event.session = session.id) FROM holdfast.session ORDER BY id"
        )
    finally:
        await db.close()
    assert [(id, counted == real) for id, counted, real in rows] == [(KEY.session, True), ("imported", True)]


async def test_batch_has_one_group_for_each_session_in_key_order() -> None:
    loop = asyncio.get_running_loop()
    units = [Unit(key=key, fence=None, events=(info("x"),)) for key in reversed(KEYS) for _ in range(3)]
    (wave,) = waves(UnitJob(loop.create_future(), unit) for unit in units)
    assert [group.key for group in wave] == sorted(group.key for group in wave)
    assert [len(group.jobs) for group in wave] == [3] * len(KEYS)


async def test_processes_that_write_the_same_sessions_in_any_order_do_not_deadlock(
    store: PostgresStore, postgres_url: str
) -> None:
    other = await PostgresStore.open(postgres_url, node="here")
    for key in KEYS:
        await create(store, key)

    async def write(writer: PostgresStore, keys: list[Key]) -> None:
        for _ in range(10):
            records = [writer.commit(Unit(key=key, fence=None, events=(info("x"),))) for key in keys]
            puts = [send(writer, f"{writer.process}-{key.session}", key=key, limit=MANY) for key in keys[:5]]
            for outcome in await asyncio.gather(*records):
                committed(outcome)
            await asyncio.gather(*puts)

    await asyncio.gather(write(store, KEYS), write(other, KEYS[::-1]))
    for key in KEYS:
        events = await store.events_after(key, Position(0), limit=MANY)
        assert [found.position for found in events] == list(range(1, 22))
    await other.close()


async def test_units_after_one_of_unknown_outcome_in_a_batch_are_not_written(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost at the commit of the first unit: its writer must read the log before it appends more."""
    leases = await held(store)
    fence = leases[KEYS[0]].fence
    units = (
        Unit(key=KEYS[0], fence=fence, events=(said("a"),), promotes=(Promotion(1, "idle"),)),
        Unit(key=KEYS[0], fence=fence, events=(said("b"),)),
    )
    run = Units.run

    async def lose_the_connection_after(self: Units, link: Link, groups: Sequence[Group]) -> bool:
        await run(self, link, groups)
        raise ConnectionResetError

    with monkeypatch.context() as lost:
        lost.setattr(Units, "run", lose_the_connection_after)
        outcomes = await asyncio.gather(*map(store.commit, units), return_exceptions=True)
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    events = await store.events_after(KEYS[0], Position(1), limit=MANY)
    assert [getattr(found.body, "content", "") for found in events] == ["a"]
