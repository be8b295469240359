"""What an operation refuses, and why. The code is stable, the sentence is for people.

OperationError
├── NotFound     there is no such session, request or item (or it is somebody else's, which is the same)
├── Invalid      the caller's words are wrong
└── Conflict     the caller is right, but not now: busy, full, answered already
"""


class OperationError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class NotFound(OperationError):
    """Nothing of that name."""


class Invalid(OperationError):
    """Refused before anything was stored."""


class Conflict(OperationError):
    """Refused as things stand. Nothing was stored."""
