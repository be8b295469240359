"""The evidence that a trial left in a PostgreSQL database."""

from collections.abc import Sequence

from holdfast.events.ids import Key, Position
from holdfast.events.inbox import InboxItem
from holdfast.store.audit import AuditEntry, record_of
from holdfast.store.postgres import budget_rows, file_rows, key_rows, rows
from holdfast.store.postgres.connections import DatabaseAddress, Link
from holdfast.store.store import CaughtUp, Cursor, Snapshot
from proof.crash.kept_session import (
    EVER,
    LEFT_OF_A_SESSION,
    Command,
    Kept,
    SessionRow,
    money_of,
    read_again,
    read_whole,
)

AUDIT_COLUMNS = "number, at, actor, actor_id, actor_owner, role, address, action, owner, target, result, detail"

BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


async def kept(url: str, key: Key) -> Kept:
    (found,) = await kept_of(url, [key])
    return found


async def kept_of(url: str, keys: Sequence[Key]) -> list[Kept]:
    """The evidence of each of these sessions, at one moment."""
    address = DatabaseAddress(url)
    link = Link(await address.connect(), address)
    try:
        return await kept_over(link, keys)
    finally:
        await link.raw.close(timeout=5)


async def kept_over(link: Link, keys: Sequence[Key]) -> list[Kept]:
    """The same, over an open connection."""
    await link.raw.execute(BEGIN)
    try:
        return [await _kept(link, key) for key in keys]
    finally:
        await link.give_up()


async def _kept(db: Link, key: Key) -> Kept:
    loaded = await rows.load(db, key, -1)
    snapshot = _Snapshot(db)
    readings = await read_whole(snapshot, key) if loaded else ()
    return Kept(
        session=await _session(db, key),
        row=loaded.row if loaded else None,
        events=loaded.events if loaded else (),
        inbox=await _inbox(db, key),
        requests=await rows.requests(db, key),
        segments=loaded.segments if loaded else (),
        snapshot=await _snapshot(db, key),
        ledger=await rows.ledger(db, key.owner, key.session),
        **money_of(
            await budget_rows.spending(db, key.owner, *EVER, None), await budget_rows.reserved(db, key.owner), key
        ),
        leftovers=await _leftovers(db, key),
        commands=await _commands(db, key),
        keys=await key_rows.read(db, None),
        audit=await _audit(db),
        files=(await file_rows.page(db, key.owner, MANY_FILES, None, None)).rows,
        contents=dict(await db.ask("SELECT id, state FROM holdfast.content")),
        used=tuple(id for (id,) in await db.ask(_USED, key.owner, key.session)),
        readings=readings,
        rereadings=await read_again(snapshot, key, readings),
    )


async def _audit(db: Link) -> tuple[AuditEntry, ...]:
    rows = await db.ask(f"SELECT {AUDIT_COLUMNS} FROM holdfast.audit ORDER BY number")
    return tuple(record_of(row).entry for row in rows)


MANY_FILES = 100

_USED = "SELECT file FROM holdfast.file_use WHERE owner = $1 AND session = $2 ORDER BY file"


class _Snapshot:
    """As much of a store as a reader needs, at one moment."""

    def __init__(self, db: Link) -> None:
        self._db = db

    async def catch_up(self, key: Key, cursor: Cursor, *, limit: int) -> CaughtUp | None:
        return await rows.catch_up(self._db, key, cursor, limit)


async def _session(db: Link, key: Key) -> SessionRow | None:
    query = "SELECT fence, lease_holder, runnable, deleted_at IS NOT NULL FROM holdfast.session"
    found = await db.ask(f"{query} WHERE owner = $1 AND id = $2", key.owner, key.session)
    if not found:
        return None
    fence, holder, runnable, deleted = found[0]
    return SessionRow(fence=fence, lease_holder=holder, is_runnable=runnable, is_deleted=deleted)


async def _inbox(db: Link, key: Key) -> tuple[InboxItem, ...]:
    query = "SELECT item_key FROM holdfast.inbox WHERE owner = $1 AND session = $2 ORDER BY sequence"
    items = [await rows.receipt(db, key, item_key) for (item_key,) in await db.ask(query, key.owner, key.session)]
    return tuple(item for item in items if item is not None)


async def _snapshot(db: Link, key: Key) -> Snapshot | None:
    query = "SELECT fold_version, position, state FROM holdfast.snapshot WHERE owner = $1 AND session = $2"
    found = await db.ask(query, key.owner, key.session)
    return Snapshot(found[0][0], Position(found[0][1]), found[0][2]) if found else None


async def _leftovers(db: Link, key: Key) -> int:
    count = 0
    for table in (*LEFT_OF_A_SESSION, "passage"):
        query = f"SELECT count(*) FROM holdfast.{table} WHERE owner = $1 AND session = $2"
        count += (await db.ask(query, key.owner, key.session))[0][0]
    return count


async def _commands(db: Link, key: Key) -> tuple[Command, ...]:
    query = "SELECT id, foreground, status, exit_code, kill_asked, settled FROM holdfast.task"
    return tuple(
        Command(
            task_id=task_id,
            is_foreground=foreground,
            status=status,
            exit_code=exit_code,
            kill_asked=kill_asked,
            is_settled=settled,
        )
        for task_id, foreground, status, exit_code, kill_asked, settled in await db.ask(
            f"{query} WHERE owner = $1 AND session = $2", key.owner, key.session
        )
    )
