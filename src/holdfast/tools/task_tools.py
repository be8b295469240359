"""The tools for a session's own tasks: `list_tasks`, `task_status`, `wait_for_task`, `kill_task`.

They touch nothing else and need no permission: a task of another session is not found.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec

from holdfast.commands.command import KillReport, ProcessInfo
from holdfast.commands.errors import CommandsError
from holdfast.commands.output import OutputChunk
from holdfast.events.ids import Key
from holdfast.store.tasks import TaskEnding, TaskRow
from holdfast.tasks.desk import TaskDesk
from holdfast.tasks.endings import ending_of, shortened
from holdfast.tasks.errors import TaskError, TaskNotFound, TaskNotRunning
from holdfast.tools.errors import ToolFailure
from holdfast.tools.shell import NOT_KEPT, ending_in, is_gone, shell_of, within
from holdfast.tools.tool import ToolContext, tool
from holdfast.tools.truncation import cut_end, cut_start

MAX_LISTED: Final = 100
"""The number of tasks listed, the latest ones; a longer list would not be read."""

DEFAULT_LENGTH, MAX_LENGTH = 20_000, 50_000
"""Bytes of output that one call reads."""

DEFAULT_WAIT_SECONDS: Final = 120.0
DEFAULT_IDLE_SECONDS: Final = 20.0

LEFT_BEHIND_ENDED: Final = "It had ended before, and left something running. That is what was ended now."

KILLED_BEFORE: Final = "It was killed by an earlier attempt at this call, or meanwhile."

TaskName = Annotated[str, msgspec.Meta(description="The task's id.")]
Offset = Annotated[int | None, msgspec.Meta(description="Read the output from this byte on, instead of its end.")]
Length = Annotated[int | None, msgspec.Meta(description=f"At most so many bytes. Default: {DEFAULT_LENGTH}.")]
Seconds = Annotated[
    float, msgspec.Meta(description="Seconds to wait at most, 1 to 300. It limits the wait and not the task.")
]
IdleSeconds = Annotated[
    float, msgspec.Meta(description="Seconds without new output, 1 to 300, after which there is nothing to wait for.")
]


async def _list_tasks(context: ToolContext) -> dict[str, Any]:
    """List this session's tasks: the commands that run in the background, or did, in the order of their start. You are
    told of each one's end without asking."""
    desk = shell_of(context).desk
    return {"tasks": [_described(desk, row) for row in latest(await desk.tasks(context.session))]}


async def _task_status(
    task_id: TaskName, context: ToolContext, offset: Offset = None, length: Length = None
) -> dict[str, Any]:
    """Look at one task: how it stands, the end of what it has written so far, and its exit code once it has ended. With
    an offset: that part of what it wrote."""
    desk = shell_of(context).desk
    async with reporting_errors(task_id):
        row = await _now(desk, context.session, task_id)
        told = _described(desk, row)
        if offset is None and length is None:
            return told | await _tail(desk, row)
        return told | await _part(desk, row, max(0, offset or 0), length)


async def _wait_for_task(
    task_id: TaskName,
    context: ToolContext,
    timeout: Seconds = DEFAULT_WAIT_SECONDS,
    idle_timeout: IdleSeconds = DEFAULT_IDLE_SECONDS,
) -> dict[str, Any]:
    """Wait for a task when there is nothing else to do. The reason says why the wait is over: completed, failed, killed
    or lost; stalled (it seems to wait for an answer); idle (it is alive and quiet, as a server is once it is up); or
    timeout. The task goes on in any case."""
    desk = shell_of(context).desk
    async with reporting_errors(task_id):
        row = await desk.find(context.session, task_id)
        reason: str = row.status
        if reason == "running":
            seconds, idle = within(timeout, DEFAULT_WAIT_SECONDS), within(idle_timeout, DEFAULT_IDLE_SECONDS)
            reason, row = await desk.wait(row, seconds, idle)
        return {"reason": reason} | _described(desk, row) | await _tail(desk, row)


async def _kill_task(task_id: TaskName, context: ToolContext) -> dict[str, Any]:
    """End a task and everything that it started: all of it is asked to, and killed a few seconds later. Says what
    ended, and what did not. You are not told of that end again."""
    ending, report = await killed(context, task_id, "list_tasks")
    told: dict[str, Any] = {"task_id": task_id, "status": ending.status}
    if ending.exit_code is not None:
        told["exit_code"] = ending.exit_code
    if report is None:
        return told | {"message": KILLED_BEFORE}
    told |= {"ended": _processes(report.killed), "escaped": _processes(report.escaped)}
    if report.killed and ending.status != "killed":
        told["message"] = LEFT_BEHIND_ENDED
    return told


# Shared by the command tools


async def killed(context: ToolContext, name: str, lists: str) -> tuple[TaskEnding, KillReport | None]:
    """Kills a task. Returns how it ended and the report; no report: an earlier attempt at this call killed it."""
    desk = shell_of(context).desk
    async with reporting_errors(name, lists):
        try:
            done = await desk.kill(context.session, name, "model")
        except TaskNotRunning as error:
            if context.attempt == 1 or error.status != "killed":
                raise
            ending = ending_of_row(await desk.find(context.session, name))
            assert ending is not None
            return ending, None
        return ending_in(done.report.status), done.report


@asynccontextmanager
async def reporting_errors(name: str, lists: str = "list_tasks") -> AsyncIterator[None]:
    try:
        yield
    except TaskNotFound as error:
        raise ToolFailure(f"task {name!r} not found in this session; {lists} shows those there are") from error
    except (TaskError, CommandsError) as error:
        raise ToolFailure(str(error)) from error


def latest(rows: tuple[TaskRow, ...]) -> tuple[TaskRow, ...]:
    """Returns all running tasks, and the latest of the others."""
    over = [row for row in rows if row.status != "running"]
    dropped = {row.task_id for row in over[: max(0, len(rows) - MAX_LISTED)]}
    return tuple(row for row in rows if row.task_id not in dropped)


def ending_of_row(row: TaskRow) -> TaskEnding | None:
    """Returns the ending from a row; None while the task runs."""
    if row.status == "running":
        return None
    return TaskEnding(
        status=row.status, exit_code=row.exit_code, detail=row.detail, ended_at=row.ended_at or row.started_at
    )


def _processes(found: Iterable[ProcessInfo]) -> list[dict[str, Any]]:
    return [{"pid": one.pid, "name": one.name} for one in found]


async def _now(desk: TaskDesk, session: Key, name: str) -> TaskRow:
    """Returns the row, updated if the command has ended and the end is not recorded yet."""
    row = await desk.find(session, name)
    if row.status != "running" or row.host != desk.host:
        return row
    status = await desk.status(row)
    if status is None or status.outcome is None:
        return row
    await desk.settle(row, status)
    ending = ending_of(status.outcome, status.record.limits.seconds)
    return msgspec.structs.replace(
        row, status=ending.status, exit_code=ending.exit_code, detail=ending.detail, ended_at=ending.ended_at
    )


def _described(desk: TaskDesk, row: TaskRow) -> dict[str, Any]:
    row = desk.without_secrets(row)
    told: dict[str, Any] = {
        "task_id": row.task_id,
        "status": desk.shown_status(row),
        "command": shortened(row.command),
        "description": row.description,
        "started_at": _time(row.started_at),
        "output_file": row.output_file,
    }
    if row.ended_at is not None:
        told["ended_at"] = _time(row.ended_at)
        told["exit_code"] = row.exit_code
    if row.detail:
        told["detail"] = row.detail
    return told


async def _tail(desk: TaskDesk, row: TaskRow) -> dict[str, Any]:
    tail = await desk.tail(row)
    note = await note_if_gone(desk, row) if not tail and row.status != "running" else ""
    return {"output_tail": tail} | ({"note": note} if note else {})


async def note_if_gone(desk: TaskDesk, row: TaskRow) -> str:
    """Returns the note that an ended task's output is no longer kept, or an empty text."""
    status = await desk.status(row) if row.host == desk.host else None
    return NOT_KEPT if status is not None and is_gone(status) else ""


async def _part(desk: TaskDesk, row: TaskRow, offset: int, length: int | None) -> dict[str, Any]:
    """Reads a part of the output in whole characters, so that the next part begins with one. Invalid bytes count as
    characters."""
    wanted = max(4, min(DEFAULT_LENGTH if length is None else length, MAX_LENGTH))
    chunk = await desk.read(row, offset, wanted)
    whole = cut_end(chunk.data) or chunk.data
    text, held = await _without_secrets(desk, row, OutputChunk(chunk.offset, whole))
    size, following = await desk.size(row), chunk.offset + len(whole) - held
    note = await note_if_gone(desk, row) if not size and row.status != "running" else ""
    told = {"offset": chunk.offset, "output": text, "next_offset": following, "output_bytes": size}
    return told | ({"note": note} if note else {})


async def _without_secrets(desk: TaskDesk, row: TaskRow, chunk: OutputChunk) -> tuple[str, int]:
    """Returns the text of a part that may be shown, and how many bytes at its end must wait because they could be the
    beginning of a secret that is not fully written. Reads around the part as well, since a secret may reach into it."""
    margin = desk.redaction.margin_bytes
    lead = min(margin, chunk.offset)
    before = await desk.read(row, chunk.offset - lead, lead)
    after = (await desk.read(row, chunk.end, margin)).data
    is_cut = before.end != chunk.offset  # The bytes before are gone: the first characters may be the rest of a secret.
    data = cut_start(chunk.data)
    rest_of_a_character = chunk.data[: len(chunk.data) - len(data)]
    known = rest_of_a_character if is_cut else before.data + rest_of_a_character
    head, body, rest = (part.decode("utf-8", "replace") for part in (known, data, after))
    whole, end = head + body + rest, len(head + body)
    start = len(head) + (desk.redaction.longest if is_cut else 0)
    sure = end
    if row.status == "running" and len(after) < margin:
        sure = max(len(head), min(end, desk.redaction.settled(whole)))
    return desk.redaction.part(whole, start, sure), len(whole[sure:end].encode())


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


list_tasks: Final = tool(name="list_tasks", permission="allow", origin="command", after_crash="repeat", read_only=True)(
    _list_tasks
)
task_status: Final = tool(
    name="task_status", permission="allow", origin="command", after_crash="repeat", read_only=True
)(_task_status)
wait_for_task: Final = msgspec.structs.replace(
    tool(name="wait_for_task", permission="allow", origin="command", after_crash="repeat", read_only=True)(
        _wait_for_task
    ),
    waits_by_itself=True,
)
kill_task: Final = tool(name="kill_task", permission="allow", origin="command", after_crash="repeat")(_kill_task)
