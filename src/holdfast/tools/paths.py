"""Resolves paths, and opens exactly what was resolved: a link that is put in the way later is not followed."""

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
"""No file system has longer paths, and resolving takes time for each part."""

_ARRIVING = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Flags to open the resolved file: a pipe without a writer is not waited for."""


class ResolvedPath(msgspec.Struct, frozen=True):
    """A path with every link on the way followed, at the time it was resolved."""

    requested: str
    """The path as the model wrote it; messages to the model use it."""
    root: Path
    real: Path
    directory: WorkingDirectory | None = None
    """The root with its identity, if that is known."""

    @property
    def inside(self) -> bool:
        return self.real.is_relative_to(self.root)

    @property
    def subject(self) -> str:
        """The text that permission rules are matched with: relative inside the working directory, absolute
        elsewhere."""
        return str(self.real.relative_to(self.root)) if self.inside else str(self.real)


def resolve(path: str, working_directory: Path | None) -> ResolvedPath:
    """Resolves a path. Its target need not exist."""
    if working_directory is None:
        raise ToolFailure("This session has no working directory, so it has no files")
    if "\0" in path:
        raise ToolFailure("A path can't contain a NUL character")
    if len(path) > MAX_PATH_CHARACTERS:
        raise ToolFailure(f"A path has at most {MAX_PATH_CHARACTERS:,} characters; this one has {len(path):,}")
    try:
        root, directory = _root_of(working_directory)
        return ResolvedPath(path, root, (root / Path(path).expanduser()).resolve(), directory)
    except (OSError, RuntimeError) as error:  # A loop of links, or the home of an unknown user.
        raise ToolFailure(f"{path} can't be followed: {_reason(error)}") from error


def _root_of(directory: Path) -> tuple[Path, WorkingDirectory | None]:
    """Returns the root. A folder with a fixed identity must be where it was: raises `DirectoryRefused` if it is not.
    Any other is resolved."""
    if not isinstance(directory, WorkingDirectory) or not directory.is_real:
        return directory.resolve(), None
    with directory.opened():
        return directory.real(), directory


def permitted_path(path: str, context: ToolContext) -> ResolvedPath:
    """Resolves a path again when the tool runs, and refuses it if it leads elsewhere than what was permitted."""
    target = resolve(path, context.working_directory)
    permitted = context.permitted
    if permitted is not None and (permitted.subject, permitted.inside) != (target.subject, target.inside):
        raise ToolFailure(f"{path} leads elsewhere than it did when this was permitted; nothing was done")
    return target


def read_ask(path: str, working_directory: Path | None, intention: str) -> PermissionAsk:
    """Returns the permission request to read a file, or below a directory."""
    target = resolve(path, working_directory)
    details = {"intention": intention, "path": str(target.real)}
    return PermissionAsk(kind="read", subject=target.subject, inside=target.inside, details=details)


@contextmanager
def opened(target: ResolvedPath) -> Iterator[int]:
    """Opens the file or directory for reading. Raises `OSError`, or `ToolFailure` if it is neither."""
    is_root = target.real == target.root
    with _root(target) if is_root else parent_of(target) as parent:
        name = "." if is_root else target.real.name or "."
        # Opening a device can have side effects, so check first.
        _check_kind(target, os.stat(name, dir_fd=parent, follow_symlinks=False))
        descriptor = os.open(name, os.O_RDONLY | _ARRIVING, dir_fd=parent)
    try:
        _check_kind(target, os.fstat(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def parent_of(target: ResolvedPath, *, create: bool = False) -> Iterator[int]:
    """Opens the parent directory step by step, without following a link."""
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
    """Opens the working directory, whatever its path leads to by now."""
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
        child = os.open(step, PASSING, dir_fd=directory)
    except FileNotFoundError:
        if not create:
            raise
        try:
            os.mkdir(step, dir_fd=directory)
        except FileExistsError:
            pass  # Another process created it in between.
        child = os.open(step, PASSING, dir_fd=directory)
    os.close(directory)
    return child


def _check_kind(target: ResolvedPath, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise ToolFailure(f"{target.requested} is not a file")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
