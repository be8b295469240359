"""The home of sessions in a database on this machine, through a runtime in this process."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

import msgspec

from holdfast.app import Runtime
from holdfast.cli.errors import WORLD, Refusal
from holdfast.cli.home import CallUsage, OutputPiece, SessionReader, SessionSetup
from holdfast.cli.runtime import open_configured_model
from holdfast.commands.errors import CommandsError, NoSuchCommand
from holdfast.events.ids import Key, MessageId, Position, RequestId, SessionId
from holdfast.events.inbox import Answer, ItemState
from holdfast.events.request import Decision
from holdfast.events.session import SessionStarted
from holdfast.protocol.message import DeliveryChoice
from holdfast.protocol.permission import Permission
from holdfast.protocol.queue import QueuedView
from holdfast.protocol.request import RequestView
from holdfast.protocol.session import SessionView
from holdfast.protocol.stop import Stopped
from holdfast.protocol.task import KilledTask, TaskView
from holdfast.server.errors import Invalid, NotFound
from holdfast.server.permissions import Permissions
from holdfast.server.quiescence import is_settled
from holdfast.server.request_views import request_views
from holdfast.server.transfer import export_session, import_session
from holdfast.server.views import killed_task, queued_views, session_view, task_view
from holdfast.store.store import Cursor
from holdfast.store.tasks import TaskRow
from holdfast.tasks.errors import TaskError
from holdfast.tools.working_directory import identity_of

PAGE: Final = 200

ATTACHED_SECONDS: Final = 60.0
"""The timeout of an attachment that is not repeated."""


class EmbeddedHome:
    """The sessions of one owner in the database. If the runtime works, they run in this process."""

    runs_elsewhere = False

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.model = runtime.config.model
        self._operations = runtime.operations
        self._tasks = runtime.task_operations

    def _key(self, session_id: str) -> Key:
        return Key(self.runtime.owner, SessionId(session_id))

    # Sessions

    async def create(self, wanted: SessionSetup) -> str:
        made = await self.runtime.session(
            model=wanted.model or self.model,
            working_directory=wanted.folder.directory,
            allow=wanted.allow,
            dry_run=wanted.dry_run,
        )
        return made.id

    async def session(self, session_id: str) -> SessionView:
        return session_view(await self._operations.session(self._key(session_id)))

    async def sessions(self, text: str = "") -> AsyncIterator[SessionView]:
        after: str | None = None
        while True:
            page = await self._operations.sessions(self.runtime.owner, limit=PAGE, after=after, text=text)
            for row in page.rows:
                yield session_view(row)
            after = page.next
            if after is None:
                return

    async def started(self, session_id: str) -> SessionStarted | None:
        first = await self.runtime.store.events_after(self._key(session_id), Position(0), limit=1)
        body = first[0].body if first else None
        return body if isinstance(body, SessionStarted) else None

    async def note_resume(self, session_id: str) -> None:
        await self._operations.note_resume(self._key(session_id))

    async def rename(self, session_id: str, title: str) -> None:
        await self._operations.rename(self._key(session_id), title)

    async def change_model(self, session_id: str, model: str) -> None:
        """Change the model, unless it could not be called: then it is refused, and nothing changes."""
        await open_configured_model(self.runtime.config, model).close()
        await self._operations.change_model(self._key(session_id), model)

    async def move(self, session_id: str, directory: str) -> None:
        identity = identity_of(directory)
        if identity is None:
            raise Invalid("directory_not_found", f"{directory} is not a folder. Name one that exists.")
        await self._operations.move(self._key(session_id), identity.path, identity)

    async def delete(self, session_id: str) -> None:
        await self._operations.delete(self._key(session_id))

    async def export_session(self, session_id: str) -> bytes:
        return await export_session(self.runtime.store, self._key(session_id))

    async def import_session(self, document: bytes) -> str:
        return await import_session(self._operations, self.runtime.owner, document)

    async def usage(self, session_id: str) -> Sequence[CallUsage]:
        entries = await self._operations.usage(self.runtime.owner, SessionId(session_id))
        return [msgspec.convert(entry, CallUsage, from_attributes=True) for entry in entries]

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
        await self._operations.send(
            self._key(session_id),
            text,
            message_id=MessageId(message_id),
            delivery=delivery,
            unattended=unattended,
        )

    async def receipt(self, session_id: str, message_id: str) -> ItemState:
        return (await self._operations.receipt(self._key(session_id), MessageId(message_id))).state

    async def queue(self, session_id: str) -> tuple[QueuedView, ...]:
        return queued_views(await self._operations.queue(self._key(session_id)))

    async def stop(self, session_id: str, *, keep_queued: bool = False) -> Stopped:
        return await self._operations.stop(self._key(session_id), keep_queued=keep_queued)

    def read(self, session_id: str, after: int = 0) -> SessionReader:
        return self._operations.read(self._key(session_id), Cursor(Position(after)))

    async def is_settled(self, session_id: str, position: int) -> bool:
        caught = await self.runtime.store.catch_up(self._key(session_id), Cursor(Position(position)), limit=1)
        return caught is None or (not caught.events and is_settled(caught))

    # Requests

    async def requests(self, session_id: str) -> tuple[RequestView, ...]:
        return await request_views(self._operations, self._key(session_id))

    async def decide(
        self, session_id: str, request_id: str, decision: Decision, *, feedback: str = "", answered_by: str = ""
    ) -> None:
        await self._operations.decide_permission(
            self._key(session_id), RequestId(request_id), decision, feedback=feedback, answered_by=answered_by
        )

    async def answer(
        self, session_id: str, request_id: str, text: str, *, was_freeform: bool, answered_by: str = ""
    ) -> None:
        await self._operations.answer_question(
            self._key(session_id), RequestId(request_id), text, was_freeform=was_freeform, answered_by=answered_by
        )

    async def answered_by(self, session_id: str, request_id: str) -> str | None:
        receipt = await self.runtime.store.receipt(self._key(session_id), f"answer:{request_id}")
        return receipt.item.answered_by if receipt is not None and isinstance(receipt.item, Answer) else None

    async def permissions(self, session_id: str | None = None) -> tuple[Permission, ...]:
        if session_id is None:
            return await self.runtime.permissions()
        return await Permissions(self._operations).of_session(self._key(session_id))

    async def revoke_permission(self, permission_id: str, session_id: str | None = None) -> Permission:
        if session_id is None:
            return await self.runtime.revoke_permission(permission_id)
        return await Permissions(self._operations).revoke_in_session(self._key(session_id), permission_id)

    async def attach(self, session_id: str, attachment_id: str, *, capabilities: tuple[str, ...]) -> None:
        await self._operations.attach(
            self._key(session_id), attachment_id, capabilities=capabilities, ttl_seconds=ATTACHED_SECONDS
        )

    async def detach(self, session_id: str, attachment_id: str) -> None:
        await self._operations.detach(self._key(session_id), attachment_id)

    # Tasks. A row is out of date if its command ended while no process was open, so every task is refreshed first.

    async def tasks(self, session_id: str | None = None, *, foreground: bool = True) -> list[TaskView]:
        if session_id is None:
            return await self._refreshed(await self._tasks.of_owner(self.runtime.owner))
        return await self._refreshed(await self._tasks.of_session(self._key(session_id), foreground=foreground))

    async def _refreshed(self, rows: Iterable[TaskRow]) -> list[TaskView]:
        """The tasks in their current state, without those whose session was deleted meanwhile."""
        found = await asyncio.gather(*(self._tasks.refresh(row) for row in rows), return_exceptions=True)
        for failure in found:
            if isinstance(failure, BaseException) and not isinstance(failure, NotFound):
                raise failure
        return [self._shown(row) for row in found if isinstance(row, TaskRow)]

    async def task(self, task: TaskView) -> TaskView | None:
        try:
            return self._shown(await self._tasks.refresh(await self._row(task)))
        except NotFound:
            return None

    async def last_output(self, task: TaskView) -> str | None:
        row = await self._row(task)
        return await self._tasks.desk.tail(row) if row.host == self._tasks.desk.host else None

    async def output_size(self, task: TaskView) -> int:
        try:
            return await self._tasks.desk.size(await self._row(task))
        except TaskError as error:
            raise Refusal(error.code, f"{error}.", exit_code=WORLD) from error
        except NoSuchCommand:
            gone = f"The output of task {task.id} is not kept any more."
            raise Refusal("output_gone", gone, exit_code=WORLD) from None
        except CommandsError as error:
            raise Refusal("commands_unavailable", f"{error}.", exit_code=WORLD) from error

    async def output(self, task: TaskView, offset: int, length: int) -> OutputPiece:
        chunk = await self._tasks.read(self._key(task.session_id), task.id, offset, length)
        return OutputPiece(chunk.offset, chunk.data, chunk.end)

    async def follow_output(self, task: TaskView, offset: int) -> AsyncIterator[OutputPiece]:
        async for chunk in self._tasks.follow(self._key(task.session_id), task.id, offset):
            yield OutputPiece(chunk.offset, chunk.data, chunk.end)

    async def kill(self, task: TaskView) -> KilledTask:
        killed = await self._tasks.kill(self._key(task.session_id), task.id)
        return killed_task(self._tasks, killed, now=self.runtime.clock.now_ms())

    async def to_background(self, task: TaskView) -> None:
        await self._tasks.to_background(self._key(task.session_id), task.id)

    async def _row(self, task: TaskView) -> TaskRow:
        return await self._tasks.find(self._key(task.session_id), task.id)

    def _shown(self, found: TaskRow) -> TaskView:
        return task_view(self._tasks, found, now=self.runtime.clock.now_ms())
