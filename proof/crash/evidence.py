"""Everything that a trial left behind: the database, the journal of its processes, the effects of its tools."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from holdfast.commands.command import CommandRecord
from holdfast.commands.folder import folders
from holdfast.commands.processes import is_alive
from holdfast.events.ids import Key, Position
from holdfast.events.inbox import InboxItem
from holdfast.files.objects import HOME
from holdfast.store.sqlite import audit_rows, budget_rows, file_rows, key_rows, rows
from holdfast.store.sqlite.connections import connect
from holdfast.store.store import CaughtUp, Cursor, Snapshot
from proof.crash import postgres_evidence, postgres_trials
from proof.crash.journal import Affected, AnyEntry, Begun, Died, path_of, read
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
from proof.crash.receiver import Received, received
from proof.crash.scenario import Scenario
from proof.crash.trial import Trial

MANY_ENTRIES: Final = 1_000
"""More entries of the audit log than one trial adds."""
MANY_FILES = 100

FILES = "files"
"""The folder of a trial's files."""


class Evidence(Kept, frozen=True, kw_only=True):
    scenario: Scenario
    trial: Trial
    journal: tuple[AnyEntry, ...]
    effects: tuple[Affected, ...]
    lines: dict[str, int] = msgspec.field(default_factory=dict)
    """How often each command left its line."""
    alive: tuple[str, ...] = ()
    """Commands that still run."""
    is_shared: bool = False
    """Another process played it at the same time as the killed ones."""
    cast: tuple[Begun, ...] = ()
    """The processes of the trial."""
    frozen: frozenset[int] = frozenset()
    """The frozen processes among them."""
    received: tuple[Received, ...] = ()
    """The requests that the receiver of its webhook got."""
    objects: tuple[str, ...] = ()
    """The files in the file store, without its name."""
    records: int = 0
    """Commands with any record. A key that was taken only to prevent a start has none."""


def collect_all(scenario: Scenario, trial: Trial, folder: Path) -> tuple[Evidence, ...]:
    """The evidence of each session of a trial."""
    entries = read(folder / "journal")
    common = {
        "is_shared": scenario.companion is not None,
        "cast": tuple(entry for entry in entries if isinstance(entry, Begun)),
        "frozen": frozenset(entry.process for entry in entries if isinstance(entry, Died) and trial.kind == "freeze"),
    }
    held = _kept(folder, [story.key for story in scenario.stories])
    found = [
        _evidence(story, trial, folder, scenario.key, kept) for story, kept in zip(scenario.stories, held, strict=True)
    ]
    return tuple(msgspec.structs.replace(one, **common) for one in found)


def collect(scenario: Scenario, trial: Trial, folder: Path) -> Evidence:
    """The evidence of the first session of a trial, once all its processes have ended."""
    (kept,) = _kept(folder, [scenario.key])
    return _evidence(scenario, trial, folder, scenario.key, kept)


def _kept(folder: Path, keys: Sequence[Key]) -> list[Kept]:
    url = postgres_trials.url_of(folder)
    if url is None:
        return [kept_in_file(folder / "holdfast.db", key) for key in keys]
    return postgres_trials.run(url, lambda db: postgres_evidence.kept_over(db, keys))


def _evidence(scenario: Scenario, trial: Trial, folder: Path, first: Key, kept: Kept) -> Evidence:
    key = scenario.key
    return Evidence(
        scenario=scenario,
        trial=trial,
        journal=read(path_of(folder, "journal", key, first=first)),
        effects=tuple(
            entry for entry in read(path_of(folder, "effects", key, first=first)) if isinstance(entry, Affected)
        ),
        lines=_lines(folder / "work"),
        alive=running_commands(folder),
        received=received(folder),
        objects=_objects(folder / FILES),
        records=sum(bool(asked and asked.command) for asked in _asked(folder)),
        **msgspec.structs.asdict(kept),
    )


def kept_in_file(database: Path, key: Key) -> Kept:
    with contextlib.closing(connect(database, read_only=True)) as db:
        loaded = rows.load(db, key, -1)
        snapshot = _Connection(db)
        readings = asyncio.run(read_whole(snapshot, key)) if loaded else ()
        return Kept(
            session=_session(db, key),
            row=loaded.row if loaded else None,
            events=loaded.events if loaded else (),
            inbox=_inbox(db, key),
            requests=rows.requests(db, key),
            segments=loaded.segments if loaded else (),
            snapshot=_snapshot(db, key),
            ledger=rows.ledger(db, key.owner, key.session),
            **money_of(budget_rows.spending(db, key.owner, *EVER, None), budget_rows.reserved(db, key.owner), key),
            leftovers=_leftovers(db, key),
            commands=_commands(db, key),
            keys=key_rows.read(db, None),
            audit=tuple(record.entry for record in audit_rows.read(db, 0, MANY_ENTRIES).records),
            files=file_rows.page(db, key.owner, MANY_FILES, None, None).rows,
            contents=dict(db.execute("SELECT id, state FROM content").fetchall()),
            used=tuple(id for (id,) in db.execute(_USED, key_of(key))),
            readings=readings,
            rereadings=asyncio.run(read_again(snapshot, key, readings)),
        )


def _session(db: sqlite3.Connection, key: Key) -> SessionRow | None:
    query = "SELECT fence, lease_holder, runnable, deleted_at IS NOT NULL FROM session WHERE owner = ? AND id = ?"
    found = db.execute(query, (key.owner, key.session)).fetchone()
    if found is None:
        return None
    fence, holder, runnable, deleted = found
    return SessionRow(fence=fence, lease_holder=holder, is_runnable=bool(runnable), is_deleted=bool(deleted))


def _inbox(db: sqlite3.Connection, key: Key) -> tuple[InboxItem, ...]:
    found = db.execute("SELECT item_key FROM inbox WHERE owner = ? AND session = ? ORDER BY sequence", key_of(key))
    items = [rows.receipt(db, key, item_key) for (item_key,) in found.fetchall()]
    return tuple(item for item in items if item is not None)


def _snapshot(db: sqlite3.Connection, key: Key) -> Snapshot | None:
    query = "SELECT fold_version, position, state FROM snapshot WHERE owner = ? AND session = ?"
    found = db.execute(query, key_of(key)).fetchone()
    return None if found is None else Snapshot(found[0], Position(found[1]), found[2])


def _leftovers(db: sqlite3.Connection, key: Key) -> int:
    tables = (*LEFT_OF_A_SESSION, "event_mark", "flight")
    counts = [
        db.execute(f"SELECT count(*) FROM {table} WHERE owner = ? AND session = ?", key_of(key)) for table in tables
    ]
    passages, words = db.execute(_INDEXED, key_of(key)).fetchone()
    return int(sum(found.fetchone()[0] for found in counts) + passages + words)


_INDEXED = """
SELECT (SELECT count(*) FROM passage WHERE log = (SELECT log FROM session WHERE owner = ? AND id = ?)),
       (SELECT count(*) FROM passage_words WHERE rowid NOT IN (SELECT number FROM passage))
"""
"""Rows of the text index: of a deleted session, and words of no passage at all."""


_USED = "SELECT file FROM file_use WHERE owner = ? AND session = ? ORDER BY file"


def _commands(db: sqlite3.Connection, key: Key) -> tuple[Command, ...]:
    query = "SELECT id, foreground, status, exit_code, kill_asked, settled FROM task WHERE owner = ? AND session = ?"
    return tuple(
        Command(
            task_id=task_id,
            is_foreground=bool(foreground),
            status=status,
            exit_code=exit_code,
            kill_asked=kill_asked,
            is_settled=bool(settled),
        )
        for task_id, foreground, status, exit_code, kill_asked, settled in db.execute(query, key_of(key))
    )


def _objects(files: Path) -> tuple[str, ...]:
    found = (path.name for path in files.rglob("*") if path.is_file())
    return tuple(sorted(name for name in found if name != HOME))


def _lines(work: Path) -> dict[str, int]:
    return {file.name: len(file.read_text().splitlines()) for file in work.iterdir()} if work.exists() else {}


def _asked(folder: Path) -> list[CommandRecord | None]:
    return [found.record() for found in folders(folder / "commands")]


def running_commands(folder: Path) -> tuple[str, ...]:
    """Requested commands that still run."""
    commands = [(one.record(), one.runner()) for one in folders(folder / "commands")]
    return tuple(record.command for record, runner in commands if record and runner and is_alive(runner))


def key_of(key: Key) -> tuple[str, str]:
    return key.owner, key.session


class _Connection:
    """As much of a store as a reader needs, without a thread."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    async def catch_up(self, key: Key, cursor: Cursor, *, limit: int) -> CaughtUp | None:
        return rows.catch_up(self._db, key, cursor, limit)
