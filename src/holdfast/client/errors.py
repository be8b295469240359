"""Errors of the client. None of them contains a key.

ClientError
├── AddressInvalid  the URL can't be the address of a server
├── Unreachable     no server answers at that address, or the connection broke and did not come back
├── NotHoldfast     the server at that address is not Holdfast, or an incompatible release of it
└── Refused         the server refused the request, with a stable code and a message, and did nothing
    ├── NotSignedIn   the key is missing, unknown or revoked (401)
    ├── NotAllowed    the role of the key does not allow the request (403)
    ├── NotFound      there is no such session, request, message or task (404)
    ├── Conflict      the request does not fit the current state: busy, or answered already (409)
    ├── Invalid       the request itself is wrong (400, 413, 422)
    ├── TooMany       a limit is reached; retry after `retry_after` seconds (429)
    └── Unavailable   the server failed (5xx)

`NotFound`, `Conflict` and `Invalid` are also the refusals of that name that a runtime raises (`protocol.refusal`).
"""

from typing import Final

from holdfast.protocol import refusal


class ClientError(refusal.OperationError):
    """The base of all errors of this package. The code is stable, the message is for people."""


class AddressInvalid(ClientError):
    """The given URL can't be the address of a server."""

    def __init__(self, message: str) -> None:
        super().__init__("url_invalid", message)


class Unreachable(ClientError):
    """No server could be reached. `was_sent`: the request was sent, and may have been carried out."""

    def __init__(self, message: str, *, was_sent: bool = False) -> None:
        super().__init__("server_unreachable", message)
        self.was_sent = was_sent


class NotHoldfast(ClientError):
    """`code` tells whether it is another program, or a release of Holdfast that this client does not understand."""


class Refused(ClientError):
    """The server refused the request."""

    def __init__(self, status: int, code: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(code, message)
        self.status = status
        self.retry_after = retry_after


class NotSignedIn(Refused):
    """The key is missing, unknown or revoked."""


class NotAllowed(Refused):
    """The role of the key does not allow the request."""


class NotFound(Refused, refusal.NotFound):
    """The named thing does not exist, or belongs to another owner."""


class Conflict(Refused, refusal.Conflict):
    """The request does not fit the current state."""


class Invalid(Refused, refusal.Invalid):
    """The request itself is wrong."""


class TooMany(Refused):
    """A limit is reached. Nothing was done; retry after `retry_after` seconds."""


class Unavailable(Refused):
    """The server failed."""


_KINDS: Final[dict[int, type[Refused]]] = {
    401: NotSignedIn,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    429: TooMany,
}


def refused(status: int, code: str, message: str, *, retry_after: float | None = None) -> Refused:
    """The error for a response with this status."""
    kind = Unavailable if status >= 500 else _KINDS.get(status, Invalid)
    return kind(status, code, message, retry_after=retry_after)
