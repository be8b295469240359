"""The tool `view`: shows a text file with numbered lines, the names in a directory, or an image to the model itself."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from holdfast.events.message import Image
from holdfast.events.request import PermissionAsk
from holdfast.files.media_types import TAIL_BYTES, is_whole, picture_type
from holdfast.tools.errors import ToolFailure
from holdfast.tools.paths import ResolvedPath, opened, permitted_path, read_ask
from holdfast.tools.search_program import printable
from holdfast.tools.tool import Tool, ToolContext, ToolResult, in_thread

MAX_VIEW_BYTES = 10_000_000
"""Larger files are not read into memory; a part of one can be requested."""

MAX_IMAGE_BYTES = 5_000_000
"""Providers refuse larger images, and an image is sent again with every later call."""

MAX_ENTRIES = 1_000
"""The number of names listed for a directory; grep and glob find more."""

IMAGE_SEEN = "Viewed image file successfully."


class View(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    path: str
    view_range: list[int] | None = None
    first_line: int = 1
    last_line: int | None = None
    """These two are the older parameters for a part; the model does not see them."""

    def lines(self) -> tuple[int, int | None]:
        """Returns the first and the last line; the last is None for the rest of the file."""
        if self.view_range is None:
            return max(self.first_line, 1), self.last_line
        if len(self.view_range) != 2:
            raise ToolFailure("view_range is the first and the last line, such as [11, 20]; [11, -1] goes to the end")
        first, last = self.view_range
        if first < 1 or (last != -1 and last < first):
            raise ToolFailure(f"view_range [{first}, {last}] is no range of lines, which are counted from 1")
        return first, None if last == -1 else last


def _asks(arguments: View, working_directory: Path | None) -> PermissionAsk:
    arguments.lines()
    return read_ask(arguments.path, working_directory, f"Read {printable(arguments.path)}")


def _view(arguments: View, context: ToolContext) -> str | ToolResult:
    target = permitted_path(arguments.path, context)
    first, last = arguments.lines()
    try:
        with opened(target) as descriptor:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                return _listing(descriptor)
            with open(descriptor, "rb", closefd=False) as file:
                if media_type := _media_type(file):
                    return _picture(target, file, media_type)
                if status.st_size > MAX_VIEW_BYTES and last is None:
                    size = f"{target.requested} is larger than {MAX_VIEW_BYTES:,} bytes"
                    raise ToolFailure(f"{size}; ask for a part of it with view_range")
                return _numbered(target, file, first, last, context)
    except FileNotFoundError as error:
        raise ToolFailure(f"{target.requested} does not exist") from error
    except UnicodeDecodeError as error:
        raise ToolFailure(f"{target.requested} is not a text file") from error
    except OSError as error:
        raise ToolFailure(f"{target.requested} can't be read: {error.strerror}") from error


def _listing(directory: int) -> str:
    with os.scandir(directory) as entries:
        names = sorted(printable(entry.name) + ("/" if _leads_to_directory(entry) else "") for entry in entries)
    if len(names) > MAX_ENTRIES:
        names[MAX_ENTRIES:] = [f"({len(names) - MAX_ENTRIES:,} more; use glob to find one of them)"]
    return "\n".join(names) or "(empty)"


def _leads_to_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _numbered(target: ResolvedPath, file: BinaryIO, first: int, last: int | None, context: ToolContext) -> str:
    shown: list[str] = []
    size = number = 0
    for number, line in enumerate(_lines(file), 1):
        if last is not None and number > last:
            break
        if number % 10_000 == 0 and context.cancelled:
            break  # The call was cancelled, and the file may be very long.
        if number < first:
            continue
        size += len(line)
        if size > MAX_VIEW_BYTES:
            shown.append(f"(line {number} and those after it are left out: more than {MAX_VIEW_BYTES:,} bytes)")
            break
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode()
        shown.append(f"{number}. {text}")
    if not shown:
        return f"({target.requested} has {number:,} lines)" if number else "(the file is empty)"
    return "\n".join(shown)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yields lines, each cut beyond the largest size shown, so that a huge line does not fill the memory."""
    while line := file.readline(MAX_VIEW_BYTES + 1):
        yield line
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_VIEW_BYTES)


def _media_type(file: BinaryIO) -> str | None:
    """Detects the media type by content: a file name can say anything."""
    beginning = file.read(16)
    file.seek(0)
    return picture_type(beginning)


def _picture(target: ResolvedPath, file: BinaryIO, media_type: str) -> ToolResult:
    data = file.read(MAX_IMAGE_BYTES + 1)
    if len(data) > MAX_IMAGE_BYTES:
        raise ToolFailure(
            f"{target.requested} is a picture of more than {MAX_IMAGE_BYTES:,} bytes, too large to be shown"
        )
    if not is_whole(media_type, data[:16], data[-TAIL_BYTES:], len(data)):
        # A provider would refuse it, and every later call of the session with it.
        raise ToolFailure(f"{target.requested} is a picture that is damaged or cut off")
    return ToolResult(content=IMAGE_SEEN, images=(Image(media_type=media_type, data=data),))


view = Tool(
    name="view",
    origin="file",
    description="Show a text file with numbered lines, list a directory, or look at a picture (PNG, JPEG, GIF, WebP).",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file or directory."},
            "view_range": {
                "type": "array",
                "items": {"type": "integer"},
                "minItems": 2,
                "maxItems": 2,
                "description": "The first and the last line of a part of a file, such as [11, 20]; lines are counted "
                "from 1, and [11, -1] goes to the end.",
            },
        },
        "required": ["path"],
        "additionalProperties": False,
    },
    arguments=View,
    run=in_thread(_view),
    asks=_asks,
    after_crash="repeat",
    read_only=True,
)
