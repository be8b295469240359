"""Where a path really leads, and how to open just that: a link that is put in the way later is not followed."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.events.request import PermissionAsk
from holdfast.tools.errors import ToolFailure
from holdfast.tools.tool import ToolContext
from holdfast.tools.working_directory import PASSING, WorkingDirectory, working_directory

MAX_PATH_CHARACTERS = 4096
"""No file system has longer ones, and following one takes time for each of its parts."""

_ARRIVING = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""To open what was led to: a pipe that nobody writes into is not waited for."""


class ResolvedPath(msgspec.Struct, frozen=True):
    """Where a path led when somebody looked, every link on the way followed."""

    requested: str
    """The path as the model wrote it, which is what it is told about."""
    root: Path
    real: Path
    directory: WorkingDirectory | None = None
    """The root as the folder that it has to be, where that is known."""

    @property
    def inside(self) -> bool:
        return self.real.is_relative_to(self.root)

    @property
    def subject(self) -> str:
        """What permission rules are matched with: relative inside the working directory, absolute elsewhere."""
        return str(self.real.relative_to(self.root)) if self.inside else str(self.real)


def resolve(path: str, working_directory: Path | None) -> ResolvedPath:
    """Follow a path. What it leads to need not exist."""
    if working_directory is None:
        raise ToolFailure("This session has no working directory, so it has no files")
    if "\0" in path:
        raise ToolFailure("A path can't contain a NUL character")
    if len(path) > MAX_PATH_CHARACTERS:
        raise ToolFailure(f"A path has at most {MAX_PATH_CHARACTERS:,} characters; this one has {len(path):,}")
    try:
        root, directory = _root_of(working_directory)
        return ResolvedPath(path, root, (root / Path(path).expanduser()).resolve(), directory)
    except (OSError, RuntimeError) as error:  # Links in a circle, or the home of a user that there is not.
        raise ToolFailure(f"{path} can't be followed: {_reason(error)}") from error


def _root_of(given: Path) -> tuple[Path, WorkingDirectory | None]:
    """A folder that is fixed is where it was: raises `DirectoryRefused` if it is not. Any other is where it leads."""
    if not isinstance(given, WorkingDirectory) or not given.is_real:
        return given.resolve(), None
    with given.opened():
        return given.real(), given


def permitted_path(path: str, context: ToolContext) -> ResolvedPath:
    """Follow a path once more as the tool runs. One that leads elsewhere by now is not what was permitted."""
    target = resolve(path, context.working_directory)
    asked = context.permitted
    if asked is not None and (asked.subject, asked.inside) != (target.subject, target.inside):
        raise ToolFailure(f"{path} leads elsewhere than it did when this was permitted; nothing was done")
    return target


def read_ask(path: str, working_directory: Path | None, intention: str) -> PermissionAsk:
    """What reading a file or below a directory asks for."""
    target = resolve(path, working_directory)
    details = {"intention": intention, "path": str(target.real)}
    return PermissionAsk(kind="read", subject=target.subject, inside=target.inside, details=details)


@contextmanager
def opened(target: ResolvedPath) -> Iterator[int]:
    """The file or directory itself, for reading. Raises `OSError`, or `ToolFailure` for what is neither."""
    is_root = target.real == target.root
    with _root(target) if is_root else parent_of(target) as parent:
        name = "." if is_root else target.real.name or "."
        # Opening a device can have effects of its own, so look before.
        _check_kind(target, os.stat(name, dir_fd=parent, follow_symlinks=False))
        descriptor = os.open(name, os.O_RDONLY | _ARRIVING, dir_fd=parent)
    try:
        _check_kind(target, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def parent_of(target: ResolvedPath, *, create: bool = False) -> Iterator[int]:
    """The directory that holds it, gone to step by step without following a link."""
    is_below = target.inside and target.real != target.root
    steps = target.real.parent.relative_to(target.root if is_below else "/").parts
    with _root(target) if is_below else _opened("/") as start:
        directory = os.dup(start)
        try:
            for step in steps:
                directory = _next(directory, step, create=create)
            yield directory
        finally:
            os.close(directory)


@contextmanager
def _root(target: ResolvedPath) -> Iterator[int]:
    """The working directory itself, whatever its path leads to by now."""
    with working_directory(target.directory or target.root).opened() as directory:
        yield directory


@contextmanager
def _opened(path: str) -> Iterator[int]:
    directory = os.open(path, PASSING)
    try:
        yield directory
    finally:
        os.close(directory)


def _next(directory: int, step: str, *, create: bool) -> int:
    try:
        found = os.open(step, PASSING, dir_fd=directory)
    except FileNotFoundError:
        if not create:
            raise
        try:
            os.mkdir(step, dir_fd=directory)
        except FileExistsError:
            pass  # Somebody else made it in between.
        found = os.open(step, PASSING, dir_fd=directory)
    os.close(directory)
    return found


def _check_kind(target: ResolvedPath, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise ToolFailure(f"{target.requested} is not a file")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
