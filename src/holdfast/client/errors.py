"""What can go wrong between a program and a Holdfast server. None of them ever holds a key.

ClientError
├── Unreachable     nobody answers at that address, or the connection broke and did not come back
├── NotHoldfast     somebody answers who is no Holdfast server, or one of another age
└── Refused         the server says no, with a stable code and a sentence; what it refused was not done
    ├── NotSignedIn   it does not know who asks (401)
    ├── NotAllowed    it knows, and they may not (403)
    ├── NotFound      no such session, request, message or task (404)
    ├── Conflict      not now, or no longer: busy, answered already (409)
    ├── Invalid       what was sent is wrong (400, 413, 422)
    ├── TooMany       too many or too often; `retry_after` says when to try again (429)
    └── Unavailable   the server can't at the moment (5xx)
"""

from typing import Final


class ClientError(Exception):
    """Anything that this package raises. The code is stable, the message is for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class AddressInvalid(ClientError):
    """The caller's URL is none that a server could be at."""

    def __init__(self, message: str) -> None:
        super().__init__("url_invalid", message)


class Unreachable(ClientError):
    """`was_sent`: what was asked for may have been done all the same."""

    def __init__(self, message: str, *, was_sent: bool = False) -> None:
        super().__init__("server_unreachable", message)
        self.was_sent = was_sent


class NotHoldfast(ClientError):
    """`code` says whether it is something else, or a Holdfast that is too old for this client."""


class Refused(ClientError):
    def __init__(self, status: int, code: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(code, message)
        self.status = status
        self.retry_after = retry_after


class NotSignedIn(Refused):
    """No key was shown, or none that the server knows (any more)."""


class NotAllowed(Refused):
    """More than this role may ask for."""


class NotFound(Refused):
    """Nothing of that name, or it is somebody else's."""


class Conflict(Refused):
    """Right, but not as things stand."""


class Invalid(Refused):
    """Refused before anything was done."""


class TooMany(Refused):
    """Nothing was done; it may be tried again after `retry_after` seconds."""


class Unavailable(Refused):
    """The server's fault."""


_KINDS: Final[dict[int, type[Refused]]] = {
    401: NotSignedIn,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    429: TooMany,
}


def refused(status: int, code: str, message: str, *, retry_after: float | None = None) -> Refused:
    """The error for an answer of that status."""
    kind = Unavailable if status >= 500 else _KINDS.get(status, Invalid)
    return kind(status, code, message, retry_after=retry_after)
