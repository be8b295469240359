"""The rows of the audit log.

Two transactions may number their entries in one order and commit in the other. So that a reader never passes by an
entry that is committed later, writers hold a shared lock until they commit, and a reader waits once for all of them. No
writer waits for another. An entry is the last thing that a transaction writes: its lock is held only while it commits.
"""

from collections.abc import Iterable
from typing import TypeVar

from holdfast.store.audit import TRIM_ENTRIES, AuditEntry, AuditPage, columns, record_of
from holdfast.store.postgres.connections import Lane, Link, Writes, read

T = TypeVar("T")


def told(work: Writes[T], entry: AuditEntry | None) -> Writes[T]:
    """The same write, which also adds the entry if it writes anything."""
    if entry is None:
        return work

    async def write(db: Link) -> tuple[T, str | None]:
        result, detail = await work(db)
        if detail is not None:
            await add(db, (entry,))
        return result, detail

    return write


async def nothing_else(db: Link) -> tuple[None, str]:
    """The write of an entry without another write beside it."""
    return None, "entry"


async def add(db: Link, entries: Iterable[AuditEntry]) -> None:
    await db.rows("share_audit")
    for entry in entries:
        await db.run("add_audit", *columns(entry))


async def read_page(lane: Lane, after: int, limit: int) -> AuditPage:
    """Three statements, each with a snapshot of its own: all entries up to the head are committed once the second has
    ended, so that the third sees them."""
    ((head,),) = await read(lane, lambda db: db.rows("audit_head"), is_one=True)
    await read(lane, lambda db: db.rows("settle_audit"), is_one=True)
    rows = await read(lane, lambda db: db.rows("audit_log", after, head, limit), is_one=True)
    return AuditPage(records=tuple(map(record_of, rows)), head=head)


async def trim(db: Link, before: int) -> tuple[int, str | None]:
    trimmed = await db.run("trim_audit", before, TRIM_ENTRIES)
    return trimmed, "entries" if trimmed else None
