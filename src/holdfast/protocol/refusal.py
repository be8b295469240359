"""Refusals of operations, each with a stable code and a sentence for people. A client raises them as the runtime does.

OperationError
├── NotFound     there is no such session, request or item; one of another owner counts as none
├── Invalid      the caller's input is wrong
└── Conflict     the input is right, but the state does not allow it: busy, full, answered already
"""


class OperationError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class NotFound(OperationError):
    """The caller has nothing of that id."""


class Invalid(OperationError):
    """Refused before anything was stored."""


class Conflict(OperationError):
    """Refused in the current state. Nothing was stored."""
