"""Cursors as clients write them: `POSITION`, or `POSITION/MESSAGE/BLOCK/OFFSET` in the middle of an answer."""

from typing import Final

from holdfast.events.ids import MessageId, Position
from holdfast.server.errors import Invalid
from holdfast.store.store import Cursor

MAX_CURSOR_CHARACTERS: Final = 200


def format_cursor(cursor: Cursor) -> str:
    if cursor.message_id is None:
        return str(cursor.position)
    return f"{cursor.position}/{cursor.message_id}/{cursor.block}/{cursor.offset}"


def parse_cursor(text: str) -> Cursor:
    """The cursor of this text. Raises `Invalid`."""
    position, _, rest = text.partition("/")
    message_id, _, place = rest.partition("/")
    block, _, offset = place.partition("/")
    numbers = (position, block, offset) if rest else (position,)
    if len(text) > MAX_CURSOR_CHARACTERS or not all(_is_number(number) for number in numbers):
        raise Invalid("cursor_invalid", "That is no cursor: give one that came with an event, or a position.")
    if not rest:
        return Cursor(Position(int(position)))
    return Cursor(Position(int(position)), MessageId(message_id), int(block), int(offset))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15
