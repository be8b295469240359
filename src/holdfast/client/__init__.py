"""The Python client of `holdfast serve`: sessions that live and run on a server.

`connect(url, key)` is all that most programs need. It returns a `Server`, which has the interface of `Runtime`: that of
`protocol.home.Home`.
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
    from holdfast.client.server import Server, connect
    from holdfast.client.session import Session
    from holdfast.client.stream import Stream
    from holdfast.protocol.message import Sent
    from holdfast.protocol.model import OfferedModel
    from holdfast.protocol.permission import Permission, PermissionOrigin
    from holdfast.protocol.provider import OwnProvider
    from holdfast.protocol.reading import Connection, QueueChanged, Reading
    from holdfast.protocol.request import RequestView
    from holdfast.protocol.session import SessionView
    from holdfast.protocol.stop import Stopped
    from holdfast.protocol.task import TaskView
    from holdfast.protocol.turn import TurnResult
    from holdfast.protocol.webhook import WebhookDeliveryView, WebhookView, WebhookWithSecret
    from holdfast.protocol.webhook_signature import WebhookNotVerified, verify_webhook

__all__ = [
    "AddressInvalid",
    "ClientError",
    "Conflict",
    "Connection",
    "Invalid",
    "NotAllowed",
    "NotFound",
    "NotHoldfast",
    "NotSignedIn",
    "OfferedModel",
    "OwnProvider",
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
    "TaskView",
    "TooMany",
    "TurnResult",
    "Unavailable",
    "Unreachable",
    "WebhookDeliveryView",
    "WebhookNotVerified",
    "WebhookView",
    "WebhookWithSecret",
    "connect",
    "verify_webhook",
]

_HOMES: Final = {
    "Connection": "protocol.reading",
    "OfferedModel": "protocol.model",
    "OwnProvider": "protocol.provider",
    "Permission": "protocol.permission",
    "PermissionOrigin": "protocol.permission",
    "QueueChanged": "protocol.reading",
    "Reading": "protocol.reading",
    "RequestView": "protocol.request",
    "Sent": "protocol.message",
    "Server": "client.server",
    "Session": "client.session",
    "SessionView": "protocol.session",
    "Stopped": "protocol.stop",
    "Stream": "client.stream",
    "TaskView": "protocol.task",
    "TurnResult": "protocol.turn",
    "WebhookDeliveryView": "protocol.webhook",
    "WebhookNotVerified": "protocol.webhook_signature",
    "WebhookView": "protocol.webhook",
    "WebhookWithSecret": "protocol.webhook",
    "connect": "client.server",
    "verify_webhook": "protocol.webhook_signature",
}
"""The module of each public name; the errors are in `client.errors`."""


def __getattr__(name: str) -> Any:
    """Import a name on first use: a program that needs only the errors or the values does not load HTTP."""
    if name not in __all__:
        raise AttributeError(f"module 'holdfast.client' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.{_HOMES.get(name, 'client.errors')}"), name)
