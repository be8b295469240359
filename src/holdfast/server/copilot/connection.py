"""One client's connection, and its attachments to sessions."""

import asyncio
from typing import Any

import msgspec

from holdfast.events.ids import Key, Owner, SessionId
from holdfast.server.copilot.hub import Hub, Member
from holdfast.server.copilot.options import SessionParams
from holdfast.server.copilot.peer import Peer
from holdfast.server.presence import Arrival


class Attached(msgspec.Struct, kw_only=True):
    """The attachment of one connection to one session."""

    key: Key
    hub: Hub
    member: Member
    params: SessionParams
    """The options of the client's create or resume request, with its later changes."""
    arrival: Arrival
    """The attachment's row: the client's tools and capabilities."""
    answers_permissions: bool = False
    waits: set[asyncio.Future[Any]] = msgspec.field(default_factory=set)
    """Futures that the client's requests wait for; cancelled when the client leaves."""
    identity: dict[str, str] | None = None
    """Public identity of the credentials that the client gave to the session; no secrets."""
    handles: int = 0
    """Number of handles issued so far; the next handle is numbered from it."""
    switch_handler: str | None = None


class ClientConnection:
    """One client's connection. It acts for one owner: the owner of this process, or the owner of the token."""

    def __init__(self, peer: Peer, owner: Owner) -> None:
        self.peer = peer
        self.owner = owner
        self.attached: dict[SessionId, Attached] = {}
        self.attaching = asyncio.Lock()
        """Serialises creating, resuming and leaving sessions."""
