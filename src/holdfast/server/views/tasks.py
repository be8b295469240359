"""Tasks as clients see them."""

import asyncio
from collections.abc import Iterable

from holdfast.commands.command import ProcessInfo
from holdfast.protocol.task import KilledTask, ProcessView, TaskView
from holdfast.server.errors import NotFound
from holdfast.server.operations.tasks import TaskOperations
from holdfast.store.tasks import TaskRow
from holdfast.tasks.desk import TaskKillReport


def task_view(tasks: TaskOperations, found: TaskRow, *, now: int) -> TaskView:
    """The task without known secrets, and as it is now."""
    row = tasks.desk.without_secrets(found)
    return TaskView(
        id=row.task_id,
        session_id=row.key.session,
        command=row.command,
        description=row.description,
        status=tasks.status(found),
        foreground=row.foreground,
        exit_code=row.exit_code,
        detail=row.detail,
        started_at=row.started_at,
        ended_at=row.ended_at,
        duration_ms=max(0, (now if row.ended_at is None else row.ended_at) - row.started_at),
        tool_call_id=row.tool_call_id,
        working_directory=row.directory,
        output_file=row.output_file,
        alias=row.alias,
    )


async def current_tasks(tasks: TaskOperations, rows: Iterable[TaskRow], *, now: int) -> tuple[TaskView, ...]:
    """The tasks in their current state, without those whose session was deleted meanwhile. A row is out of date if its
    command ended while no process had the database open."""
    found = await asyncio.gather(*(tasks.refresh(row) for row in rows), return_exceptions=True)
    for failure in found:
        if isinstance(failure, BaseException) and not isinstance(failure, NotFound):
            raise failure
    return tuple(task_view(tasks, row, now=now) for row in found if isinstance(row, TaskRow))


def killed_task(tasks: TaskOperations, done: TaskKillReport, *, now: int) -> KilledTask:
    killed, escaped = _processes(done.report.killed), _processes(done.report.escaped)
    return KilledTask(
        task=task_view(tasks, done.row, now=now),
        killed=len(killed),
        escaped=len(escaped),
        killed_processes=killed,
        escaped_processes=escaped,
    )


def _processes(processes: Iterable[ProcessInfo]) -> tuple[ProcessView, ...]:
    return tuple(ProcessView(pid=process.pid, name=process.name) for process in processes)
