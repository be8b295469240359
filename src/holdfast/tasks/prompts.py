"""Detects output that ends like a prompt, as if the command waits for input."""

import re
from typing import Final

PROMPT_TAIL_BYTES: Final = 512

_PROMPT: Final = re.compile(
    r"(?:[$>#]"
    r"|password[^\n]{0,80}:"
    r"|passphrase[^\n]{0,80}:"
    r"|[\[(]\s*y(?:es)?\s*/\s*n(?:o)?(?:\s*/[^\])\n]{0,40})?\s*[\])]\s*[:?]?"
    r"|press [^\n]{1,60} to continue\W{0,10}"
    r"|are you sure[^\n]{0,80}"
    r"|(?:continue|proceed)\?[^\n]{0,20}"
    r"|enter [^\n]{1,80}:)\s*$",
    re.IGNORECASE,
)

_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def looks_like_a_prompt(tail: bytes) -> bool:
    """Whether the last line looks like a prompt. Earlier lines do not count: a question above the last line was
    answered."""
    text = _COLOURS.sub("", tail[-PROMPT_TAIL_BYTES:].decode("utf-8", "replace")).rstrip()
    return bool(_PROMPT.search(text.rpartition("\n")[2]))
