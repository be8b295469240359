"""Plays trials: forks the processes, kills or freezes them, and collects the evidence.

Everything here runs in single-threaded processes that never use the database while another process of the trial lives,
so that they can fork, and so that a victim finds the files exactly as the previous one left them.
"""

import contextlib
import gc
import os
import selectors
import shutil
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from proof.crash import invariants, postgres_trials, receiver, victim
from proof.crash import supervisor as supervising
from proof.crash.evidence import collect_all
from proof.crash.journal import Died, Ended, Journal, Passed, read
from proof.crash.scenario import Scenario
from proof.crash.scenarios import BY_NAME
from proof.crash.trial import Database, Point, Result, Trial, Violation
from proof.crash.victim import Part
from proof.power_cut.folder import ForgetfulFolder, damage
from proof.power_cut.server import CutServer

COMPANION = "+"
"""The prefix of an aim that is meant for the companion."""

MAX_PROCESSES = 16
"""More than any trial can need: a trial that has not ended by then never will."""


class Playing:
    """A trial while it is played."""

    def __init__(self, trial: Trial, folder: Path) -> None:
        self.trial = trial
        self.scenario: Scenario = BY_NAME[trial.scenario]
        self.folder = folder
        self.processes = 0
        self.timed_kills = 0
        self.freezes = 0
        self.seconds = 0.0
        url = postgres_trials.url_of(folder) if trial.loses_power else None
        self.server = CutServer(url) if url is not None else None
        self.disk = ForgetfulFolder(folder, trial.seed) if trial.loses_power and url is None else None
        self.failure = ""
        self._journal = Journal(folder / "journal", 0)
        self._numbers: dict[int, int] = {}
        """The processes that were started and not yet seen to end, by their ids."""
        self._statuses: dict[int, int] = {}
        """Processes that ended while the runner waited for another one."""
        self._stage = 0
        self._companion: int | None = None
        self._companion_aims: list[str] = []
        self._expires = trial.lets_leases_expire(has_companion=self.scenario.companion is not None)

    def play(self) -> None:
        if self.scenario.has_commands:
            supervising.begin(self.folder)
        if self.scenario.has_webhook:
            receiver.begin(self.folder)
        for stage in range(len(self.scenario.stages)):
            self._stage = stage
            supervising.mark_stage(self.folder, stage, rests=self.scenario.rests)
            aims = self.trial.aims if stage == self.trial.stage else ()
            self._companion_aims = [aim[1:] for aim in aims if aim.startswith(COMPANION)]
            aims = tuple(aim for aim in aims if not aim.startswith(COMPANION))
            self._begin_companion(stage)
            match self.trial.kind:
                case "freeze" if aims:
                    self._freeze(stage, aims[0])
                case "pair" if stage == self.trial.stage:
                    self._pair(stage, aims)
                case _:
                    self._kill(stage, aims)
            self._end_companion(stage)
            if self.failure:
                return

    def _begin_companion(self, stage: int) -> None:
        if self.scenario.companion is not None:
            aim = self._companion_aims.pop(0) if self._companion_aims else ""
            self._companion = self._start(stage, aim, is_companion=True)

    def _end_companion(self, stage: int) -> None:
        """Tell it that the stage is over, and wait until it has left; one that was killed begins anew first."""
        (self.folder / f"over-{stage}").touch()
        while self._companion is not None:
            status = self._wait(self._companion)
            if self._was_killed(status):
                self._begin_companion(stage)
            else:
                self._companion = None
                self._judge(status)

    def _kill(self, stage: int, aims: tuple[str, ...], *, is_hasty: bool = False) -> None:
        """One process after the other, until one comes to its end."""
        for number in range(MAX_PROCESSES):
            if self.processes and not is_hasty and not self._expires:
                postgres_trials.end_leases(self.folder)
            elif self._expires and self.scenario.knows_of_deaths:
                postgres_trials.until_dead(self.folder)
            aim = aims[number] if number < len(aims) else ""
            status = self._wait(self._start(stage, aim, is_hasty=is_hasty), aim)
            if not self._was_killed(status):
                return self._judge(status)
        self.failure = f"{MAX_PROCESSES} processes did not come to its end"

    def _freeze(self, stage: int, aim: str) -> None:
        """The first stops in the middle; others do all of the work; then the first wakes up, late."""
        frozen = self._start(stage, aim, freezes=True)
        status = self._wait(frozen, until_frozen=True)
        if os.WIFSTOPPED(status):
            self.freezes += 1
            self._kill(stage, (), is_hasty=True)
            os.kill(frozen, signal.SIGCONT)
            status = self._wait(frozen)
        if not self._was_killed(status):
            return self._judge(status)
        self._kill(stage, ())

    def _pair(self, stage: int, aims: tuple[str, ...]) -> None:
        """Two at the same time, each with a client that asks for the same things under the same ids."""
        aim = aims[0] if aims else ""
        # Where a death shows only when the lease is over, the one that is left should not have to wait for long.
        is_hasty = bool(aim) and self.trial.database != "sqlite"
        pids = (self._start(stage, aim, is_hasty=is_hasty), self._start(stage, "", is_hasty=is_hasty))
        statuses = [self._wait(pid, aim) for pid, aim in zip(pids, (aim, ""), strict=True)]
        for status in statuses:
            if not self._was_killed(status):
                self._judge(status)
        if all(map(self._was_killed, statuses)):
            self._kill(stage, ())

    def _start(
        self, stage: int, aim: str, *, freezes: bool = False, is_hasty: bool = False, is_companion: bool = False
    ) -> int:
        self.processes += 1
        if self.disk is not None:
            self.disk.begin(self.processes)
        part = Part(
            scenario=self.scenario,
            stage=stage,
            process=self.processes,
            folder=self.folder,
            aim="" if aim.startswith("~") else aim,
            freezes=freezes,
            is_hasty=is_hasty or freezes or self._expires or (is_companion and self.trial.kind == "freeze"),
            is_companion=is_companion,
            notes_points=self.trial.kind == "calm",
            seed=self.trial.seed,
            defect=self.trial.defect,
            loses_power=self.trial.loses_power,
        )
        pid = os.fork()
        if pid == 0:
            victim.play(part)
        self._numbers[pid] = part.process
        return pid

    def _wait(self, pid: int, aim: str = "", *, until_frozen: bool = False) -> int:
        """Wait until that process has ended; a companion that is killed meanwhile is restarted."""
        started = time.monotonic()
        if aim.startswith("~"):
            self._kill_at(pid, float(aim[1:]))
        while pid not in self._statuses:
            ended, status = os.waitpid(-1, os.WUNTRACED if until_frozen else 0)
            if ended not in self._numbers:
                continue  # A database server whose power was cut.
            if os.WIFSTOPPED(status):
                return status
            self._note_end(ended, status)
            if ended == self._companion and ended != pid and self._was_killed(status):
                self._begin_companion(self._stage)
        self.seconds = max(self.seconds, time.monotonic() - started)
        status = self._statuses.pop(pid)
        if self.server is not None and self._was_killed(status):
            self.server.cut()
        return status

    def _note_end(self, pid: int, status: int) -> None:
        self._statuses[pid] = status
        self._journal.add(Ended(process=self._numbers.pop(pid)))

    def _kill_at(self, pid: int, seconds: float) -> None:
        """Kill it from outside, wherever it is by then, unless it has ended. It is stopped first, so that its end is in
        the journal before another process can notice it and take over."""
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        ended, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._note_end(ended, status)
            return
        self._journal.add(Ended(process=self._numbers[pid]))
        os.kill(pid, signal.SIGKILL)
        self.timed_kills += 1

    def _was_killed(self, status: int) -> bool:
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    def _judge(self, status: int) -> None:
        if status != 0:
            self.failure = f"a process ended with status {status}"


def run(trial: Trial, scratch: Path, *, keeps: bool = False, url: str = "") -> Result:
    """Play a trial in a folder of its own, which is removed afterwards. With a `url`, on the PostgreSQL there."""
    folder = Path(tempfile.mkdtemp(prefix=f"{trial.scenario}-", dir=scratch))
    if url:
        trial = msgspec.structs.replace(trial, database="postgresql")
        postgres_trials.prepare(folder, url)
    try:
        playing = Playing(trial, folder)
        playing.play()
        return _result(playing)
    finally:
        supervising.end(folder)
        receiver.end(folder)
        if not keeps:
            shutil.rmtree(folder, ignore_errors=True)


def _result(playing: Playing) -> Result:
    found = damage(playing.folder) if playing.disk is not None else None
    if found is None:
        violations = invariants.check_all(collect_all(playing.scenario, playing.trial, playing.folder))
    else:
        violations = (Violation("the_database_is_whole", found),)
    if playing.failure:
        violations = (*violations, Violation("nothing_fails_by_itself", playing.failure))
    entries = read(playing.folder / "journal")
    died = sum(isinstance(entry, Died) for entry in entries) - playing.freezes
    return Result(
        trial=playing.trial,
        violations=violations,
        kills=died + playing.timed_kills,
        recoveries_killed=max(0, died - 1),
        freezes=playing.freezes,
        points=_points([entry for entry in entries if isinstance(entry, Passed)]),
        seconds=playing.seconds,
    )


def _points(passed: Sequence[Passed]) -> tuple[Point, ...]:
    """In a calm trial the processes of a stage come one after the other."""
    first = {(entry.stage, entry.by_companion): entry.process for entry in reversed(passed)}
    return tuple(
        Point(entry.stage, entry.process - first[entry.stage, entry.by_companion], entry.point, entry.by_companion)
        for entry in passed
    )


class Jobs:
    """Processes that play trials side by side. Made before there is any thread, as they and their children are forks
    of this one. With `urls`, each plays on the PostgreSQL at one of them."""

    def __init__(self, count: int, scratch: Path, urls: Sequence[str] = ()) -> None:
        gc.freeze()
        self.database: Database = "postgresql" if urls else "sqlite"
        self._sockets: list[socket.socket] = []
        self._pids: list[int] = []
        for number in range(count):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                for other in (*self._sockets, ours):
                    other.close()
                _serve(theirs, scratch, urls[number] if urls else "")
            theirs.close()
            self._sockets.append(ours)
            self._pids.append(pid)

    def run(self, trials: Iterator[Trial]) -> Iterator[Result]:
        """Results as they come. The next trial is asked for only when a job is free."""
        with selectors.DefaultSelector() as selector:
            for number, job in enumerate(self._sockets):
                if (trial := next(trials, None)) is not None:
                    _send(job, trial)
                    selector.register(job, selectors.EVENT_READ, number)
            while selector.get_map():
                for ready, _ in selector.select():
                    job = self._sockets[ready.data]
                    yield _result_from(job)
                    if (trial := next(trials, None)) is not None:
                        _send(job, trial)
                    else:
                        selector.unregister(job)

    def close(self) -> None:
        for job in self._sockets:
            job.close()
        for pid in self._pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


class JobEnded(Exception):
    """A process that plays trials ended by itself. It has said why."""


def _result_from(job: socket.socket) -> Result:
    data = _receive(job)
    if not data:
        raise JobEnded
    return msgspec.json.decode(data, type=Result)


def _serve(job: socket.socket, scratch: Path, url: str) -> None:
    """The whole life of a job: one trial after the other, until the campaign hangs up."""
    status = 0
    try:
        while data := _receive(job):
            _send(job, run(msgspec.json.decode(data, type=Trial), scratch, url=url))
    except BaseException:
        traceback.print_exc()
        status = 1
    os._exit(status)


def _send(job: socket.socket, value: msgspec.Struct) -> None:
    data = msgspec.json.encode(value)
    job.sendall(len(data).to_bytes(4, "big") + data)


def _receive(job: socket.socket) -> bytes:
    size = int.from_bytes(_exactly(job, 4), "big")
    return _exactly(job, size)


def _exactly(job: socket.socket, size: int) -> bytes:
    """So many bytes, or none if the other side has ended."""
    data = b""
    while len(data) < size:
        part = job.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data
