"""The rows of API keys."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from holdfast.store.keys import KeyRow
from holdfast.store.sqlite.queries import SQL


def add(db: sqlite3.Connection, row: KeyRow) -> tuple[None, str]:
    db.execute(SQL["add_key"], (row.key_id, row.name, row.owner, row.role, row.digest, row.created_at))
    return None, "key"


def revoke(db: sqlite3.Connection, key_id: str, now: int) -> tuple[bool, str | None]:
    revoked = db.execute(SQL["revoke_key"], (key_id, now)).rowcount == 1
    return revoked, "key" if revoked else None


def valid(db: sqlite3.Connection, key_id: str, digest: bytes) -> KeyRow | None:
    found = db.execute(SQL["valid_key"], (key_id, digest)).fetchone()
    return None if found is None else _row(found)


def read(db: sqlite3.Connection, key_id: str | None) -> tuple[KeyRow, ...]:
    return tuple(_row(found) for found in db.execute(SQL["keys"], (key_id,)))


def _row(found: Sequence[Any]) -> KeyRow:
    key_id, name, owner, role, digest, created_at, revoked_at = found
    return KeyRow(
        key_id=key_id, name=name, owner=owner, role=role, digest=digest, created_at=created_at, revoked_at=revoked_at
    )
