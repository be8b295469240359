"""A session's commands as clients see them: listed, read, let go into the background, ended, forgotten.

They are the rows that every surface shows. There are no agents, and no tasks of a client's own.
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


# Looking


@method("session.tasks.list")
async def list_tasks(call: RpcCall) -> Any:
    return {"tasks": await asyncio.gather(*(_info(call, row) for row in await _rows(call)))}


async def _rows(call: RpcCall) -> list[TaskRow]:
    """What is or was in the background, and what the turn waits for, as the machine knows it at this moment."""
    rows = await call.service.tasks.of_session(call.attached().key, foreground=True)
    refreshed = await asyncio.gather(*(_refreshed(call, row) for row in rows))
    return [row for row in refreshed if not row.foreground or row.status == "running"]


async def _info(call: RpcCall, row: TaskRow) -> dict[str, Any]:
    """All of them run by themselves and write into a file, whether the turn waits for them or not: `detached`."""
    desk = call.service.tasks.desk
    told: dict[str, Any] = {
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
        told["completedAt"] = iso(row.ended_at)
    if row.host == desk.host:
        told["logPath"] = row.output_file
    pid = await _pid(call, row)
    return told if pid is None else {**told, "pid": pid}


async def _pid(call: RpcCall, row: TaskRow) -> int | None:
    """Of one that runs on this machine."""
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
        return row  # It was removed meanwhile.


@method("session.tasks.getProgress")
async def get_progress(call: RpcCall) -> Any:
    row = await _found(call)
    if row is None:
        return {"progress": None}
    told: dict[str, Any] = {"type": "shell", "recentOutput": await call.service.tasks.desk.tail(row)}
    pid = await _pid(call, row)
    return {"progress": told if pid is None else {**told, "pid": pid}}


async def _found(call: RpcCall) -> TaskRow | None:
    try:
        return await call.service.tasks.find(call.attached().key, call.text("id"))
    except NotFound:
        return None


# What it wrote


class OutputPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an output."""

    text: str
    end: int
    """Where the next part begins."""
    seen: int
    """How far the output reached. A character that is not whole yet lies between."""
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
            await _until_more(call, row, page.seen, wait_seconds)
        page = await _page(call, row, offset)
    told = {"cursor": f"{row.task_id}:{page.end}", "text": page.text}
    return told if page.exit is None else {**told, "exit": page.exit}


def _offset(cursor: str, row: TaskRow) -> int:
    if not cursor:
        return 0
    task_id, _, number = cursor.rpartition(":")
    if task_id != row.task_id or not (number.isascii() and number.isdigit() and len(number) < MAX_DIGITS):
        raise Invalid("cursor_invalid", "This is no cursor that was given out for this task.")
    return int(number)


async def _page(call: RpcCall, row: TaskRow, offset: int) -> OutputPage:
    """The row is looked at first: once it says how the task ended, all that the task wrote is there."""
    tasks = call.service.tasks
    row = await _refreshed(call, row)
    chunk = await tasks.read(row.key, row.task_id, offset, MAX_TEXT_BYTES)
    if not chunk.data and offset and not (await tasks.read(row.key, row.task_id, offset - 1, 1)).data:
        raise Conflict("cursor_expired", "The output does not reach this cursor. Read it again without one.")
    more = bool((await tasks.read(row.key, row.task_id, chunk.end, 1)).data)
    data = _whole_lines(chunk.data) if more else chunk.data if row.status != "running" else cut_end(chunk.data)
    text = decoded(data, tasks.desk.redaction.text)
    if len(text.encode()) > MAX_TEXT_BYTES:  # What is no text takes more room when it is shown.
        more, data = True, cut_end(data[: MAX_TEXT_BYTES // 4])
        text = decoded(data, tasks.desk.redaction.text)
    if chunk.offset > offset:
        text = f"[… {chunk.offset - offset:,} bytes are not kept …]\n{text}"
    ended = row.status != "running" and not more
    return OutputPage(text=text, end=chunk.offset + len(data), seen=chunk.end, exit=_exit(call, row) if ended else None)


def _whole_lines(data: bytes) -> bytes:
    """A secret that lies in one line is not cut in two; nor is a character, unless what follows it is gone."""
    return data[: data.rfind(b"\n") + 1] or cut_end(data) or data


def _exit(call: RpcCall, row: TaskRow) -> dict[str, Any]:
    told: dict[str, Any] = {"status": STATUSES[call.service.tasks.status(row)]}
    return told if row.exit_code is None else {**told, "exitCode": row.exit_code}


async def _until_more(call: RpcCall, row: TaskRow, offset: int, seconds: float) -> None:
    """Until there is output beyond, the task ends, or the time is over."""
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
    found = await _promotable(call)
    return {"task": await _info(call, found[0])} if found else {}


@method("session.tasks.promoteToBackground")
async def promote(call: RpcCall) -> Any:
    row = await _found(call)
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
    """The task, once it is in the background; None if it ended before, or nobody waits for it. The wish is on disk
    first: whoever holds the session, now or after a crash, carries it out."""
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


# Its end


@method("session.tasks.cancel")
async def cancel(call: RpcCall) -> Any:
    """Answered when it has ended. The model is told, unless the result of a call tells it."""
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
    """Only the row goes. What the model is to be told of the task is in the inbox by now, and what it wrote stays."""
    attached, row = call.attached(), await _found(call)
    if row is None or (await _refreshed(call, row)).status == "running":
        return {"removed": False}
    removed = await call.service.operations.store.drop_task(attached.key, row.task_id)
    await attached.hub.refresh_tasks()
    return {"removed": removed}


@method("session.tasks.waitForPending")
async def wait_for_pending(call: RpcCall) -> Any:
    """Until nothing runs in the background and the model has answered to all of it; or for as long as one waits."""
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
    """Looked at in the order in which things move on: what ended before we looked has put its news by then, and news
    that was taken in has started a turn."""
    rows = await call.service.tasks.of_session(attached.key, foreground=True)
    if any(row.status == "running" for row in rows):
        return True
    operations = call.service.operations
    waiting = await operations.store.waiting_items(attached.key)
    if any(isinstance(found.item, TaskNews) and not found.item.notice.silent for found in waiting):
        state = await operations.state(attached.key)
        if state.woken_turns < call.service.settings.max_woken_turns:
            return True
    return (await operations.session(attached.key)).status != "idle"
