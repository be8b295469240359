"""The working directory of a session: one specific folder, not whatever its path leads to today.

Its identity is fixed once: real path, device and inode. Each use opens it from the root of the file system, step by
step and without following links, and compares the identity. Programs of another session may rename folders and put
links in their place; a path that leads elsewhere by then is refused, and nothing is done there.
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
"""Flags to pass through a directory; with O_PATH this needs no right to list it."""

CHOOSE_AGAIN: Final = (
    "choose the folder for this session again (`holdfast sessions move`, or `working_directory` in a PATCH of the "
    "session), or start a new session there"
)

Identify = Callable[..., DirectoryIdentity | None]
"""The signature of `identity_of`, so that a worker can be given another one."""

_OPEN_FILES: Final = Path("/proc/self/fd")


class DirectoryRefused(ToolFailure):
    """The session can't work in its directory. The message says why and how to continue; nothing was done.

    Codes: `directory_changed` (something else has its name), `directory_missing`, `directory_not_allowed`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class WorkingDirectory(PosixPath):
    """A path with the identity of its folder. Without an identity it is just the path, wherever it leads."""

    identity: DirectoryIdentity | None = None
    is_real: bool = False
    """Whether the path contained no link when it was set, so that a link in it by now is not followed."""
    may_be_used: Callable[[str], bool] | None = None
    """Whether the server's policy lets the session work below a real path; None: there is no such policy."""

    @classmethod
    def of(
        cls,
        path: str,
        identity: DirectoryIdentity | None,
        may_be_used: Callable[[str], bool] | None = None,
        *,
        is_real: bool = False,
    ) -> "WorkingDirectory":
        directory = cls(path if identity is None else identity.path)
        directory.identity = identity
        directory.may_be_used = may_be_used
        directory.is_real = is_real or identity is not None
        return directory

    def real(self) -> Path:
        """Returns the path without links: as it was when the folder was fixed, or as it is now."""
        return Path(str(self) if self.is_real else os.path.realpath(self))

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Opens the folder. Raises `DirectoryRefused` if it is not the one that was fixed."""
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
                f"This session may no longer work in {self}: its creator may not use that folder "
                "(HOLDFAST_USER_DIRECTORIES). Nothing was done. Start a session in a permitted folder.",
            )
        try:
            descriptor = open_without_links(self.real())
        except FileNotFoundError:
            raise DirectoryRefused(
                "directory_missing",
                f"The working directory {self} no longer exists, so nothing was done. Put it back, or create it "
                f"again and then {CHOOSE_AGAIN}.",
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
    """Returns a `WorkingDirectory`: the path itself if it is one; any other path stands for where it leads."""
    return path if isinstance(path, WorkingDirectory) else WorkingDirectory(path)


def identity_of(path: str, *, limited: bool = False, follow_links: bool = True) -> DirectoryIdentity | None:
    """Returns the identity of the folder that a path leads to; None if there is none, or if a link is in the way and
    `follow_links` is off. `limited`: the folder was chosen by a role that the server restricts to certain folders, so
    every use checks that restriction."""
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
    """Whether a path leads to the folder of that identity; also True if no identity has been fixed."""
    if identity is None:
        return True
    found = identity_of(path)
    return found is not None and (found.path, found.inode) == (identity.path, identity.inode)


def open_without_links(path: Path) -> int:
    """Opens a directory step by step. Raises `NotADirectoryError` if a link is in the way."""
    os.stat(f"{path}/.")  # This triggers automounts, which the steps below would not do.
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
    """Yields a name under which the supervisor can open the folder of a command, valid inside the context. The folder
    lies in `root`, a working directory. With `by_root` the root itself is opened, and the isolation program moves on
    from there to the folder."""
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
    """Returns a name under which another process of the same user opens exactly this open file. Falls back to the path
    if the system has no such names."""
    return f"/proc/{os.getpid()}/fd/{descriptor}" if _has_open_files() else str(path)


@cache
def _has_open_files() -> bool:
    return _OPEN_FILES.is_dir()


def _is_same(identity: DirectoryIdentity, found: os.stat_result) -> bool:
    if not stat.S_ISDIR(found.st_mode) or found.st_ino != identity.inode:
        return False
    # Device numbers are assigned anew at boot, differ between machines, and change at each mount for file systems
    # without a disk.
    is_comparable = identity.boot == _boot() and os.major(found.st_dev) and os.major(identity.device)
    return not is_comparable or found.st_dev == identity.device


@cache
def _boot() -> str:
    """Identifies this boot of this machine without revealing anything else about it."""
    return hashlib.sha256(boot_id().encode()).hexdigest()[:16]


def _changed(path: Path) -> DirectoryRefused:
    return DirectoryRefused(
        "directory_changed",
        f"The working directory {path} is no longer the folder that this session was given: something else has "
        f"taken its place, so nothing was done. If that was intended, {CHOOSE_AGAIN}.",
    )
