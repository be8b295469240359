"""The caller as a server knows them."""

from typing import Literal

import msgspec

Role = Literal["user", "admin"]


class IdentityView(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    """The owner whose sessions the caller sees."""
    role: Role
    name: str
    """The name under which the caller's answers are recorded."""
    key_id: str
    """The caller's API key; empty for the token of a local server."""
