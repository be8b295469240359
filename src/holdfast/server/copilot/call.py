"""A request of a client, and the table of all methods that answer one."""

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
    """One request, with what it needs to be answered."""

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
        """The session, which this connection must be attached to."""
        found = self.connection.attached.get(self.session_id)
        if found is None:
            raise self.failed(f"Session not found: {self.session_id}")
        return found

    def given(self, name: str, kind: type[T], default: T) -> T:
        """A parameter that may be left out."""
        value = self.params.get(name)
        if value is None:
            return default
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise Invalid("params_invalid", f"{name} is not valid: {error}") from error

    def text(self, name: str) -> str:
        """A parameter that must be there, and is text."""
        value = self.params.get(name)
        if not isinstance(value, str):
            raise Invalid("params_invalid", f"{name} is missing, or is not a text.")
        return value

    def failed(self, text: str, data: Any = None) -> RpcError:
        return RpcError(FAILED, f"Request {self.method} failed with message: {text}", data)


Method = Callable[[RpcCall], Awaitable[Any]]

METHODS: dict[str, Method] = {}

FAMILIES: dict[str, Method] = {}
"""What answers every method of that name, or whose name goes on from it with a dot, and has no answer of its own."""


def answering(name: str) -> Method | None:
    """The method itself, or what answers the smallest family that it belongs to."""
    found = METHODS.get(name)
    while found is None and name:
        found = FAMILIES.get(name)
        name = name.rpartition(".")[0]
    return found


def method(*names: str) -> Callable[[Method], Method]:
    """Answers these methods."""

    def add(answers: Method) -> Method:
        for name in names:
            assert name not in METHODS, f"{name} is answered twice"
            METHODS[name] = answers
        return answers

    return add
