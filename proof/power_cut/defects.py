"""Known defects of syncing, to be planted one at a time: no kill can show them, and a power cut must."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.store.postgres.connections import Link
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.checkpoints import Checkpoints
from holdfast.store.sqlite.units import UnitJob
from holdfast.store.sqlite.writer import Job, NotBegun, Writer, WriterCall
from proof.crash.plant import replace
from proof.crash.trial import Database


class Unsynced(msgspec.Struct, frozen=True, kw_only=True):
    """One omitted sync, and the code that omits it."""

    name: str
    plants: dict[Database, Callable[[], None]]
    """By database: there are some that only one of them can have."""
    scenarios: tuple[str, ...]


def plant(name: str, database: Database) -> None:
    """Make this process suffer from the defect of that name."""
    if name:
        BY_NAME[name].plants[database]()


def _sync_nothing() -> None:
    def begin(self: Writer, jobs: Sequence[Job]) -> None:
        try:
            self._db.execute("PRAGMA synchronous = OFF")
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise NotBegun(error) from error

    replace(Writer, "_begin", begin)


def _leave_units_to_chance() -> None:
    replace(UnitJob, "needs_sync", False)


def _leave_puts_to_chance() -> None:
    made = WriterCall.__init__

    def init(self: WriterCall, future: object, verb: str, *rest: object, **options: object) -> None:
        made(self, future, verb, *rest, **{**options, "needs_sync": options.get("needs_sync", True) and verb != "put"})  # type: ignore[arg-type]

    replace(WriterCall, "__init__", init)


def _copy_without_syncing() -> None:
    """The WAL restarts before the pages copied from it are on disk."""

    def finish(self: Checkpoints, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA synchronous = OFF")
        self._checkpoint(db, "TRUNCATE")
        db.execute("PRAGMA synchronous = FULL")

    replace(Checkpoints, "finish", finish)


# On PostgreSQL


def _leave_transactions_to_chance() -> None:
    """Writes beside units are acknowledged before they are flushed."""
    made = PostgresStore._write

    async def write(self: PostgresStore, *rest: Any, **options: Any) -> Any:
        return await made(self, *rest, **{**options, "is_synced": False})

    replace(PostgresStore, "_write", write)


def _leave_flushes_to_chance() -> None:
    made = Link.__init__

    def init(self: Link, *rest: Any) -> None:
        made(self, *rest)
        self.begin += "; SET LOCAL synchronous_commit = off"

    replace(Link, "__init__", init)


ANYWHERE = ("plain", "tools", "permission")

DEFECTS = (
    Unsynced(name="nothing is synced", plants={"sqlite": _sync_nothing}, scenarios=ANYWHERE),
    Unsynced(
        name="units are not synced",
        plants={"sqlite": _leave_units_to_chance, "postgresql": _leave_flushes_to_chance},
        scenarios=ANYWHERE,
    ),
    Unsynced(name="puts are not synced", plants={"sqlite": _leave_puts_to_chance}, scenarios=ANYWHERE),
    Unsynced(
        name="writes beside units are not synced",
        plants={"postgresql": _leave_transactions_to_chance},
        scenarios=("plain", "permission"),
    ),
    Unsynced(name="a checkpoint is not synced", plants={"sqlite": _copy_without_syncing}, scenarios=ANYWHERE),
)

NONE = Unsynced(name="none at all", plants={"sqlite": lambda: None, "postgresql": lambda: None}, scenarios=("plain",))
"""For the control's own control: this one must not be caught."""

BY_NAME = {defect.name: defect for defect in (*DEFECTS, NONE)}
