"""The tools that come with Holdfast: look at a file, write one, ask the person, read more of a long result."""

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from holdfast.events.request import PermissionAsk, PermissionKind
from holdfast.tools.errors import ToolFailure
from holdfast.tools.tool import Asker, Tool, ToolContext, tool

MAX_VIEW_BYTES = 10_000_000
"""A larger file is not read into memory; a part of it can be asked for."""


MAX_PATH_CHARACTERS = 4096
"""No file system has longer ones, and following one takes time for each of its parts."""


def resolve(path: str, working_directory: Path | None) -> tuple[Path, Path]:
    """The working directory and where a path really leads, links followed."""
    if working_directory is None:
        raise ToolFailure("This session has no working directory, so it has no files")
    if "\0" in path:
        raise ToolFailure("A path can't contain a NUL character")
    if len(path) > MAX_PATH_CHARACTERS:
        raise ToolFailure(f"A path has at most {MAX_PATH_CHARACTERS:,} characters; this one has {len(path):,}")
    root = working_directory.resolve()
    return root, (root / Path(path).expanduser()).resolve()


def _asks(kind: PermissionKind) -> Asker:
    def ask(arguments: Any, working_directory: Path | None) -> PermissionAsk:
        root, found = resolve(arguments.path, working_directory)
        inside = found.is_relative_to(root)
        subject = str(found.relative_to(root)) if inside else str(found)
        return PermissionAsk(kind=kind, subject=subject, inside=inside)

    return ask


@tool(permission=_asks("read"), after_crash="repeat", read_only=True)
def view(path: str, context: ToolContext, first_line: int = 1, last_line: int | None = None) -> str:
    """Show a text file with numbered lines, or list a directory. Use first_line and last_line for a part of a file."""
    _, found = resolve(path, context.working_directory)
    try:
        kind = found.stat().st_mode
        if stat.S_ISDIR(kind):
            return _listing(found)
        if not stat.S_ISREG(kind):
            raise ToolFailure(f"{path} is not a file")  # Reading a pipe or a device might never end.
        if found.stat().st_size > MAX_VIEW_BYTES:
            raise ToolFailure(f"{path} is larger than {MAX_VIEW_BYTES:,} bytes")
        text = found.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ToolFailure(f"{path} does not exist") from error
    except UnicodeDecodeError as error:
        raise ToolFailure(f"{path} is not a text file") from error
    except OSError as error:
        raise ToolFailure(f"{path} can't be read: {error.strerror}") from error
    lines = text.splitlines()[max(first_line, 1) - 1 : last_line]
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, max(first_line, 1)))


def _listing(directory: Path) -> str:
    entries = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in directory.iterdir())
    return "\n".join(entries) or "(empty)"


@tool(permission=_asks("write"), after_crash="repeat")
def create(path: str, file_text: str, context: ToolContext) -> str:
    """Write a text file. An existing file of that name is replaced."""
    _, found = resolve(path, context.working_directory)
    try:
        found.parent.mkdir(parents=True, exist_ok=True)
        _replace(found, file_text)
    except OSError as error:
        raise ToolFailure(f"{path} can't be written: {error.strerror}") from error
    return f"Created file {path} with {len(file_text)} characters"


def _replace(path: Path, text: str) -> None:
    """All of the file or none of it, also when the power goes: write aside, sync, rename."""
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
    ) as aside:
        try:
            aside.write(text)
            aside.flush()
            os.fsync(aside.fileno())
            os.chmod(aside.name, path.stat().st_mode & 0o777 if path.exists() else 0o644)
            os.replace(aside.name, path)
        except BaseException:
            os.unlink(aside.name)
            raise


@tool(permission="allow", after_crash="repeat", read_only=True)
async def read_tool_output(tool_call_id: str, context: ToolContext, offset: int = 0, length: int = 20_000) -> str:
    """Read a part of a tool result that was too long to be shown whole: `length` characters from `offset` on."""
    whole = await context.read_output(tool_call_id)
    if whole is None:
        raise ToolFailure(f"There is no result of a call {tool_call_id} in this session")
    start = max(offset, 0)
    return whole[start : start + max(1, min(length, 50_000))] or f"(the result ends at {len(whole)})"


class Question(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    question: str
    choices: tuple[str, ...] = ()
    allow_freeform: bool = True


async def _never(arguments: Any, context: ToolContext) -> Any:
    raise ToolFailure("A question is asked, not run")


ask_user = Tool(
    name="ask_user",
    description="Ask the user a question and wait for the answer, however long it takes. Offer choices where you can.",
    parameters={
        "type": "object",
        "properties": {
            "question": {"type": "string"},
            "choices": {"type": "array", "items": {"type": "string"}},
            "allow_freeform": {"type": "boolean", "default": True},
        },
        "required": ["question"],
    },
    arguments=Question,
    run=_never,
    asks=lambda arguments, directory: None,
    asks_person=True,
    after_crash="repeat",
)

BUILT_IN: tuple[Tool, ...] = (view, create, ask_user, read_tool_output)
