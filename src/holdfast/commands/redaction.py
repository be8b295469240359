"""Replaces known secrets wherever the output of a command is shown.

Clients bring secrets of their own, so there may be many, and texts are long: the time to search must hardly depend on
the number of secrets. Every secret has four overlapping pieces of five characters at its end, and wherever the secret
stands in a text, one of them begins at a multiple of four; only secrets with such a piece in the text are searched for.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Final

REDACTED: Final = "[redacted]"

MOST: Final = 1_000
"""The bound on secrets: more would take too long to search for if a client made them alike."""

SHORTEST: Final = 8
"""Shorter values occur in ordinary text too often."""


PIECE: Final = 5
STRIDE: Final = SHORTEST - PIECE + 1


class Redaction:
    """The set of values that must not be shown. Its repr does not show them either."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: dict[str, None] = {}
        self._sorted: list[str] = []
        self._pieces: dict[str, dict[str, None]] = {}
        self.longest = 0
        self.learn(secrets)

    def __repr__(self) -> str:
        return "Redaction()"

    def learn(self, secrets: Iterable[str]) -> None:
        """Adds secrets. Beyond `MOST`, the oldest are forgotten."""
        new = [secret for secret in secrets if len(secret) >= SHORTEST and secret not in self._secrets]
        if not new:
            return
        for secret in dict.fromkeys(new):
            self._secrets[secret] = None
            insort(self._sorted, secret)
            for piece in _pieces(secret):
                self._pieces.setdefault(piece, {})[secret] = None
        while len(self._secrets) > MOST:
            self._forget(next(iter(self._secrets)))
        self.longest = max(map(len, self._secrets))

    def _forget(self, secret: str) -> None:
        del self._secrets[secret]
        del self._sorted[bisect_left(self._sorted, secret)]
        for piece in set(_pieces(secret)):
            self._pieces[piece].pop(secret)
            if not self._pieces[piece]:
                del self._pieces[piece]

    @property
    def margin_bytes(self) -> int:
        """How many bytes to read on each side of a part of an output, so that no secret can reach into the part
        undetected."""
        return 4 * max(0, self.longest - 1)

    def text(self, text: str) -> str:
        return self.part(text, 0, len(text)) if self._secrets else text

    def end(self, text: str) -> str:
        """Redacts a text whose beginning was cut off. Also drops as much of its start as could be the rest of a
        secret."""
        return self.text(text)[max(0, self.longest - 1) :]

    def part(self, text: str, start: int, end: int) -> str:
        """Redacts the part of a text between two offsets. A secret that crosses an edge is replaced where it begins,
        and no character of it is shown on either side."""
        shown: list[str] = []
        at = start
        for first, behind in self._matches(text):
            if first >= end:
                break
            if first >= start:
                shown += (text[at:first], REDACTED)
            at = max(at, behind)
        return "".join(shown) + text[at:end]

    def settled(self, text: str) -> int:
        """Returns how many characters of an unfinished text are final: those after could be the beginning of a
        secret."""
        last = max(0, len(text) - self.longest + 1)
        sure = next((at for at in range(last, len(text)) if self._begins(text, at)), len(text))
        # A complete secret counts, even if its end looks like the beginning of another.
        return next((behind for first, behind in self._matches(text) if first < sure < behind), sure)

    def _begins(self, text: str, at: int) -> bool:
        """Whether the rest of the text is the beginning of a secret. Its first characters mostly rule that out."""
        return self._is_beginning(text[at : at + SHORTEST - 1]) and self._is_beginning(text[at:])

    def _is_beginning(self, text: str) -> bool:
        place = bisect_right(self._sorted, text)
        return place < len(self._sorted) and self._sorted[place].startswith(text)

    def _matches(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields start and end of each secret: the leftmost first, and of those that begin together the longest."""
        first_hits = [(text.find(secret), -len(secret), secret) for secret in self._candidates(text)]
        heap = [hit for hit in first_hits if hit[0] >= 0]
        heapq.heapify(heap)
        at = 0
        while heap:
            first, _, secret = heap[0]
            if first >= at:
                at = first + len(secret)
                yield first, at
            following = text.find(secret, at)
            if following < 0:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following, -len(secret), secret))

    def _candidates(self, text: str) -> Iterable[str]:
        """Returns the secrets that may be in the text."""
        known = self._pieces
        pieces = {piece for at in range(0, len(text), STRIDE) if (piece := text[at : at + PIECE]) in known}
        return dict.fromkeys(secret for piece in pieces for secret in known[piece])


def _pieces(secret: str) -> list[str]:
    end = len(secret) - PIECE
    return [secret[at : at + PIECE] for at in range(end - STRIDE + 1, end + 1)]


class RedactedStream:
    """Redacts a text that arrives in pieces. A possible beginning of a secret is held back until more has arrived."""

    def __init__(self, redaction: Redaction, *, is_cut: bool = False) -> None:
        """`is_cut`: the beginning of the text is missing, so its first characters could be the rest of a secret; they
        are dropped."""
        self._redaction = redaction
        self._held = ""
        self._dropping = max(0, redaction.longest - 1) if is_cut else 0

    def __repr__(self) -> str:
        return "RedactedStream()"

    def next(self, text: str) -> str:
        """Adds a piece and returns the text that may be shown now."""
        text = self._held + text
        sure = self._redaction.settled(text)
        self._held = text[sure:]
        return self._shown(text[:sure])

    def end(self) -> str:
        """Returns the rest, once no more text will come."""
        text, self._held = self._held, ""
        return self._shown(text)

    def _shown(self, text: str) -> str:
        shown = self._redaction.text(text)
        dropped, self._dropping = self._dropping, max(0, self._dropping - len(shown))
        return shown[dropped:]
