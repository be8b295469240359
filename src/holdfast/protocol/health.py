"""The health of a server, and the headers in which a local server proves that it knows its token."""

from typing import Final

import msgspec

NONCE: Final = "x-holdfast-nonce"
PROOF: Final = "x-holdfast-proof"
"""The header in which a local server proves that it knows the token that a program is about to send."""


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: str
    version: str
    redis: str | msgspec.UnsetType = msgspec.UNSET
    """The state of the connection that carries hints between processes, where Redis is configured."""
