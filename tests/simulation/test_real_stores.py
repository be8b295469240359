"""The same worlds on real databases: the time that leases are counted by is the world's, and every promise is kept."""

from collections.abc import Iterator

import pytest

from holdfast.events.ids import Key, MessageId, Owner, SessionId
from holdfast.events.inbox import Message
from holdfast.store.store import NewSession, Store, Unit
from proof.simulation.campaign import play
from proof.simulation.defects import planted
from proof.simulation.real_stores import KINDS, Kind, Place, place_of
from proof.simulation.simulation import run

KEY = Key(Owner("ann"), SessionId("s1"))
WORLDS: dict[Kind, int] = {"sqlite": 12, "postgresql": 4}


@pytest.fixture(params=KINDS, scope="module")
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with place_of(request.param) as made:
        yield made


def test_leases_end_by_the_clock_of_the_world(place: Place) -> None:
    now = 0.0
    with place.world(lambda: now):
        first, second = place.open(node="n1"), place.open(node="n1")
        run_there = place.elsewhere.run

        async def claimed(store: Store) -> int:
            return len(await store.claim(limit=1))

        async def prepare() -> None:
            await first.commit(Unit(key=KEY, fence=None, creates=NewSession(created_at=0)))
            item = Message(message_id=MessageId("m1"), text="hello", delivery="enqueue")
            await first.put(KEY, item, item_key="m1", queue_limit=5)
            assert await first.renew(ttl_seconds=4)
            assert await second.renew(ttl_seconds=4)

        async def renew(store: Store) -> bool:
            return await store.renew(ttl_seconds=4)

        async def close(store: Store) -> None:
            await store.close()

        run_there(prepare())
        assert run_there(claimed(first)) == 1
        for moment in (2.0, 3.9):
            now = moment
            place.at_this_time()
            assert run_there(renew(second))
            assert run_there(claimed(second)) == 0, "the first has until 4 s"
        now = 4.1
        place.at_this_time()
        assert run_there(claimed(second)) == 1
        assert not run_there(renew(first)), "it is told that it came too late"
        for store in (first, second):
            run_there(close(store))


@pytest.mark.slow
def test_every_promise_is_kept_on_a_real_store(place: Place) -> None:
    for seed in range(WORLDS[place.kind]):
        outcome = run(seed, place=place)
        assert outcome.violations == (), f"python -m proof.simulation --seed {seed} --store {place.kind}"
        assert outcome.events > 1


@pytest.mark.slow
def test_a_planted_defect_is_found_on_a_real_store_too() -> None:
    with planted("progress never resets the count of claims"):
        assert play(range(10), "sqlite").failed
