"""The tool that finds and reads what was said earlier in its own session, beyond what the model is still sent."""

from datetime import UTC, datetime
from typing import Final

import msgspec

from holdfast.events import quote
from holdfast.events.event import Event
from holdfast.events.ids import Position
from holdfast.events.passage import Passage, passage_of
from holdfast.store.text_index import Hit
from holdfast.tools.errors import ToolFailure
from holdfast.tools.tool import OwnLog, Tool, ToolContext

MAX_HITS: Final = 10
MAX_PASSAGES: Final = 20
MAX_CHARACTERS: Final = 20_000
"""All passages of one result together: a result must not fill the context that a summary has just made room in."""
PASSAGES_AT_ONCE: Final = 4
"""Passages are read a few at a time: each may be a tool result of megabytes."""

NEWEST: Final = Position((1 << 62) - 1)


class Recalled(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The arguments."""

    query: str = ""
    before: int | None = None
    first: int | None = msgspec.field(name="from", default=None)
    last: int | None = msgspec.field(name="to", default=None)
    offset: int = 0


async def _recall(arguments: Recalled, context: ToolContext) -> str:
    log = context.log
    if log is None:
        raise ToolFailure("The log of this session can't be read here")
    if arguments.query.strip():
        return await _found(log, arguments.query, arguments.before)
    if arguments.first is None:
        raise ToolFailure("Give a query, or a position to read from")
    first = _position(arguments.first)
    last = NEWEST if arguments.last is None else _position(arguments.last)
    return await _read(log, first, last, max(0, arguments.offset))


async def _found(log: OwnLog, query: str, before: int | None) -> str:
    hits = await log.search(query, limit=MAX_HITS + 1, before=None if before is None else _position(before))
    if not hits:
        older = " before that position" if before is not None else ""
        return f"No passage{older} has all of these words. Search for fewer words, or for others."
    lines = [_line(hit, log.seed) for hit in hits[:MAX_HITS]]
    lines.append("Read whole passages, and what stands around them, with from and to.")
    if len(hits) > MAX_HITS:
        lines.append(f"There are older ones: search again with before {hits[MAX_HITS - 1].position}.")
    return "\n\n".join(lines)


def _line(hit: Hit, seed: str) -> str:
    about = _about(hit.position, hit.speaker, hit.tool_call_id, hit.time)
    return f"{about}\n{quote.quoted(hit.excerpt, hit.origin, seed)}"


async def _read(log: OwnLog, first: Position, last: Position, offset: int) -> str:
    """Passages whole, as far as there is room, and how to go on. Only the first one is cut."""
    parts: list[str] = []
    left, position = MAX_CHARACTERS, first
    while page := await log.passages(position, last, limit=PASSAGES_AT_ONCE):
        for event in page:
            passage = passage_of(event.body)
            if passage is None:
                continue
            text = passage.text[offset:] if not parts else passage.text
            if parts and (len(text) > left or len(parts) == MAX_PASSAGES):
                return "\n\n".join([*parts, f"(more: go on with from {event.position})"])
            parts.append(_whole(event, passage, text[:left], log.seed))
            if len(text) > left:
                return "\n\n".join([*parts, _rest(event, passage, offset + left)])
            left -= len(text)
        position = Position(page[-1].position + 1)
    return "\n\n".join(parts) or "Nothing was said at these positions, or it was rewound."


def _whole(event: Event, passage: Passage, text: str, seed: str) -> str:
    about = _about(event.position, passage.speaker, passage.tool_call_id, event.time)
    return f"{about}\n{quote.quoted(text, passage.origin, seed)}"


def _rest(event: Event, passage: Passage, offset: int) -> str:
    characters = f"(this is cut after {offset:,} of {len(passage.text):,} characters"
    return f"{characters}: go on with from {event.position}, offset {offset})"


def _about(position: Position, speaker: str, tool_call_id: str, time: int) -> str:
    who = {"person": "User", "assistant": "Assistant"}.get(speaker, f"Result of {tool_call_id}")
    return f"[{position}] {who}, {_time(time)}:"


def _time(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"


def _position(number: int) -> Position:
    return Position(min(max(number, 0), NEWEST))


recall: Final = Tool(
    name="recall",
    description=(
        "Find and read what was said earlier in this conversation, also what a summary stands for: the user's words, "
        "your own, and results of tools. With a query, it finds the newest passages that have all of its words, with "
        "their positions in the log; a word may be the beginning of a longer one. With from, and to if you like, it "
        "reads the passages at these positions."
    ),
    parameters={
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "A few words that the passage must have."},
            "before": {"type": "integer", "description": "With a query: only passages before this position."},
            "from": {"type": "integer", "description": "The first position to read."},
            "to": {"type": "integer", "description": "The last position to read."},
            "offset": {"type": "integer", "description": "With from: skip so many characters of the first passage."},
        },
        "required": [],
    },
    arguments=Recalled,
    run=_recall,
    asks=lambda arguments, directory: None,
    after_crash="repeat",
    read_only=True,
)
