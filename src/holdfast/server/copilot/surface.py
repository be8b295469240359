"""The way of each request to the method that answers it."""

import logging
from typing import Any

from holdfast.server.copilot import methods as methods
from holdfast.server.copilot.call import RpcCall, answering
from holdfast.server.copilot.connection import ClientConnection
from holdfast.server.copilot.peer import METHOD_NOT_FOUND, Handler, Peer, RpcError
from holdfast.server.copilot.service import CopilotService
from holdfast.store.errors import StoreError

log = logging.getLogger(__name__)


class Surface:
    """What the listener plugs connections into."""

    def __init__(self, service: CopilotService) -> None:
        self.service = service

    def connected(self, peer: Peer) -> Handler:
        connection = ClientConnection(peer, self.service.settings.owner)
        self.service.connections.add(connection)
        return _Answering(self.service, connection)

    async def close(self) -> None:
        await self.service.close()


class _Answering:
    """Answers the requests of one client."""

    def __init__(self, service: CopilotService, connection: ClientConnection) -> None:
        self._service = service
        self._connection = connection

    async def handle(self, method: str, params: dict[str, Any]) -> Any:
        answers = answering(method)
        if answers is None:
            raise RpcError(METHOD_NOT_FOUND, f"Unhandled method {method}")
        return await answers(RpcCall(self._service, self._connection, method, params))

    async def closed(self) -> None:
        """The client is gone, on purpose or not: a disconnect is not a stop."""
        self._service.connections.discard(self._connection)
        for session_id in list(self._connection.attached):
            try:
                await self._service.leave(self._connection, session_id)
            except StoreError as error:
                log.warning("could not note that a client left session %s: %s", session_id, error)
