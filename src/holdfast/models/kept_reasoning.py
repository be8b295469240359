"""Collects the reasoning that the provider of a chat completion wants back, and reads it again for the next call.

Two forms are known: `reasoning_details`, a list of entries that arrive in pieces (OpenRouter and others), and
`reasoning_content`, which some providers demand with every message that calls tools (DeepSeek and others).
"""

from typing import Any, Final

import msgspec

from holdfast.events.codec import to_bytes

MAX_KEPT_CHARACTERS: Final = 4_000_000
"""The most that is kept of one answer's reasoning: far more than any model writes."""

_GROWING: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""The types of entries that arrive in pieces, with the field that grows."""


class KeptReasoning(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reasoning of one answer as its provider wants it back. `opaque` of a reasoning block holds it as JSON."""

    reasoning_details: list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    keeps_ids: bool = False
    """The provider takes its tool call ids back although others would refuse them."""


_decoder = msgspec.json.Decoder(KeptReasoning)


def kept_in(opaque: str) -> KeptReasoning | None:
    """The content of a block's opaque part; None if it has another form."""
    try:
        return _decoder.decode(opaque)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


class ReasoningCollector:
    """The reasoning of an answer as it arrives. An answer with more than `MAX_KEPT_CHARACTERS` keeps none."""

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []
        self._grown: list[list[str]] = []
        """The pieces of the growing field of each entry."""
        self._places: dict[tuple[str, int], int] = {}
        """The last entry of each type and number."""
        self._content: list[str] | None = None
        self._characters = 0

    def take_details(self, details: list[Any]) -> None:
        for entry in details:
            if isinstance(entry, dict) and isinstance(entry.get("type"), str):
                self._take_entry(entry)

    def take_content(self, text: str) -> None:
        self._content = self._content or []
        if self._has_room(len(text)):
            self._content.append(text)

    def opaque(self, *, calls_tools: bool, keeps_ids: bool) -> str | None:
        """The part of the whole answer to keep; None if its provider wants nothing back."""
        if self._characters > MAX_KEPT_CHARACTERS:
            return None
        kept = KeptReasoning(
            self._details() or None,
            "".join(self._content) if self._content is not None and calls_tools else None,
            keeps_ids,
        )
        try:
            return None if kept == KeptReasoning() else to_bytes(kept).decode()
        except (OverflowError, RecursionError):
            # A number that no JSON of ours can hold, or an entry that is nested too deeply.
            return None

    def _details(self) -> list[dict[str, Any]]:
        return [_whole(entry, pieces) for entry, pieces in zip(self._entries, self._grown, strict=True)]

    def _take_entry(self, entry: dict[str, Any]) -> None:
        field = _GROWING.get(entry["type"], "")
        piece = entry.get(field)
        if not self._has_room(sum(len(value) for value in entry.values() if isinstance(value, str))):
            return
        place = self._place(entry) if field else None
        if place is None:
            if isinstance(index := entry.get("index"), int):
                self._places[entry["type"], index] = len(self._entries)
            self._entries.append(dict(entry))
            self._grown.append([piece] if isinstance(piece, str) else [])
            return
        if isinstance(piece, str):
            self._grown[place].append(piece)
        known = self._entries[place]
        known.update({name: value for name, value in entry.items() if known.get(name) is None})

    def _place(self, entry: dict[str, Any]) -> int | None:
        """The entry that this is a piece of: the last one of the same type and number, unless it has another id.
        Without a number it can only be the last of all."""
        last = len(self._entries) - 1
        index = entry.get("index")
        place = self._places.get((entry["type"], index), -1) if isinstance(index, int) else last
        if place < 0:
            return None
        known = self._entries[place]
        ids = {each for each in (known.get("id"), entry.get("id")) if isinstance(each, str)}
        return place if known["type"] == entry["type"] and len(ids) < 2 else None

    def _has_room(self, characters: int) -> bool:
        self._characters += characters
        return self._characters <= MAX_KEPT_CHARACTERS


def _whole(entry: dict[str, Any], pieces: list[str]) -> dict[str, Any]:
    return {**entry, _GROWING[entry["type"]]: "".join(pieces)} if pieces else entry
