"""The tool `offer_file`: gives the person a file that the work has made, to be listed with the session and saved."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from holdfast.events.request import PermissionAsk
from holdfast.files.errors import FileRefused, FilesUnavailable
from holdfast.tools.errors import ToolFailure
from holdfast.tools.paths import ResolvedPath, opened, permitted_path, read_ask
from holdfast.tools.search_program import printable
from holdfast.tools.tool import Tool, ToolContext

PIECE_BYTES = 256 * 1024


class OfferFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    path: str


def _asks(arguments: OfferFile, working_directory: Path | None) -> PermissionAsk:
    return read_ask(arguments.path, working_directory, f"Give you {printable(arguments.path)}")


async def _offer_file(arguments: OfferFile, context: ToolContext) -> str:
    target = permitted_path(arguments.path, context)
    try:
        row = await context.save_file(target.real.name, _pieces(target))
    except FileNotFoundError as error:
        raise ToolFailure(f"{target.requested} does not exist") from error
    except OSError as error:
        raise ToolFailure(f"{target.requested} can't be read: {error.strerror}") from error
    except FileRefused as error:
        raise ToolFailure(f"{target.requested} can't be given: {error.message}") from error
    except FilesUnavailable as error:
        raise ToolFailure("Files can't be stored at the moment") from error
    return f"The user can save {row.name} now ({row.size:,} bytes, file_id: {row.file_id})."


async def _pieces(target: ResolvedPath) -> AsyncGenerator[bytes, None]:
    with opened(target) as descriptor:
        while piece := await asyncio.to_thread(os.read, descriptor, PIECE_BYTES):
            yield piece


offer_file = Tool(
    name="offer_file",
    origin="file",
    description="Give the user a file that you have made, as it is now: they see it with the session and can save it.",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string", "description": "The file."}},
        "required": ["path"],
        "additionalProperties": False,
    },
    arguments=OfferFile,
    run=_offer_file,
    asks=_asks,
    after_crash="repeat",
)
