"""The words of a text, as search finds them: the same for every store, in any script.

A word is a run of letters, digits and their marks, without case and without accents. Scripts that put no spaces between
words are split into pairs of characters, so that any two characters of such a text are found. A query is a list of
words of which a text must have all; each may be the beginning of a longer word.
"""

import re
import unicodedata
from functools import cache
from typing import Final

MAX_WORD_CHARACTERS: Final = 64
"""Of a longer word, only the beginning counts, in texts and in queries: long runs are hashes and encoded data."""
MAX_QUERY_CHARACTERS: Final = 1_000
MAX_QUERY_WORDS: Final = 16
"""Of a longer query, only the beginning counts: each word is a look-up of its own."""

_ASCII_WORD: Final = re.compile(r"[a-z0-9]+")
_ACCENT: Final = re.compile("[\u0300-\u036f]")
_UNSPACED: Final = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+)"
)
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese characters."""


@cache
def _word() -> re.Pattern[str]:
    """A word of any script. It is large, and texts of ASCII do without it."""
    marks = "".join(chr(code) for code in range(0x300, 0x2000) if unicodedata.category(chr(code)).startswith("M"))
    return re.compile(rf"(?:[^\W_]|[{marks}])+")


def words_of(text: str) -> set[str]:
    """The distinct words of a text."""
    if text.isascii():
        return {word[:MAX_WORD_CHARACTERS] for word in _ASCII_WORD.findall(text.lower())}
    found: set[str] = set()
    for run in _word().findall(_folded(text)):
        for part in _UNSPACED.split(run):
            if _UNSPACED.match(part):
                found.update(part[start : start + 2] for start in range(len(part)))
            elif part:
                found.add(part[:MAX_WORD_CHARACTERS])
    return found


def query_words(query: str) -> list[str]:
    """The words that a text must have, or begin to have, to be found; none for a query without letters and digits."""
    found: list[str] = []
    for run in _word().findall(_folded(query[:MAX_QUERY_CHARACTERS])):
        for part in _UNSPACED.split(run):
            if _UNSPACED.match(part):
                found.extend(part[start : start + 2] for start in range(max(1, len(part) - 1)))
            elif part:
                found.append(part[:MAX_WORD_CHARACTERS])
    return list(dict.fromkeys(found))[:MAX_QUERY_WORDS]


def excerpt(text: str, words: list[str], size: int) -> str:
    """A part of the text around the first place that has one of the words, on one line."""
    at = _first_place(text, words)
    start = max(0, min(at - size // 3, len(text) - size))
    part = " ".join(text[start : start + size].split())
    return f"{'… ' if start > 0 else ''}{part}{' …' if start + size < len(text) else ''}"


def _first_place(text: str, words: list[str]) -> int:
    """About where the first of the words is: folding a text may change its length a little."""
    folded = text.lower() if text.isascii() else _folded(text)
    places = [found.start() for word in words if (found := re.search(rf"(?<![^\W_]){re.escape(word)}", folded))]
    places = places or [place for word in words if (place := folded.find(word)) >= 0]
    return min(places, default=0)


def _folded(text: str) -> str:
    """The text without case, without accents, and with compatible characters as one."""
    plain = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    decomposed = unicodedata.normalize("NFKD", plain).casefold()
    return unicodedata.normalize("NFKC", _ACCENT.sub("", decomposed))
