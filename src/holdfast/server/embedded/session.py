"""A session of the database that this process has opened."""

from collections.abc import Sequence
from typing import Final

from holdfast.events.event import Event
from holdfast.events.ids import Key, MessageId, Position, RequestId, TurnId
from holdfast.events.request import Decision
from holdfast.protocol.compaction import Compacted, CompactionCancelled, ContextView
from holdfast.protocol.home import OUTPUT_BYTES, AnySession
from holdfast.protocol.message import DeliveryChoice, Sent
from holdfast.protocol.permission import Permission
from holdfast.protocol.queue import QueuedView
from holdfast.protocol.request import Answered, RequestView
from holdfast.protocol.session import Activity, SessionView
from holdfast.protocol.stop import Stopped
from holdfast.protocol.task import KilledTask, TaskOutput, TaskView
from holdfast.protocol.turn import TurnResult
from holdfast.server.cursor_text import parse_cursor
from holdfast.server.embedded.stream import EmbeddedStream
from holdfast.server.errors import Invalid
from holdfast.server.operations import Operations
from holdfast.server.operations.tasks import TaskOperations
from holdfast.server.views.queue import queued_views
from holdfast.server.views.requests import request_views
from holdfast.server.views.sessions import session_view
from holdfast.server.views.task_output import read_output
from holdfast.server.views.tasks import killed_task, task_view
from holdfast.store.clock import Clock
from holdfast.store.store import Cursor
from holdfast.tools.working_directory import identity_of

CANCEL_WAIT_SECONDS: Final = 2.0
"""How long a cancellation of a compaction waits for the session's holder."""


class Session(AnySession):
    """One session, whichever process runs it."""

    def __init__(
        self, operations: Operations, tasks: TaskOperations, key: Key, *, clock: Clock, answered_by: str = ""
    ) -> None:
        """`answered_by` is the name that answers are recorded under."""
        self.id = key.session
        self.key = key
        self._operations = operations
        self._tasks = tasks
        self._clock = clock
        self._answered_by = answered_by

    # Sending

    async def send(
        self,
        text: str,
        *,
        message_id: str | None = None,
        delivery: DeliveryChoice = "steer",
        unattended: bool = False,
        files: Sequence[str] = (),
    ) -> Sent:
        return await self._operations.send(
            self.key,
            text,
            message_id=MessageId(message_id) if message_id is not None else None,
            delivery=delivery,
            unattended=unattended,
            file_ids=tuple(files),
        )

    async def go_on(self, *, message_id: str | None = None, unattended: bool = False) -> Sent:
        chosen_id = MessageId(message_id) if message_id is not None else None
        return await self._operations.go_on(self.key, message_id=chosen_id, unattended=unattended)

    async def receipt(self, message_id: str) -> Sent:
        return await self._operations.receipt(self.key, MessageId(message_id))

    async def run(
        self, text: str, *, message_id: str | None = None, unattended: bool = False, files: Sequence[str] = ()
    ) -> TurnResult:
        # Subscribe before sending: the turn may be over when `send` returns.
        heard = self._operations.live.subscribe(self.key)
        try:
            sent = await self.send(text, message_id=message_id, unattended=unattended, files=files)
        except BaseException:
            heard.close()
            raise
        start = Cursor() if sent.head is None else Cursor(sent.head)
        if not sent.found_idle:
            heard.close()
            reader = self._operations.read(self.key, start)
        else:
            reader = self._operations.read(self.key, start, heard_since=heard)
        return await self._result_from(reader.follow(), sent.message_id)

    async def result_of(self, message_id: str, *, after: str = "0") -> TurnResult:
        return await self._result_from(self._operations.read(self.key, parse_cursor(after)).follow(), message_id)

    # Reading

    def stream(self, after: str = "0") -> EmbeddedStream:
        return EmbeddedStream(self._operations, self.key, after)

    async def look(self) -> SessionView:
        return session_view(await self._operations.session(self.key))

    async def first_event(self) -> Event | None:
        found = await self._operations.store.events_after(self.key, Position(0), limit=1)
        return found[0] if found else None

    async def activity(self) -> Activity:
        return await self._operations.activity(self.key)

    # Answering and stopping

    async def requests(self) -> tuple[RequestView, ...]:
        return await request_views(self._operations, self.key)

    async def approve(self, request_id: str, *, for_session: bool = False, answer_id: str | None = None) -> Answered:
        decision: Decision = "approved-for-session" if for_session else "approved"
        return await self._decide(request_id, decision, feedback="", answer_id=answer_id)

    async def deny(self, request_id: str, *, feedback: str = "", answer_id: str | None = None) -> Answered:
        return await self._decide(request_id, "denied-interactively-by-user", feedback=feedback, answer_id=answer_id)

    async def _decide(self, request_id: str, decision: Decision, *, feedback: str, answer_id: str | None) -> Answered:
        return await self._operations.decide_permission(
            self.key,
            RequestId(request_id),
            decision,
            feedback=feedback,
            answer_id=answer_id,
            answered_by=self._answered_by,
        )

    async def answer(
        self, request_id: str, answer: str, *, was_freeform: bool = True, answer_id: str | None = None
    ) -> Answered:
        return await self._operations.answer_question(
            self.key,
            RequestId(request_id),
            answer,
            was_freeform=was_freeform,
            answer_id=answer_id,
            answered_by=self._answered_by,
        )

    async def give_result(
        self, request_id: str, content: str, *, success: bool = True, answer_id: str | None = None
    ) -> Answered:
        return await self._operations.answer_tool(
            self.key,
            RequestId(request_id),
            content,
            success=success,
            answer_id=answer_id,
            answered_by=self._answered_by,
        )

    async def stop(
        self, *, stop_id: str | None = None, keep_queued: bool = False, turn_id: str | None = None
    ) -> Stopped:
        meant_for = TurnId(turn_id) if turn_id is not None else None
        return await self._operations.stop(self.key, stop_id=stop_id, keep_queued=keep_queued, meant_for=meant_for)

    async def permissions(self) -> tuple[Permission, ...]:
        return await self._operations.session_permissions(self.key)

    async def revoke_permission(self, permission_id: str) -> Permission:
        return await self._operations.revoke_session_permission(self.key, permission_id)

    # The context

    async def context(self) -> ContextView:
        return await self._operations.context(self.key)

    async def compact(
        self, *, instructions: str = "", compaction_id: str | None = None, wait_seconds: float = 0
    ) -> Compacted:
        return await self._operations.compact(
            self.key, instructions=instructions, compaction_id=compaction_id, wait_seconds=wait_seconds
        )

    async def cancel_compaction(self) -> CompactionCancelled:
        return await self._operations.cancel_compaction(self.key, wait_seconds=CANCEL_WAIT_SECONDS)

    async def pin(self, message_id: str) -> None:
        await self._operations.pin(self.key, MessageId(message_id))

    async def unpin(self, message_id: str) -> None:
        await self._operations.unpin(self.key, MessageId(message_id))

    # The queue

    async def queue(self) -> tuple[QueuedView, ...]:
        return queued_views(await self._operations.queue(self.key))

    async def edit_queued(self, message_id: str, text: str) -> None:
        await self._operations.edit_queued(self.key, MessageId(message_id), text)

    async def remove_queued(self, message_id: str) -> None:
        await self._operations.remove_queued(self.key, MessageId(message_id))

    # The session itself

    async def rename(self, title: str) -> None:
        await self._operations.rename(self.key, title)

    async def move(self, working_directory: str) -> None:
        identity = identity_of(working_directory)
        if identity is None:
            raise Invalid("directory_not_found", f"{working_directory} is not a folder. Name one that exists.")
        await self._operations.move(self.key, identity.path, identity)

    async def change_model(self, model: str) -> None:
        await self._operations.change_model(self.key, model)

    async def export(self) -> bytes:
        return await self._operations.export_session(self.key)

    async def delete(self) -> None:
        await self._operations.delete(self.key)

    # Tasks

    async def tasks(self) -> tuple[TaskView, ...]:
        rows = await self._tasks.of_session(self.key, foreground=True)
        now = self._clock.now_ms()
        return tuple(task_view(self._tasks, row, now=now) for row in rows)

    async def task(self, task_id: str) -> TaskView:
        row = await self._tasks.refresh(await self._tasks.find(self.key, task_id))
        return task_view(self._tasks, row, now=self._clock.now_ms())

    async def kill_task(self, task_id: str) -> KilledTask:
        return killed_task(self._tasks, await self._tasks.kill(self.key, task_id), now=self._clock.now_ms())

    async def to_background(self, task_id: str) -> None:
        await self._tasks.to_background(self.key, task_id)

    async def task_output(
        self, task_id: str, offset: int = 0, length: int = OUTPUT_BYTES, *, wait_seconds: float = 0
    ) -> TaskOutput:
        if offset < 0:
            offset = max(0, await self._tasks.size(self.key, task_id) + offset)
        return await read_output(
            self._tasks, self.key, task_id, offset=offset, length=length, wait_seconds=wait_seconds
        )

    async def output_size(self, task_id: str) -> int:
        return await self._tasks.size(self.key, task_id)
