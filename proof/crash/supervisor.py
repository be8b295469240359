"""The supervisor of a trial's commands. It outlives the processes that are killed, as it does in life. Unlike there it
is forked and not started anew, which is quicker, and ended after the trial."""

import contextlib
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from holdfast.commands import supervisor
from holdfast.commands.folder import folders
from holdfast.commands.processes import is_alive
from proof.crash.victim import COMMANDS, QUICK_SUPERVISOR, WORK

PATIENCE_SECONDS = 10.0


def begin(folder: Path) -> None:
    """Returns once it listens. The launcher is run in a fork of this process: its own child is the supervisor."""
    (folder / WORK).mkdir()
    launcher = os.fork()
    if launcher == 0:
        status = 1
        try:
            sys.argv[1:] = [str(folder / COMMANDS), msgspec.json.encode(QUICK_SUPERVISOR).decode()]
            status = supervisor.main()
        finally:
            os._exit(status)
    _, status = os.waitpid(launcher, 0)
    assert status == 0, "the supervisor can't be started"


def mark_stage(folder: Path, stage: int, *, rests: bool) -> None:
    """Tell commands that a stage begins, while no process plays; with `rests`, wait until they have ended."""
    if stage == 0 or not (folder / WORK).exists():
        return
    (folder / WORK / f"stage-{stage}").touch()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while rests and any(found.outcome() is None for found in folders(folder / COMMANDS)):
        assert time.monotonic() < deadline, "a command does not end"
        time.sleep(0.005)


def end(folder: Path) -> None:
    """With all that it runs. Nothing of a trial may outlive it."""
    lock = folder / COMMANDS / "supervisor.lock"
    if not lock.exists():
        return
    for found in folders(folder / COMMANDS):
        runner = found.runner()
        if runner is not None and is_alive(runner):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(runner.pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _is_free(lock):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(lock.read_text()), signal.SIGTERM)
        assert time.monotonic() < deadline, "the supervisor does not end"
        time.sleep(0.002)


def _is_free(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
