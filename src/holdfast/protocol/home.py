"""The interface of sessions, wherever they are: `holdfast.Runtime` and `holdfast.client.Server` are homes, and their
sessions have the same methods. A program moves from one to the other by opening another home.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final, Protocol

from holdfast.events.event import Event
from holdfast.events.session import ClientTool
from holdfast.live.live import Changed
from holdfast.protocol.compaction import Compacted, CompactionCancelled, ContextView
from holdfast.protocol.file import FileView
from holdfast.protocol.identity import IdentityView
from holdfast.protocol.message import DeliveryChoice, Sent
from holdfast.protocol.permission import Permission
from holdfast.protocol.provider import OwnProvider
from holdfast.protocol.queue import QueuedView
from holdfast.protocol.reading import QueueChanged, Reading
from holdfast.protocol.request import Answered, RequestView
from holdfast.protocol.session import Activity, SessionView
from holdfast.protocol.stop import Stopped
from holdfast.protocol.task import KilledTask, TaskOutput, TaskView
from holdfast.protocol.turn import TurnOutcome, TurnResult
from holdfast.protocol.webhook import Webhooks

OUTPUT_BYTES: Final = 65_536

OUTPUT_WAIT_SECONDS: Final = 20
"""How long one read waits for more output of a task."""

PIECE_BYTES: Final = 256 * 1024
"""How much of a file is read at a time to be uploaded."""

QUIET_SECONDS: Final = 0.2
"""The pause before output is read again. Output that may be the start of a secret is withheld."""


class SessionStream(Protocol):
    """Reads one session once: `follow` continues where `until_now` ended."""

    @property
    @abstractmethod
    def cursor(self) -> str:
        """How far the stream has read. It may be stored, and any program may continue from it later."""

    @abstractmethod
    def until_now(self) -> AsyncGenerator[Reading, None]:
        """Everything up to now, and then the end."""

    @abstractmethod
    def follow(self) -> AsyncGenerator[Reading, None]:
        """Everything up to now, and then every change, without end. Raises `NotFound` when the session is deleted."""


class AnySession(Protocol):
    """One session, whichever process runs it. Changes are durable on return; under the same id they are made once."""

    id: str

    # Sending

    @abstractmethod
    async def send(
        self,
        text: str,
        *,
        message_id: str | None = None,
        delivery: DeliveryChoice = "steer",
        unattended: bool = False,
        files: Sequence[str] = (),
    ) -> Sent:
        """Send a message. Its turn runs whether or not a client follows it. `unattended`: no person can be asked, so
        every call that would need an approval is denied. `files`: ids of uploaded files; those that the owner does not
        have are dropped."""

    @abstractmethod
    async def go_on(self, *, message_id: str | None = None, unattended: bool = False) -> Sent:
        """Ask the model to go on after a turn that ended with an error, also for want of money. Raises `Conflict` after
        any other turn."""

    @abstractmethod
    async def receipt(self, message_id: str) -> Sent:
        """The current receipt of a message."""

    @abstractmethod
    async def run(
        self, text: str, *, message_id: str | None = None, unattended: bool = False, files: Sequence[str] = ()
    ) -> TurnResult:
        """Send a message and wait until its turn ends, or waits for an answer. A program that was restarted meanwhile
        rejoins the same turn by giving the same `message_id`."""

    @abstractmethod
    async def result_of(self, message_id: str, *, after: str = "0") -> TurnResult:
        """Wait until the turn of a message ends, or waits for an answer. `after`: a cursor before the message."""

    # Reading

    @abstractmethod
    def stream(self, after: str = "0") -> SessionStream:
        """A reader whose cursor can be stored. `after` is a cursor or a position."""

    def events(self, after: str = "0", *, follow: bool = True) -> AsyncGenerator[Reading, None]:
        """Everything after the cursor; with `follow`, also everything that happens from now on, without end."""
        stream = self.stream(after)
        return stream.follow() if follow else stream.until_now()

    @abstractmethod
    async def look(self) -> SessionView: ...

    @abstractmethod
    async def first_event(self) -> Event | None:
        """The first event of the log, which tells how the session was created; None if the log is empty."""

    @abstractmethod
    async def activity(self) -> Activity:
        """Whether the session is settled, and its head."""

    # Answering and stopping

    @abstractmethod
    async def requests(self) -> tuple[RequestView, ...]:
        """The open requests of the session to people and clients."""

    @abstractmethod
    async def approve(
        self, request_id: str, *, for_session: bool = False, answer_id: str | None = None
    ) -> Answered: ...

    @abstractmethod
    async def deny(self, request_id: str, *, feedback: str = "", answer_id: str | None = None) -> Answered: ...

    @abstractmethod
    async def answer(
        self, request_id: str, answer: str, *, was_freeform: bool = True, answer_id: str | None = None
    ) -> Answered:
        """Answer a question."""

    @abstractmethod
    async def give_result(
        self, request_id: str, content: str, *, success: bool = True, answer_id: str | None = None
    ) -> Answered:
        """Give the result of a client-side tool."""

    @abstractmethod
    async def stop(
        self, *, stop_id: str | None = None, keep_queued: bool = False, turn_id: str | None = None
    ) -> Stopped:
        """Stop the running turn. Waiting messages are removed and returned, unless `keep_queued` is set. With a
        `turn_id`, nothing happens unless that turn is running."""

    @abstractmethod
    async def permissions(self) -> tuple[Permission, ...]:
        """Permissions that the session has: its own, and those of its directory."""

    @abstractmethod
    async def revoke_permission(self, permission_id: str) -> Permission:
        """Revoke a permission of this session, from its next call on."""

    # The context

    @abstractmethod
    async def context(self) -> ContextView:
        """How full the session's context is, and how much of its input came from the provider's cache."""

    @abstractmethod
    async def compact(
        self, *, instructions: str = "", compaction_id: str | None = None, wait_seconds: float = 0
    ) -> Compacted:
        """Summarise the older part of the conversation for the model. `instructions` say what to keep. Waits at most
        `wait_seconds` for the end; the same id again later returns it. Raises `Conflict` if it is refused by then."""

    @abstractmethod
    async def cancel_compaction(self) -> CompactionCancelled:
        """Give up the compaction that is under way. The context stays as it is."""

    @abstractmethod
    async def pin(self, message_id: str) -> None:
        """Have the model keep a message that a person sent word for word, whatever is compacted."""

    @abstractmethod
    async def unpin(self, message_id: str) -> None:
        """Let a compaction summarise the message again."""

    # The queue

    @abstractmethod
    async def queue(self) -> tuple[QueuedView, ...]:
        """The queued messages, in order."""

    @abstractmethod
    async def edit_queued(self, message_id: str, text: str) -> None: ...

    @abstractmethod
    async def remove_queued(self, message_id: str) -> None: ...

    # The session itself

    @abstractmethod
    async def rename(self, title: str) -> None: ...

    @abstractmethod
    async def move(self, working_directory: str) -> None:
        """Change the working directory. With the same path, the session uses the folder that is there now."""

    @abstractmethod
    async def change_model(self, model: str) -> None:
        """Change the model, from the next step on."""

    @abstractmethod
    async def export(self) -> bytes:
        """The session as one document, for `Home.import_session`."""

    @abstractmethod
    async def delete(self) -> None: ...

    # Tasks

    @abstractmethod
    async def tasks(self) -> tuple[TaskView, ...]:
        """The session's commands, including the one that the turn waits for."""

    @abstractmethod
    async def task(self, task_id: str) -> TaskView: ...

    @abstractmethod
    async def kill_task(self, task_id: str) -> KilledTask: ...

    @abstractmethod
    async def to_background(self, task_id: str) -> None:
        """Have the turn continue without waiting for this command."""

    @abstractmethod
    async def task_output(
        self, task_id: str, offset: int = 0, length: int = OUTPUT_BYTES, *, wait_seconds: float = 0
    ) -> TaskOutput:
        """A part of a task's output, also while it runs, without known secrets. A negative offset counts from the end
        of the present output. `wait_seconds`: how long to wait for output if there is none."""

    @abstractmethod
    async def output_size(self, task_id: str) -> int:
        """How many bytes a task has written by now."""

    async def follow_task(self, task_id: str, offset: int = 0) -> AsyncIterator[TaskOutput]:
        """The output of a task, past and future, until the task ends."""
        while True:
            is_running = (await self.task(task_id)).is_running
            part = await self.task_output(task_id, offset, wait_seconds=OUTPUT_WAIT_SECONDS if is_running else 0)
            if part.next_offset > part.offset:
                yield part
            elif not is_running:
                return
            else:
                await asyncio.sleep(QUIET_SECONDS)
            offset = part.next_offset

    # The turn of a message

    async def _result_from(self, readings: AsyncGenerator[Reading | Changed, None], message_id: str) -> TurnResult:
        """Follow the readings until the turn of the message ends, or waits for an answer."""
        outcome = TurnOutcome(message_id)
        async with aclosing(readings):
            async for reading in readings:
                if outcome.turn_id is None and isinstance(reading, Changed | QueueChanged):
                    found = await self._before_its_turn(outcome)
                    if found is not None:
                        return found
                if isinstance(reading, Event) and outcome.take(reading):
                    waiting = await self.requests() if outcome.reason == "waiting" else ()
                    if outcome.reason != "waiting" or waiting:
                        return outcome.result(waiting)
        raise AssertionError("a session is followed without end")

    async def _before_its_turn(self, outcome: TurnOutcome) -> TurnResult | None:
        """The result of a message without a turn: it was removed, or waits behind a turn that waits for an answer."""
        receipt = await self.receipt(outcome.message_id)
        if receipt.state in ("removed", "refused"):
            outcome.reason = "removed"
            return outcome.result()
        if receipt.state != "accepted" or (await self.look()).status != "waiting":
            return None
        requests = await self.requests()
        return outcome.result(requests) if requests else None


class Home(Protocol):
    """The sessions of one owner."""

    @property
    @abstractmethod
    def default_model(self) -> str:
        """The model of a new session that names none."""

    @abstractmethod
    async def identity(self) -> IdentityView:
        """The caller as this home knows them, with what they use of each quota."""

    @abstractmethod
    async def session(
        self,
        session_id: str | None = None,
        *,
        model: str | None = None,
        title: str | None = None,
        system_message: str | None = None,
        working_directory: str | None = None,
        tools: Sequence[str] | None = None,
        client_tools: Sequence[ClientTool] = (),
        allow: Sequence[str] = (),
        dry_run: bool = False,
        metadata: Mapping[str, str] | None = None,
        provider: OwnProvider | None = None,
    ) -> AnySession:
        """The session with this id, created if it does not exist. The home chooses every option that is left out.
        `provider` has the session's model; its key is taken again if the session exists."""

    @abstractmethod
    def open(self, session_id: str) -> AnySession:
        """The session with this id, which must exist: this is not checked."""

    @abstractmethod
    def sessions(self, *, text: str = "") -> AsyncIterator[SessionView]:
        """The owner's sessions, newest first; with `text`, those with it in the title or its words in a message."""

    @abstractmethod
    async def tasks(self) -> tuple[TaskView, ...]:
        """The commands of all sessions, in the background and in the foreground, oldest first."""

    @abstractmethod
    async def permissions(self) -> tuple[Permission, ...]:
        """Permissions that the owner granted for always, in a directory or everywhere."""

    @abstractmethod
    async def revoke_permission(self, permission_id: str) -> Permission:
        """Revoke a permission in all sessions, from their next call on. Raises `NotFound` if it is not granted."""

    @property
    @abstractmethod
    def webhooks(self) -> Webhooks:
        """The owner's webhooks, which get the events of all sessions."""

    @abstractmethod
    async def upload(
        self,
        source: Path | bytes,
        *,
        name: str = "",
        media_type: str = "",
        file_id: str | None = None,
        keep: bool = False,
    ) -> FileView:
        """Add a file, which is on disk when this returns; bytes need a name. The same id with the same content again is
        the same file. A file that no session uses goes after a day, unless it is to be kept."""

    @abstractmethod
    def files(self, *, session_id: str | None = None) -> AsyncIterator[FileView]:
        """The owner's files, newest first; with `session_id`, those of the session's messages and tools."""

    @abstractmethod
    async def file(self, file_id: str) -> FileView: ...

    @abstractmethod
    def read_file(self, file_id: str) -> AsyncGenerator[bytes, None]:
        """The content of a file, in pieces. Content that is not complete ends in an error."""

    @abstractmethod
    async def keep_file(self, file_id: str, *, kept: bool = True) -> FileView:
        """Say whether a file stays without a session that uses it."""

    @abstractmethod
    async def delete_file(self, file_id: str) -> None:
        """Delete a file, also from the sessions that use it."""

    @abstractmethod
    async def import_session(self, document: bytes) -> AnySession:
        """A new, idle session from a document of `AnySession.export`."""


async def source_pieces(source: Path | bytes) -> AsyncGenerator[bytes, None]:
    """The content to be uploaded, in pieces."""
    if isinstance(source, bytes):
        yield source
        return
    with await asyncio.to_thread(source.open, "rb") as file:
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield piece
