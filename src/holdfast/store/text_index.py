"""The text index of logs: which words stand at which positions. One set of rules for every store.

The index is not written with the events: it follows the log, and each session has a mark up to which it does. Whatever
searches brings it up to date first, a bounded part at a time. Each part is one transaction with its mark, so a crash
leaves the index as of an earlier position, which loses nothing.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, Protocol

import msgspec

from holdfast.events import codec
from holdfast.events.event import Event
from holdfast.events.ids import Key, Owner, Position, ToolCallId
from holdfast.events.passage import Speaker, passage_of, searched_words
from holdfast.events.session import Truncated
from holdfast.events.tool import Origin
from holdfast.events.words import MAX_QUERY_CHARACTERS, excerpt, query_words

BATCH_EVENTS: Final = 500
BATCH_BYTES: Final = 1 << 20
"""How much of logs is indexed in one transaction: other writes wait for a few milliseconds at most."""

MAX_BATCHES: Final = 40
"""How many transactions one search of an owner's sessions may spend on bringing the index up to date. A search that
needs more says so, and the next one goes on."""

MAX_SESSIONS: Final = 2_000
"""How many sessions of an owner one search brings up to date, the newest first."""

UNREADABLE: Final = "session %s is not indexed beyond position %d, because an event there can't be read: %s"
"""The line in the log about a damaged session: it must not keep its owner from finding the others."""

EXCERPT_CHARACTERS: Final = 240

_TAG_CHARACTERS: Final = 4
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A passage that a search of a log found."""

    position: Position
    time: int
    speaker: Speaker
    excerpt: str
    tool_call_id: ToolCallId = ToolCallId("")
    """The call whose result it is."""
    origin: Origin = "person"


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One event in the index."""

    position: Position
    tool_call_id: ToolCallId
    """Empty for what a person or the model said."""
    tokens: tuple[str, ...]


class IndexStep(msgspec.Struct, frozen=True, kw_only=True):
    """The next part of a session's log, ready to be written into the index: all of it, and the new mark, or nothing if
    the mark is no longer at `after`."""

    key: Key
    after: Position
    up_to: Position
    entries: tuple[IndexEntry, ...]
    size: int
    """How many characters the passages have."""
    undone: tuple[tuple[Position, Position], ...]
    """What rewinds undid: entries after the first and before the second position leave the index."""


def step_of(key: Key, after: Position, events: Sequence[Event]) -> IndexStep:
    """The step that adds these events, which follow the mark. There is at least one."""
    entries: list[IndexEntry] = []
    undone: list[tuple[Position, Position]] = []
    size = 0
    for event in events:
        if isinstance(event.body, Truncated):
            kept = event.body.kept
            undone.append((kept, event.position))
            entries = [entry for entry in entries if entry.position <= kept]
        elif (passage := passage_of(event.body)) is not None:
            size += len(passage.text)
            words = sorted(searched_words(event.body))
            tokens = tuple(tokens_of(key.owner, words))
            entries.append(IndexEntry(position=event.position, tool_call_id=passage.tool_call_id, tokens=tokens))
    return IndexStep(
        key=key,
        after=after,
        up_to=events[-1].position,
        entries=tuple(entries),
        size=size,
        undone=tuple(undone),
    )


def tokens_of(owner: Owner, words: Sequence[str]) -> list[str]:
    """The words as the index has them: an owner's words stand together, and a search walks no other owner's. Two owners
    may share a tag, so rows are still checked."""
    number = int.from_bytes(sha256(owner.encode("utf-8", "surrogatepass")).digest()[:4])
    tag = ""
    for _ in range(_TAG_CHARACTERS):
        number, digit = divmod(number, len(_DIGITS))
        tag += _DIGITS[digit]
    return [tag + word for word in words]


def query_tokens(owner: Owner, query: str) -> list[str]:
    """The beginnings of tokens that a text must have; empty if the query names no word, and so finds no text."""
    return tokens_of(owner, query_words(query))


def title_pattern(text: str) -> str:
    """The pattern that titles with this text match, for LIKE with a backslash as its escape; empty for no text.
    Databases bound patterns, and no title is as long as a query may be. SQLite would end the pattern at a NUL."""
    plain: str = codec.without_surrogates(text[:MAX_QUERY_CHARACTERS].replace("\0", "\ufffd"))
    escaped = plain.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%" if text else ""


def hit_of(event: Event, query: str) -> Hit | None:
    passage = passage_of(event.body)
    if passage is None:
        return None
    return Hit(
        position=event.position,
        time=event.time,
        speaker=passage.speaker,
        excerpt=excerpt(passage.text, query_words(query), EXCERPT_CHARACTERS),
        tool_call_id=passage.tool_call_id,
        origin=passage.origin,
    )


class Indexed(Protocol):
    """A store, as far as its index is concerned."""

    async def index_logs(self, keys: Sequence[Key]) -> tuple[Key, ...]: ...


async def bring_up_to_date(store: Indexed, key: Key) -> None:
    """Index the rest of one session's log, however long it is."""
    left: Sequence[Key] = (key,)
    while left:
        left = await store.index_logs(left)


async def index_within_bounds(store: Indexed, keys: Sequence[Key]) -> int:
    """Bring sessions up to date as far as one search may. Returns how many are left."""
    left = keys
    for _ in range(MAX_BATCHES):
        if not left:
            return 0
        left = await store.index_logs(left)
    return len(left)
