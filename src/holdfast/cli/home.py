"""Where sessions live, as far as the command line needs to know: a database of this machine, or a server.

Whatever a command does, it does through this; so nobody can tell from what a command says which of the two it was.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from holdfast.client.views import (
    Connection,
    Delivery,
    KilledTask,
    Permission,
    QueuedMessage,
    RequestView,
    SessionView,
    Stopped,
    Task,
)
from holdfast.events.event import Event
from holdfast.events.inbox import ItemState
from holdfast.events.request import Decision
from holdfast.events.session import SessionStarted
from holdfast.live.live import Changed, Delta, Progress

SessionReading = Event | Delta | Progress | Changed | Connection

MARK: Final = "folder"
"""The metadata under which a session that has no folder of ours remembers from where it was started."""


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """The folder that a command was given in."""

    directory: str | None
    """The session's working directory; None leaves it to the server."""
    mark: str = ""

    def is_of(self, started: SessionStarted) -> bool:
        """Whether that session was started here."""
        if self.directory is not None:
            return started.working_directory == self.directory
        return bool(self.mark) and started.metadata.get(MARK) == self.mark


class SessionSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a session is made with."""

    folder: Folder
    model: str | None = None
    allow: tuple[str, ...] = ()
    dry_run: bool = False


class CallUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one model call used. None is unknown."""

    input_tokens: int | None
    output_tokens: int | None
    cost_microdollars: int | None


class OutputPiece(NamedTuple):
    """A piece of what a task wrote."""

    offset: int
    """Where it begins. Beyond what was asked for: what lay between is gone."""
    data: bytes
    end: int
    """Where the next one begins."""


class SessionReader(Protocol):
    """One reading of one session: where the first way of reading ends, the second goes on."""

    def until_now(self) -> AsyncIterator[SessionReading]: ...

    def follow(self) -> AsyncGenerator[SessionReading, None]:
        """Without end. Raises `NotFound` when the session is deleted."""
        ...


class Home(Protocol):
    """Ids are whole ones. What is not there raises `NotFound`; what is refused is an `OperationError` or a
    `ClientError`."""

    model: str
    """What a session gets whose maker names none."""
    goes_on: bool
    """Sessions run on when this command ends: somebody else runs them."""

    # Sessions

    async def create(self, wanted: SessionSetup) -> str: ...

    async def session(self, session_id: str) -> SessionView: ...

    def sessions(self, text: str = "") -> AsyncIterator[SessionView]:
        """All, the newest first."""
        ...

    async def started(self, session_id: str) -> SessionStarted | None: ...

    async def came_back(self, session_id: str) -> None: ...

    async def rename(self, session_id: str, title: str) -> None: ...

    async def change_model(self, session_id: str, model: str) -> None: ...

    async def move(self, session_id: str, directory: str) -> None:
        """Let it work in that folder, or in what has taken the place of the one that it had."""
        ...

    async def delete(self, session_id: str) -> None: ...

    async def export_session(self, session_id: str) -> bytes: ...

    async def import_session(self, document: bytes) -> str: ...

    async def usage(self, session_id: str) -> Sequence[CallUsage]: ...

    # Messages

    async def send(
        self, session_id: str, text: str, *, message_id: str, delivery: Delivery = "steer", unattended: bool = False
    ) -> None:
        """Durable on return. The same id again is the same message."""
        ...

    async def receipt(self, session_id: str, message_id: str) -> ItemState: ...

    async def queue(self, session_id: str) -> tuple[QueuedMessage, ...]: ...

    async def stop(self, session_id: str, *, keep_queued: bool = False) -> Stopped: ...

    def read(self, session_id: str, after: int = 0) -> SessionReader: ...

    async def is_settled(self, session_id: str, position: int) -> bool:
        """Whether that was the last event, and nothing more happens by itself."""
        ...

    # Requests

    async def requests(self, session_id: str) -> tuple[RequestView, ...]: ...

    async def decide(
        self, session_id: str, request_id: str, decision: Decision, *, feedback: str = "", answered_by: str = ""
    ) -> None: ...

    async def answer(
        self, session_id: str, request_id: str, text: str, *, was_freeform: bool, answered_by: str = ""
    ) -> None: ...

    async def answered_by(self, session_id: str, request_id: str) -> str | None:
        """Who answered it, or nothing if that was not said; None: nobody did."""
        ...

    async def permissions(self, session_id: str | None = None) -> tuple[Permission, ...]:
        """What was allowed for always; or all that one session may do without asking."""
        ...

    async def revoke_permission(self, permission_id: str, session_id: str | None = None) -> Permission: ...

    async def attach(self, session_id: str, attachment_id: str, *, capabilities: tuple[str, ...]) -> None:
        """Say that somebody is there who can answer. To be repeated."""
        ...

    async def detach(self, session_id: str, attachment_id: str) -> None: ...

    # Tasks

    async def tasks(self, session_id: str | None = None, *, foreground: bool = True) -> list[Task]:
        """As their machine knows them now, the oldest first; of one session, or of all."""
        ...

    async def task(self, task: Task) -> Task | None:
        """The same as it is now; None: its session is gone."""
        ...

    async def last_words(self, task: Task) -> str | None:
        """The end of what it wrote; None: that is on another machine."""
        ...

    async def output_size(self, task: Task) -> int: ...

    async def output(self, task: Task, offset: int, length: int) -> OutputPiece: ...

    def follow_output(self, task: Task, offset: int) -> AsyncIterator[OutputPiece]:
        """What it wrote and writes, until it ends."""
        ...

    async def kill(self, task: Task) -> KilledTask: ...

    async def to_background(self, task: Task) -> None: ...
