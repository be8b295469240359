"""What can be seen of a database by somebody who only looks: nothing is made, migrated, registered or claimed.

Each store has a `survey.py` that fills these in, also for a database whose schema is older than this release's.
"""

from typing import Final, Literal

import msgspec

Role = Literal["serve", "worker", "copilot", "command", "program", ""]
"""What a process is for people: `command` is one that somebody typed, `program` one that embeds Holdfast. A process of
a release that did not say so has none."""


class ProcessDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a process says of itself when it opens a database."""

    role: Role = ""
    version: str = ""
    started_at: int = 0
    max_sessions: int = 0
    """How many it runs at a time; 0: it runs none."""


NO_DESCRIPTION: Final = ProcessDescription()


class ProcessRow(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has the database open, or that went without saying so."""

    token: str
    node: str
    is_alive: bool
    renewed_seconds_ago: float | None
    """Since it last said that it lives; None: it does not say when."""
    holds: int
    """Sessions that are held under its token."""
    about: ProcessDescription

    @property
    def is_worker(self) -> bool:
        """Whether it may run sessions. Who says nothing of itself may."""
        return self.is_alive and (self.about.max_sessions > 0 or not self.about.role)


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    """0: nothing was made yet."""
    pending: tuple[str, ...]
    """Migrations of this release that were not run."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is. Counting it takes longer the more there is."""

    sessions: int = 0
    unfinished_sessions: int = 0
    events: int = 0
    bytes: int = 0


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What is done at this moment, and what waits to be."""

    held: int = 0
    orphaned: int = 0
    """Of those, how many are held by a process that is gone: they go on once somebody claims them."""
    backlog: int = 0
    """Sessions with something to do that nobody holds, those included that wait for a slot of their owner."""
    oldest_waiting_seconds: float | None = None
    """How long one of them has waited for a process to run it, and not just for a slot; None: none does."""
    overdue: int = 0
    """Timers whose time has come and that nobody has looked at."""
    lag_seconds: float = 0.0
    """How late the latest of them is."""
    waiting_requests: int = 0
    """What people and clients are asked and have not answered."""


class DatabaseServer(msgspec.Struct, frozen=True, kw_only=True):
    """The database's own server, if it has one."""

    version: str
    role: Literal["primary", "standby", "embedded"]
    is_writable: bool
    latency_ms: float
    """One statement there and back."""
    replicas: int | None = None
    """Standbys that are connected; None: it has none by its nature, or does not say."""
    replica_lag_seconds: float | None = None
    """How far the slowest of them, or on a standby this one, is behind; None: nobody knows."""


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, read at one moment. `contents` is left out where only the moment counts."""

    server: DatabaseServer
    schema: Schema
    work: Work
    processes: tuple[ProcessRow, ...]
    contents: Contents | None = None
