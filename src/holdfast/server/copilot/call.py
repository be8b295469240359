"""One client request, and the declaration of a function that answers requests."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from holdfast.events.ids import Key, SessionId
from holdfast.server.copilot.connection import Attached, ClientConnection
from holdfast.server.copilot.peer import FAILED, RpcError
from holdfast.server.copilot.service import CopilotService
from holdfast.server.errors import Invalid

T = TypeVar("T")


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


Function = Callable[[RpcCall], Awaitable[Any]]


class Method(msgspec.Struct, frozen=True):
    """A function that answers requests, and the names of the methods that it answers. `surface.py` has the table."""

    names: tuple[str, ...]
    function: Function

    def __call__(self, call: RpcCall) -> Awaitable[Any]:
        return self.function(call)


def method(*names: str) -> Callable[[Function], Method]:
    """Declare the function below as the answer to these methods."""
    return lambda function: Method(names, function)
