"""SQLite as files and processes: damage, full disks, backups, dead processes and their detection."""

# ruff: noqa: ASYNC240 - these tests are about files, and nothing else runs beside them.

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.events.ids import Owner, Position, SessionId
from holdfast.store.errors import StoreUnavailable, StoreUnusable
from holdfast.store.sqlite import filesystem
from holdfast.store.sqlite.connections import connect
from holdfast.store.sqlite.migrations import MIGRATIONS, migrate
from holdfast.store.sqlite.order import Claimant, Order
from holdfast.store.sqlite.queries import SQL
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.sqlite.sweeper import SWEEP_EVERY
from holdfast.store.store import Committed, Key, Unit
from holdfast.store.turn_limits import TurnLimits
from holdfast.testing.store_conformance.presence import client, decline_and_let_go, waiting
from holdfast.testing.store_conformance.words import (
    KEY,
    MANY,
    OTHER,
    create,
    hold,
    info,
    running,
    said,
    segment,
    send,
    started,
    until_claimed,
)

pytestmark = pytest.mark.anyio

ANOTHER_PROCESS = Path(__file__).with_name("another_process.py")
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, node="here")
    yield store
    await store.close()


async def unusable(path: Path) -> str:
    with pytest.raises(StoreUnusable) as raised:
        await SqliteStore.open(path, node="here")
    return raised.value.code


class Other:
    """Another process, which takes one order per line."""

    def __init__(self, path: Path, **environment: str) -> None:
        self.running = subprocess.Popen(
            [sys.executable, str(ANOTHER_PROCESS), str(path), "here"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
        )
        self.first_word = self.hear()

    def tell(self, order: str) -> Any:
        self.order(order)
        return self.hear()

    def order(self, order: str) -> None:
        assert self.running.stdin is not None
        self.running.stdin.write(order + "\n")
        self.running.stdin.flush()

    def hear(self) -> Any:
        assert self.running.stdout is not None
        return json.loads(self.running.stdout.readline())

    def hear_all(self) -> list[Any]:
        """Complete lines until the process ends; the last may have been cut."""
        assert self.running.stdout is not None
        return [json.loads(line) for line in self.running.stdout if line.endswith("\n")]

    def signal(self, number: signal.Signals) -> None:
        self.running.send_signal(number)

    def end(self) -> None:
        self.running.kill()
        self.running.wait()
        for pipe in (self.running.stdin, self.running.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def other(store: SqliteStore, path: Path) -> Iterator[Other]:
    other = Other(path)
    yield other
    other.end()


# Opening


async def test_database_file_alone_holds_everything_after_a_clean_end(path: Path, tmp_path: Path) -> None:
    store = await SqliteStore.open(path, node="here")
    await create(store)
    for number in range(200):
        await store.commit(Unit(key=KEY, fence=None, events=(started(KEY),), title=f"{number}" * 1_000))
    await store.close()
    copy = tmp_path / "copy.db"
    await asyncio.to_thread(shutil.copyfile, path, copy)
    copied = await SqliteStore.open(copy, node="here")
    row = await copied.row(KEY)
    await copied.close()
    assert row is not None
    assert row.head == 201


async def test_new_database_is_readable_by_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "made" / "here" / "holdfast.db"
    store = await SqliteStore.open(path, node="here")
    await store.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700


async def test_clean_end_leaves_one_file_and_an_empty_folder(path: Path, store: SqliteStore) -> None:
    await create(store)
    await store.close()
    assert sorted(file.name for file in path.parent.iterdir()) == ["holdfast.db", "holdfast.db.live"]
    assert list((path.parent / "holdfast.db.live").iterdir()) == []


@pytest.mark.parametrize("text", [b"hello", b"x" * 10_000])
async def test_file_that_is_no_database_is_refused_and_unchanged(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    assert await unusable(path) == "store_not_a_database"
    assert path.read_bytes() == text


async def test_folder_is_refused_as_a_database(path: Path) -> None:
    path.mkdir()
    assert await unusable(path) == "store_not_a_database"


async def test_database_of_another_program_is_refused_and_unchanged(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (x)")
    before = path.read_bytes()
    assert await unusable(path) == "store_not_a_database"
    assert path.read_bytes() == before


async def test_damaged_database_is_refused_with_advice_to_restore_a_backup(path: Path, store: SqliteStore) -> None:
    await create(store)
    await store.close()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xa5" * 4000)
    with pytest.raises(StoreUnusable, match=r"[Rr]estore a backup") as raised:
        await SqliteStore.open(path, node="here")
    assert raised.value.code == "store_corrupt"


async def test_truncated_database_is_refused_with_advice_to_restore_a_backup(path: Path, store: SqliteStore) -> None:
    await create(store)
    await store.close()
    os.truncate(path, path.stat().st_size // 2)
    assert await unusable(path) == "store_corrupt"


async def test_database_of_a_newer_release_is_refused(path: Path, store: SqliteStore) -> None:
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 999")
    assert await unusable(path) == "store_newer"


async def test_read_only_database_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "holdfast.db"
        await (await SqliteStore.open(path, node="here")).close()
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        nobody = {"RUN_AS_USER": "65534"} if os.geteuid() == 0 else {}
        other = Other(path, **nobody)
        other.end()
        Path(folder).chmod(0o700)
        assert other.first_word == "store_read_only"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "lustre"])
def test_network_file_system_is_refused(kind: str) -> None:
    mounts = f"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:9 / /mnt/my\\040share rw,x shared:1 - {kind} server:/a rw\n"
    with pytest.raises(StoreUnusable) as raised:
        filesystem.refuse_network(Path("/mnt/my share/data/holdfast.db"), mounts)
    assert raised.value.code == "store_network_filesystem"
    filesystem.refuse_network(Path("/mnt/my shared/holdfast.db"), mounts)
    filesystem.refuse_network(Path("/home/holdfast.db"), mounts)


def test_last_mount_over_a_folder_decides_its_file_system() -> None:
    mounts = "1 0 8:1 / / rw - ext4 a rw\n2 1 0:9 / /data rw - nfs b rw\n3 2 0:9 / /data rw - tmpfs c rw\n"
    assert filesystem.kind_of(Path("/data/x"), mounts) == "tmpfs"
    assert filesystem.kind_of(Path("/data/x"), "") is None
    assert filesystem.kind_of(Path("/data/x"), "nonsense\n") is None


async def test_processes_that_start_together_take_turns_migrating(path: Path) -> None:
    stores = await asyncio.gather(*(SqliteStore.open(path, node="here") for _ in range(5)))
    outcomes = [await create(each, Key(KEY.owner, SessionId(each.process))) for each in stores]
    assert all(isinstance(outcome, Committed) for outcome in outcomes)
    for each in stores:
        await each.close()


def test_a_migration_that_fails_changes_nothing(path: Path) -> None:
    broken = (*MIGRATIONS, "CREATE TABLE extra (x);\nINSERT INTO nowhere VALUES (1);\n")
    with contextlib.closing(connect(path)) as db:
        with pytest.raises(sqlite3.OperationalError):
            migrate(db, path, broken)
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'extra'").fetchone() is None
        migrate(db, path, (*MIGRATIONS, "CREATE TABLE extra (x);"))
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)


# The disk


async def test_full_disk_is_reported_and_loses_no_acknowledged_write(store: SqliteStore, path: Path) -> None:
    await create(store)
    await set_page_limit(store, extra=20)
    acknowledged = 1

    async def write_until_full() -> None:
        nonlocal acknowledged
        while True:
            outcome = await store.commit(Unit(key=KEY, fence=None, events=(info("x" * 5000),)))
            assert isinstance(outcome, Committed)
            acknowledged = outcome.head

    with pytest.raises(StoreUnavailable) as raised:
        await write_until_full()
    assert raised.value.code == "store_disk_full"
    assert len(await store.events_after(KEY, Position(0), limit=MANY)) == acknowledged
    await set_page_limit(store, extra=10_000)
    assert await store.commit(Unit(key=KEY, fence=None, events=(info("room"),))) == Committed(
        Position(acknowledged + 1), 0
    )
    await store.close()
    again = await SqliteStore.open(path, node="here")
    assert len(await again.events_after(KEY, Position(0), limit=MANY)) == acknowledged + 1
    await again.close()


async def test_small_unit_of_a_batch_is_written_when_a_large_one_fills_the_disk(store: SqliteStore) -> None:
    await create(store)
    await set_page_limit(store, extra=20)
    large = Unit(key=KEY, fence=None, events=(info("x" * 1_000_000),))
    small = Unit(key=KEY, fence=None, events=(info("small"),))
    outcomes = await asyncio.gather(*map(store.commit, (small, large, small)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Committed, StoreUnavailable, Committed]
    assert len(await store.events_after(KEY, Position(0), limit=MANY)) == 3


async def set_page_limit(store: SqliteStore, *, extra: int) -> None:
    """Limit the database as a full disk would. The writer is idle: no write is under way."""
    db = store._writer._db
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {pages + extra}")


async def test_backup_is_consistent_while_other_writes_go_on(store: SqliteStore, tmp_path: Path) -> None:
    lease = await running(store)
    done = asyncio.Event()

    async def write() -> int:
        head = 0
        while not done.is_set():
            outcome = await store.commit(Unit(key=KEY, fence=lease.fence, events=(said("x" * 1000),)))
            assert isinstance(outcome, Committed)
            head = outcome.head
        return head

    writing = asyncio.ensure_future(write())
    before = (await store.commit(Unit(key=KEY, fence=None, events=(info("before"),)))).head  # type: ignore[union-attr]
    await store.backup(tmp_path / "copy.db")
    done.set()
    assert await writing > before
    copy = await SqliteStore.open(tmp_path / "copy.db", node="here")
    loaded = await copy.load(KEY, fold_version=1)
    assert loaded is not None
    assert loaded.row.head == len(loaded.events) >= before
    assert [claim.lease.key for claim in await copy.claim(limit=MANY)] == [KEY]
    await copy.close()
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600


async def test_backup_overwrites_no_file(store: SqliteStore, tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("mine")
    with pytest.raises(FileExistsError):
        await store.backup(tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "mine"


async def test_long_write_ahead_log_is_checkpointed_during_writes(store: SqliteStore, path: Path) -> None:
    lease = await running(store)
    big = said("x" * 100_000)
    for _ in range(200):
        await asyncio.gather(*(store.commit(Unit(key=KEY, fence=lease.fence, events=(big,))) for _ in range(10)))
    assert path.with_name("holdfast.db-wal").stat().st_size < 150 << 20


# Other processes


async def test_sessions_of_a_killed_process_can_be_claimed_at_once(store: SqliteStore, other: Other) -> None:
    await create(store)
    await send(store, "m")
    assert other.tell("renew 3600") is True
    assert other.tell("claim") == ["first"]
    assert await store.claim(limit=MANY) == []
    other.signal(signal.SIGKILL)
    other.running.wait()
    (claim,) = await store.claim(limit=MANY)
    assert (claim.lease.key, claim.claims_without_progress) == (KEY, 2)


async def test_stopped_process_loses_its_lease_and_its_late_writes_are_refused(
    store: SqliteStore, other: Other
) -> None:
    await create(store)
    await send(store, "m")
    assert other.tell("claim") == ["first"]
    assert other.tell("progress") == "Committed"
    assert other.tell("renew 0.1") is True
    other.signal(signal.SIGSTOP)
    (claim,) = await until_claimed(store)
    assert claim.lease.key == KEY
    other.signal(signal.SIGCONT)
    assert other.tell("progress") == "FenceMissed"
    assert other.tell("claim") == []
    assert other.tell("renew") is False
    assert other.tell("renew") is True
    assert isinstance(await store.commit(Unit(key=KEY, fence=claim.lease.fence, events=(said("mine"),))), Committed)
    assert other.tell("progress") == "FenceMissed"


async def test_writes_acknowledged_by_a_killed_process_are_kept(store: SqliteStore, other: Other) -> None:
    await create(store)
    other.order("write_until_killed first")
    while other.hear() < 100:
        pass
    other.signal(signal.SIGKILL)
    acknowledged = max([100, *other.hear_all()])
    row = await store.row(KEY)
    assert row is not None
    assert row.head in (acknowledged, acknowledged + 1)
    events = await store.events_after(KEY, Position(0), limit=100_000)
    assert [event.position for event in events] == list(range(1, row.head + 1))
    assert isinstance(await store.commit(Unit(key=KEY, fence=None, events=(info("on"),))), Committed)


async def test_two_processes_append_to_one_log(store: SqliteStore, other: Other) -> None:
    await create(store)
    other.order("write_until_killed first")
    heads: list[int] = []
    while len(heads) < 50:
        outcome = await store.commit(Unit(key=KEY, fence=None, events=(info("mine"),)))
        assert isinstance(outcome, Committed)
        heads.append(outcome.head)
    other.signal(signal.SIGKILL)
    theirs = other.hear_all()
    assert not set(heads) & set(theirs)
    events = await store.events_after(KEY, Position(0), limit=100_000)
    assert [event.position for event in events] == list(range(1, len(events) + 1))


async def test_clean_end_of_another_process_is_noticed_at_once(store: SqliteStore, other: Other) -> None:
    await create(store)
    await send(store, "m")
    assert other.tell("claim") == ["first"]
    assert other.tell("close") == "closed"
    assert len(await store.claim(limit=MANY)) == 1


async def test_process_without_its_liveness_file_counts_as_dead_and_starts_over(store: SqliteStore, path: Path) -> None:
    lease = await running(store)
    (path.parent / "holdfast.db.live" / store.process).unlink()
    second = await SqliteStore.open(path, node="here")
    (claim,) = await second.claim(limit=MANY)
    assert claim.lease.fence > lease.fence
    assert await store.renew(ttl_seconds=30) is False
    assert await store.renew(ttl_seconds=30) is True
    await second.close()
    assert (await hold(store)).fence > claim.lease.fence


async def test_death_of_a_process_wakes_a_session_where_a_client_of_another_declined(
    store: SqliteStore, other: Other
) -> None:
    await waiting(store, client("a"))
    assert other.tell("attach first")
    await decline_and_let_go(store, "a")
    other.signal(signal.SIGKILL)
    other.running.wait()
    assert [claim.lease.key for claim in await store.claim(limit=MANY)] == [KEY]
    assert [found.attachment_id for found in await store.attachments(KEY)] == ["a"]


async def test_expired_attachment_wakes_a_session_where_another_client_declined(store: SqliteStore, path: Path) -> None:
    await waiting(store, client("a"), client("b"), declined="a")
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE attachment SET expires_at = 0 WHERE id LIKE '%/b'")
    assert [claim.lease.key for claim in await store.claim(limit=MANY)] == [KEY]


async def test_files_and_rows_of_a_dead_process_are_removed(store: SqliteStore, other: Other, path: Path) -> None:
    folder = path.parent / "holdfast.db.live"
    assert len(list(folder.iterdir())) == 2
    other.signal(signal.SIGKILL)
    other.running.wait()
    assert await store.claim(limit=MANY) == []
    assert [file.name for file in folder.iterdir()] == [store.process]
    (folder / "0123").touch()
    second = await SqliteStore.open(path, node="here")
    assert sorted(file.name for file in folder.iterdir()) == sorted([store.process, second.process])
    await second.close()


# Bounded work and bounded space


async def test_segments_of_finished_messages_are_swept(store: SqliteStore, path: Path) -> None:
    lease = await running(store)
    unit = Unit(
        key=KEY,
        fence=lease.fence,
        drops_segments=True,
        segments=tuple(segment("x", offset=number) for number in range(50)),
    )
    for _ in range(3 * SWEEP_EVERY // 50):
        await store.commit(unit)
    with contextlib.closing(connect(path, read_only=True)) as db:
        assert db.execute("SELECT count(*) FROM segment").fetchone()[0] <= SWEEP_EVERY + 50
    loaded = await store.load(KEY, fold_version=1)
    assert loaded is not None
    assert len(loaded.segments) == 50


async def test_old_message_in_flight_does_not_keep_later_segments(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.sqlite.sweeper.LOOK_CLOSER_FROM", SWEEP_EVERY)
    old = await running(store)
    await store.commit(Unit(key=KEY, fence=old.fence, segments=(segment("old", offset=0),)))
    await create(store, OTHER)
    await send(store, "m", key=OTHER)
    lease = await hold(store, OTHER)
    pieces = tuple(segment("x", offset=number) for number in range(50))
    for _ in range(10 * SWEEP_EVERY // 50):
        await store.commit(Unit(key=OTHER, fence=lease.fence, drops_segments=True, segments=pieces))
    with contextlib.closing(connect(path, read_only=True)) as db:
        assert db.execute("SELECT count(*) FROM segment").fetchone()[0] <= 4 * SWEEP_EVERY
    loaded = await store.load(KEY, fold_version=1)
    assert loaded is not None
    assert [piece.text for piece in loaded.segments] == ["old"]


PLANNED = {
    "owners_waiting": {
        "SCAN session USING INDEX session_claimable",  # for the first of it only
        "SEARCH session USING INDEX session_claimable (owner>?)",
        "SEARCH session USING INDEX session_held (owner=? AND lease_holder>?)",
        "SEARCH above USING PRIMARY KEY (owner=? AND id=?)",
        "SEARCH session USING INDEX session_unnoted (owner=?)",
        "SEARCH session USING INDEX session_claimable (owner=? AND <expr>=?)",
        "SCAN CONSTANT ROW",
        "SCAN waiting",
        "SCAN counted",
    },
    "kinds_waiting": {
        "SCAN session USING INDEX session_needs",  # for the first of it only
        "SEARCH session USING INDEX session_needs (<expr>>?)",
        "SCAN CONSTANT ROW",
        "SCAN kind",
    },
    "owners_of_kinds": {
        "SEARCH session USING INDEX session_needs (<expr>=?)",
        "SEARCH session USING INDEX session_needs (<expr>=? AND owner>?)",
        "SEARCH session USING INDEX session_held (owner=? AND lease_holder>?)",
        "SEARCH above USING PRIMARY KEY (owner=? AND id=?)",
        "SEARCH session USING INDEX session_unnoted (owner=?)",
        "SEARCH session USING INDEX session_claimable (owner=? AND <expr>=?)",
        "SCAN waiting",
        "SCAN counted",
    },
    "is_unplaced": {"SEARCH session USING INDEX session_unplaced (runnable_since<?)"},
    "claimable": {
        "SEARCH session USING INDEX session_claimable (owner=?)",
        "SEARCH above USING PRIMARY KEY (owner=? AND id=?)",
        "SEARCH secret USING PRIMARY KEY (owner=? AND session=?)",
    },
    "stopping": {
        "SCAN inbox USING INDEX inbox_stops",
        "SEARCH session USING PRIMARY KEY (owner=? AND id=?)",
    },
    "unplaced": {
        "SCAN owners VIRTUAL TABLE INDEX 1:",
        "SEARCH session USING INDEX session_unnoted (owner=? AND runnable_since<?)",
    },
    "turns": {
        "SCAN CONSTANT ROW",
        "SEARCH session USING INDEX session_held (owner=? AND lease_holder>?)",
        "SEARCH session USING INDEX session_claimable (owner=?)",
        "SEARCH above USING PRIMARY KEY (owner=? AND id=?)",
    },
    "last_in_line": {"SEARCH session USING INDEX session_claimable (owner=?)"},
    "is_due": {"SEARCH session USING INDEX session_due (wake_at<?)"},
    "free_leases": {"SCAN session USING INDEX session_held"},
    "rows": {
        "SEARCH session USING INDEX session_listed (owner=? AND updated_at<?)",
        "SEARCH request USING INDEX request_open (owner=? AND session=?)",
        "SEARCH inbox USING INDEX inbox_waiting (owner=? AND session=?)",
        "SCAN passage_words VIRTUAL TABLE INDEX 0:M1",
        "SEARCH passage USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH head USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH annotation USING PRIMARY KEY (owner=? AND session=?)",
        "SEARCH inbox USING PRIMARY KEY (owner=? AND session=? AND item_key=?)",
    },
    "behind": {
        "SEARCH session USING INDEX session_listed (owner=?)",
        "SEARCH head USING INTEGER PRIMARY KEY (rowid=?)",
    },
    "search_log": {
        "SCAN passage_words VIRTUAL TABLE INDEX 192:M1",
        "SEARCH passage USING INTEGER PRIMARY KEY (rowid=?)",
    },
    "passages": {"SEARCH passage USING INDEX passage_of_log (log=? AND position>? AND position<?)"},
    "tool_result": {"SEARCH passage USING INDEX passage_of_call (log=? AND tool_call_id=?)"},
    "unindex": {"SEARCH passage USING INDEX passage_of_log (log=? AND position>? AND position<?)"},
    "is_waiting": {"SEARCH inbox USING INDEX inbox_waiting (owner=? AND session=? AND sequence=?)"},
    "waiting_items": {"SEARCH inbox USING INDEX inbox_waiting (owner=? AND session=?)"},
    "waiting_messages": {"SEARCH inbox USING INDEX inbox_waiting (owner=? AND session=?)"},
    "count_waiting": {"SEARCH inbox USING INDEX inbox_waiting (owner=? AND session=?)"},
    "is_stopping": {"SEARCH inbox USING INDEX inbox_stops (owner=? AND session=?)"},
    "promote": {"SEARCH inbox USING INDEX inbox_waiting (owner=? AND session=? AND sequence=?)"},
    "requests": {
        "SEARCH request USING INDEX request_open (owner=? AND session=?)",
        "SEARCH inbox USING PRIMARY KEY (owner=? AND session=? AND item_key=?)",
    },
}
"""How statements find their rows that many sessions could slow down."""


@pytest.mark.parametrize("name", PLANNED)
async def test_statement_reads_only_its_own_rows(store: SqliteStore, path: Path, name: str) -> None:
    with contextlib.closing(connect(path, read_only=True)) as db:
        parameters = max([int(number) for number in re.findall(r"\?(\d)", SQL[name])], default=0)
        found = db.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", [None] * parameters).fetchall()
    steps = {step for _, _, _, step in found if step.startswith(("SEARCH", "SCAN")) and "json_each" not in step}
    plain = {step.replace("COVERING ", "").removesuffix(" LEFT-JOIN") for step in steps}
    assert {step for step in plain if not step.startswith("SCAN (")} == PLANNED[name]


async def test_claiming_one_session_does_not_scan_a_hundred_thousand_waiting_ones(
    store: SqliteStore, path: Path
) -> None:
    await create(store)
    await send(store, "m")
    with contextlib.closing(connect(path)) as db:
        db.execute(
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 100000) "
            "INSERT INTO session (owner, id, status, turn_id, created_at, updated_at) "
            "SELECT 'bob', 'w' || x, 'waiting', 't', 1, 1 FROM n"
        )
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        db.set_progress_handler(count, 100)
        claimant = Claimant(node="here", tools="[]", without_models="[]", process="me", secret_key="me")
        order = Order(TurnLimits(running=5))
        assert order.next(db, claimant, 10) == [(KEY.owner, KEY.session)]
        assert order.unplaced(db, before=0, limit=10) == []
        assert steps < 20
    assert [claim.lease.key for claim in await store.claim(limit=10)] == [KEY]
    page = await store.rows(Owner("bob"), limit=3)
    assert len(page.rows) == 3


async def test_claiming_one_session_does_not_scan_a_thousand_stuck_owners(store: SqliteStore, path: Path) -> None:
    await create(store)
    await send(store, "m")
    with contextlib.closing(connect(path)) as db:
        db.execute(
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 1000) "
            "INSERT INTO session (owner, id, status, runnable, runnable_since, tools, created_at, updated_at) "
            """SELECT 'a' || x, 'stuck', 'queued', 1, x, '["missing"]', 1, 1 FROM n"""
        )
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        db.set_progress_handler(count, 100)
        claimant = Claimant(node="here", tools="[]", without_models="[]", process="me", secret_key="me")
        order = Order(TurnLimits(running=5))
        assert order.next(db, claimant, 10) == [(KEY.owner, KEY.session)]
        assert order.unplaced(db, before=0, limit=10) == []
        assert steps < 20


async def test_claiming_the_first_session_does_not_walk_its_owner_s_long_line(store: SqliteStore, path: Path) -> None:
    await create(store)
    await send(store, "m")
    with contextlib.closing(connect(path)) as db:
        db.execute(
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 50000) "
            "INSERT INTO session (owner, id, status, runnable, runnable_since, created_at, updated_at) "
            "SELECT 'root', 'w' || x, 'queued', 1, x, 1, 1 FROM n"
        )
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        db.set_progress_handler(count, 100)
        order = Order(TurnLimits(running=5, unlimited=frozenset({Owner("root")})))
        claimant = Claimant(node="here", tools="[]", without_models="[]", process="me", secret_key="me")
        found = order.next(db, claimant, 3)
        assert sorted(found) == [(KEY.owner, KEY.session), ("root", "w1"), ("root", "w2")]
        assert order.unplaced(db, before=0, limit=10) == []
        assert steps < 20
