"""Runs commands in a bubblewrap sandbox: they see the machine without its database, and write only where they work.
The kernel refuses them some system calls.

Hiding a folder also hides everything that will ever be in it. Mounts are made from the root of the tree to its leaves,
so a working directory inside a hidden folder is visible, and a hidden folder inside a working directory is not.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from holdfast.commands import sandbox_entry
from holdfast.commands.errors import IsolationUnavailable
from holdfast.commands.sandbox_entry import BOUND
from holdfast.commands.system_calls import MACHINES, filter_program

CHECK_SECONDS: Final = 30.0

ALONE: Final = ("--unshare-pid", "--unshare-ipc", "--new-session", "--cap-drop", "ALL")
"""`--die-with-parent` is left out: it kills everything inside as soon as the shell has ended, and loses what `>(tee
file)` has not written yet. Leftover processes are found and ended as they are without a sandbox. Root loses all
capabilities; otherwise it could unmount the sandbox's mounts."""

ENTRY: Final = (sys.executable, "-I", "-S", sandbox_entry.__file__)
"""Starts the trial sandbox as a supervisor starts that of a command: under the filter."""

UNFILTERED: Final = 97
"""The exit code of the trial command if the filter does not hold."""

BY_FILTER: Final = (128 + signal.SIGSYS, -signal.SIGSYS)
"""The exit code of a program that the filter killed, and the code if that program was bubblewrap itself."""

TRIAL: Final = f": > /tmp/trial && chmod u+s /tmp/trial 2> {os.devnull} && exit {UNFILTERED}; exit 0"
"""Tries what the filter refuses everybody. It needs /tmp and `chmod`: almost every machine has them."""

CHECKED: Final = "/etc"
"""The folder bound in the trial sandbox of `check`: every machine has it."""

OWN: Final = ("/tmp", "/run")
"""Empty inside the sandbox, and discarded with the command. Both hold sockets that lead out of the sandbox: those of
desktops and of container engines."""

OF_THE_SYSTEM: Final = ("/dev", "/proc")
"""Created inside the sandbox by bubblewrap itself."""

OF_THE_KERNEL: Final = tuple(f"/proc/{name}" for name in ("acpi", "bus", "fs", "irq", "scsi", "sys", "sysrq-trigger"))
"""Root may write to these without a capability, and control the machine through them."""

NOT_ALONE: Final = ("/", "/sys", *OWN, *OF_THE_SYSTEM)
"""Refused as working directories because they contain what commands must not reach. Folders below them are allowed."""

PROGRAMS_IN_RUN: Final = "/run/current-system"
"""The folder of programs on NixOS."""

RESOLVER: Final = "/etc/resolv.conf"

SYSCTLS = Path("/proc/sys")

LEAVE_OUT: Final = "or leave out --sandbox (HOLDFAST_SANDBOX=none)"

Mounts = dict[Path, tuple[str, ...]]


class Bubblewrap:
    """Makes the root read-only, hides the `hidden` folders, and lets commands write to the working directory and to the
    `writable` folders.

    Pass folders to hide: a file is hidden only as it exists now, and a path that does not exist yet is not hidden at
    all. The bwrap program is looked up once, so that no command can put another one earlier on the PATH.
    """

    name = "bubblewrap"
    binds_directory = True

    def __init__(
        self, *, network: bool, hidden: Iterable[Path], writable: Iterable[Path] = (), search_path: str | None = None
    ) -> None:
        self._network = network
        self._hidden = tuple(hidden)
        self._writable = tuple(writable)
        program = shutil.which("bwrap", path=search_path)
        self._program = os.path.abspath(program) if program else None
        self._machine = os.uname().machine

    async def check(self) -> None:
        """Starts a sandbox and runs a shell in it: only that shows whether the system allows one, and filters calls."""
        line = (*self._prefix(self._opened(), "/", None), "/bin/sh", "-c", TRIAL)
        code, said = await _run(*ENTRY, CHECKED, self.filter.hex(), *line)
        if code and "bind-fd" in said:
            raise _outdated()
        if code in BY_FILTER or code == UNFILTERED or (code and "seccomp" in said.lower()):
            raise _unfiltered(said or f"exit code {code}")
        if code:
            raise _not_allowed(said or f"exit code {code}")

    def inside(self, directory: str, *, root: str = "", hidden: Iterable[Path] = ()) -> tuple[str, ...]:
        # Both must be real paths. They are not resolved again: a link that has replaced part of them since was not
        # meant.
        return self._prefix(self._opened(), directory, Path(root or directory), hidden)

    @property
    def program(self) -> str:
        return self._program or ""

    @property
    def filter(self) -> bytes:
        """The filter of system calls; empty on a machine for which there is none, where `inside` refuses."""
        return filter_program(self._machine) if self._machine in MACHINES else b""

    def _opened(self) -> set[Path]:
        return {_real(place) for place in self._writable}

    def _prefix(
        self, opened: set[Path], directory: str, root: Path | None, hidden: Iterable[Path] = ()
    ) -> tuple[str, ...]:
        if self._program is None:
            raise _missing()
        if self._machine not in MACHINES:
            raise _no_filter(self._machine)
        return (
            self._program,
            *ALONE,
            *(() if self._network else ("--unshare-net",)),
            *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
            *(word for place in OF_THE_KERNEL for word in ("--ro-bind-try", place, place)),
            *(("--ro-bind-fd", str(BOUND), CHECKED) if root is None else ()),
            *self._mounts(opened, root, hidden),
            *("--setenv", "TMPDIR", "/tmp", "--unsetenv", "XDG_RUNTIME_DIR"),
            *("--chdir", directory, "--"),
        )

    def _mounts(self, others: set[Path], root: Path | None, more: Iterable[Path]) -> Iterator[str]:
        opened = others | ({root} if root is not None else set())
        own = {_real(place) for place in OWN if os.path.isdir(place)}
        made_anew = own | {Path(place) for place in OF_THE_SYSTEM}
        hidden = {_real(place) for place in (*self._hidden, *more)} - made_anew
        _refuse_contradictions(opened | {_real(place) for place in opened}, hidden)
        mounts: Mounts = {place: ("--tmpfs", str(place)) for place in own}
        mounts |= {place: _as_it_is(place, read_only=True) for place in self._kept_of_run(own)}
        for place in hidden:
            mounts |= _hiding(place, opened, hidden | made_anew)
        mounts |= {place: _as_it_is(place) for place in others}
        if root is not None:
            mounts[root] = ("--bind-fd", str(BOUND), str(root))
        for _, mount in sorted(mounts.items(), key=lambda item: len(item[0].parts)):
            yield from mount
        for place in sorted(hidden & mounts.keys()):
            # Writes to a hidden folder would be lost without an error.
            yield from ("--remount-ro", str(place))

    def _kept_of_run(self, own: set[Path]) -> Iterator[Path]:
        for place in (PROGRAMS_IN_RUN, *((RESOLVER,) if self._network else ())):
            real = _real(place)
            if any(real.is_relative_to(empty) for empty in own) and real.exists():
                yield real


def _hiding(place: Path, opened: set[Path], empty: set[Path]) -> Mounts:
    around = _nearest(place, opened | empty)
    if around in empty or not place.exists():
        return {}
    if not place.is_dir():
        if around is not None:
            raise IsolationUnavailable(
                "sandbox_directory",
                f"{place} can't be hidden from commands that may write to {around}. Keep the database in a folder of "
                "its own (--data-dir), or work in another directory.",
            )
        return {place: ("--ro-bind", os.devnull, str(place))}
    # A mount point can't be renamed, so no command can replace the hidden folder, or a folder around it, with another.
    between = [one for one in place.parents if around is not None and one != around and one.is_relative_to(around)]
    return {one: _as_it_is(one) for one in between} | {place: ("--tmpfs", str(place))}


def _nearest(place: Path, others: set[Path]) -> Path | None:
    """Returns the innermost folder of `others` that contains `place`, or None."""
    return next((one for one in place.parents if one in others), None)


def _as_it_is(place: Path, *, read_only: bool = False) -> tuple[str, ...]:
    return ("--ro-bind" if read_only else "--bind", str(place), str(place))


def _real(place: str | Path) -> Path:
    return Path(os.path.realpath(place))


def _refuse_contradictions(opened: set[Path], hidden: set[Path]) -> None:
    for place in hidden & {Path(one) for one in ("/", "/sys")}:
        raise IsolationUnavailable(
            "sandbox_directory",
            f"{place} can't be hidden from commands. Keep the database in a folder of its own (--data-dir).",
        )
    for place in opened & hidden:
        raise IsolationUnavailable(
            "sandbox_directory",
            f"Commands can't work in {place} in a sandbox: the database or its files are there. Keep it in a "
            "folder of its own (--data-dir), or work in another directory.",
        )
    for place in opened & {_real(one) for one in NOT_ALONE}:
        raise IsolationUnavailable(
            "sandbox_directory",
            f"Commands can't work in {place} itself in a sandbox. Work in a folder below it.",
        )


async def _run(*line: str) -> tuple[int | None, str]:
    """Returns the exit code and the end of stderr."""
    try:
        process = await asyncio.create_subprocess_exec(
            *line,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
            env={"PATH": os.defpath},
        )
    except OSError as error:
        raise _not_allowed(str(error)) from error
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            _, said = await process.communicate()
    except TimeoutError:
        raise _not_allowed(f"it did not end within {CHECK_SECONDS:g} seconds") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, said.decode("utf-8", "replace").strip()[-500:]


# Reasons why a sandbox can't be made


def _missing() -> IsolationUnavailable:
    if sys.platform != "linux":
        return IsolationUnavailable(
            "sandbox_unsupported",
            f"The sandbox is made with bubblewrap, which needs Linux. Run Holdfast in a container there, {LEAVE_OUT}.",
        )
    return IsolationUnavailable(
        "sandbox_missing",
        f"bubblewrap is not installed: there is no bwrap on the PATH. Install the package `bubblewrap`, {LEAVE_OUT}.",
    )


def _outdated() -> IsolationUnavailable:
    return IsolationUnavailable(
        "sandbox_outdated",
        "bubblewrap is too old: it lacks --bind-fd, which gives a command exactly the folder that was checked. "
        f"Install version 0.10 or later, or the security update of your distribution, {LEAVE_OUT}.",
    )


def _no_filter(machine: str) -> IsolationUnavailable:
    return IsolationUnavailable(
        "sandbox_unsupported",
        f"The sandbox has no filter of system calls for this kind of processor ({machine or 'unknown'}), only for "
        f"{' and '.join(MACHINES)}. Run Holdfast on one of these, {LEAVE_OUT}.",
    )


def _unfiltered(said: str) -> IsolationUnavailable:
    return IsolationUnavailable(
        "sandbox_unsupported",
        f"The filter of system calls does not work here ({said}). It needs a kernel with CONFIG_SECCOMP_FILTER, and "
        f"programs that are made for the same kind of processor as the kernel. Run Holdfast on another machine, "
        f"{LEAVE_OUT}.",
    )


def _not_allowed(said: str) -> IsolationUnavailable:
    return IsolationUnavailable(
        "sandbox_forbidden", f"bubblewrap can't make a sandbox here ({said}). {_advice()}, {LEAVE_OUT}."
    )


def _advice() -> str:
    if os.geteuid() and _system_says("kernel/apparmor_restrict_unprivileged_userns", "1"):
        return "AppArmor forbids it: give bwrap a profile, as docs/sandbox.md shows"
    if os.geteuid() and _system_says("kernel/unprivileged_userns_clone", "0"):
        return "Only root may make namespaces: set the sysctl kernel.unprivileged_userns_clone to 1"
    if _system_says("user/max_user_namespaces", "0"):
        return "Namespaces are turned off: set the sysctl user.max_user_namespaces to, say, 10000"
    return "If this is a container, let it make namespaces, as docs/sandbox.md shows, or rely on the container alone"


def _system_says(name: str, value: str) -> bool:
    try:
        return (SYSCTLS / name).read_text("ascii").strip() == value
    except (OSError, UnicodeError):
        return False
