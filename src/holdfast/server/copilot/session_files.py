"""The files that a session keeps for its clients: a plan and a workspace. Every call blocks, so call it in a thread.

Programs that the session ran may have left any file or link in these folders. So each folder is opened relative to its
parent without following links, and every read and write stays inside. A write replaces a file atomically.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from holdfast.events.ids import random_id
from holdfast.server.errors import Conflict, Invalid, NotFound, OperationError

PLAN: Final = "plan.md"
FILES: Final = "files"

MAX_FILE_BYTES: Final = 8_000_000
"""A file is sent whole, in one message."""

MAX_FILES: Final = 10_000
"""A listing is sent in one message, too."""

MAX_DEPTH: Final = 64
"""Depth of nested folders."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

OUTSIDE: Final = "Path must be within the workspace files directory"


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a file or folder."""

    size: int
    changed_ms: float
    made_ms: float
    is_file: bool
    is_directory: bool


class SessionFiles:
    """The plan and the workspace in one session's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    # The plan

    @property
    def plan_path(self) -> Path:
        return self._folder / PLAN

    def read_plan(self) -> str | None:
        with _client_errors(PLAN):
            try:
                with self._opened() as folder:
                    return _read(folder, PLAN)
            except FileNotFoundError:
                return None

    def write_plan(self, text: str) -> bool:
        """Write the plan and return whether it replaced one. Durable on return."""
        with _client_errors(PLAN), self._opened(make=True) as folder:
            existed = _exists(folder, PLAN)
            _write(folder, folder, PLAN, text)
            return existed

    def delete_plan(self) -> bool:
        """Delete the plan and return whether there was one."""
        with _client_errors(PLAN):
            try:
                with self._opened() as folder:
                    os.unlink(PLAN, dir_fd=folder)
                    os.fsync(folder)
            except FileNotFoundError:
                return False
            return True

    # The workspace

    def listed(self) -> list[str]:
        """The path of every file in the workspace, sorted."""
        paths: list[str] = []
        with _client_errors(FILES):
            try:
                with self._opened() as folder:
                    _list(folder, FILES, "", paths)
            except FileNotFoundError:
                return []
        return sorted(paths)

    def read(self, path: str) -> str:
        with self._at(path) as (folder, name):
            return _read(folder, name)

    def write(self, path: str, text: str) -> None:
        """Write a file, and make its parent folders. Durable on return."""
        with self._at(path, make=True) as (folder, name), self._opened() as own:
            _write(own, folder, name, text)

    def make_directory(self, path: str, *, parents: bool) -> None:
        with self._at(path, make=parents) as (folder, name):
            _make_folder(folder, name)
            os.close(os.open(name, _FOLDER, dir_fd=folder))  # Fails if the name exists and is not a folder.

    def remove(self, path: str, *, folders: bool, missing_too: bool) -> None:
        """Remove a file or an empty folder; with `folders`, a folder and its content too."""
        try:
            with self._at(path) as (folder, name):
                _remove(folder, name, whole=folders)
                os.fsync(folder)
        except NotFound:
            if not missing_too:
                raise

    def rename(self, source: str, destination: str) -> None:
        with self._at(source) as (old, name), self._at(destination) as (new, renamed):
            os.rename(name, renamed, src_dir_fd=old, dst_dir_fd=new)
            os.fsync(new)

    def info(self, path: str) -> FileInfo:
        with self._at(path) as (folder, name):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return FileInfo(
            size=status.st_size,
            changed_ms=status.st_mtime * 1000,
            made_ms=getattr(status, "st_birthtime", status.st_ctime) * 1000,
            is_file=stat.S_ISREG(status.st_mode),
            is_directory=stat.S_ISDIR(status.st_mode),
        )

    # Paths

    @contextlib.contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[int]:
        if make:
            self._folder.mkdir(parents=True, exist_ok=True)
        folder = os.open(self._folder, _FOLDER)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _at(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the parent folder of a workspace path; yields its descriptor and the last name of the path."""
        names = self._names(path)
        with _client_errors(path), self._opened(make=make) as folder, contextlib.ExitStack() as opened_folders:
            for name in (FILES, *names[:-1]):
                if make:
                    _make_folder(folder, name)
                folder = os.open(name, _FOLDER, dir_fd=folder)
                opened_folders.callback(os.close, folder)
            yield folder, names[-1]

    def _names(self, path: str) -> list[str]:
        """The parts of a path. `..` is resolved as text, without touching the disk. Raises `Invalid` for a path
        outside."""
        if "\0" in path:
            raise Invalid("path_invalid", "A path can't have a NUL character in it.")
        plain = os.path.normpath(os.path.join(self._folder / FILES, path))
        within = os.path.relpath(plain, self._folder / FILES)
        names = within.split("/")
        if names[0] == "..":
            raise Invalid("path_outside", OUTSIDE)
        if names == ["."]:
            raise Invalid("path_invalid", "A path must name something in the workspace.")
        if len(names) > MAX_DEPTH:
            raise Invalid("path_invalid", f"A path has at most {MAX_DEPTH} parts.")
        return names


@contextlib.contextmanager
def _client_errors(path: str) -> Iterator[None]:
    """Turn an OSError about `path` into an error for the client."""
    try:
        yield
    except OSError as error:
        raise _client_error(path, error) from error


def _client_error(path: str, error: OSError) -> OperationError:
    match error.errno:
        case errno.ENOENT:
            return NotFound("file_not_found", f"{path} does not exist.")
        case errno.ELOOP | errno.ENOTDIR:
            # A link, or a file in place of a folder: its target is not in the workspace.
            return Invalid("path_outside", OUTSIDE)
        case errno.EISDIR | errno.ENOTEMPTY | errno.EEXIST:
            return Conflict("path_taken", f"{path}: {error.strerror}.")
        case _:
            return Conflict("files_unavailable", f"{path}: {error.strerror}.")


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _read(folder: int, name: str) -> str:
    file = os.open(name, _FILE, dir_fd=folder)
    with open(file, "rb") as opened:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise Invalid("not_a_file", f"{name} is not a file.")
        data = opened.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise Invalid("file_too_large", f"{name} has more than {MAX_FILE_BYTES:,} bytes.")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid("file_not_text", f"{name} is not a text file in UTF-8.") from None


def _write(own: int, folder: int, name: str, text: str) -> None:
    """Write beside the workspace and rename into place. A crash before the rename leaves the old file, and a stray
    temporary file that is not listed and is deleted with the session."""
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_FILE_BYTES:
        raise Invalid("file_too_large", f"A file has at most {MAX_FILE_BYTES:,} bytes; this has {len(data):,}.")
    temporary = f".{random_id()}.tmp"
    try:
        with open(os.open(temporary, _NEW, 0o600, dir_fd=own), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name, src_dir_fd=own, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=own)
        raise
    os.fsync(folder)


def _make_folder(folder: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        return
    os.fsync(folder)


def _remove(folder: int, name: str, *, whole: bool) -> None:
    about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISDIR(about.st_mode):
        os.unlink(name, dir_fd=folder)
    elif whole:
        shutil.rmtree(name, dir_fd=folder)
    else:
        os.rmdir(name, dir_fd=folder)


def _list(parent: int, name: str, path: str, paths: list[str]) -> None:
    folder = os.open(name, _FOLDER, dir_fd=parent)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    paths.append(path + entry.name)
                elif entry.is_dir(follow_symlinks=False) and path.count("/") < MAX_DEPTH:
                    _list(folder, entry.name, f"{path}{entry.name}/", paths)
                if len(paths) > MAX_FILES:
                    raise Conflict("too_many_files", f"The workspace has more than {MAX_FILES:,} files.")
    finally:
        os.close(folder)
