"""One client's connection, and the sessions that it is attached to."""

import asyncio
from typing import Any

import msgspec

from holdfast.events.ids import Key, Owner, SessionId
from holdfast.server.copilot.hub import Hub, Member
from holdfast.server.copilot.options import SessionParams
from holdfast.server.copilot.peer import Peer
from holdfast.server.presence import Arrival


class Attached(msgspec.Struct, kw_only=True):
    """A session that a connection is attached to."""

    key: Key
    hub: Hub
    member: Member
    params: SessionParams
    """What the client asked for when it came, and changed since."""
    arrival: Arrival
    """What it brought: the row of its attachment."""
    answers_permissions: bool = False
    waits: set[asyncio.Future[Any]] = msgspec.field(default_factory=set)
    """What the client waits for in this session, until it leaves."""
    identity: dict[str, str] | None = None
    """Whose credentials the client gave to the session: what may be said of them."""
    handles: int = 0
    """How many were given out: no two are the same."""
    switch_handler: str | None = None


class ClientConnection:
    """Speaks for one owner: whose process this is, or whose token was shown."""

    def __init__(self, peer: Peer, owner: Owner) -> None:
        self.peer = peer
        self.owner = owner
        self.attached: dict[SessionId, Attached] = {}
        self.attaching = asyncio.Lock()
        """Creating, resuming and leaving are done one after the other."""
