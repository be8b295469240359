"""Sessions that this process can't run never keep it from those that it can, however small its claim limit is."""

from typing import Final

import pytest

from holdfast.events.ids import Key, Owner, SessionId
from holdfast.store.store import Store
from holdfast.store.turn_limits import TurnLimits
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_conformance.words import OpenStore, create, send

STUCK: Final = 5
REASONS: Final = ("host", "tools", "model", "secret")
MODEL: Final = "a model that this process cannot use"

ABLE: Final = Key(Owner("zoe"), SessionId("able"))


async def stuck(store: Store, owner: str, reason: str) -> None:
    """Create a waiting session that this process can't run, for the given reason."""
    key = Key(Owner(owner), SessionId("stuck"))
    await create(
        store,
        key,
        host="gone" if reason == "host" else None,
        tools=("missing",) if reason == "tools" else (),
        model=MODEL if reason == "model" else None,
    )
    if reason == "secret":
        await store.keep_secret(key, keeper="a process that has ended")
    await send(store, "m", key=key)


async def waiting(store: Store, key: Key, **about: str) -> None:
    await create(store, key, host=about.get("host"))
    await send(store, "m", key=key)


async def claimed(store: Store, *, limit: int) -> list[Key]:
    return [claim.lease.key for claim in await store.claim(limit=limit, without_models={MODEL}) if claim.eligible]


class PlacementConformance:
    @pytest.mark.parametrize("reason", REASONS)
    async def test_sessions_that_cannot_run_here_do_not_block_other_owners(
        self, open_store: OpenStore, reason: str
    ) -> None:
        clock = ManualClock()
        store = await open_store(clock=clock)
        for number in range(STUCK):
            await stuck(store, f"ann {number}", reason)
        await clock.advance(1)
        await waiting(store, ABLE)
        assert await claimed(store, limit=1) == [ABLE]
        assert await claimed(store, limit=1) == []

    async def test_stuck_session_does_not_block_its_owners_other_sessions(self, open_store: OpenStore) -> None:
        clock = ManualClock()
        store = await open_store(clock=clock)
        for reason in REASONS:
            await stuck(store, f"zoe {reason}", reason)
        await clock.advance(1)
        able = [Key(Owner(f"zoe {reason}"), SessionId("able")) for reason in REASONS]
        for key in able:
            await waiting(store, key)
        found = [key for _ in able for key in await claimed(store, limit=1)]
        assert sorted(found) == sorted(able)

    async def test_a_stuck_session_gives_its_owner_no_precedence(self, open_store: OpenStore) -> None:
        clock = ManualClock()
        store = await open_store(clock=clock)
        await stuck(store, "ann", "tools")
        await clock.advance(1)
        await waiting(store, ABLE)
        await clock.advance(1)
        await waiting(store, Key(Owner("ann"), SessionId("later")))
        assert await claimed(store, limit=1) == [ABLE]

    async def test_owner_without_a_free_slot_does_not_block_other_owners(self, open_store: OpenStore) -> None:
        store = await open_store(limits=TurnLimits(running=1, unlimited=frozenset({ABLE.owner})))
        for name in ("first", "second"):
            await waiting(store, Key(ABLE.owner, SessionId(name)))
        await waiting(store, Key(Owner("ann"), SessionId("first")))
        assert len(await claimed(store, limit=3)) == 3
        await waiting(store, Key(Owner("ann"), SessionId("second")))
        await waiting(store, ABLE)
        assert await claimed(store, limit=1) == [ABLE]

    async def test_sub_session_without_a_slot_does_not_block_other_owners(self, open_store: OpenStore) -> None:
        """A sub-session needs no slot only while its parent's turn runs; here no parent runs."""
        store = await open_store(limits=TurnLimits(running=1, unlimited=frozenset({ABLE.owner})))
        for key in (Key(Owner("ann"), SessionId("first")), *(Key(ABLE.owner, SessionId(name)) for name in "ab")):
            await waiting(store, key)
        assert len(await claimed(store, limit=3)) == 3
        inner = Key(Owner("ann"), SessionId("inner"))
        await create(store, inner, parent=SessionId("a parent that is idle"))
        await send(store, "m", key=inner)
        await waiting(store, ABLE)
        assert await claimed(store, limit=1) == [ABLE]
        assert await claimed(store, limit=1) == []

    async def test_session_that_gave_way_is_claimed_after_the_waiting_ones(self, open_store: OpenStore) -> None:
        clock = ManualClock()
        store = await open_store(clock=clock)
        keys = [Key(Owner("ann"), SessionId(name)) for name in ("busy", "first", "second")]
        for key in keys:
            await waiting(store, key)
            await clock.advance(1)
        (claim,) = await store.claim(limit=1)
        assert claim.lease.key == keys[0]
        assert await store.release(claim.lease, seen_tail=-1, how="gave_way")
        found = [key for _ in keys for key in await claimed(store, limit=1)]
        assert found == [keys[1], keys[2], keys[0]]

    @pytest.mark.parametrize("reason", REASONS)
    async def test_has_next_counts_only_sessions_that_could_run_here_now(
        self, open_store: OpenStore, reason: str
    ) -> None:
        store = await open_store(limits=TurnLimits(running=1))
        assert not await store.has_next(without_models={MODEL})
        await stuck(store, "ann", reason)
        assert not await store.has_next(without_models={MODEL}), "the waiting session can't run here"
        await waiting(store, ABLE)
        assert await store.has_next(without_models={MODEL})
        assert await claimed(store, limit=1) == [ABLE]
        await waiting(store, Key(ABLE.owner, SessionId("next")))
        assert not await store.has_next(without_models={MODEL}), (
            "the session waits for a slot of its owner, not for this process"
        )

    async def test_session_of_this_host_and_session_without_a_host_are_claimed(self, open_store: OpenStore) -> None:
        store = await open_store(node="here")
        keys = [Key(Owner("ann"), SessionId(f"{number}")) for number in range(4)]
        for number, key in enumerate(keys):
            await waiting(store, key, **({"host": "here"} if number % 2 else {}))
        found = [key for _ in keys for key in await claimed(store, limit=1)]
        assert sorted(found) == keys
