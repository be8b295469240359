"""Rows that name the keeper of each session's secrets. Stored secrets are sealed, and this code can't read them."""

import sqlite3

from holdfast.store.sqlite.queries import SQL
from holdfast.store.store import Key


def keep(db: sqlite3.Connection, key: Key, keeper: str, sealed: bytes) -> tuple[bool, str | None]:
    kept = db.execute(SQL["keep_secret"], (key.owner, key.session, keeper, sealed)).rowcount == 1
    return kept, "secret" if kept else None


def lose(db: sqlite3.Connection, key: Key, keeper: str, sealed: bytes) -> tuple[None, str | None]:
    lost = db.execute(SQL["lose_secret"], (key.owner, key.session, keeper, sealed)).rowcount == 1
    return None, "secret" if lost else None


def drop(db: sqlite3.Connection, key: Key) -> tuple[None, str | None]:
    dropped = db.execute(SQL["drop_secret"], (key.owner, key.session)).rowcount == 1
    return None, "secret" if dropped else None


def read(db: sqlite3.Connection, key: Key) -> tuple[str, bytes] | None:
    found = db.execute(SQL["secret"], (key.owner, key.session)).fetchone()
    return None if found is None else (found[0], found[1])
