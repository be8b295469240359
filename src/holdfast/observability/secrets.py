"""Redacts text that looks like a secret, whatever its source."""

import re
from typing import Final

HIDDEN: Final = "[redacted]"

_BEFORE: Final = ("bearer ", "token=", "key=", "password=", "secret=")
_BEGINNINGS: Final = ("hf_", "sk-", "sk_", "gho_", "ghp_", "ghs_", "ghu_", "github_pat_", "xoxa-", "xoxb-", "xoxp-")

_SIGNS: Final = ("@", "eyj", *_BEFORE, *_BEGINNINGS)
"""A text without any of these needs no regular expression; most lines have none."""

_LOOKS_SECRET: Final = re.compile(
    r"(?<=://)[^/\s@]+(?=@)"  # a name and a password in a URL
    + "".join(rf"|(?<={re.escape(before)})[^\s&\"',;]+" for before in _BEFORE)
    + rf"|\b(?:{'|'.join(_BEGINNINGS)})[A-Za-z0-9_-]{{16,}}"
    + r"|\beyj[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+){2,4}",  # a JWT: its header is a JSON object in base64
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """The text with `HIDDEN` in place of everything that looks like a key, a token or a password."""
    lowered = text.lower()
    if not any(sign in lowered for sign in _SIGNS):
        return text
    return _LOOKS_SECRET.sub(HIDDEN, text)
