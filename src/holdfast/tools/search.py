"""The tools `grep` and `glob`. The search is a process of its own (`search_program`) that can be killed at any time."""

import asyncio
import json
import os
import stat
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from holdfast.commands.environment import allowed
from holdfast.events.request import PermissionAsk
from holdfast.tools.errors import ToolFailure
from holdfast.tools.paths import opened, permitted_path, read_ask
from holdfast.tools.processes import Program, started
from holdfast.tools.search_program import printable
from holdfast.tools.tool import Tool, ToolContext

SEARCH_SECONDS = 20.0
"""Time limit of a search; results up to then are shown. A larger tree is better searched in parts."""

LATE_SECONDS = 2.0
"""Extra time after the limit. A search that takes longer does not reach its own time check any more: it is stuck in one
line."""

MAX_PATTERN_CHARACTERS = 10_000
MAX_RESULT_BYTES = 4_000_000
DEFAULT_LINES, MAX_LINES = 250, 2_000
MAX_FILES = 1_000

_PROGRAM = str(Path(__file__).with_name("search_program.py"))

Lines = Annotated[int, msgspec.Meta(ge=0, le=1_000)]


class Grep(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    pattern: str
    path: str | None = None
    glob: str | None = None
    include: str | None = None
    """An alias of `glob` that some models use."""
    output_mode: Literal["content", "files_with_matches", "count"] = "content"
    ignore_case: bool = msgspec.field(name="-i", default=False)
    numbers: bool = msgspec.field(name="-n", default=True)
    after: Lines = msgspec.field(name="-A", default=0)
    before: Lines = msgspec.field(name="-B", default=0)
    around: Lines = msgspec.field(name="-C", default=0)
    head_limit: int = DEFAULT_LINES


class Glob(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    pattern: str
    path: str | None = None


def _asks(arguments: Grep | Glob, working_directory: Path | None) -> PermissionAsk:
    _check(arguments.pattern, "pattern")
    if isinstance(arguments, Glob):
        _check_names(arguments.pattern)
    else:
        _check(arguments.glob or arguments.include or "", "glob", least=0)
    path = arguments.path or "."
    return read_ask(path, working_directory, f"Search in {printable(path)}")


def _check(pattern: str, name: str, *, least: int = 1) -> None:
    if not least <= len(pattern) <= MAX_PATTERN_CHARACTERS:
        raise ToolFailure(f"{name} has {least} to {MAX_PATTERN_CHARACTERS:,} characters; this has {len(pattern):,}")
    if "\0" in pattern:
        raise ToolFailure(f"{name} can't contain a NUL character; write \\x00 for one in a regular expression")


def _check_names(pattern: str) -> None:
    if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
        raise ToolFailure(f"The pattern {printable(pattern)} leads elsewhere: give the directory as path")


async def _grep(arguments: Grep, context: ToolContext) -> str:
    before, after = (max(count, arguments.around) for count in (arguments.before, arguments.after))
    return await _search(
        context,
        path=arguments.path,
        do="grep",
        pattern=arguments.pattern,
        glob=arguments.glob or arguments.include or "",
        output_mode=arguments.output_mode,
        ignore_case=arguments.ignore_case,
        numbers=arguments.numbers,
        before=before,
        after=after,
        with_context=bool(before or after),
        limit=max(1, min(arguments.head_limit, MAX_LINES)),
    )


async def _glob(arguments: Glob, context: ToolContext) -> str:
    return await _search(context, path=arguments.path, do="glob", pattern=arguments.pattern, limit=MAX_FILES)


async def _search(context: ToolContext, *, path: str | None, **options: Any) -> str:
    target = permitted_path(path or ".", context)
    try:
        with opened(target) as root:
            if options["do"] == "glob" and not stat.S_ISDIR(os.fstat(root).st_mode):
                raise ToolFailure(f"{target.requested} is not a directory")
            return await run_search({**options, "root": root, "base": target.requested, "seconds": SEARCH_SECONDS})
    except FileNotFoundError as error:
        raise ToolFailure(f"{target.requested} does not exist") from error
    except OSError as error:
        raise ToolFailure(f"{target.requested} can't be searched: {error.strerror}") from error


async def run_search(request: dict[str, Any]) -> str:
    """Searches below the directory that is open as `root`, wherever its path leads by now."""
    command = (sys.executable, "-I", "-S", "-X", "utf8", _PROGRAM, json.dumps(request))
    try:
        async with started(command, environment=allowed(os.environ), keeps_open=[request["root"]]) as program:
            return await _result(program)
    except OSError as error:
        raise ToolFailure(f"The search can't be started: {error.strerror}") from error


async def _result(program: Program) -> str:
    printed = bytearray()
    try:
        async with asyncio.timeout(SEARCH_SECONDS + LATE_SECONDS):
            while (chunk := await program.output.read()) and len(printed) < MAX_RESULT_BYTES:
                printed += chunk
            code = await program.exit_code()
    except TimeoutError:
        return _unfinished(printed)  # Leaving the context kills it.
    text = printed.decode("utf-8", "replace").removesuffix("\n")
    if code != 0:
        raise ToolFailure(text.rpartition("\n")[2] or f"The search ended with the code {code}")
    return text


def _unfinished(printed: bytearray) -> str:
    complete = printed[: printed.rfind(b"\n") + 1].decode("utf-8", "replace")
    message = f"The search took longer than {SEARCH_SECONDS:g} seconds and was ended"
    if not complete:
        raise ToolFailure(f"{message}. Use a simpler pattern, or search in a smaller place.")
    return f"{complete}({message}; there may be more)"


grep = Tool(
    name="grep",
    origin="file",
    description="Search the contents of files for a regular expression (Python's syntax). Binary files, links, .git "
    "and node_modules are left out.",
    parameters={
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "The regular expression; it is searched for in each line."},
            "path": {"type": "string", "description": "A file, or a directory to search below. Default: here."},
            "glob": {"type": "string", "description": 'Only files whose names fit, such as "*.py" or "*.{ts,tsx}".'},
            "output_mode": {
                "type": "string",
                "enum": ["content", "files_with_matches", "count"],
                "description": "The lines (default), the names of the files, or how many lines fit in each file.",
            },
            "-i": {"type": "boolean", "description": "Upper and lower case are the same."},
            "-n": {"type": "boolean", "description": "Show line numbers. Default: true."},
            "-A": {"type": "integer", "description": "Lines to show after each one that fits."},
            "-B": {"type": "integer", "description": "Lines to show before each one that fits."},
            "-C": {"type": "integer", "description": "Lines to show before and after each one that fits."},
            "head_limit": {"type": "integer", "description": f"At most so many lines. Default: {DEFAULT_LINES}."},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
    arguments=Grep,
    run=_grep,
    asks=_asks,
    after_crash="repeat",
    read_only=True,
)

glob = Tool(
    name="glob",
    origin="file",
    description='Find files by name, the newest first. "*.ts" fits here only, "**/*.ts" also in every directory below; '
    "{a,b} is one or the other. .git and node_modules are left out unless they are named.",
    parameters={
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "What the path of a file must look like."},
            "path": {"type": "string", "description": "The directory to search below. Default: here."},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
    arguments=Glob,
    run=_glob,
    asks=_asks,
    after_crash="repeat",
    read_only=True,
)
