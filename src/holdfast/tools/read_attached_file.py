"""The tool `read_attached_file`: the text of a file that a person attached to a message, or that a tool made."""

from typing import Annotated, Final

from msgspec import Meta

from holdfast.files.errors import FileMissing
from holdfast.files.media_types import text_of
from holdfast.tools.errors import ToolFailure
from holdfast.tools.tool import ToolContext, tool

MAX_LENGTH: Final = 50_000

Offset = Annotated[int, Meta(ge=0, description="The first byte to read.")]
Length = Annotated[int, Meta(ge=1, description=f"How many bytes to read, {MAX_LENGTH:,} at most.")]


@tool(permission="allow", after_crash="repeat", read_only=True, origin="file")
async def read_attached_file(file_id: str, context: ToolContext, offset: Offset = 0, length: Length = 20_000) -> str:
    """Read a part of the text of an attached file: `length` bytes from `offset` on. The last line of the result says
    where the next part begins."""
    if context.files is None:
        raise ToolFailure("Files can't be read here")
    try:
        row = await context.files.find(context.session.owner, file_id)
    except FileMissing:
        raise ToolFailure(f"There is no file {file_id} (any more)") from None
    end = min(offset + min(length, MAX_LENGTH), row.size)
    data = b"".join([piece async for piece in context.files.read(row, offset, end)]) if offset < end else b""
    text = None if b"\0" in data else text_of(data)
    if text is None:
        raise ToolFailure(f"{row.name} is of the type {row.media_type} and not a text in UTF-8")
    if end < row.size:
        return f"{text}\n({row.name}: bytes {offset:,} to {end:,} of {row.size:,}; the next part has the offset {end})"
    return f"{text}\n({row.name} ends here, at {row.size:,} bytes)"
