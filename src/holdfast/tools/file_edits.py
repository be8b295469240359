"""The tools `create` and `edit`. After any crash, a file has its old content or its new one, never a part of either."""

import os
import secrets
import stat
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.events.request import PermissionAsk
from holdfast.tools.diffs import unified
from holdfast.tools.errors import ToolFailure
from holdfast.tools.paths import ResolvedPath, opened, parent_of, permitted_path, resolve
from holdfast.tools.search_program import printable
from holdfast.tools.tool import Tool, ToolContext, ToolResult, in_thread

MAX_EDIT_BYTES = 10_000_000
"""A larger file is not read for editing; a command can change it."""

MAX_ASK_BYTES = 400_000
"""The size of a file read to show the change to people: this blocks the event loop."""

MAX_SHOWN_CHARACTERS = 100_000
"""The size of new content that is stored with the permission request."""


class Create(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    path: str
    file_text: str


class Edit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    path: str
    old_str: str
    new_str: str = ""


# Permission requests


def _asks_to_create(arguments: Create, working_directory: Path | None) -> PermissionAsk:
    target = resolve(arguments.path, working_directory)
    before = _before(target) or ""
    return _write_ask(target, "Create", _diff(target, before, arguments.file_text), arguments.file_text)


def _asks_to_edit(arguments: Edit, working_directory: Path | None) -> PermissionAsk:
    target = resolve(arguments.path, working_directory)
    _check_edit(arguments)
    before = _before(target)
    try:
        if before is not None:
            after = _edited(arguments, before)
            return _write_ask(target, "Edit", _diff(target, before, after), after)
    except ToolFailure:
        pass  # The model learns whether the text matches only after it got permission to look.
    return _write_ask(target, "Edit", _diff(target, arguments.old_str, arguments.new_str), None)


def _write_ask(target: ResolvedPath, doing: str, diff: str, contents: str | None) -> PermissionAsk:
    details = {
        "intention": f"{doing} {printable(target.requested)}",
        "fileName": str(target.real),
        "diff": diff,
        "canOfferSessionApproval": True,
    }
    if contents is not None and len(contents) <= MAX_SHOWN_CHARACTERS:
        details["newFileContents"] = contents
    return PermissionAsk(kind="write", subject=target.subject, inside=target.inside, details=details)


def _diff(target: ResolvedPath, before: str, after: str) -> str:
    return unified(before, after, printable(target.subject).lstrip("/"))


def _before(target: ResolvedPath) -> str | None:
    """Returns the current content for the diff. A file outside the working directory is not read before permission."""
    try:
        return _content(target, MAX_ASK_BYTES)[0] if target.inside else None
    except (OSError, ToolFailure, UnicodeDecodeError):
        return None


# Execution


def _create(arguments: Create, context: ToolContext) -> ToolResult:
    target = permitted_path(arguments.path, context)
    with _alone(target):
        before = _before(target) or ""
        try:
            replace(target, arguments.file_text.encode())
        except OSError as error:
            raise ToolFailure(f"{target.requested} can't be written: {error.strerror}") from error
    text = f"Created file {target.requested} with {len(arguments.file_text)} characters"
    return ToolResult(content=text, details=_diff(target, before, arguments.file_text))


def _edit(arguments: Edit, context: ToolContext) -> ToolResult:
    target = permitted_path(arguments.path, context)
    _check_edit(arguments)
    with _alone(target):
        try:
            before, seen = _content(target, MAX_EDIT_BYTES)
            after = _edited(arguments, before)
            replace(target, after.encode(), seen=seen)
        except FileNotFoundError as error:
            raise ToolFailure(f"{target.requested} does not exist") from error
        except UnicodeDecodeError as error:
            raise ToolFailure(f"{target.requested} is not a text file") from error
        except OSError as error:
            raise ToolFailure(f"{target.requested} can't be edited: {error.strerror}") from error
    text = f"File {target.requested} updated with changes."
    return ToolResult(content=text, details=_diff(target, before, after))


def _check_edit(arguments: Edit) -> None:
    if not arguments.old_str:
        raise ToolFailure("old_str is empty: give the text that is to be replaced, or use create")
    if arguments.old_str == arguments.new_str:
        raise ToolFailure("old_str and new_str are the same: there is nothing to change")


def _edited(arguments: Edit, before: str) -> str:
    """Returns the new content. Models write line feeds only, also where the file's lines end in CR LF."""
    old, new = arguments.old_str, arguments.new_str
    if old not in before and "\r\n" in before:
        old, new = (text.replace("\r\n", "\n").replace("\n", "\r\n") for text in (old, new))
    count = before.count(old)
    if count == 0:
        raise ToolFailure(f"old_str was not found in {arguments.path}; it must match exactly, with its white space")
    if count > 1:
        raise ToolFailure(
            f"old_str was found {count} times in {arguments.path}; give more of what stands around the one you mean"
        )
    return before.replace(old, new)


def _content(target: ResolvedPath, limit: int) -> tuple[str, os.stat_result]:
    """Returns the text of a file and its status when it was read."""
    with opened(target) as descriptor:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise ToolFailure(f"{target.requested} is a directory")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    if len(data) > limit:
        raise ToolFailure(f"{target.requested} is larger than {limit:,} bytes")
    return data.decode(), found


_locks: weakref.WeakValueDictionary[Path, threading.Lock] = weakref.WeakValueDictionary()
_making_locks = threading.Lock()


@contextmanager
def _alone(target: ResolvedPath) -> Iterator[None]:
    """Serialises edits of one file: models edit a file several times in one message, and such calls run
    concurrently."""
    with _making_locks:
        lock = _locks.setdefault(target.real, threading.Lock())
    with lock:
        yield


def replace(target: ResolvedPath, data: bytes, *, seen: os.stat_result | None = None) -> None:
    """Replaces a file atomically, also across a power loss: write a temporary file, sync, rename. With `seen`, only if
    the file is unchanged since then. A crash before the rename leaves a hidden file beside it, one after it the new
    content."""
    name = target.real.name
    if not name:
        raise ToolFailure(f"{target.requested} is a directory")
    with parent_of(target, create=seen is None) as parent:
        existing = _existing(target, parent, seen)
        aside = f".holdfast-{secrets.token_hex(8)}"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if existing is not None:
                    _keep_owner_and_mode(descriptor, existing)
                os.fsync(descriptor)
            os.replace(aside, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            os.unlink(aside, dir_fd=parent)
            raise
        _sync_directory(parent)


def _existing(target: ResolvedPath, parent: int, seen: os.stat_result | None) -> os.stat_result | None:
    name = target.real.name
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        if seen is None:
            return None
        raise
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(0, "Is a directory")
    if not stat.S_ISREG(found.st_mode):
        raise ToolFailure(f"{target.requested} is not a file")
    if seen is not None and _version(found) != _version(seen):
        raise ToolFailure(f"{target.requested} changed while it was being edited; look at it again")
    if not os.access(name, os.W_OK, dir_fd=parent):
        raise PermissionError(0, "it is read-only")  # A rename alone would ignore that.
    return found


def _version(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _keep_owner_and_mode(descriptor: int, existing: os.stat_result) -> None:
    try:
        os.fchown(descriptor, existing.st_uid, existing.st_gid)
    except OSError:
        pass  # It belonged to another user; from now on it belongs to this one.
    os.fchmod(descriptor, existing.st_mode & 0o777)


def _sync_directory(parent: int) -> None:
    """Syncs the directory, so that a reported change survives a power loss."""
    try:
        directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return  # A directory that may not be listed.
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


create = Tool(
    name="create",
    origin="file",
    description="Write a text file, and the directories that it needs. An existing file of that name is replaced.",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file."},
            "file_text": {"type": "string", "description": "All that the file will hold."},
        },
        "required": ["path", "file_text"],
        "additionalProperties": False,
    },
    arguments=Create,
    run=in_thread(_create),
    asks=_asks_to_create,
    after_crash="repeat",
)

edit = Tool(
    name="edit",
    origin="file",
    description="Replace a piece of a text file. The piece must occur in it exactly once.",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file."},
            "old_str": {
                "type": "string",
                "description": "The text to replace, exactly as it is in the file, without line numbers. Take enough "
                "of the lines around it to make it unique.",
            },
            "new_str": {"type": "string", "description": "What to put in its place; empty to remove it."},
        },
        "required": ["path", "old_str", "new_str"],
        "additionalProperties": False,
    },
    arguments=Edit,
    run=in_thread(_edit),
    asks=_asks_to_edit,
    # A second run would not find its text any more, or change it once more.
    after_crash="report",
)
