"""Tasks: list, read, follow, kill and move them to the background. The model's tools use the same task desk."""

from collections.abc import AsyncGenerator

import msgspec

from holdfast.commands.errors import CommandsError
from holdfast.commands.output import OutputChunk
from holdfast.events.ids import Key, Owner, TaskId
from holdfast.events.inbox import InboxItem, ToBackground
from holdfast.live.live import Changed, Live
from holdfast.server.errors import Conflict, NotFound, OperationError
from holdfast.store.store import Refused, Store
from holdfast.store.tasks import TaskRow
from holdfast.tasks.desk import ShownStatus, TaskDesk, TaskKillReport
from holdfast.tasks.endings import ending_of
from holdfast.tasks.errors import TaskError, TaskNotFound

MAX_READ_BYTES = 1_000_000


class TaskOperations:
    """The verbs of tasks over one task desk; one object per runtime, beside `Operations`."""

    def __init__(self, store: Store, live: Live, desk: TaskDesk) -> None:
        self.desk = desk
        self._store = store
        self._live = live

    async def of_session(self, key: Key, *, foreground: bool = False) -> tuple[TaskRow, ...]:
        """The tasks of a session, oldest first; with `foreground`, also the command that the turn waits for."""
        if await self._store.row(key) is None:
            raise NotFound("session_not_found", f"There is no session {key.session}.")
        return await (self.desk.commands(key) if foreground else self.desk.tasks(key))

    async def of_owner(self, owner: Owner) -> tuple[TaskRow, ...]:
        """The tasks of all sessions of the owner, with the commands that turns wait for."""
        return await self.desk.all_tasks(owner)

    async def find(self, key: Key, task_id: str) -> TaskRow:
        try:
            return await self.desk.find(key, task_id)
        except TaskNotFound as error:
            raise _refused(error) from error

    def status(self, row: TaskRow) -> ShownStatus:
        return self.desk.shown_status(row)

    async def refresh(self, row: TaskRow) -> TaskRow:
        """The row with the status of its process on this machine: the command may have ended since the last check."""
        if row.status != "running" or row.host != self.desk.host:
            return row
        try:
            status = await self.desk.status(row)
        except CommandsError:
            return row
        if status is None or status.outcome is None:
            return await self.find(row.key, row.task_id)
        await self.desk.settle(row, status)
        now = await self.find(row.key, row.task_id)
        if now.status != "running":
            return now
        # Its turn waits for it: the turn's holder stores how it ended, with the result of the call.
        ending = ending_of(status.outcome, status.record.limits.seconds)
        return msgspec.structs.replace(
            now, status=ending.status, exit_code=ending.exit_code, detail=ending.detail, ended_at=ending.ended_at
        )

    async def kill(self, key: Key, task_id: str) -> TaskKillReport:
        """Kill a task on behalf of a person; the model gets the news."""
        try:
            return await self.desk.kill(key, task_id, "person")
        except TaskError as error:
            raise _refused(error) from error
        except CommandsError as error:
            raise Conflict("task_not_killed", f"The task could not be killed yet, but will be: {error}") from error

    async def read(self, key: Key, task_id: str, offset: int, length: int) -> OutputChunk:
        """At most `length` bytes of the task's output, from `offset` on."""
        try:
            row = await self.desk.find(key, task_id)
            return await self.desk.read(row, max(0, offset), max(0, min(length, MAX_READ_BYTES)))
        except TaskError as error:
            raise _refused(error) from error
        except CommandsError as error:
            raise NotFound("output_gone", f"What task {task_id} wrote is not kept any more.") from error

    async def size(self, key: Key, task_id: str) -> int:
        """The size of the task's output so far, in bytes."""
        try:
            return await self.desk.size(await self.desk.find(key, task_id))
        except TaskError as error:
            raise _refused(error) from error
        except CommandsError as error:
            raise NotFound("output_gone", f"What task {task_id} wrote is not kept any more.") from error

    async def follow(self, key: Key, task_id: str, offset: int = 0) -> AsyncGenerator[OutputChunk, None]:
        """The task's output as it grows, until the task ends."""
        try:
            row = await self.desk.find(key, task_id)
            async for chunk in self.desk.follow(row, offset):
                yield chunk
        except TaskError as error:
            raise _refused(error) from error
        except CommandsError as error:
            raise NotFound("output_gone", f"What task {task_id} wrote can't be followed: {error}") from error

    async def to_background(self, key: Key, task_id: str) -> InboxItem:
        """Let the turn continue without waiting for this command. The receipt is durable on return; the turn continues
        at once."""
        row = await self.find(key, task_id)
        if row.status != "running" or not row.foreground:
            where = "in the background already" if row.status == "running" else row.status
            raise Conflict("task_not_in_foreground", f"Task {task_id} is {where}: nobody waits for it.")
        item = ToBackground(task_id=TaskId(row.task_id), tool_call_id=row.tool_call_id)
        accepted = await self._store.put(key, item, item_key=f"background:{row.task_id}", queue_limit=0)
        if isinstance(accepted, Refused):
            kind = NotFound if accepted.code == "session_not_found" else Conflict
            raise kind(accepted.code, accepted.message)
        self._live.publish(key, Changed(tail=accepted.item.sequence))
        return accepted.item


def _refused(error: TaskError) -> OperationError:
    kind = NotFound if isinstance(error, TaskNotFound) else Conflict
    return kind(error.code, str(error))
