"""The table of all methods, and the dispatch of each request of a client to the method that answers it."""

import logging
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Final

from holdfast.server.copilot.call import Function, Method, RpcCall
from holdfast.server.copilot.connection import ClientConnection
from holdfast.server.copilot.methods import (
    absent,
    account,
    compaction,
    event_log,
    history,
    messages,
    metadata,
    permissions,
    plan,
    questions,
    queue,
    session_list,
    sessions,
    settings,
    shell,
    tasks,
    tools,
    workspaces,
)
from holdfast.server.copilot.peer import METHOD_NOT_FOUND, Handler, Peer, RpcError
from holdfast.server.copilot.service import CopilotService
from holdfast.store.errors import StoreError

log = logging.getLogger(__name__)

METHOD_MODULES: Final = (
    sessions,
    session_list,
    messages,
    queue,
    event_log,
    history,
    compaction,
    permissions,
    questions,
    tools,
    tasks,
    shell,
    settings,
    metadata,
    plan,
    workspaces,
    account,
    absent,
)


def _declared(modules: Iterable[ModuleType]) -> Iterator[tuple[str, Function]]:
    """Each method that the modules declare, with the function that answers it."""
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Method) and value.function.__module__ == module.__name__:
                yield from ((name, value.function) for name in value.names)


def _table(*methods: tuple[str, Function]) -> dict[str, Function]:
    table: dict[str, Function] = {}
    for name, function in methods:
        assert name not in table, f"{name} is answered twice"
        table[name] = function
    return table


METHODS: Final = _table(
    *_declared(METHOD_MODULES),
    *((name, absent.constant(answer)) for name, answer in absent.EMPTY.items()),
)

FAMILIES: Final = _table(*((prefix, absent.refusal(feature)) for prefix, feature in absent.UNSUPPORTED.items()))
"""Fallbacks by name prefix: each answers the methods of that name, or under it after a dot, that METHODS lacks."""


def find_method(name: str) -> Function | None:
    """The function that answers the method, or else the fallback with the longest matching prefix."""
    function = METHODS.get(name)
    while function is None and name:
        function = FAMILIES.get(name)
        name = name.rpartition(".")[0]
    return function


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
