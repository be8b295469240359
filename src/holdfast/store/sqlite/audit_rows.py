"""The rows of the audit log."""

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from holdfast.store.audit import TRIM_ENTRIES, AuditEntry, AuditPage, columns, record_of
from holdfast.store.sqlite.queries import SQL

T = TypeVar("T")

Runs = Callable[[sqlite3.Connection], tuple[T, str | None]]


def told(runs: Runs[T], entry: AuditEntry | None) -> Runs[T]:
    """The same write, which also adds the entry if it writes anything."""
    if entry is None:
        return runs

    def write(db: sqlite3.Connection) -> tuple[T, str | None]:
        result, detail = runs(db)
        if detail is not None:
            add(db, entry)
        return result, detail

    return write


def add(db: sqlite3.Connection, entry: AuditEntry) -> None:
    db.execute(SQL["add_audit"], columns(entry))


def read(db: sqlite3.Connection, after: int, limit: int) -> AuditPage:
    (head,) = db.execute(SQL["audit_head"]).fetchone()
    rows = db.execute(SQL["audit_log"], (after, limit))
    return AuditPage(records=tuple(map(record_of, rows)), head=head)


def trim(db: sqlite3.Connection, before: int) -> tuple[int, str | None]:
    trimmed = db.execute(SQL["trim_audit"], (before, TRIM_ENTRIES)).rowcount
    return trimmed, "entries" if trimmed else None
