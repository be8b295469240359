"""Rows that name the keeper of each session's secrets. Stored secrets are sealed, and this code can't read them."""

from holdfast.store.postgres.connections import Link
from holdfast.store.store import Key


async def keep(db: Link, key: Key, keeper: str, sealed: bytes) -> tuple[bool, str | None]:
    if await db.row("lock_session", key.owner, key.session) is None:
        return False, None
    await db.run("keep_secret", key.owner, key.session, keeper, sealed)
    return True, "secret"


async def lose(db: Link, key: Key, keeper: str, sealed: bytes) -> tuple[None, str | None]:
    if await db.row("lock_session", key.owner, key.session) is None:
        return None, None
    lost = await db.run("lose_secret", key.owner, key.session, keeper, sealed) == 1
    return None, "secret" if lost else None


async def drop(db: Link, key: Key) -> tuple[None, str | None]:
    await db.row("lock_session", key.owner, key.session)  # As everywhere, before the secret's row.
    dropped = await db.run("drop_secret", key.owner, key.session) == 1
    return None, "secret" if dropped else None


async def read(db: Link, key: Key) -> tuple[str, bytes] | None:
    found = await db.row("secret", key.owner, key.session)
    return None if found is None else (found[0], found[1])
