"""Wildcard patterns with the meaning of `fnmatch.fnmatchcase`, matched within a bound on the work.

No regular expression is made of a pattern: clients choose patterns, and matching blocks the event loop. The stars cut a
pattern into segments. The first must begin the text, the last must end it, and each other one is found as far left as
possible, so that no choice is ever taken back. Finding a segment takes at most its length times the length of the text.
"""

import re
from itertools import pairwise
from typing import Final

import msgspec

COMPARED_PER_STEP: Final = 1_000
"""Characters that are compared in one step when a literal text is looked for."""

_SPECIAL = re.compile(r"[*?\[]")


class EffortSpent(Exception):
    """Matching would take more steps than are left."""


class Effort:
    """The steps that matching may still take. A step is a comparison, about half a microsecond."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Raises `EffortSpent`, also for every later call, once no steps are left."""
        self.left -= steps
        if self.left < 0:
            raise EffortSpent


class CharacterSet(msgspec.Struct, frozen=True):
    """One character of a text: `[seq]`, `[!seq]`, or any character at all."""

    characters: frozenset[str] = frozenset()
    ranges: tuple[tuple[str, str], ...] = ()
    is_negated: bool = False

    def __contains__(self, character: str) -> bool:
        is_listed = character in self.characters or any(low <= character <= high for low, high in self.ranges)
        return is_listed != self.is_negated


ANY: Final = CharacterSet(is_negated=True)

Piece = str | CharacterSet
"""A literal text, or one character of a set."""


class PatternSegment:
    """The part of a pattern between two stars. It matches texts of one length only."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.length = 0

    def add(self, piece: Piece) -> None:
        if isinstance(piece, str) and self.pieces and isinstance(self.pieces[-1], str):
            self.pieces[-1] += piece
        else:
            self.pieces.append(piece)
        self.length += len(piece) if isinstance(piece, str) else 1

    def is_at(self, text: str, start: int, effort: Effort) -> bool:
        effort.spend(1 + self.length // COMPARED_PER_STEP)
        for piece in self.pieces:
            if isinstance(piece, str):
                if not text.startswith(piece, start):
                    return False
                start += len(piece)
            else:
                effort.spend(1 + len(piece.ranges))
                if text[start] not in piece:
                    return False
                start += 1
        return True

    def find(self, text: str, start: int, end: int, effort: Effort) -> int:
        """The first place between start and end where the segment matches; -1 if there is none."""
        if not self.pieces:
            return start
        if len(self.pieces) == 1 and isinstance(self.pieces[0], str):
            effort.spend(1 + (self.length + 1) * max(end - start, 0) // COMPARED_PER_STEP)
            return text.find(self.pieces[0], start, end)
        places = range(start, end - self.length + 1)
        return next((place for place in places if self.is_at(text, place, effort)), -1)


class Pattern:
    """A pattern, taken apart once. `wildcards` counts its stars, question marks and sets; a set of one wildcard, such
    as `[*]`, is the literal character."""

    def __init__(self, pattern: str) -> None:
        self.segments = [PatternSegment()]
        self.wildcards = 0
        at, has_closing = 0, True
        for found in _SPECIAL.finditer(pattern):
            if found.start() < at:
                continue  # It is inside of a set.
            self._add_literal(pattern[at : found.start()])
            at = found.end()
            match found.group():
                case "*":
                    self.wildcards += 1
                    if self.segments[-1].pieces or len(self.segments) == 1:
                        self.segments.append(PatternSegment())
                case "?":
                    self.wildcards += 1
                    self.segments[-1].add(ANY)
                case _:
                    closing = _closing_bracket(pattern, at) if has_closing else -1
                    has_closing = closing >= 0
                    content = pattern[at:closing] if has_closing else ""
                    if content in ("*", "?", "[") or not has_closing:
                        self._add_literal(content or "[")
                    else:
                        self.wildcards += 1
                        self.segments[-1].add(_character_set(content))
                    at = closing + 1 if has_closing else at
        self._add_literal(pattern[at:])

    def matches(self, text: str, effort: Effort) -> bool:
        """Raises `EffortSpent` if it would take more steps than are left."""
        first, last = self.segments[0], self.segments[-1]
        if len(self.segments) == 1:
            return len(text) == first.length and first.is_at(text, 0, effort)
        end = len(text) - last.length
        if first.length > end or not first.is_at(text, 0, effort) or not last.is_at(text, end, effort):
            return False
        start = first.length
        for segment in self.segments[1:-1]:
            start = segment.find(text, start, end, effort)
            if start < 0:
                return False
            start += segment.length
        return start <= end

    def _add_literal(self, text: str) -> None:
        if text:
            self.segments[-1].add(text)


def _closing_bracket(pattern: str, start: int) -> int:
    """The end of a set whose content begins at start; -1 if it has none, and the bracket is a literal one."""
    if pattern.startswith("!", start):
        start += 1
    return pattern.find("]", start + 1)


def _character_set(content: str) -> CharacterSet:
    parts = _without_empty_ranges(_between_ranges(content))
    is_negated = parts[0].startswith("!")
    if is_negated:
        parts[0] = parts[0][1:]
    if not parts[0] and len(parts) > 1:
        parts[:2] = ["-" + parts[1]]  # Nothing is left before the hyphen, so it stands for itself.
    ranges = tuple((low[-1], high[0]) for low, high in pairwise(parts))
    return CharacterSet(frozenset("".join(parts)), ranges, is_negated)


def _between_ranges(content: str) -> list[str]:
    """The content, cut at the hyphens that make ranges. A hyphen at either end stands for itself."""
    parts, start = [], 0
    hyphen = content.find("-", 2 if content.startswith("!") else 1)
    while hyphen >= 0:
        parts.append(content[start:hyphen])
        start = hyphen + 1
        hyphen = content.find("-", hyphen + 3)
    if start < len(content):
        parts.append(content[start:])
    else:
        parts[-1] += "-"
    return parts


def _without_empty_ranges(parts: list[str]) -> list[str]:
    for number in range(len(parts) - 1, 0, -1):
        low, high = parts[number - 1], parts[number]
        if low[-1] > high[0]:
            parts[number - 1 : number + 1] = [low[:-1] + high[1:]]
    return parts
