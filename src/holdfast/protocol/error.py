"""The shape of every error response."""

import msgspec


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error: a code for programs, and a sentence for people."""

    code: str
    """Stable, for programs."""
    message: str
    """A sentence for people."""
    retry_after: float | None = None
    """Seconds after which the same request may succeed."""


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every error response."""

    error: Problem
