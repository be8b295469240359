"""The caller as a server knows them."""

from typing import Literal

import msgspec

Role = Literal["user", "admin"]


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    used: int
    limit: int | None
    """None: no limit."""


class OwnerUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner uses, and may use."""

    sessions: Quota
    stored_bytes: Quota
    """Bytes of the logs and inboxes of those sessions."""
    running_turns: Quota
    """A turn beyond the limit waits."""
    turns_in_flight: Quota
    """Turns that run or wait to run."""
    streams: Quota
    """Open streams of the server process that was asked: each process counts its own."""


class IdentityView(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    """The owner whose sessions the caller sees."""
    role: Role
    name: str
    """The name under which the caller's answers are recorded."""
    key_id: str
    """The caller's API key; empty for a JWT, and for the token of a local server."""
    expires_at: int | None = None
    """When the caller's JWT ends, in milliseconds since 1970; None: it does not end by itself."""
    usage: OwnerUsage
