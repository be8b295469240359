"""A survey of a database for operators: reading it creates, migrates, registers and claims nothing.

The `survey.py` of each store fills in these values, also for a database whose schema is older than this release's.
"""

from typing import Final, Literal

import msgspec

Role = Literal["serve", "worker", "copilot", "command", "program", ""]
"""The purpose of a process, for operators: `command` was typed by a person, `program` embeds Holdfast. Empty for a
process of a release that did not record it."""


class ProcessDescription(msgspec.Struct, frozen=True, kw_only=True):
    """How a process describes itself when it opens a database."""

    role: Role = ""
    version: str = ""
    started_at: int = 0
    max_sessions: int = 0
    """How many sessions it runs at a time; 0: it runs none."""


NO_DESCRIPTION: Final = ProcessDescription()


class ProcessRow(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has the database open, or that ended without closing it."""

    token: str
    node: str
    is_alive: bool
    renewed_seconds_ago: float | None
    """Seconds since its last heartbeat; None: unknown."""
    holds: int
    """The number of sessions that are held under its token."""
    about: ProcessDescription

    @property
    def is_worker(self) -> bool:
        """Whether it may run sessions. A process without a description may."""
        return self.is_alive and (self.about.max_sessions > 0 or not self.about.role)


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """How far a database has been migrated."""

    version: int
    """The number of migrations that were run; 0: the database is empty."""
    pending: tuple[str, ...]
    """Migrations of this release that were not run yet."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a database. Counting takes longer the larger it is."""

    sessions: int = 0
    unfinished_sessions: int = 0
    events: int = 0
    bytes: int = 0


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The work in progress at this moment, and the work that waits."""

    held: int = 0
    orphaned: int = 0
    """How many held sessions belong to a process that is gone: they go on once another process claims them."""
    backlog: int = 0
    """Sessions with something to do and no holder, including those that wait for a slot of their owner."""
    oldest_waiting_seconds: float | None = None
    """How long the oldest of them has waited for a process to run it, and not just for a slot; None: none waits."""
    overdue: int = 0
    """Timers that are due and that no process has handled."""
    lag_seconds: float = 0.0
    """How long the most overdue of them has been due."""
    waiting_requests: int = 0
    """Requests to people and clients that are not answered."""


class DatabaseServer(msgspec.Struct, frozen=True, kw_only=True):
    """The database server; for SQLite, the library inside this process."""

    version: str
    role: Literal["primary", "standby", "embedded"]
    is_writable: bool
    latency_ms: float
    """The round trip of one statement."""
    replicas: int | None = None
    """The number of connected standbys; None: this server can't have any, or does not report them."""
    replica_lag_seconds: float | None = None
    """The lag of the slowest standby, or of this server if it is a standby; None: unknown."""


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a database at one moment. `contents` is None where the caller asked only for current work."""

    server: DatabaseServer
    schema: Schema
    work: Work
    processes: tuple[ProcessRow, ...]
    contents: Contents | None = None
