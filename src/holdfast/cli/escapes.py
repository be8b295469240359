"""Escapes for the characters that a terminal obeys or does not show. Pure.

A text from a model, a file or another person must look like what it is before a person approves it: a character that
reverses the direction of writing can make one command look like another, and one without a width can hide words. The
page does the same in `web/src/view/escapes.ts`; `web/test/escapes.json` has cases that both are tested with.
"""

import re
import unicodedata
from typing import Final

HIDDEN: Final = (
    (0x0000, 0x001F),  # C0 controls
    (0x007F, 0x009F),  # DEL and C1 controls
    (0x00AD, 0x00AD),  # soft hyphen
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x061C, 0x061C),  # Arabic letter mark
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F),  # Mongolian variation selectors, vowel separator
    (0x200B, 0x200F),  # zero width, left-to-right and right-to-left marks
    (0x2028, 0x202E),  # line and paragraph separators, bidi embeddings and overrides
    (0x2060, 0x206F),  # word joiner, invisible operators, bidi isolates
    (0x2800, 0x2800),  # Braille pattern without dots
    (0x3164, 0x3164),  # Hangul filler
    (0xD800, 0xDFFF),  # half a character
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFEFF, 0xFEFF),  # byte order mark
    (0xFFA0, 0xFFA0),  # halfwidth Hangul filler
    (0xFFF0, 0xFFFB),  # unassigned and not drawn, interlinear annotation
    (0x13430, 0x1345F),  # Egyptian hieroglyph format controls, and the unassigned rest of their block
    (0x16FE4, 0x16FE4),  # Khitan small script filler
    (0x1BCA0, 0x1BCA3),  # shorthand format controls
    (0x1D159, 0x1D159),  # musical null notehead
    (0x1D173, 0x1D17A),  # musical controls
    (0xE0000, 0xE0FFF),  # tag characters, variation selectors of the supplement
)

LINES: Final = "\n\t"
"""Characters that stay as they are in a text of several lines."""

PROSE: Final = "\n\t\u200c\u200d\ufe0e\ufe0f"
"""Characters that stay as they are in running text that is not up for approval: joiners belong to the spelling of many
languages, and two variation selectors say whether a sign is drawn as a picture."""

EMOJI: Final = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u21aa\u231a-\u23fa\u24c2\u25aa-\u27bf\u2934-\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001faff]\ufe0f"
)
"""A sign with the one selector that draws it as a picture. It stays; a second selector after it is escaped, like any
other: a row of invisible selectors can carry hidden bytes."""

_HIDDEN = re.compile(EMOJI + "|[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in HIDDEN) + "]")


def visible(text: str, *, keep: str = LINES) -> str:
    """The text with an escape, such as \\u202e, in place of each character that a screen would obey or hide."""

    def replacement(found: re.Match[str]) -> str:
        return found[0] if len(found[0]) > 1 or found[0] in keep else _escape(ord(found[0]))

    return _HIDDEN.sub(replacement, text)


_RIGHT_TO_LEFT_BLOCKS = re.compile(
    "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefe\U00010800-\U00010fff\U0001e800-\U0001efff]"
)
"""The blocks that Unicode reserves for writing from right to left, also for letters that Python does not know yet."""


def has_right_to_left(text: str) -> bool:
    """Whether the text has letters or digits that are written from right to left. A terminal may draw the words around
    them in another order, although each letter is visible: `cp א ב` with its operands swapped."""
    found = _RIGHT_TO_LEFT_BLOCKS.findall(text)
    return any(unicodedata.bidirectional(character) in ("R", "AL", "AN", "") for character in found)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\u{{{code:x}}}"
