"""The rows of API keys."""

from collections.abc import Sequence
from typing import Any

from holdfast.store.keys import KeyRow
from holdfast.store.postgres.connections import Link


async def add(db: Link, row: KeyRow) -> tuple[None, str]:
    await db.run("add_key", row.key_id, row.name, row.owner, row.role, row.digest, row.created_at)
    return None, "key"


async def revoke(db: Link, key_id: str, now: int) -> tuple[bool, str | None]:
    revoked = await db.run("revoke_key", key_id, now) == 1
    return revoked, "key" if revoked else None


async def valid(db: Link, key_id: str, digest: bytes) -> KeyRow | None:
    found = await db.row("valid_key", key_id, digest)
    return None if found is None else _row(found)


async def read(db: Link, key_id: str | None) -> tuple[KeyRow, ...]:
    return tuple(_row(found) for found in await db.rows("keys", key_id))


def _row(found: Sequence[Any]) -> KeyRow:
    key_id, name, owner, role, digest, created_at, revoked_at = found
    return KeyRow(
        key_id=key_id, name=name, owner=owner, role=role, digest=digest, created_at=created_at, revoked_at=revoked_at
    )
