"""Leases: claims, releases, expiry and takeover; placement and attachments."""

import asyncio

import msgspec

from holdfast.events.ids import (
    Fence,
    RequestId,
    SessionId,
)
from holdfast.events.inbox import Stop
from holdfast.store.fences import LONGEST_STEP
from holdfast.store.store import (
    Attachment,
    Clash,
    Committed,
    FenceMissed,
    Key,
    Promotion,
    Store,
    Unit,
)
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY,
    OTHER,
    TURN,
    LoseClaim,
    OpenStore,
    committed,
    create,
    hold,
    running,
    said,
    send,
    stop,
    until_claimed,
)


class LeaseConformance:
    """Leases: claims, releases, expiry and takeover; placement, attachments and grants."""

    async def test_an_idle_session_is_not_claimed(self, store: Store) -> None:
        await create(store)
        assert await store.claim(limit=MANY) == []

    async def test_a_held_session_is_not_claimed_again(self, store: Store, open_store: OpenStore) -> None:
        await running(store)
        other = await open_store()
        assert await store.claim(limit=MANY) == []
        assert await other.claim(limit=MANY) == []

    async def test_only_one_of_two_processes_claims_a_session(self, store: Store, open_store: OpenStore) -> None:
        other = await open_store()
        for number in range(20):
            key = Key(KEY.owner, SessionId(f"s{number}"))
            await create(store, key)
            await send(store, "m", key=key)
        found = await asyncio.gather(*(each.claim(limit=15) for each in (store, other, store)))
        claimed = [claim.lease.key for claims in found for claim in claims]
        assert sorted(claimed) == sorted(set(claimed))
        assert len(claimed) == 20

    async def test_longest_waiting_session_is_claimed_first(self, open_store: OpenStore) -> None:
        clock = ManualClock()
        store = await open_store(clock=clock)
        for name in ("z", "a", "m"):
            key = Key(KEY.owner, SessionId(name))
            await create(store, key)
            await send(store, "x", key=key)
            await clock.advance(1)
        claims = [await store.claim(limit=1) for _ in range(3)]
        assert [claim.lease.key.session for (claim,) in claims] == ["z", "a", "m"]

    async def test_released_session_is_not_claimed_until_a_wake_up(self, store: Store) -> None:
        lease = await running(store)
        assert await store.release(lease, seen_tail=1, how="done")
        assert await store.claim(limit=MANY) == []
        await send(store, "more")
        assert (await hold(store)).fence > lease.fence

    async def test_release_fails_and_keeps_the_lease_if_an_item_was_missed(self, store: Store) -> None:
        lease = await running(store)
        await send(store, "unseen")
        assert not await store.release(lease, seen_tail=1, how="done")
        assert isinstance(await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("x"),))), Committed)
        assert await store.release(lease, seen_tail=2, how="done")

    async def test_late_release_never_frees_the_new_holders_lease(self, store: Store, open_store: OpenStore) -> None:
        old = await running(store)
        assert await store.release(old, seen_tail=1, how="done")
        await send(store, "more")
        other = await open_store()
        new = await hold(other)
        assert not await store.release(old, seen_tail=2, how="done")
        assert not await store.release(new, seen_tail=2, how="done")
        assert isinstance(await other.commit(Unit(key=KEY, fence=new.fence, events=(said("x"),))), Committed)

    async def test_session_is_idle_after_release_when_its_messages_were_removed(self, store: Store) -> None:
        await create(store)
        await send(store, "m")
        lease = await hold(store)
        await store.remove_item(KEY, "m")
        assert await store.release(lease, seen_tail=1, how="done")
        row = await store.row(KEY)
        assert row is not None
        assert (row.status, row.held_by) == ("idle", None)

    async def test_fence_of_a_claim_lost_in_a_failover_is_never_reused(
        self, store: Store, lose_claim: LoseClaim
    ) -> None:
        """A failover that lost transactions resets the row to its state before the claim. The process claims the
        session once more, and the first holder, which still runs, must not be able to write under the second claim."""
        await create(store)
        await send(store, "m")
        forgotten = await hold(store)
        await lose_claim(KEY, Fence(0))
        lease = await hold(store)
        assert lease.fence != forgotten.fence
        late = Unit(key=KEY, fence=forgotten.fence, events=(said("late"),))
        assert await store.commit(late) == FenceMissed()
        assert not await store.release(forgotten, seen_tail=1, how="done")
        assert isinstance(await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("now"),))), Committed)

    async def test_a_fence_stays_exact_in_json_after_many_claims(self, store: Store) -> None:
        lease = await running(store)
        for _ in range(20):
            assert await store.release(lease, seen_tail=-1, how="handed_over")
            before, lease = lease, await hold(store)
            assert before.fence < lease.fence <= before.fence + LONGEST_STEP
        assert lease.fence < 2**53

    async def test_claims_are_counted_until_there_is_progress(self, store: Store, open_store: OpenStore) -> None:
        await create(store)
        await send(store, "m")
        counts = []
        for _ in range(3):
            process = await open_store()
            (claim,) = await process.claim(limit=1)
            counts.append(claim.claims_without_progress)
            await process.close()
        assert counts == [1, 2, 3]
        (claim,) = await store.claim(limit=1)
        await store.commit(Unit(key=KEY, fence=claim.lease.fence, makes_progress=True))
        await store.close()
        (claim,) = await (await open_store()).claim(limit=1)
        assert claim.claims_without_progress == 1

    async def test_sessions_of_a_closed_process_can_be_claimed_at_once(
        self, store: Store, open_store: OpenStore
    ) -> None:
        lease = await running(store)
        other = await open_store()
        await store.close()
        assert (await hold(other)).fence > lease.fence

    async def test_a_process_that_does_not_renew_loses_its_leases(self, store: Store, open_store: OpenStore) -> None:
        lease = await running(store)
        other = await open_store()
        assert await store.renew(ttl_seconds=0.02)
        (claim,) = await until_claimed(other)
        assert claim.lease.key == KEY
        assert claim.lease.fence > lease.fence
        assert await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("late"),))) == FenceMissed()
        assert not await store.release(lease, seen_tail=1, how="done")

    async def test_process_with_an_expired_lease_must_renew_before_it_claims(self, store: Store) -> None:
        lease = await running(store)
        await create(store, OTHER)
        await send(store, "m", key=OTHER)
        await store.renew(ttl_seconds=0)
        assert await store.claim(limit=MANY) == []
        assert not await store.renew(ttl_seconds=30)
        assert await store.renew(ttl_seconds=30)
        assert await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("late"),))) == FenceMissed()
        assert {claim.lease.key for claim in await store.claim(limit=MANY)} == {KEY, OTHER}

    async def test_process_can_list_the_leases_it_holds(self, store: Store, open_store: OpenStore) -> None:
        """This includes a claim whose reply was lost: no other process would run that session."""
        assert await store.held() == ()
        lease = await running(store)
        other = await open_store()
        await create(store, OTHER)
        await send(store, "m", key=OTHER)
        (claim,) = await other.claim(limit=MANY)
        assert claim.lease.key == OTHER
        assert await store.held() == (lease,)
        assert await other.held() == (claim.lease,)
        assert await store.release(lease, seen_tail=1, how="done")
        assert await store.held() == ()

    async def test_tails_show_puts_and_takeovers(self, store: Store) -> None:
        lease = await running(store)
        await create(store, OTHER)
        assert await store.tails([KEY, OTHER]) == {KEY: (lease.fence, 1), OTHER: (0, 0)}
        await send(store, "more")
        await store.delete(OTHER)
        tails = await store.tails([KEY, OTHER])
        assert tails[KEY] == (lease.fence, 2)
        assert tails[OTHER][0] != 0

    async def test_every_commit_returns_the_tail(self, store: Store) -> None:
        lease = await running(store)
        await send(store, "more")
        assert committed(await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("x"),)))).inbox_tail == 2

    # Placement

    async def test_a_session_runs_only_where_its_host_and_tools_are(self, open_store: OpenStore) -> None:
        here = await open_store(node="here", tools=frozenset({"shell", "files"}))
        there = await open_store(node="there")
        await create(here, KEY, host="here", tools=("shell",))
        await create(here, OTHER, tools=("shell", "files"))
        for key in (KEY, OTHER):
            await send(here, "m", key=key)
        assert await there.claim(limit=MANY) == []
        claims = await here.claim(limit=MANY)
        assert {claim.lease.key for claim in claims} == {KEY, OTHER}
        assert all(claim.eligible for claim in claims)

    async def test_session_with_an_unusable_model_is_left_to_other_processes(self, store: Store) -> None:
        await create(store, model="theirs")
        await send(store, "m")
        assert await store.claim(limit=MANY, without_models={"theirs"}) == []
        (claim,) = await store.claim(limit=MANY, without_models={"another"})
        assert claim.eligible

    async def test_changed_model_applies_at_the_next_claim(self, store: Store) -> None:
        await create(store, model="theirs")
        await store.commit(Unit(key=KEY, fence=None, events=(), model="ours"))
        await send(store, "m")
        assert await store.claim(limit=MANY, without_models={"ours"}) == []
        assert len(await store.claim(limit=MANY, without_models={"theirs"})) == 1

    async def test_any_process_may_claim_to_apply_a_stop(self, open_store: OpenStore) -> None:
        here, there = await open_store(node="here"), await open_store(node="there")
        await create(here, host="here")
        await send(here, "m")
        lease = await hold(here)
        await here.commit(
            Unit(key=KEY, fence=lease.fence, promotes=(Promotion(1, "idle"),), status="running", turn_id=TURN)
        )
        await here.close()
        assert await there.claim(limit=MANY) == []
        await stop(there)
        (claim,) = await there.claim(limit=MANY)
        assert not claim.eligible

    async def test_session_without_an_eligible_process_is_claimed_once_after_a_minute(
        self, open_store: OpenStore
    ) -> None:
        clock = ManualClock()
        store = await open_store(node="there", clock=clock)
        await create(store, host="here")
        await send(store, "m")
        await clock.advance(59)
        assert await store.claim(limit=MANY) == []
        await clock.advance(1)
        (claim,) = await store.claim(limit=MANY)
        assert not claim.eligible
        assert await store.release(claim.lease, seen_tail=1, how="for_another")
        await clock.advance(600)
        assert await store.claim(limit=MANY) == []
        able = await open_store(node="here", clock=clock)
        (claim,) = await able.claim(limit=MANY)
        assert claim.eligible

    async def test_session_whose_stopping_process_died_is_claimed_again(self, open_store: OpenStore) -> None:
        """The session was already offered once and its stop is promoted, so nothing else would get it claimed."""
        clock = ManualClock()
        here, first = await open_store(node="here", clock=clock), await open_store(node="there", clock=clock)
        await create(here, host="here")
        await send(here, "m")
        lease = await hold(here)
        started = Unit(key=KEY, fence=lease.fence, promotes=(Promotion(1, "idle"),), status="running", turn_id=TURN)
        committed(await here.commit(started))
        await here.close()
        await clock.advance(60)
        (claim,) = await first.claim(limit=MANY)
        assert await first.release(claim.lease, seen_tail=1, how="for_another")
        await stop(first)
        (claim,) = await first.claim(limit=MANY)
        (item,) = [found for found in await first.waiting_items(KEY) if isinstance(found.item, Stop)]
        promoted = Unit(key=KEY, fence=claim.lease.fence, promotes=(Promotion(item.sequence, "stopped"),))
        committed(await first.commit(promoted))
        await first.close()
        second = await open_store(node="there", clock=clock)
        (claim,) = await second.claim(limit=MANY)
        assert not claim.eligible

    async def test_handed_over_session_can_be_claimed_at_once(self, store: Store) -> None:
        lease = await running(store)
        assert await store.release(lease, seen_tail=1, how="for_another")
        assert (await hold(store)).fence > lease.fence

    # Presence

    async def test_attachment_lasts_until_it_ends_or_expires(self, store: Store) -> None:
        await create(store)
        client = Attachment(attachment_id="a", key=KEY, node="here", tools=("t",), capabilities=("ask",))
        assert await store.attach(client, ttl_seconds=60) == ()
        (found,) = await store.attachments(KEY)
        assert found == msgspec.structs.replace(client, process=store.process)
        assert await store.attachments(OTHER) == ()
        await store.attach(client, ttl_seconds=0)
        assert await store.attachments(KEY) == ()
        await store.attach(client, ttl_seconds=60)
        assert await store.detach(KEY, "a") == ()
        assert await store.detach(KEY, "a") is None
        assert await store.attachments(KEY) == ()

    async def test_one_of_the_clients_that_detach_together_is_the_last(self, store: Store) -> None:
        await create(store)
        for name in ("a", "b", "c"):
            await store.attach(Attachment(attachment_id=name, key=KEY, node="here"), ttl_seconds=60)
        left = await asyncio.gather(*(store.detach(KEY, name) for name in ("a", "b", "c")))
        assert sorted(len(found) for found in left if found is not None) == [0, 1, 2]

    async def test_an_attachment_ends_with_its_process(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        await create(here)
        await there.attach(Attachment(attachment_id="a", key=KEY, node="there", tools=("t",)), ttl_seconds=1e6)
        assert len(await here.attachments(KEY)) == 1
        assert await here.is_alive(there.process)
        await there.close()
        assert await here.attachments(KEY) == ()
        assert not await here.is_alive(there.process)
        assert await here.is_alive(here.process)
        again = Attachment(attachment_id="b", key=KEY, node="here", tools=("t",))
        assert await here.attach(again, ttl_seconds=60) == ()

    async def test_a_client_tool_belongs_to_one_attachment_at_a_time(self, store: Store) -> None:
        await create(store)
        first = Attachment(attachment_id="a", key=KEY, node="here", tools=("t", "u"))
        second = Attachment(attachment_id="b", key=KEY, node="here", tools=("v", "u"))
        assert await store.attach(first, ttl_seconds=60) == ()
        assert await store.attach(second, ttl_seconds=60) == Clash("u")
        assert [found.attachment_id for found in await store.attachments(KEY)] == ["a"]
        assert await store.attach(first, ttl_seconds=60) == (), "an attachment does not clash with itself"
        await store.attach(first, ttl_seconds=0)
        assert await store.attach(second, ttl_seconds=60) == ()

    async def test_declined_requests_are_kept_with_the_attachment(self, store: Store) -> None:
        await create(store)
        client = Attachment(attachment_id="a", key=KEY, node="here")
        await store.attach(client, ttl_seconds=60)
        for request_id in ("r1", "r2", "r1"):
            await store.decline(KEY, "a", RequestId(request_id))
        await store.decline(KEY, "nobody", RequestId("r1"))
        await store.attach(client, ttl_seconds=60)
        (found,) = await store.attachments(KEY)
        assert found.declined == ("r1", "r2")
