"""The home of sessions as the command line uses it: a database on this machine, or a server.

Commands reach sessions through this protocol only, so that they work and print the same for both.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from holdfast.events.event import Event
from holdfast.events.inbox import ItemState
from holdfast.events.request import Decision
from holdfast.events.session import SessionStarted
from holdfast.live.live import Changed, Delta, Progress
from holdfast.protocol.message import DeliveryChoice
from holdfast.protocol.permission import Permission
from holdfast.protocol.queue import QueuedView
from holdfast.protocol.reading import Connection
from holdfast.protocol.request import RequestView
from holdfast.protocol.session import SessionView
from holdfast.protocol.stop import Stopped
from holdfast.protocol.task import KilledTask, TaskView

SessionReading = Event | Delta | Progress | Changed | Connection

MARK: Final = "folder"
"""The metadata in which a session on a server keeps the folder on this machine that it was started from."""


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """The folder that a command is about."""

    directory: str | None
    """The working directory of new sessions; None leaves it to the server."""
    mark: str = ""
    """The value of `MARK` for sessions started from here; empty if the directory tells them apart."""

    def is_of(self, started: SessionStarted) -> bool:
        """Whether that session was started from this folder."""
        if self.directory is not None:
            return started.working_directory == self.directory
        return bool(self.mark) and started.metadata.get(MARK) == self.mark


class SessionSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a session to be made."""

    folder: Folder
    model: str | None = None
    allow: tuple[str, ...] = ()
    dry_run: bool = False


class CallUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one model call. None is unknown."""

    input_tokens: int | None
    output_tokens: int | None
    cost_microdollars: int | None


class OutputPiece(NamedTuple):
    """A piece of a task's output."""

    offset: int
    """The position of its first byte. If it is beyond the requested one, the bytes between are not kept any more."""
    data: bytes
    end: int
    """The position after its last byte."""


class SessionReader(Protocol):
    """Reads one session once: `follow` continues where `until_now` ended."""

    def until_now(self) -> AsyncIterator[SessionReading]: ...

    def follow(self) -> AsyncGenerator[SessionReading, None]:
        """Yield readings without end. Raises `NotFound` when the session is deleted."""


class Home(Protocol):
    """The sessions of one owner. Ids are whole ones. An unknown id raises `NotFound`; a refusal is an `OperationError`
    or a `ClientError`."""

    model: str
    """The model of a new session that names none."""
    runs_elsewhere: bool
    """Whether sessions continue when this command ends, because another process runs them."""

    # Sessions

    async def create(self, wanted: SessionSetup) -> str: ...

    async def session(self, session_id: str) -> SessionView: ...

    def sessions(self, text: str = "") -> AsyncIterator[SessionView]:
        """All sessions, or those with this text in the title or a message; the newest first."""

    async def started(self, session_id: str) -> SessionStarted | None: ...

    async def note_resume(self, session_id: str) -> None: ...

    async def rename(self, session_id: str, title: str) -> None: ...

    async def change_model(self, session_id: str, model: str) -> None: ...

    async def move(self, session_id: str, directory: str) -> None:
        """Change the working directory, or accept the folder that now has the name of the old one."""

    async def delete(self, session_id: str) -> None: ...

    async def export_session(self, session_id: str) -> bytes: ...

    async def import_session(self, document: bytes) -> str: ...

    async def usage(self, session_id: str) -> Sequence[CallUsage]: ...

    # Messages

    async def send(
        self,
        session_id: str,
        text: str,
        *,
        message_id: str,
        delivery: DeliveryChoice = "steer",
        unattended: bool = False,
    ) -> None:
        """Send a message, durable on return. The same id again is the same message."""

    async def receipt(self, session_id: str, message_id: str) -> ItemState: ...

    async def queue(self, session_id: str) -> tuple[QueuedView, ...]: ...

    async def stop(self, session_id: str, *, keep_queued: bool = False) -> Stopped: ...

    def read(self, session_id: str, after: int = 0) -> SessionReader: ...

    async def is_settled(self, session_id: str, position: int) -> bool:
        """Whether that was the last event and the session waits for a person, a client or a message."""

    # Requests

    async def requests(self, session_id: str) -> tuple[RequestView, ...]: ...

    async def decide(
        self, session_id: str, request_id: str, decision: Decision, *, feedback: str = "", answered_by: str = ""
    ) -> None: ...

    async def answer(
        self, session_id: str, request_id: str, text: str, *, was_freeform: bool, answered_by: str = ""
    ) -> None: ...

    async def answered_by(self, session_id: str, request_id: str) -> str | None:
        """The name that the answer was given under, which may be empty; None if there is no answer."""

    async def permissions(self, session_id: str | None = None) -> tuple[Permission, ...]:
        """The permissions granted for always; or all that one session has."""

    async def revoke_permission(self, permission_id: str, session_id: str | None = None) -> Permission: ...

    async def attach(self, session_id: str, attachment_id: str, *, capabilities: tuple[str, ...]) -> None:
        """Announce a client that can answer requests. To be repeated before the attachment times out."""

    async def detach(self, session_id: str, attachment_id: str) -> None: ...

    # Tasks

    async def tasks(self, session_id: str | None = None, *, foreground: bool = True) -> list[TaskView]:
        """The tasks of one session or of all, in their current state, the oldest first."""

    async def task(self, task: TaskView) -> TaskView | None:
        """The current state of a task; None if its session was deleted."""

    async def last_output(self, task: TaskView) -> str | None:
        """The end of its output; None if that is on another machine."""

    async def output_size(self, task: TaskView) -> int: ...

    async def output(self, task: TaskView, offset: int, length: int) -> OutputPiece: ...

    def follow_output(self, task: TaskView, offset: int) -> AsyncIterator[OutputPiece]:
        """Its output from this position on, until it ends."""

    async def kill(self, task: TaskView) -> KilledTask: ...

    async def to_background(self, task: TaskView) -> None: ...
