"""Known secrets, replaced wherever what a command wrote is shown."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

REDACTED: Final = "[redacted]"

MOST: Final = 5_000

SHORTEST: Final = 8
"""Anything shorter stands in ordinary text too often."""


class Redaction:
    """Knows the values that must not be shown. Its own text never shows them either."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: dict[str, None] = {}
        self._sorted: list[str] = []
        self._pattern: re.Pattern[str] | None = None
        self.longest = 0
        self.learn(secrets)

    def __repr__(self) -> str:
        return "Redaction()"

    def learn(self, secrets: Iterable[str]) -> None:
        """More of them. Of very many the oldest are forgotten."""
        new = [secret for secret in secrets if len(secret) >= SHORTEST and secret not in self._secrets]
        if not new:
            return
        self._secrets.update(dict.fromkeys(new))
        for oldest in list(self._secrets)[:-MOST]:
            del self._secrets[oldest]
        longest_first = sorted(self._secrets, key=len, reverse=True)
        self.longest = len(longest_first[0])
        self._sorted = sorted(self._secrets)
        self._pattern = re.compile("|".join(re.escape(secret) for secret in longest_first))

    @property
    def margin_bytes(self) -> int:
        """So much is to be read beside a part of an output: then no secret reaches into the part unseen."""
        return 4 * max(0, self.longest - 1)

    def text(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)

    def end(self, text: str) -> str:
        """The same for a text whose beginning was cut off: as much as could be the rest of a secret goes, too."""
        return self.text(text)[max(0, self.longest - 1) :]

    def part(self, text: str, start: int, end: int) -> str:
        """The same for what stands between two places of a longer text. A secret that reaches over one of them is named
        where it begins, and no letter of it is shown on either side."""
        shown, at = "", start
        for first, behind in self._found(text):
            if first >= end:
                break
            if first >= start:
                shown += text[at:first] + REDACTED
            at = max(at, behind)
        return shown + text[at:end]

    def settled(self, text: str) -> int:
        """How much of a text that goes on is certain: what stands behind it could be the beginning of a secret."""
        last = max(0, len(text) - self.longest + 1)
        sure = next((at for at in range(last, len(text)) if self._begins(text, at)), len(text))
        # A secret that is whole is one, though its end may look like the beginning of the next.
        return next((behind for first, behind in self._found(text) if first < sure < behind), sure)

    def _begins(self, text: str, at: int) -> bool:
        """Whether all that follows is the beginning of a secret; its first letters mostly tell that it is not."""
        return self._is_beginning(text[at : at + SHORTEST - 1]) and self._is_beginning(text[at:])

    def _is_beginning(self, text: str) -> bool:
        place = bisect_right(self._sorted, text)
        return place < len(self._sorted) and self._sorted[place].startswith(text)

    def _found(self, text: str) -> list[tuple[int, int]]:
        return [] if self._pattern is None else [found.span() for found in self._pattern.finditer(text)]


class RedactedStream:
    """A text that comes in pieces: what could be the beginning of a secret is held back until more of it is there."""

    def __init__(self, redaction: Redaction, *, is_cut: bool = False) -> None:
        """`is_cut`: its beginning is not there, so that the first letters could be the rest of a secret. They go."""
        self._redaction = redaction
        self._held = ""
        self._dropping = max(0, redaction.longest - 1) if is_cut else 0

    def __repr__(self) -> str:
        return "RedactedStream()"

    def next(self, text: str) -> str:
        """What may be shown now."""
        text = self._held + text
        sure = self._redaction.settled(text)
        self._held = text[sure:]
        return self._shown(text[:sure])

    def end(self) -> str:
        """The rest: nothing more will come."""
        text, self._held = self._held, ""
        return self._shown(text)

    def _shown(self, text: str) -> str:
        shown = self._redaction.text(text)
        dropped, self._dropping = self._dropping, max(0, self._dropping - len(shown))
        return shown[dropped:]
