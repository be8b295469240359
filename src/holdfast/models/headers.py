"""Checks the HTTP headers that a client chose for model calls.

Headers may hold secrets, so an error names only the header, never its value.
"""

import re
from collections.abc import Mapping
from typing import Final

from holdfast.models.errors import BadHeader

KEYS: Final = frozenset({"authorization", "api-key", "proxy-authorization", "x-api-key"})
"""Headers that authenticate the caller."""

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
"""Headers that follow from the call itself: another value would send the call elsewhere, or cut it."""

MAX_HEADER_CHARACTERS: Final = 16_384
"""All names and values together. Servers accept less than this."""

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def check_headers(headers: Mapping[str, str], *, may_authorize: bool = False) -> None:
    """Raises `BadHeader` for a header that can't be sent or must not be. `may_authorize` allows those in `KEYS`."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise BadHeader("a header has an invalid name")
        if name.lower() in OURS or (name.lower() in KEYS and not may_authorize):
            raise BadHeader(f"Holdfast sets the header {name} itself; leave it out")
        if not is_sendable(value):
            raise BadHeader(f"the value of the header {name} has a character that a header can't carry")
    if sum(len(name) + len(value) for name, value in headers.items()) > MAX_HEADER_CHARACTERS:
        raise BadHeader(f"the headers have more than {MAX_HEADER_CHARACTERS:,} characters")


def is_sendable(value: str) -> bool:
    """Whether a header can carry the value: a line break would begin another header, or another call."""
    return value.isascii() and value.isprintable()
