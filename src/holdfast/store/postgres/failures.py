"""Maps failures of PostgreSQL and of its connections to store errors, and tells whether anything was written."""

from typing import Final

import asyncpg

from holdfast.store.errors import StoreError, StoreUnavailable, StoreUnusable, UnavailableCode, UnusableCode

_SERVER_STOPS: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
"""The server stops or starts, or ended a connection that was idle for long."""

_TRY_AGAIN: Final = frozenset({"40001", "40P01"})
"""Two transactions conflicted: one of them was rolled back as a whole."""

_FAILS_EVERY_UNIT: Final = frozenset({"25006", "53300", "53400"})
"""Errors that would fail every unit of a batch; do not retry one by one."""

_LOCKED: Final = "55P03"
_TOO_LONG: Final = "57014"

_SENTENCES: Final[dict[str, tuple[UnavailableCode, str]]] = {
    "25006": (
        "store_read_only",
        "PostgreSQL takes no writes at present: it is a standby, or set to read only. Name the primary, or wait until "
        "it is writable again.",
    ),
    "53100": ("store_disk_full", "PostgreSQL's disk is full. Free some space and try again."),
    "53300": (
        "store_busy",
        "PostgreSQL has no connection left. Raise max_connections, end other clients, or put a pooler in front of it.",
    ),
    "55P03": ("store_busy", "Another process has locked the row for too long. Try again."),
    "57014": ("store_busy", "PostgreSQL took too long over a statement and ended it. Try again."),
    "40001": ("store_busy", "Writes of other processes conflicted with this one several times. Try again."),
    "40P01": ("store_busy", "Writes of other processes conflicted with this one several times. Try again."),
}

_UNREACHABLE: Final = (
    "PostgreSQL can't be reached, or the connection to it was lost. Everything it acknowledged is kept. Try again."
)

_UNUSABLE: Final[dict[str, tuple[UnusableCode, str]]] = {
    "28P01": ("store_refused", "PostgreSQL refused the user or the password. Check the database URL."),
    "28000": ("store_refused", "PostgreSQL refused the user. Check the database URL and the server's pg_hba.conf."),
    "3D000": ("store_not_found", "PostgreSQL has no database of that name. Create it, or name another."),
    "42501": (
        "store_refused",
        "PostgreSQL does not let this user create what Holdfast needs. Grant it CREATE on the database.",
    ),
}


def sqlstate(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or "")


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone, or stuck. A transaction under way may have been committed all the same."""
    if isinstance(error, asyncpg.PostgresError):
        fatal = getattr(error, "severity_en", "") in ("FATAL", "PANIC")
        return fatal or isinstance(error, asyncpg.PostgresConnectionError) or sqlstate(error) in _SERVER_STOPS
    if isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, ValueError)  # A value that can't be encoded was never sent.
    return isinstance(error, OSError | EOFError | asyncpg.InternalClientError)


def is_passing(error: BaseException) -> bool:
    """Whether a failed attempt to connect may well succeed in a moment."""
    if isinstance(error, asyncpg.PostgresError):
        return sqlstate(error)[:2] in ("08", "53") or sqlstate(error) in _SERVER_STOPS
    return isinstance(error, OSError | asyncpg.TargetServerAttributeNotMatched) or is_lost(error)


def is_try_again(error: BaseException) -> bool:
    return sqlstate(error) in _TRY_AGAIN


def is_locked(error: BaseException) -> bool:
    """Whether another transaction held a lock for longer than the connection waits. Nothing was written."""
    return sqlstate(error) == _LOCKED


def took_too_long(error: BaseException) -> bool:
    return sqlstate(error) == _TOO_LONG


def fails_every_unit(error: BaseException) -> bool:
    return sqlstate(error) in _FAILS_EVERY_UNIT


def held_elsewhere() -> StoreUnavailable:
    """The error of a unit whose session another process kept locked for too long."""
    return StoreUnavailable(*_SENTENCES[_LOCKED])


def unavailable(error: BaseException) -> BaseException:
    """Why a read or a write failed, and what to do. Errors that are not PostgreSQL's are returned unchanged."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return StoreUnavailable(*_SENTENCES["25006"])
    if (known := _SENTENCES.get(sqlstate(error))) is not None:
        return StoreUnavailable(*known)
    if is_lost(error):
        return StoreUnavailable("store_unreachable", _UNREACHABLE)
    if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError):
        return StoreUnavailable("store_failed", f"PostgreSQL failed ({sqlstate(error) or type(error).__name__}).")
    return error


def unusable(error: BaseException) -> BaseException:
    """Why the database could not be opened. The message repeats no part of the URL, which may hold a password."""
    if (known := _UNUSABLE.get(sqlstate(error))) is not None:
        return StoreUnusable(*known)
    if isinstance(error, ValueError | TypeError | asyncpg.ClientConfigurationError):
        return StoreUnusable("store_not_found", "The database URL can't be read as one of PostgreSQL's. Check it.")
    return unavailable(error)
