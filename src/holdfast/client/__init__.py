"""The Python client of `holdfast serve`: sessions that live and run on a server.

`connect(url, key)` is all that most programs need. It returns a `Server`, which mirrors `holdfast.Runtime`; its
sessions mirror `holdfast.Session`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from holdfast.client.errors import (
        AddressInvalid,
        ClientError,
        Conflict,
        Invalid,
        NotAllowed,
        NotFound,
        NotHoldfast,
        NotSignedIn,
        Refused,
        TooMany,
        Unavailable,
        Unreachable,
    )
    from holdfast.client.server import Model, Server, connect
    from holdfast.client.session import Session
    from holdfast.client.stream import Stream
    from holdfast.client.views import (
        Connection,
        Permission,
        PermissionOrigin,
        QueueChanged,
        Reading,
        RequestView,
        Sent,
        SessionView,
        Stopped,
        Task,
        TurnResult,
    )

__all__ = [
    "AddressInvalid",
    "ClientError",
    "Conflict",
    "Connection",
    "Invalid",
    "Model",
    "NotAllowed",
    "NotFound",
    "NotHoldfast",
    "NotSignedIn",
    "Permission",
    "PermissionOrigin",
    "QueueChanged",
    "Reading",
    "Refused",
    "RequestView",
    "Sent",
    "Server",
    "Session",
    "SessionView",
    "Stopped",
    "Stream",
    "Task",
    "TooMany",
    "TurnResult",
    "Unavailable",
    "Unreachable",
    "connect",
]

_SERVER: Final = {"Model", "Server", "connect"}
_VIEWS: Final = {
    "Connection",
    "Permission",
    "PermissionOrigin",
    "QueueChanged",
    "Reading",
    "RequestView",
    "Sent",
    "SessionView",
    "Stopped",
    "Task",
    "TurnResult",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use: a program that needs only the errors or the views does not load HTTP."""
    if name not in __all__:
        raise AttributeError(f"module 'holdfast.client' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.client.{_home_of(name)}"), name)


def _home_of(name: str) -> str:
    if name in _SERVER:
        return "server"
    if name in _VIEWS:
        return "views"
    return name.lower() if name in ("Session", "Stream") else "errors"
