"""How fast this machine is at this moment: a fixed loop of Python and SQLite work, and single synced commits.

The loop never syncs, so that it says how fast the processor is; the commits say how fast the disk is for somebody who
wants one thing at a time.
"""

import json
import platform
import sqlite3
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.place import Measured

REFERENCE = Path(__file__).with_name("reference.json")

REST_SECONDS = 0.002
"""Between two commits: a delay is somebody's who is alone, and to wake the disk and the processor is a part of it."""


class Machine(msgspec.Struct, frozen=True):
    """A machine without its name: what it runs, and how fast it was."""

    calibration_ms: float
    calibration_cpu_ms: float
    processor: str
    cores: int
    python: str
    sqlite: str
    commit_p50_ms: float


def reference() -> Machine:
    """The machine that the bars are stated for."""
    return msgspec.json.decode(REFERENCE.read_bytes(), type=Machine)


def this_machine(runs: Sequence[Measured], *, cores: int) -> Machine | None:
    """The machine during these runs; None without any."""
    if not runs:
        return None
    return Machine(
        calibration_ms=round(statistics.median(run.calibration_ms for run in runs), 2),
        calibration_cpu_ms=round(statistics.median(run.calibration_cpu_ms for run in runs), 2),
        processor=platform.machine(),
        cores=cores,
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        commit_p50_ms=round(statistics.median(run.commit_p50_ms for run in runs), 3),
    )


class Speed:
    """How fast the machine is while a probe runs: taken before it and after it, and the middle of all that counts."""

    def __init__(self, folder: Path, *, loops: int, commits: int) -> None:
        self._folder = folder
        self._count = loops
        self._commits = commits
        self._loops: list[tuple[float, float]] = []
        self._delays: list[float] = []

    def take(self) -> None:
        at = len(self._loops)
        self._loops.extend(_loop(self._folder / f"calibration-{at + number}.db") for number in range(self._count))
        self._delays.extend(_commit_delays_ms(self._folder / f"commits-{at}.db", self._commits // 2))

    def with_figures(self, figures: dict[str, float]) -> Measured:
        return Measured(
            figures=figures,
            calibration_ms=statistics.median(wall for wall, _ in self._loops),
            calibration_cpu_ms=statistics.median(cpu for _, cpu in self._loops),
            commit_p50_ms=statistics.median(self._delays),
            commit_p99_ms=percentile(self._delays, 99),
        )


def _loop(path: Path) -> tuple[float, float]:
    """Milliseconds on the wall, and of the processor."""
    db = _database(path, synchronous="OFF")
    started, cpu = time.perf_counter(), time.process_time()
    words: dict[str, int] = {}
    for number in range(20_000):
        word = f"word {number % 997}"
        words[word] = words.get(word, 0) + number
    text = json.dumps(words)
    for _ in range(20):
        json.loads(text)
    for number in range(100):
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO row (data) VALUES (?)", (text[number : number + 300],))
        db.execute("COMMIT")
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    db.close()
    return wall * 1000, cpu * 1000


def _commit_delays_ms(path: Path, count: int) -> list[float]:
    """Synced commits of one row each, with nothing else to do for the disk or the processor."""
    db = _database(path, synchronous="FULL")
    delays = []
    for _ in range(count):
        time.sleep(REST_SECONDS)
        started = time.perf_counter()
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO row (data) VALUES (?)", ("x" * 300,))
        db.execute("COMMIT")
        delays.append((time.perf_counter() - started) * 1000)
    db.close()
    return delays


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _database(path: Path, *, synchronous: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute("PRAGMA fullfsync = ON")
    db.execute("CREATE TABLE row (number INTEGER PRIMARY KEY, data TEXT)")
    return db
