"""One client request, and the table of the methods that answer requests."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from holdfast.events.ids import Key, SessionId
from holdfast.server.copilot.connection import Attached, ClientConnection
from holdfast.server.copilot.peer import RpcError
from holdfast.server.copilot.service import CopilotService
from holdfast.server.errors import Invalid

T = TypeVar("T")

FAILED = -32603


class RpcCall:
    """One request, with the service and the connection that its method works on."""

    def __init__(
        self, service: CopilotService, connection: ClientConnection, method: str, params: dict[str, Any]
    ) -> None:
        self.service = service
        self.connection = connection
        self.method = method
        self.params = params

    @property
    def session_id(self) -> SessionId:
        return SessionId(self.text("sessionId"))

    @property
    def key(self) -> Key:
        return Key(self.connection.owner, self.session_id)

    def attached(self) -> Attached:
        """The named session. Raises RpcError unless this connection is attached to it."""
        attached = self.connection.attached.get(self.session_id)
        if attached is None:
            raise self.failed(f"Session not found: {self.session_id}")
        return attached

    def param(self, name: str, kind: type[T], default: T) -> T:
        """An optional parameter, or `default` if the request has none. Raises `Invalid` for a wrong type."""
        value = self.params.get(name)
        if value is None:
            return default
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise Invalid("params_invalid", f"{name} is not valid: {error}") from error

    def text(self, name: str) -> str:
        """A required string parameter. Raises `Invalid` if it is missing."""
        value = self.params.get(name)
        if not isinstance(value, str):
            raise Invalid("params_invalid", f"{name} is missing, or is not a string.")
        return value

    def failed(self, text: str, data: Any = None) -> RpcError:
        return RpcError(FAILED, f"Request {self.method} failed with message: {text}", data)


Method = Callable[[RpcCall], Awaitable[Any]]

METHODS: dict[str, Method] = {}

FAMILIES: dict[str, Method] = {}
"""Fallbacks by name prefix: each answers the methods of that name, or under it after a dot, that METHODS lacks."""


def find_method(name: str) -> Method | None:
    """The method of this name, or else the fallback with the longest matching prefix."""
    function = METHODS.get(name)
    while function is None and name:
        function = FAMILIES.get(name)
        name = name.rpartition(".")[0]
    return function


def method(*names: str) -> Callable[[Method], Method]:
    """Register the decorated function as the answer to these methods."""

    def add(function: Method) -> Method:
        for name in names:
            assert name not in METHODS, f"{name} is answered twice"
            METHODS[name] = function
        return function

    return add
