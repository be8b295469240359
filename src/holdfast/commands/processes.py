"""Reads the system's process table: which processes run, since when, and their parents. Linux shows it in /proc, other
systems through `ps`."""

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Final, Protocol

import msgspec

from holdfast.commands.command import MARK, ProcessInfo, Runner

_PR_SET_CHILD_SUBREAPER: Final = 36
_PROC: Final = Path("/proc")
_HAS_PROC: Final = sys.platform == "linux"
_PS: Final = "/bin/ps"


class ProcessEntry(msgspec.Struct, frozen=True):
    """One process of the process table."""

    pid: int
    parent: int
    group: int
    session: int
    started: str
    name: str
    has_ended: bool

    def named(self) -> ProcessInfo:
        return ProcessInfo(self.pid, self.started, self.name)


class Notice(Protocol):
    """A descriptor that the loop can watch and that must be closed."""

    def fileno(self) -> int: ...
    def close(self) -> None: ...


@cache
def boot_id() -> str:
    """Identifies this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        sysctl = subprocess.run(["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, check=False)
        return sysctl.stdout.decode().strip() or "unknown"
    return "unknown"


def boot_seconds() -> float:
    """Seconds since this boot, also those in which the machine slept, where the system counts them. All processes of a
    machine read the same clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def shown_name(program: str) -> str:
    """The name of a process while it runs this program."""
    return os.path.basename(program)[:15] if _HAS_PROC else program


def become_subreaper() -> None:
    """Makes orphaned descendants children of this process instead of init's. Linux only."""
    if _HAS_PROC:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def process_entry(pid: int) -> ProcessEntry | None:
    """Returns the process with this pid, or None."""
    if _HAS_PROC:
        return _from_proc(pid)
    return next(iter(_from_ps("-p", str(pid))), None)


def all_processes() -> list[ProcessEntry]:
    if not _HAS_PROC:
        return _from_ps("-A")
    pids = [int(name) for name in os.listdir(_PROC) if name.isdecimal()]
    return [entry for entry in map(_from_proc, pids) if entry]


def is_alive(runner: Runner) -> bool:
    """Whether exactly this process still runs: the same pid with another start time, or after a reboot, is another
    process."""
    if runner.boot != boot_id():
        return False
    found = process_entry(runner.pid)
    return found is not None and found.started == runner.started and not found.has_ended


def is_running(one: ProcessInfo) -> bool:
    """Whether exactly this process, found since the machine booted, still runs."""
    found = process_entry(one.pid)
    return found is not None and found.started == one.started and not found.has_ended


class Census:
    """A snapshot of all live processes."""

    def __init__(self) -> None:
        self.living = {one.pid: one for one in all_processes() if not one.has_ended}
        self._marks = {one.pid: _mark(one) for one in self.living.values()}
        self._children: dict[int, list[ProcessEntry]] = {}
        for one in self.living.values():
            self._children.setdefault(one.parent, []).append(one)

    def family(self, leader: Runner, mark: str, *, knows_session: bool) -> list[ProcessEntry]:
        """Returns the processes of a command: its session, its group, processes with its mark, and all their
        descendants. Without /proc, a process that left the session and whose parent has ended is not found. Without
        `knows_session`, the session and group of that number may have been reused, and do not count."""
        holder = self.living.get(leader.pid)
        # A session's number is not reused while the session has members; if another process has it, they are gone.
        is_ours = knows_session and (holder is None or holder.started == leader.started)
        marks = (mark, mark_number(mark))
        family: dict[int, ProcessEntry] = {}
        pending = [
            one
            for one in self.living.values()
            if self._marks[one.pid] in marks or (is_ours and leader.pid in (one.session, one.group, one.pid))
        ]
        while pending:
            one = pending.pop()
            if one.pid not in family and one.pid != os.getpid():
                family[one.pid] = one
                pending += self._children.get(one.pid, [])
        return sorted(family.values(), key=lambda one: one.pid)


def mark_number(mark: str) -> int:
    """The mark as a limit on real-time CPU, far above what a process could use in 35 years. Everything that a command
    starts inherits the limit, and unlike a variable it is not dropped by accident."""
    return (1 << 50) + int(mark[:12], 16)


def set_mark_number(mark: str) -> None:
    """Sets the mark number in a process that is about to become a command."""
    if sys.platform == "linux":
        most = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
        if most == resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_RTTIME, (mark_number(mark), most))


def _mark(one: ProcessEntry) -> str | int:
    """Returns the mark of the command that started this process, however indirectly; empty if there is none or it can't
    be read."""
    try:
        environment = (_PROC / str(one.pid) / "environ").read_bytes()
        _, _, after = (b"\0" + environment).partition(f"\0{MARK}=".encode())
        mark = after.partition(b"\0")[0].decode("ascii", "replace")
        # Only orphans need the limit: all others are found through their parents.
        is_orphan = one.parent in (1, os.getpid())
        return mark or (_rttime(one.pid) if is_orphan else "")
    except OSError:
        return ""


def _rttime(pid: int) -> int:
    lines = (_PROC / str(pid) / "limits").read_text().splitlines()
    soft = next((line.split()[3] for line in lines if line.startswith("Max realtime timeout")), "")
    return int(soft) if soft.isdecimal() else 0


def send_signal(one: ProcessInfo, number: signal.Signals) -> None:
    """Signals exactly this process, never another one that has reused its pid."""
    descriptor = -1
    try:
        if _HAS_PROC and hasattr(os, "pidfd_open"):
            descriptor = os.pidfd_open(one.pid)
        found = process_entry(one.pid)
        if found is None or found.started != one.started:
            return
        if descriptor >= 0:
            signal.pidfd_send_signal(descriptor, number)
        else:
            os.kill(one.pid, number)
    except OSError:
        pass  # It has ended, or may not be signalled. The caller checks afterwards whether it is dead.
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def exit_notice(pid: int) -> "Notice | None":
    """Returns a descriptor that becomes readable once the process, which need not be a child, has ended. None: the
    process can't be watched, most likely because it has ended."""
    try:
        if sys.platform == "darwin":
            queue = select.kqueue()
            end = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
            queue.control([end], 0)
            return queue
        return FileIO(os.pidfd_open(pid))
    except OSError:
        return None


def _from_proc(pid: int) -> ProcessEntry | None:
    try:
        line = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name is in parentheses, and may itself contain parentheses and spaces.
    before, _, after = line.rpartition(")")
    fields = after.split()
    return ProcessEntry(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        started=fields[19],
        name=before.partition("(")[2],
        has_ended=fields[0] in "ZX",
    )


def _from_ps(*which: str) -> list[ProcessEntry]:
    """Lists processes with `ps`, which does not print session numbers everywhere: the group stands in for the
    session."""
    columns = "pid=,ppid=,pgid=,stat=,lstart=,comm="
    ps = subprocess.run(
        [_PS, *which, "-o", columns], capture_output=True, check=False, env={"LC_ALL": "C", "TZ": "UTC"}
    )
    return [_from_line(line.split(None, 9)) for line in ps.stdout.decode("utf-8", "replace").splitlines()]


def _from_line(fields: list[str]) -> ProcessEntry:
    pid, parent, group = (int(field) for field in fields[:3])
    return ProcessEntry(
        pid=pid,
        parent=parent,
        group=group,
        session=group,
        started=" ".join(fields[4:9]),
        name=fields[9] if len(fields) > 9 else "",
        has_ended=fields[3].startswith("Z"),
    )
