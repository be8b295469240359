"""Routes each request of a client to the method that answers it."""

import logging
from typing import Any

from holdfast.server.copilot import methods as methods
from holdfast.server.copilot.call import RpcCall, find_method
from holdfast.server.copilot.connection import ClientConnection
from holdfast.server.copilot.peer import METHOD_NOT_FOUND, Handler, Peer, RpcError
from holdfast.server.copilot.service import CopilotService
from holdfast.store.errors import StoreError

log = logging.getLogger(__name__)


class Surface:
    """The Copilot surface: gives each new connection its request handler."""

    def __init__(self, service: CopilotService) -> None:
        self.service = service

    def connected(self, peer: Peer) -> Handler:
        connection = ClientConnection(peer, self.service.settings.owner)
        self.service.connections.add(connection)
        return _RequestHandler(self.service, connection)

    async def close(self) -> None:
        await self.service.close()


class _RequestHandler:
    """Answers the requests of one client."""

    def __init__(self, service: CopilotService, connection: ClientConnection) -> None:
        self._service = service
        self._connection = connection

    async def handle(self, method: str, params: dict[str, Any]) -> Any:
        function = find_method(method)
        if function is None:
            raise RpcError(METHOD_NOT_FOUND, f"Unhandled method {method}")
        return await function(RpcCall(self._service, self._connection, method, params))

    async def closed(self) -> None:
        """Detach the client from its sessions. A disconnect, deliberate or not, does not stop their turns."""
        self._service.connections.discard(self._connection)
        for session_id in list(self._connection.attached):
            try:
                await self._service.leave(self._connection, session_id)
            except StoreError as error:
                log.warning("could not note that a client left session %s: %s", session_id, error)
