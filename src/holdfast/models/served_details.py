"""`reasoning_details` of chat completions as the scripted server sends them, and the check of what comes back.

Each run of readable reasoning is an entry with a signature, and redacted reasoning an encrypted entry. The seals bind
the entries to their model, to each other, and to the text and the calls of their message.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from holdfast.models.model import Chunk, ReasoningDelta, ReasoningEnd, TextDelta, ToolCallDelta
from holdfast.models.sealed_facts import fingerprint, seal, sealed_facts

FORMAT: Final = "holdfast-scripted-v1"


class DetailsRefused(Exception):
    """The entries that came back differ from those that were sent."""


class SaidMessage(msgspec.Struct, frozen=True):
    """The part of an answer that its reasoning is bound to."""

    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    """The id, the name and the arguments of each tool call."""

    def facts(self) -> str:
        return fingerprint(self.text, *(part for call in self.calls for part in call))


def detail_pieces(pieces: Sequence[Chunk], model: str) -> dict[int, dict[str, Any]]:
    """The entry, or the part of one, to send with each piece, by the index of the piece."""
    runs = [[at for at, _ in run] for _, run in groupby(enumerate(pieces), key=_run_key)]
    runs = [run for run in runs if isinstance(pieces[run[0]], (ReasoningDelta, ReasoningEnd))]
    said = said_in(pieces).facts()
    found: dict[int, dict[str, Any]] = {}
    for index, run in enumerate(runs):
        text = "".join(piece.text for at in run if isinstance(piece := pieces[at], ReasoningDelta))
        sealed = seal(model, said, f"{index} of {len(runs)}", fingerprint(text))
        for at in run:
            found[at] = _part(pieces[at], index)
        found[run[-1]] |= {"signature": sealed} if text else {"data": sealed}
    return found


def whole_details(pieces: Sequence[Chunk], model: str) -> list[dict[str, Any]]:
    """The entries of a whole answer."""
    entries: list[dict[str, Any]] = []
    for part in detail_pieces(pieces, model).values():
        if part["index"] < len(entries):
            text = entries[-1]["text"] + part["text"]
            entries[-1] |= {**part, "text": text}
        else:
            entries.append(dict(part))
    return entries


def check_details(details: Sequence[Any], said: SaidMessage, model: str) -> None:
    """Check the entries of a message that came back. Raises `DetailsRefused`."""
    for index, entry in enumerate(details):
        match entry:
            case {"type": "reasoning.text", "text": str(text), "signature": str(sealed), "index": int(), **rest}:
                pass
            case {"type": "reasoning.encrypted", "data": str(sealed), "index": int(), **rest}:
                text = ""
            case _:
                raise DetailsRefused(f"reasoning_details[{index}] is not an entry that was sent")
        facts = (model, said.facts(), f"{index} of {len(details)}", fingerprint(text))
        if sealed_facts(sealed) != facts or rest != {"format": FORMAT} or entry["index"] != index:
            raise DetailsRefused(f"reasoning_details[{index}] was changed, moved or sent to another model")


def said_in(pieces: Sequence[Chunk]) -> SaidMessage:
    calls: dict[int, tuple[str, str, str]] = {}
    for piece in pieces:
        if isinstance(piece, ToolCallDelta):
            before = calls.get(piece.index, ("", "", ""))
            calls[piece.index] = (before[0] + piece.tool_call_id, before[1] + piece.name, before[2] + piece.arguments)
    text = "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))
    return SaidMessage(text, tuple(calls.values()))


def _run_key(numbered: tuple[int, Chunk]) -> tuple[type[Chunk], int]:
    """The same for consecutive pieces of readable reasoning; each redacted piece is a run of its own."""
    number, piece = numbered
    return (type(piece), number if isinstance(piece, ReasoningEnd) else 0)


def _part(piece: Chunk, index: int) -> dict[str, Any]:
    if isinstance(piece, ReasoningDelta):
        return {"type": "reasoning.text", "text": piece.text, "format": FORMAT, "index": index}
    return {"type": "reasoning.encrypted", "format": FORMAT, "index": index}
