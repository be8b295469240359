"""The audit log in the store: an entry is written with its act or not at all, and stays as it was written."""

import asyncio

from holdfast.events.ids import Owner, Position
from holdfast.events.inbox import Answer, PermissionAnswer
from holdfast.store import crash_points
from holdfast.store.audit import MAX_DETAIL_CHARACTERS, Actor, AuditAction, AuditEntry, audit_entry
from holdfast.store.grants import GRANTED_SOMEWHERE, MAX_GRANTS, NewGrants
from holdfast.store.store import Accepted, Rejected, Store, Unit, answer_key
from holdfast.testing.store_conformance.keys import LAPTOP
from holdfast.testing.store_conformance.words import KEY, REQUEST, OpenStore, asking, create, info

ROOT = Actor(kind="key", id="k1", owner="root", role="admin", address="192.0.2.1")

DENIED = audit_entry(1, ROOT, "admin.denied", target="/metrics", result="denied")


def entry(action: AuditAction, target: str = "", *, at: int = 1) -> AuditEntry:
    return audit_entry(at, ROOT, action, owner="ada", target=target)


async def told(store: Store) -> list[tuple[str, str]]:
    """The actions so far, each with its target."""
    page = await store.audit_log(limit=1_000)
    return [(record.entry.action, record.entry.target) for record in page.records]


class AuditConformance:
    async def test_an_entry_reads_back_as_it_was_written(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        odd = audit_entry(7, ROOT, "permission.granted", target="a\0b\ud800c", result="denied", detail="x" * 5_000)
        assert len(odd.detail) == MAX_DETAIL_CHARACTERS
        await here.audit(odd)
        await here.audit(entry("session.exported", "s1"))
        page = await there.audit_log(limit=10)
        assert [record.entry for record in page.records] == [odd, entry("session.exported", "s1")]
        first, second = (record.number for record in page.records)
        assert first < second == page.head

    async def test_entries_are_read_page_by_page(self, store: Store) -> None:
        assert (await store.audit_log(limit=10)).records == ()
        for number in range(5):
            await store.audit(entry("session.exported", f"s{number}"))
        found: list[str] = []
        after = 0
        while page := (await store.audit_log(after=after, limit=2)).records:
            assert len(page) <= 2
            after = page[-1].number
            found += [record.entry.target for record in page]
        assert found == ["s0", "s1", "s2", "s3", "s4"]

    async def test_each_act_is_told_with_itself_and_what_was_not_done_is_not(self, store: Store) -> None:
        assert not await store.delete(KEY, audit=entry("session.deleted"))
        assert not await store.revoke_key("one", audit=entry("key.revoked"))
        assert not await store.revoke_grant(KEY.owner, "", "read", audit=entry("permission.revoked"))
        assert await told(store) == []
        await create(store)
        await store.add_key(LAPTOP, audit=entry("key.created", "one"))
        await store.revoke_key("one", audit=entry("key.revoked", "one"))
        await store.grant(KEY.owner, "", ["read"], audit=entry("permission.granted", "read"))
        await store.grant(KEY.owner, "", ["read"], audit=entry("permission.granted", "again"))
        await store.revoke_grant(KEY.owner, "", "read", audit=entry("permission.revoked", "read"))
        await store.delete(KEY, audit=entry("session.deleted", KEY.session))
        assert await told(store) == [
            ("key.created", "one"),
            ("key.revoked", "one"),
            ("permission.granted", "read"),
            ("permission.revoked", "read"),
            ("session.deleted", KEY.session),
        ]

    async def test_a_refused_grant_is_not_told(self, store: Store) -> None:
        await store.grant(KEY.owner, "", [f"rule{number}" for number in range(MAX_GRANTS)])
        assert await store.grant(KEY.owner, "", ["one more"], audit=entry("permission.granted")) is not None
        assert await told(store) == []

    async def test_an_answer_that_grants_is_told_once(self, store: Store) -> None:
        await asking(store)
        answer = Answer(
            request_id=REQUEST, answer_id="a1", content=PermissionAnswer(decision="approved-for-session", place="")
        )
        for first in (True, False):
            outcome = await store.put(
                KEY,
                answer,
                item_key=answer_key(REQUEST),
                queue_limit=10,
                grants=NewGrants(place="", rules=("read",), origin=GRANTED_SOMEWHERE),
                audit=entry("permission.granted", "read"),
            )
            assert isinstance(outcome, Accepted)
            assert outcome.duplicate is not first
        assert await told(store) == [("permission.granted", "read")]

    async def test_a_unit_tells_of_itself_unless_it_is_refused(self, store: Store) -> None:
        await create(store)
        unit = Unit(key=KEY, fence=None, events=(info("new"),), audit=(entry("permission.revoked", "one"),))
        late = Unit(
            key=KEY,
            fence=None,
            events=(info("newer"),),
            supposes_head=(await _head(store)),
            audit=(entry("permission.revoked", "late"),),
        )
        await store.commit(unit)
        assert isinstance(await store.commit(late), Rejected)
        assert await told(store) == [("permission.revoked", "one")]

    async def test_units_of_many_sessions_at_once_are_all_told(self, store: Store) -> None:
        await create(store)
        units = [
            Unit(key=KEY, fence=None, events=(info(str(n)),), audit=(entry("permission.revoked", str(n)),))
            for n in range(20)
        ]
        await asyncio.gather(*(store.commit(unit) for unit in units))
        assert sorted(target for _, target in await told(store)) == sorted(str(n) for n in range(20))

    async def test_a_reader_that_goes_on_where_it_was_misses_no_entry(self, open_store: OpenStore) -> None:
        """Entries that are written at the same time by many processes, read while they are written."""
        stores = [await open_store() for _ in range(3)]
        reader = await open_store()
        owner = Owner("ada")

        async def write(store: Store, name: int) -> None:
            for number in range(10):
                rule = f"rule {name} {number}"
                await store.grant(owner, "", [rule], audit=entry("permission.granted", rule))

        writing = asyncio.gather(*(write(store, name) for name, store in enumerate(stores)))
        found: list[str] = []
        after, is_over = 0, False
        while not is_over:
            is_over = writing.done()
            page = await reader.audit_log(after=after, limit=7)
            after = page.records[-1].number if page.records else after
            found += [record.entry.target for record in page.records]
            is_over = is_over and not page.records
        await writing
        assert len(found) == len(set(found)) == 30

    async def test_only_old_entries_are_trimmed_and_numbers_are_never_used_again(self, store: Store) -> None:
        for at in (10, 20, 30):
            await store.audit(entry("session.exported", str(at), at=at))
        assert await store.trim_audit(10, audit=entry("audit.trimmed")) == 0
        assert await store.trim_audit(31, audit=entry("audit.trimmed", "up to 31", at=40)) == 3
        page = await store.audit_log(limit=10)
        assert [record.entry.target for record in page.records] == ["up to 31"]
        assert await store.trim_audit(41) == 1
        await store.audit(entry("session.exported", "next"))
        later = await store.audit_log(limit=10)
        assert page.head < later.records[0].number == later.head

    async def test_entries_pass_their_crash_points(self, store: Store) -> None:
        reached: list[str] = []
        crash_points.install(reached.append)
        try:
            await store.audit(entry("session.exported"))
            await store.trim_audit(5)
        finally:
            crash_points.install(None)
        points = ["audit:entry", "trim_audit:entries"]
        assert reached == [f"{point}:{side}" for point in points for side in ("before", "after")]


async def _head(store: Store) -> Position:
    row = await store.row(KEY)
    assert row is not None
    return row.head
