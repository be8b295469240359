"""Attachments of clients to sessions: every change that affects an open request wakes the session's holder."""

import pytest

from holdfast.events.ids import RequestId
from holdfast.store.store import Attachment, Key, Store, Unit
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY,
    OTHER,
    REQUEST,
    TURN,
    OpenStore,
    asking,
    committed,
    create,
    hold,
)


class PresenceConformance:
    """A change of the clients that could answer wakes the session in the same transaction."""

    async def test_decline_wakes_the_waiting_session(self, store: Store) -> None:
        await waiting(store, client("a"))
        assert await store.claim(limit=MANY) == []
        assert await store.decline(KEY, "a", REQUEST)
        assert [claim.lease.key for claim in await store.claim(limit=MANY)] == [KEY]

    async def test_decline_after_the_holder_looked_prevents_its_release(self, store: Store) -> None:
        lease = await asking(store)
        await store.attach(client("a"), ttl_seconds=60)
        looked = (await store.tails([KEY]))[KEY][1]
        assert await store.decline(KEY, "a", REQUEST)
        assert not await store.release(lease, seen_tail=looked, how="done")
        tail = (await store.tails([KEY]))[KEY][1]
        assert committed(await store.commit(Unit(key=KEY, fence=lease.fence))).inbox_tail == tail, (
            "the commit returns the new tail"
        )
        assert await store.release(lease, seen_tail=tail, how="done")

    @pytest.mark.parametrize("ends", ["leaves", "expires", "can no longer decide"])
    async def test_end_of_an_attachment_wakes_a_session_where_another_client_declined(
        self, store: Store, ends: str
    ) -> None:
        await waiting(store, client("a"), client("b"), declined="a")
        if ends == "leaves":
            await store.detach(KEY, "b")
        elif ends == "expires":
            await store.attach(client("b"), ttl_seconds=0)
        else:
            await store.attach(client("b", can=()), ttl_seconds=60)
        assert [claim.lease.key for claim in await store.claim(limit=MANY)] == [KEY]

    async def test_end_of_a_process_wakes_a_session_where_a_client_of_another_process_declined(
        self, open_store: OpenStore
    ) -> None:
        here, there = await open_store(), await open_store()
        await waiting(here, client("a"))
        await there.attach(client("b"), ttl_seconds=1e6)
        await decline_and_let_go(here, "a")
        await there.close()
        assert [claim.lease.key for claim in await here.claim(limit=MANY)] == [KEY]

    async def test_presence_change_wakes_no_session_without_a_decline(self, store: Store) -> None:
        await waiting(store, client("a"), client("b"))
        await store.detach(KEY, "b")
        await store.attach(client("c"), ttl_seconds=0)
        assert await store.claim(limit=MANY) == []

    async def test_a_decline_wakes_no_session_without_a_turn(self, store: Store) -> None:
        await create(store)
        await store.attach(client("a"), ttl_seconds=60)
        assert await store.decline(KEY, "a", REQUEST)
        assert await store.claim(limit=MANY) == []

    async def test_decline_reports_whether_the_client_is_attached(self, store: Store) -> None:
        await create(store)
        assert not await store.decline(KEY, "a", REQUEST)
        await store.attach(client("a"), ttl_seconds=60)
        assert await store.decline(KEY, "a", REQUEST)
        assert await store.decline(KEY, "a", REQUEST), "the client is still attached"
        await store.detach(KEY, "a")
        assert not await store.decline(KEY, "a", REQUEST)

    async def test_the_same_id_at_two_processes_is_two_attachments(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        await create(here)
        await here.attach(client("a"), ttl_seconds=60)
        (other,) = assert_tuple(await there.attach(client("a"), ttl_seconds=60))
        assert (other.attachment_id, other.process) == ("a", here.process)
        await here.decline(KEY, "a", REQUEST)
        declined = {found.process: found.declined for found in await here.attachments(KEY)}
        assert declined == {here.process: (REQUEST,), there.process: ()}
        await there.close()
        assert [found.process for found in await here.attachments(KEY)] == [here.process]

    async def test_reattached_client_keeps_its_declined_requests(self, store: Store) -> None:
        await create(store)
        again = client("a", declined=("r1",))
        await store.attach(again, ttl_seconds=60)
        await store.decline(KEY, "a", RequestId("r2"))
        await store.attach(again, ttl_seconds=60)
        (found,) = await store.attachments(KEY)
        assert found.declined == ("r1", "r2")

    async def test_process_lists_its_own_attachments(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        await create(here)
        await create(here, OTHER)
        await here.attach(client("a"), ttl_seconds=60)
        await here.attach(client("b", key=OTHER), ttl_seconds=60)
        await there.attach(client("c"), ttl_seconds=60)
        assert await here.attached() == {(KEY, "a"), (OTHER, "b")}
        assert await there.attached() == {(KEY, "c")}
        await here.detach(KEY, "a")
        await here.attach(client("b", key=OTHER), ttl_seconds=0)
        assert await here.attached() == frozenset()


def client(
    name: str, *, key: Key = KEY, can: tuple[str, ...] = ("permission",), declined: tuple[str, ...] = ()
) -> Attachment:
    requests = tuple(map(RequestId, declined))
    return Attachment(attachment_id=name, key=key, node="here", capabilities=can, declined=requests)


def assert_tuple(attachments: object) -> tuple[Attachment, ...]:
    assert isinstance(attachments, tuple)
    return attachments


async def waiting(store: Store, *clients: Attachment, declined: str = "") -> None:
    """Create an unheld session whose turn waits for a permission, with these clients attached."""
    lease = await asking(store)
    for attachment in clients:
        await store.attach(attachment, ttl_seconds=60)
    assert await store.release(lease, seen_tail=1, how="done")
    if declined:
        await decline_and_let_go(store, declined)


async def decline_and_let_go(store: Store, name: str) -> None:
    """The client declines; the holder finds that another client could decide, and releases the session."""
    assert await store.decline(KEY, name, REQUEST)
    lease = await hold(store)
    committed(await store.commit(Unit(key=KEY, fence=lease.fence, status="waiting", turn_id=TURN)))
    assert await store.release(lease, seen_tail=(await store.tails([KEY]))[KEY][1], how="done")
    assert await store.claim(limit=MANY) == []
