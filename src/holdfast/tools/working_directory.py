"""The working directory of a session: one certain folder, and not whatever its path leads to today.

Its identity is fixed once: the real path, the device and the inode. Each use opens it from the root of the file system,
step by step and without following a link, and compares what was found. Programs that run in another session may rename
folders and put links in their place; a path that leads elsewhere by then is refused, and nothing is done there.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PosixPath
from typing import Final

from holdfast.commands.processes import boot_id
from holdfast.events.session import DirectoryIdentity
from holdfast.tools.errors import ToolFailure

PASSING: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
"""To go through a directory, which with O_PATH needs no right to list it."""

CHOOSE_AGAIN: Final = (
    "choose the folder for this session again (`holdfast sessions move`, or `working_directory` in a PATCH of the "
    "session), or start a new session there"
)

Identify = Callable[..., DirectoryIdentity | None]
"""As `identity_of`: where the folders are not those of this machine, another one."""

_OPEN_FILES: Final = Path("/proc/self/fd")


class DirectoryRefused(ToolFailure):
    """The session can't work in its directory. The sentence says why, and how to go on; nothing was done.

    Codes: `directory_changed` (something else has its name), `directory_missing`, `directory_not_allowed`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class WorkingDirectory(PosixPath):
    """A path that knows which folder it stands for. Without an identity it is that path, wherever it leads."""

    identity: DirectoryIdentity | None = None
    is_real: bool = False
    """Without an identity: it had no link in it when it was given, so one that is there by now is not followed."""
    may_be_used: Callable[[str], bool] | None = None
    """Whether the policy of this server lets the session work below that real path; None: it says nothing of it."""

    @classmethod
    def of(
        cls,
        path: str,
        identity: DirectoryIdentity | None,
        may_be_used: Callable[[str], bool] | None = None,
        *,
        is_real: bool = False,
    ) -> "WorkingDirectory":
        found = cls(path if identity is None else identity.path)
        found.identity = identity
        found.may_be_used = may_be_used
        found.is_real = is_real or identity is not None
        return found

    def real(self) -> Path:
        """The path without links: as it was when the folder was fixed, or as it is now."""
        return Path(str(self) if self.is_real else os.path.realpath(self))

    @contextmanager
    def opened(self) -> Iterator[int]:
        """The folder itself, open. Raises `DirectoryRefused` if it is not the one that was meant."""
        descriptor = self._open()
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        if not self.is_real:
            return open_without_links(self.real())
        if self.may_be_used is not None and not self.may_be_used(str(self)):
            raise DirectoryRefused(
                "directory_not_allowed",
                f"This session may no longer work in {self}: that folder is not among those that its maker may choose "
                "(HOLDFAST_USER_DIRECTORIES). Nothing was done. Start a session in a folder that is.",
            )
        try:
            descriptor = open_without_links(self.real())
        except FileNotFoundError:
            raise DirectoryRefused(
                "directory_missing",
                f"The working directory {self} is not there any more, so nothing was done. Put it back, or make it "
                f"anew and then {CHOOSE_AGAIN}.",
            ) from None
        except NotADirectoryError:
            raise _changed(self) from None
        except OSError as error:
            raise DirectoryRefused(
                "directory_missing", f"The working directory {self} can't be opened: {error.strerror}."
            ) from error
        if self.identity is not None and not _is_same(self.identity, os.fstat(descriptor)):
            os.close(descriptor)
            raise _changed(self)
        return descriptor


def working_directory(path: str | Path) -> WorkingDirectory:
    """A path as it is, if it knows which folder it stands for; any other stands for where it leads."""
    return path if isinstance(path, WorkingDirectory) else WorkingDirectory(path)


def identity_of(path: str, *, limited: bool = False, follow_links: bool = True) -> DirectoryIdentity | None:
    """Which folder a path leads to now; None: to none, or, unless they are followed, through a link. `limited`: it was
    chosen by a role whose folders the server bounds, so that every use is held to those bounds."""
    try:
        real = os.path.realpath(path, strict=True) if follow_links else os.path.abspath(path)
        descriptor = open_without_links(Path(real))
    except (OSError, ValueError):
        return None
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return DirectoryIdentity(path=real, device=found.st_dev, inode=found.st_ino, boot=_boot(), limited=limited)


def is_still(identity: DirectoryIdentity | None, path: str) -> bool:
    """Whether a path leads to the folder of that identity; also if nobody has fixed one yet."""
    if identity is None:
        return True
    found = identity_of(path)
    return found is not None and (found.path, found.inode) == (identity.path, identity.inode)


def open_without_links(path: Path) -> int:
    """A directory, gone to step by step. Raises `NotADirectoryError` where a link is in the way."""
    os.stat(f"{path}/.")  # What is mounted only when somebody comes is mounted now; the steps below would not do it.
    root = os.open("/", PASSING)
    try:
        return open_below(root, path.parts[1:])
    finally:
        os.close(root)


def open_below(directory: int, steps: Iterable[str]) -> int:
    found = os.dup(directory)
    for step in steps:
        try:
            below = os.open(step, PASSING, dir_fd=found)
        finally:
            os.close(found)
        found = below
    return found


@contextmanager
def place_to_start(directory: str, root: WorkingDirectory, *, by_root: bool) -> Iterator[str]:
    """A name by which the supervisor opens the folder that a command is to run in, for as long as this lasts. The
    folder lies in `root`, a working directory; with `by_root` it is the root itself that is opened, and the program
    that confines the command goes on from there."""
    try:
        with root.opened() as opened:
            found = open_below(opened, () if by_root else Path(directory).relative_to(root.real()).parts)
    except OSError as error:
        code = "directory_missing" if isinstance(error, FileNotFoundError) else "directory_changed"
        raise DirectoryRefused(code, f"The command can't be started: {directory}: {error.strerror}.") from None
    try:
        yield path_of(found, Path(directory))
    finally:
        os.close(found)


def path_of(descriptor: int, path: Path) -> str:
    """A name by which another process of the same user opens exactly what is open here. Where the system has no such
    names it is the path."""
    return f"/proc/{os.getpid()}/fd/{descriptor}" if _has_open_files() else str(path)


@cache
def _has_open_files() -> bool:
    return _OPEN_FILES.is_dir()


def _is_same(identity: DirectoryIdentity, found: os.stat_result) -> bool:
    if not stat.S_ISDIR(found.st_mode) or found.st_ino != identity.inode:
        return False
    # Disks get their numbers anew when a machine starts, another machine has its own, and file systems without a disk
    # get one at each mount.
    is_comparable = identity.boot == _boot() and os.major(found.st_dev) and os.major(identity.device)
    return not is_comparable or found.st_dev == identity.device


@cache
def _boot() -> str:
    """Names this start of this machine, and tells nothing else of it."""
    return hashlib.sha256(boot_id().encode()).hexdigest()[:16]


def _changed(path: Path) -> DirectoryRefused:
    return DirectoryRefused(
        "directory_changed",
        f"The working directory {path} is not the folder any more that this session was given: something else has "
        f"taken its place, so nothing was done. If that was intended, {CHOOSE_AGAIN}.",
    )
