"""The home of sessions on a server, over HTTP. Nothing runs in this process."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Final

import msgspec

from holdfast.cli.home import MARK, CallUsage, OutputPiece, SessionReader, SessionReading, SessionSetup
from holdfast.client import errors
from holdfast.client.server import Server
from holdfast.client.session import Session
from holdfast.client.stream import Stream
from holdfast.events.event import Event
from holdfast.events.inbox import ItemState
from holdfast.events.message import Usage
from holdfast.events.request import Decision, ExternalToolCompleted, PermissionCompleted, UserInputCompleted
from holdfast.events.session import SessionStarted
from holdfast.live.live import Changed
from holdfast.protocol.message import DeliveryChoice
from holdfast.protocol.permission import Permission
from holdfast.protocol.queue import QueuedView
from holdfast.protocol.reading import QueueChanged
from holdfast.protocol.request import RequestView
from holdfast.protocol.session import SessionView
from holdfast.protocol.stop import Stopped
from holdfast.protocol.task import KilledTask, TaskOutput, TaskView
from holdfast.server.errors import Conflict, Invalid, NotFound

LAST_OUTPUT_BYTES: Final = 4_096


@contextmanager
def local_errors() -> Iterator[None]:
    """Raise a server's refusals as the errors of the operations, so that commands handle one kind."""
    try:
        yield
    except errors.NotFound as error:
        raise NotFound(error.code, error.message) from None
    except errors.Conflict as error:
        raise Conflict(error.code, error.message) from None
    except errors.Invalid as error:
        raise Invalid(error.code, error.message) from None


class RemoteReader:
    """Reads a session through a stream of the server."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def until_now(self) -> AsyncGenerator[SessionReading, None]:
        async with aclosing(self._stream.until_now()) as readings:
            with local_errors():
                async for reading in readings:
                    if not isinstance(reading, QueueChanged):
                        yield reading

    async def follow(self) -> AsyncGenerator[SessionReading, None]:
        async with aclosing(self._stream.follow()) as readings:
            with local_errors():
                async for reading in readings:
                    yield Changed(queue=True) if isinstance(reading, QueueChanged) else reading


class RemoteHome:
    """The sessions that the key of this command gives access to."""

    runs_elsewhere = True

    def __init__(self, server: Server, *, away_seconds: float) -> None:
        """`away_seconds` bounds how long a reader waits for a server that is away."""
        self.model = server.default_model
        self._server = server
        self._away_seconds = away_seconds

    def _at(self, session_id: str) -> Session:
        return self._server.open(session_id)

    # Sessions

    async def create(self, wanted: SessionSetup) -> str:
        folder = wanted.folder
        with local_errors():
            made = await self._server.session(
                model=wanted.model,
                working_directory=folder.directory,
                allow=wanted.allow,
                dry_run=wanted.dry_run,
                metadata={MARK: folder.mark} if folder.mark else None,
            )
        return made.id

    async def session(self, session_id: str) -> SessionView:
        with local_errors():
            return await self._at(session_id).look()

    def sessions(self, text: str = "") -> AsyncIterator[SessionView]:
        return self._server.sessions(text=text)

    async def started(self, session_id: str) -> SessionStarted | None:
        with local_errors():
            found = await self._at(session_id).first_event()
        return found.body if found is not None and isinstance(found.body, SessionStarted) else None

    async def note_resume(self, session_id: str) -> None:
        """Does nothing: the server notes its readers itself."""

    async def rename(self, session_id: str, title: str) -> None:
        with local_errors():
            await self._at(session_id).rename(title)

    async def change_model(self, session_id: str, model: str) -> None:
        with local_errors():
            await self._at(session_id).change_model(model)

    async def move(self, session_id: str, directory: str) -> None:
        with local_errors():
            await self._at(session_id).move(directory)

    async def delete(self, session_id: str) -> None:
        with local_errors():
            await self._at(session_id).delete()

    async def export_session(self, session_id: str) -> bytes:
        with local_errors():
            return await self._at(session_id).export()

    async def import_session(self, document: bytes) -> str:
        with local_errors():
            return (await self._server.import_session(document)).id

    async def usage(self, session_id: str) -> Sequence[CallUsage]:
        """The usage that model calls reported, from the log."""
        return [
            msgspec.convert(reading.body, CallUsage, from_attributes=True)
            async for reading in self.read(session_id).until_now()
            if isinstance(reading, Event) and isinstance(reading.body, Usage)
        ]

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
        with local_errors():
            session = self._at(session_id)
            await session.send(text, message_id=message_id, delivery=delivery, unattended=unattended)

    async def receipt(self, session_id: str, message_id: str) -> ItemState:
        with local_errors():
            return (await self._at(session_id).receipt(message_id)).state

    async def queue(self, session_id: str) -> tuple[QueuedView, ...]:
        with local_errors():
            return await self._at(session_id).queue()

    async def stop(self, session_id: str, *, keep_queued: bool = False) -> Stopped:
        with local_errors():
            return await self._at(session_id).stop(keep_queued=keep_queued)

    def read(self, session_id: str, after: int = 0) -> SessionReader:
        return RemoteReader(self._at(session_id).stream(str(after), patience_seconds=self._away_seconds))

    async def is_settled(self, session_id: str, position: int) -> bool:
        try:
            activity = await self._at(session_id).activity()
        except errors.NotFound:
            return True
        return activity.is_settled and activity.head <= position

    # Requests

    async def requests(self, session_id: str) -> tuple[RequestView, ...]:
        with local_errors():
            return await self._at(session_id).requests()

    async def decide(
        self, session_id: str, request_id: str, decision: Decision, *, feedback: str = "", answered_by: str = ""
    ) -> None:
        """Decide a permission. The server records the owner of the key as the one who answered."""
        session = self._at(session_id)
        with local_errors():
            if decision in ("approved", "approved-for-session"):
                await session.approve(request_id, for_session=decision == "approved-for-session")
            else:
                await session.deny(request_id, feedback=feedback)

    async def answer(
        self, session_id: str, request_id: str, text: str, *, was_freeform: bool, answered_by: str = ""
    ) -> None:
        with local_errors():
            await self._at(session_id).answer(request_id, text, was_freeform=was_freeform)

    async def answered_by(self, session_id: str, request_id: str) -> str | None:
        """The name from the log; empty for an answer that was accepted but not promoted yet."""
        if request_id in [found.id for found in await self.requests(session_id)]:
            return None
        for body in [found.body async for found in self.read(session_id).until_now() if isinstance(found, Event)]:
            match body:
                case PermissionCompleted(request_id=found, decision=decision, answered_by=by) if found == request_id:
                    return None if decision == "cancelled" else by
                case UserInputCompleted() | ExternalToolCompleted() as closed if closed.request_id == request_id:
                    return None if closed.cancelled else closed.answered_by
                case _:
                    pass
        return ""

    async def permissions(self, session_id: str | None = None) -> tuple[Permission, ...]:
        with local_errors():
            return await (self._server if session_id is None else self._at(session_id)).permissions()

    async def revoke_permission(self, permission_id: str, session_id: str | None = None) -> Permission:
        with local_errors():
            return await (self._server if session_id is None else self._at(session_id)).revoke_permission(permission_id)

    async def attach(self, session_id: str, attachment_id: str, *, capabilities: tuple[str, ...]) -> None:
        """Does nothing: requests on a server stay open without an attachment."""

    async def detach(self, session_id: str, attachment_id: str) -> None:
        pass

    # Tasks

    async def tasks(self, session_id: str | None = None, *, foreground: bool = True) -> list[TaskView]:
        with local_errors():
            found = await (self._server.tasks() if session_id is None else self._at(session_id).tasks())
        return [task for task in found if foreground or not task.foreground]

    async def task(self, task: TaskView) -> TaskView | None:
        try:
            return await self._at(task.session_id).task(task.id)
        except errors.NotFound:
            return None

    async def last_output(self, task: TaskView) -> str | None:
        try:
            part = await self._at(task.session_id).task_output(task.id, -LAST_OUTPUT_BYTES, LAST_OUTPUT_BYTES)
        except errors.NotFound:
            return ""
        except errors.Conflict:
            return None
        return part.text

    async def output_size(self, task: TaskView) -> int:
        with local_errors():
            return await self._at(task.session_id).output_size(task.id)

    async def output(self, task: TaskView, offset: int, length: int) -> OutputPiece:
        with local_errors():
            return _written(await self._at(task.session_id).task_output(task.id, offset, length))

    async def follow_output(self, task: TaskView, offset: int) -> AsyncIterator[OutputPiece]:
        with local_errors():
            async for part in self._at(task.session_id).follow_task(task.id, offset):
                yield _written(part)

    async def kill(self, task: TaskView) -> KilledTask:
        with local_errors():
            return await self._at(task.session_id).kill_task(task.id)

    async def to_background(self, task: TaskView) -> None:
        with local_errors():
            await self._at(task.session_id).to_background(task.id)


def _written(part: TaskOutput) -> OutputPiece:
    return OutputPiece(part.offset, part.text.encode(), part.next_offset)
