"""The power-cut campaign: a short one, its control, and the disk that forgets. `make power-cut` is the long one."""

import contextlib
import os
import random
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.store.sqlite.connections import create_if_missing
from proof.power_cut import vfs
from proof.power_cut.defects import DEFECTS, NONE
from proof.power_cut.disk import Disk
from proof.power_cut.records import (
    Deleted,
    Opened,
    Record,
    Recorder,
    SyncBegun,
    SyncEnded,
    Truncated,
    Written,
    read,
)

ROOT = Path(__file__).parents[2]

CUTS = 40


def _is_available() -> bool:
    try:
        vfs.library()
    except vfs.Unavailable:
        return False
    return True


needs_the_library = pytest.mark.skipif(not _is_available(), reason="this Python's SQLite can't be made to record")


def power_cut(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proof.power_cut", "--jobs", "1", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


@needs_the_library
def test_no_promise_is_broken_by_cutting_the_power() -> None:
    ran = power_cut("--cuts", str(CUTS), "--seed", "7")
    assert ran.returncode == 0, ran.stdout
    found = re.search(r"^(\d+) cuts, 0 violations$", ran.stdout, re.MULTILINE)
    assert found is not None, ran.stdout
    assert int(found[1]) >= CUTS
    syncs = re.search(r"^(\d+) syncs in calm runs", ran.stdout, re.MULTILINE)
    assert syncs is not None, "SQLite did not use the recording files"
    assert int(syncs[1]) > 100


@needs_the_library
@pytest.mark.parametrize("name", [defect.name for defect in DEFECTS if "sqlite" in defect.plants])
def test_a_missing_sync_is_caught(name: str) -> None:
    ran = power_cut("--control", "--defect", name)
    assert ran.returncode == 0, ran.stdout
    assert "NOT CAUGHT" not in ran.stdout


@needs_the_library
def test_a_cut_can_be_played_again_and_a_healthy_store_is_not_accused() -> None:
    ran = power_cut(
        "--scenario", "plain", "--replay", "kill@0/disk:log sync:before#5", "--defect", NONE.name, "--seed", "3"
    )
    assert ran.returncode == 0, ran.stdout
    assert "1 cuts, 0 violations" in ran.stdout


@needs_the_library
def test_the_records_of_a_process_rebuild_its_files(tmp_path: Path) -> None:
    """In a process of its own: SQLite keeps the recording files for ever."""
    script = (
        "import sqlite3, sys; from pathlib import Path\n"
        "from proof.power_cut.records import Recorder\n"
        "from proof.power_cut.vfs import RecordingVfs\n"
        "folder = Path(sys.argv[1])\n"
        "RecordingVfs(folder / 'x.db', Recorder(folder / 'records'), lambda point: None).install()\n"
        "db = sqlite3.connect(folder / 'x.db', isolation_level=None)\n"
        "db.execute('PRAGMA journal_mode = WAL'); db.execute('CREATE TABLE t (x)')\n"
        "for number in range(20): db.execute('INSERT INTO t VALUES (?)', (number,))\n"
        "import os; os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    disk = Disk({})
    disk.play(read(tmp_path / "records"))
    left = disk.after_a_cut(random.Random(1))
    assert left["x.db"] == (tmp_path / "x.db").read_bytes()
    assert left["x.db-wal"] == (tmp_path / "x.db-wal").read_bytes()
    (tmp_path / "again.db").write_bytes(left["x.db"])
    (tmp_path / "again.db-wal").write_bytes(left["x.db-wal"])
    with contextlib.closing(sqlite3.connect(tmp_path / "again.db")) as db:
        assert db.execute("SELECT count(*) FROM t").fetchone() == (20,)


PUT_AND_NOT_CLAIMED = "kill@0/claim:sessions:before#1"
"""A message was acknowledged, and nothing was committed since that would flush it along."""


ROUNDS = 3
"""How often a trial is played whose process had no time to get to the cut: with a defect planted, it waits only for
seconds, which a busy machine may take from it."""


@pytest.mark.parametrize(("defect", "is_kept"), [(NONE.name, True), ("writes beside units are not synced", False)])
def test_a_message_that_postgresql_acknowledged_outlives_its_power(defect: str, *, is_kept: bool) -> None:
    on = ("--database", "postgresql", "--scenario", "plain", "--replay", PUT_AND_NOT_CLAIMED)
    played = (power_cut(*on, "--defect", defect) for _ in range(ROUNDS))
    ran = next((each for each in played if "1 cuts, " in each.stdout), None)
    assert ran is not None, "no process got to the cut"
    assert ran.returncode == (0 if is_kept else 1), ran.stdout
    assert ("VIOLATION of accepted_means_committed" in ran.stdout) is not is_kept


# The disk


def outcomes(disk: Disk, name: str = "db") -> set[bytes | None]:
    """The contents of a file after many cuts; None if it does not exist."""
    return {disk.after_a_cut(random.Random(seed)).get(name) for seed in range(300)}


def played(*records: Record, **files: bytes) -> Disk:
    disk = Disk(files)
    disk.play([Opened(1, "db", False), *records])
    return disk


def test_synced_writes_are_kept_and_later_ones_may_be_lost() -> None:
    disk = played(Written(1, 0, b"kept"), SyncBegun(1), SyncEnded(1), Written(1, 4, b"?"), db=b"")
    assert outcomes(disk) == {b"kept", b"kept?"}


def test_a_sync_that_has_not_ended_keeps_nothing() -> None:
    assert outcomes(played(Written(1, 0, b"new"), SyncBegun(1), db=b"old")) == {b"old", b"new"}


def test_writes_during_a_sync_are_not_covered_by_it() -> None:
    disk = played(SyncBegun(1), Written(1, 0, b"late"), SyncEnded(1), db=b"")
    assert outcomes(disk) == {b"", b"late"}


def test_a_sync_under_way_beside_another_covers_what_came_before_itself() -> None:
    records = (Opened(2, "db", False), Written(1, 0, b"a"), SyncBegun(1), Written(1, 1, b"b"), SyncBegun(2))
    assert outcomes(played(*records, SyncEnded(1), db=b"")) == {b"a", b"ab"}
    assert outcomes(played(*records, SyncEnded(1), SyncEnded(2), db=b"")) == {b"ab"}


def test_a_write_is_torn_between_sectors_and_later_sectors_may_come_first() -> None:
    found = outcomes(played(Written(1, 0, b"x" * 1024), db=b""))
    assert found == {b"", b"x" * 512, b"\0" * 512 + b"x" * 512, b"x" * 1024}


def test_a_truncation_that_was_not_synced_may_not_have_happened() -> None:
    assert outcomes(played(Truncated(1, 1), db=b"abc")) == {b"abc", b"a"}


def test_a_deletion_is_undone_unless_its_folder_was_synced() -> None:
    assert outcomes(played(Deleted("db", False), db=b"old")) == {b"old", None}
    assert outcomes(played(Deleted("db", True), db=b"old")) == {None}


def test_a_new_log_has_its_name_for_certain_once_it_was_synced() -> None:
    made = (Opened(2, "log", True), Written(2, 0, b"x"))
    assert outcomes(played(*made, db=b""), "log") == {None, b"", b"x"}
    assert outcomes(played(*made, SyncBegun(2), SyncEnded(2), db=b""), "log") == {b"x"}


def test_a_record_that_the_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "records")
    whole: list[Record] = [Opened(1, "db", True), Written(1, 7, b"abc"), Truncated(1, 2), SyncBegun(1), SyncEnded(1)]
    for record in (*whole, Deleted("db", True), Deleted("db", False)):
        recorder.add(record)
    assert list(read(tmp_path / "records")) == [*whole, Deleted("db", True), Deleted("db", False)]
    os.truncate(tmp_path / "records", (tmp_path / "records").stat().st_size - 1)
    assert list(read(tmp_path / "records")) == [*whole, Deleted("db", True)]


def test_a_new_database_has_its_name_for_certain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    create_if_missing(tmp_path / "made" / "here" / "holdfast.db")
    assert synced == [str(tmp_path), str(tmp_path / "made"), str(tmp_path / "made" / "here")]
