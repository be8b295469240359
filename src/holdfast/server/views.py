"""Rows of the store as the values that clients see: sessions, queued messages and tasks."""

import asyncio
from collections.abc import Iterable

from holdfast.commands.command import ProcessInfo
from holdfast.events.inbox import InboxItem, Message
from holdfast.protocol.queue import QueuedView
from holdfast.protocol.session import SessionSettings, SessionView
from holdfast.protocol.task import KilledTask, ProcessView, TaskView
from holdfast.server.errors import NotFound
from holdfast.server.task_operations import TaskOperations
from holdfast.session.state import State
from holdfast.store.store import Row
from holdfast.store.tasks import TaskRow
from holdfast.tasks.desk import TaskKillReport


def session_view(row: Row) -> SessionView:
    return SessionView(
        id=row.key.session,
        title=row.title,
        status=row.status,
        turn_id=row.turn_id,
        pending_requests=row.open_requests,
        waiting_messages=row.waiting_messages,
        unread=row.is_unread,
        pinned=row.pinned,
        model=row.model or None,
        parent=row.parent,
        metadata=row.metadata,
        head=row.head,
        seen=row.seen,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def settings_view(state: State) -> SessionSettings:
    return SessionSettings(
        model=state.model,
        system_message=state.system_message,
        working_directory=state.working_directory,
        tools=state.tools,
        client_tools=tuple(found.name for found in state.client_tools),
        allow=tuple(state.allow),
        dry_run=state.dry_run,
        mode=state.mode,
        thinking=state.thinking,
    )


def queued_views(items: tuple[InboxItem, ...]) -> tuple[QueuedView, ...]:
    return tuple(
        QueuedView(
            message_id=found.item.message_id,
            text=found.item.text,
            delivery=found.item.delivery,
            accepted_at=found.accepted_at,
            context=found.item.context,
            mode=found.item.agent_mode,
            model=found.item.model,
            thinking=found.item.thinking,
        )
        for found in items
        if isinstance(found.item, Message)
    )


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
