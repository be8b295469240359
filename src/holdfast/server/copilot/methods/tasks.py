"""Lists a session's commands, reads their output, moves them into the background, and cancels and removes them.

The tasks are the same rows that every surface shows. There are no agents and no client-defined tasks.
"""

import asyncio
from typing import Any, Final

import msgspec

from holdfast.commands.errors import CommandsError
from holdfast.events.inbox import TaskNews
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.connection import Attached
from holdfast.server.copilot.projection import iso
from holdfast.server.errors import Conflict, Invalid, NotFound
from holdfast.store.tasks import TaskRow
from holdfast.tasks.desk import ShownStatus
from holdfast.tasks.endings import shortened
from holdfast.tasks.errors import TaskError
from holdfast.tools.truncation import cut_end, decoded

STATUSES: Final[dict[ShownStatus, str]] = {
    "running": "running",
    "stalled": "running",
    "unreachable": "running",
    "completed": "completed",
    "failed": "failed",
    "killed": "cancelled",
    "lost": "failed",
}

MAX_TEXT_BYTES: Final = 64 * 1024
MAX_WAIT_MS: Final = 30_000
MAX_DIGITS: Final = 20


# Lists


@method("session.tasks.list")
async def list_tasks(call: RpcCall) -> Any:
    return {"tasks": await asyncio.gather(*(_info(call, row) for row in await _rows(call)))}


async def _rows(call: RpcCall) -> list[TaskRow]:
    """All background tasks and the commands that the turn waits for, refreshed from the machine that runs them."""
    rows = await call.service.tasks.of_session(call.attached().key, foreground=True)
    refreshed = await asyncio.gather(*(_refreshed(call, row) for row in rows))
    return [row for row in refreshed if not row.foreground or row.status == "running"]


async def _info(call: RpcCall, row: TaskRow) -> dict[str, Any]:
    """A task on the wire. Every command runs by itself and writes into a file, so all are `detached`."""
    desk = call.service.tasks.desk
    info: dict[str, Any] = {
        "type": "shell",
        "id": row.task_id,
        "command": shortened(desk.redaction.text(row.command)),
        "description": desk.redaction.text(row.description),
        "status": STATUSES[desk.shown_status(row)],
        "startedAt": iso(row.started_at),
        "attachmentMode": "detached",
        "executionMode": "sync" if row.foreground else "background",
        "canPromoteToBackground": _is_promotable(row),
    }
    if row.ended_at is not None:
        info["completedAt"] = iso(row.ended_at)
    if row.host == desk.host:
        info["logPath"] = row.output_file
    pid = await _pid(call, row)
    return info if pid is None else {**info, "pid": pid}


async def _pid(call: RpcCall, row: TaskRow) -> int | None:
    """The pid of a command that runs on this machine; None otherwise."""
    if row.status != "running":
        return None
    try:
        status = await call.service.tasks.desk.status(row)
    except (TaskError, CommandsError):
        return None
    return status.runner.pid if status and status.runner and status.outcome is None else None


@method("session.tasks.refresh")
async def refresh(call: RpcCall) -> Any:
    await _rows(call)
    return {}


async def _refreshed(call: RpcCall, row: TaskRow) -> TaskRow:
    try:
        return await call.service.tasks.refresh(row)
    except NotFound:
        return row  # The row was removed meanwhile.


@method("session.tasks.getProgress")
async def get_progress(call: RpcCall) -> Any:
    row = await _find_task(call)
    if row is None:
        return {"progress": None}
    progress: dict[str, Any] = {"type": "shell", "recentOutput": await call.service.tasks.desk.tail(row)}
    pid = await _pid(call, row)
    return {"progress": progress if pid is None else {**progress, "pid": pid}}


async def _find_task(call: RpcCall) -> TaskRow | None:
    try:
        return await call.service.tasks.find(call.attached().key, call.text("id"))
    except NotFound:
        return None


# Output


class OutputPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a task's output."""

    text: str
    end: int
    """Offset at which the next page begins."""
    output_end: int
    """Offset of the end of the output. A character that is not complete yet may lie between."""
    exit: dict[str, Any] | None = None


@method("session.tasks.readOutput")
async def read_output(call: RpcCall) -> Any:
    tasks = call.service.tasks
    row = await tasks.find(call.attached().key, call.text("id"))
    offset = _offset(call.param("cursor", str, ""), row)
    wait_seconds = min(max(call.param("waitMs", int, 0), 0), MAX_WAIT_MS) / 1000
    page = await _page(call, row, offset)
    if wait_seconds and not page.text and page.exit is None:
        with call.connection.peer.waiting():
            await _until_more(call, row, page.output_end, wait_seconds)
        page = await _page(call, row, offset)
    result = {"cursor": f"{row.task_id}:{page.end}", "text": page.text}
    return result if page.exit is None else {**result, "exit": page.exit}


def _offset(cursor: str, row: TaskRow) -> int:
    if not cursor:
        return 0
    task_id, _, number = cursor.rpartition(":")
    if task_id != row.task_id or not (number.isascii() and number.isdigit() and len(number) < MAX_DIGITS):
        raise Invalid("cursor_invalid", "This is no cursor of this task. Leave it out to read from the beginning.")
    return int(number)


async def _page(call: RpcCall, row: TaskRow, offset: int) -> OutputPage:
    """Read one page. The row is refreshed first: once it says how the task ended, the output is complete."""
    tasks = call.service.tasks
    row = await _refreshed(call, row)
    chunk = await tasks.read(row.key, row.task_id, offset, MAX_TEXT_BYTES)
    if not chunk.data and offset and not (await tasks.read(row.key, row.task_id, offset - 1, 1)).data:
        raise Conflict("cursor_expired", "The output does not reach this cursor. Read it again without one.")
    more = bool((await tasks.read(row.key, row.task_id, chunk.end, 1)).data)
    data = _whole_lines(chunk.data) if more else chunk.data if row.status != "running" else cut_end(chunk.data)
    text = decoded(data, tasks.desk.redaction.text)
    if len(text.encode()) > MAX_TEXT_BYTES:  # Bytes that are not text take more room when they are decoded.
        more, data = True, cut_end(data[: MAX_TEXT_BYTES // 4])
        text = decoded(data, tasks.desk.redaction.text)
    if chunk.offset > offset:
        text = f"[… {chunk.offset - offset:,} bytes are not kept …]\n{text}"
    ended = row.status != "running" and not more
    return OutputPage(
        text=text, end=chunk.offset + len(data), output_end=chunk.end, exit=_exit(call, row) if ended else None
    )


def _whole_lines(data: bytes) -> bytes:
    """Cut after the last line, so that no secret within one line and no character is split, unless its rest is gone."""
    return data[: data.rfind(b"\n") + 1] or cut_end(data) or data


def _exit(call: RpcCall, row: TaskRow) -> dict[str, Any]:
    status: dict[str, Any] = {"status": STATUSES[call.service.tasks.status(row)]}
    return status if row.exit_code is None else {**status, "exitCode": row.exit_code}


async def _until_more(call: RpcCall, row: TaskRow, offset: int, seconds: float) -> None:
    """Wait until there is output after `offset`, the task ends, or the time is over."""
    following = call.service.tasks.follow(row.key, row.task_id, offset)
    try:
        async with asyncio.timeout(seconds):
            await anext(following, None)
    except TimeoutError:
        pass


# Into the background


def _is_promotable(row: TaskRow) -> bool:
    return row.foreground and row.status == "running" and row.kill_asked is None


async def _promotable(call: RpcCall) -> list[TaskRow]:
    return [row for row in await _rows(call) if _is_promotable(row)]


@method("session.tasks.getCurrentPromotable")
async def get_current_promotable(call: RpcCall) -> Any:
    rows = await _promotable(call)
    return {"task": await _info(call, rows[0])} if rows else {}


@method("session.tasks.promoteToBackground")
async def promote(call: RpcCall) -> Any:
    row = await _find_task(call)
    promoted = None if row is None else await _promoted(call, call.attached(), row)
    return {"promoted": promoted is not None}


@method("session.tasks.promoteCurrentToBackground")
async def promote_current(call: RpcCall) -> Any:
    for row in await _promotable(call):
        promoted = await _promoted(call, call.attached(), row)
        if promoted is not None:
            return {"task": await _info(call, promoted)}
    return {}


async def _promoted(call: RpcCall, attached: Attached, row: TaskRow) -> TaskRow | None:
    """Move a command into the background and return its row; None if it ended first, or no turn waits for it. The
    request is on disk first, so that the session's holder carries it out, even after a crash."""
    tasks = call.service.tasks
    try:
        await tasks.to_background(row.key, row.task_id)
        with call.connection.peer.waiting():
            while not attached.hub.is_closed:
                activity = attached.hub.activity
                row = await tasks.find(row.key, row.task_id)
                if not _is_promotable(row):
                    return None if row.foreground else row
                await activity.wait()
    except (NotFound, Conflict):
        pass
    return None


# The end of a task


@method("session.tasks.cancel")
async def cancel(call: RpcCall) -> Any:
    """Kill a task and answer once it has ended. The model gets the news, unless a call's result reports it."""
    key, task_id = call.attached().key, call.text("id")
    try:
        with call.connection.peer.waiting():
            await call.service.tasks.kill(key, task_id)
    except (NotFound, Conflict) as error:
        if error.code == "task_not_killed":
            raise
        return {"cancelled": False}
    return {"cancelled": True}


@method("session.tasks.remove")
async def remove(call: RpcCall) -> Any:
    """Remove the row of an ended task. Its news is already in the inbox, and its output stays."""
    attached, row = call.attached(), await _find_task(call)
    if row is None or (await _refreshed(call, row)).status == "running":
        return {"removed": False}
    removed = await call.service.operations.store.drop_task(attached.key, row.task_id)
    await attached.hub.refresh_tasks()
    return {"removed": removed}


@method("session.tasks.waitForPending")
async def wait_for_pending(call: RpcCall) -> Any:
    """Wait until no background task runs and the model has answered all their news, or until the timeout."""
    attached = call.attached()
    try:
        with call.connection.peer.waiting():
            async with asyncio.timeout(call.service.settings.task_wait_seconds):
                while not attached.hub.is_closed:
                    activity = attached.hub.activity
                    if not await _is_pending(call, attached):
                        break
                    await activity.wait()
    except TimeoutError:
        pass
    return {}


async def _is_pending(call: RpcCall, attached: Attached) -> bool:
    """Whether a task runs or its news is unanswered. The checks follow the order of events: a task that ended before
    the first check has put its news by the second, and promoted news has started a turn by the third."""
    rows = await call.service.tasks.of_session(attached.key, foreground=True)
    if any(row.status == "running" for row in rows):
        return True
    operations = call.service.operations
    waiting = await operations.store.waiting_items(attached.key)
    if any(isinstance(entry.item, TaskNews) and not entry.item.notice.silent for entry in waiting):
        state = await operations.state(attached.key)
        if state.woken_turns < call.service.settings.max_woken_turns:
            return True
    return (await operations.session(attached.key)).status != "idle"
