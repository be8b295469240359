"""HTTP headers that somebody else chose: which of them may go along with a call.

They may hold secrets, so that what is wrong with one is told by its name alone.
"""

import re
from collections.abc import Mapping
from typing import Final

from holdfast.models.errors import BadHeader

KEYS: Final = frozenset({"authorization", "api-key", "proxy-authorization"})
"""These say who calls."""

OURS: Final = frozenset(
    {
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""What these say follows from the call itself: another value would send it elsewhere, or cut it."""

MAX_HEADER_CHARACTERS: Final = 16_384
"""All names and values together. Servers take less than this."""

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def check_headers(headers: Mapping[str, str], *, may_authorize: bool = False) -> None:
    """Raises `BadHeader` for one that can't be sent, or must not be. `may_authorize`: they may say who calls."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise BadHeader("a header has a name that can't be one")
        if name.lower() in OURS or (name.lower() in KEYS and not may_authorize):
            raise BadHeader(f"the header {name} is not for others to set")
        if not is_sendable(value):
            raise BadHeader(f"the value of the header {name} has a character that can't be in one")
    if sum(len(name) + len(value) for name, value in headers.items()) > MAX_HEADER_CHARACTERS:
        raise BadHeader(f"the headers have more than {MAX_HEADER_CHARACTERS:,} characters")


def is_sendable(value: str) -> bool:
    """Whether a header can carry it: a line break would begin another header, or another call."""
    return value.isascii() and value.isprintable()
