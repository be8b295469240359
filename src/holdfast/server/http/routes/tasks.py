"""Tasks: the commands of sessions; listed, read and killed."""

import asyncio
from contextlib import aclosing
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response

from holdfast.commands.output import OutputChunk
from holdfast.events.ids import Key
from holdfast.protocol.task import KilledTask, TaskList, TaskOutput, TaskView
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response, no_content
from holdfast.server.task_operations import MAX_READ_BYTES, TaskOperations
from holdfast.server.views import killed_task, task_view
from holdfast.store.tasks import TaskRow

DEFAULT_LENGTH: Final = 65_536

MAX_WAIT_SECONDS: Final = 30


class OutputQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0
    length: Annotated[int, Meta(ge=1, le=MAX_READ_BYTES)] = DEFAULT_LENGTH
    tail: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Instead of an offset: begin this many bytes before the end of the output so far."""
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)] = 0
    """Seconds to wait for more output if there is none. The end of the task ends the wait."""


@endpoint(
    "GET",
    "/v1/tasks",
    summary="The tasks of all sessions of the caller, and the commands that turns wait for",
    result=TaskList,
)
async def list_tasks(call: HttpCall) -> Response:
    rows = await call.service.tasks.of_owner(call.identity.owner)
    return json_response(TaskList(tasks=tuple(_view(call, row) for row in rows)))


@endpoint("GET", "/v1/sessions/{session_id}/tasks", summary="A session's commands", result=TaskList)
async def list_session_tasks(call: HttpCall) -> Response:
    rows = await call.service.tasks.of_session(call.key, foreground=True)
    return json_response(TaskList(tasks=tuple(_view(call, row) for row in rows)))


@endpoint("GET", "/v1/sessions/{session_id}/tasks/{task_id}", summary="A command of a session", result=TaskView)
async def show(call: HttpCall) -> Response:
    task_id = await _task_id(call)
    row = await call.service.tasks.refresh(await call.service.tasks.find(call.key, task_id))
    return json_response(_view(call, row))


@endpoint("DELETE", "/v1/sessions/{session_id}/tasks/{task_id}", summary="Kill a command", result=KilledTask)
async def kill(call: HttpCall) -> Response:
    done = await call.service.tasks.kill(call.key, await _task_id(call))
    return json_response(killed_task(call.service.tasks, done, now=call.service.clock.now_ms()))


@endpoint(
    "POST",
    "/v1/sessions/{session_id}/tasks/{task_id}/background",
    summary="Let the turn continue without waiting for the command",
    results={204: None},
)
async def to_background(call: HttpCall) -> Response:
    await call.service.tasks.to_background(call.key, await _task_id(call))
    return no_content()


@endpoint(
    "GET",
    "/v1/sessions/{session_id}/tasks/{task_id}/output",
    summary="A part of a command's output",
    query=OutputQuery,
    result=TaskOutput,
)
async def read(call: HttpCall) -> Response:
    query, tasks = call.query(OutputQuery), call.service.tasks
    task_id = await _task_id(call)
    offset = query.offset
    if query.tail is not None:
        offset = max(0, await tasks.size(call.key, task_id) - query.tail)
    chunk = await tasks.read(call.key, task_id, offset, query.length)
    if not chunk.data and query.wait:
        await _until_more(tasks, call.key, task_id, offset, query.wait)
        chunk = await tasks.read(call.key, task_id, offset, query.length)
    return json_response(await _redacted(tasks, call.key, task_id, chunk))


async def _until_more(tasks: TaskOperations, key: Key, task_id: str, offset: int, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds), aclosing(tasks.follow(key, task_id, offset)) as chunks:
            await anext(chunks, None)
    except TimeoutError:
        pass


async def _redacted(tasks: TaskOperations, key: Key, task_id: str, chunk: OutputChunk) -> TaskOutput:
    """The chunk without known secrets, also without secrets that begin before it or end after it."""
    redaction, whole = tasks.desk.redaction, _without_cut_character(chunk.data)
    before, after = await _around(tasks, key, task_id, chunk, redaction.margin_bytes)
    shown, start = whole.decode("utf-8", "replace"), len(before)
    text = before + shown + (chunk.data[len(whole) :] + after).decode("utf-8", "replace")
    end = start + len(shown)
    if not after and (await tasks.find(key, task_id)).status == "running":
        end = min(end, max(start, redaction.settled(text)))  # A possible beginning of a secret waits for the rest.
    withheld = len(text[end : start + len(shown)].encode())
    return TaskOutput(
        offset=chunk.offset,
        text=redaction.part(text, start, end),
        next_offset=chunk.offset + len(whole) - withheld,
    )


async def _around(tasks: TaskOperations, key: Key, task_id: str, chunk: OutputChunk, margin: int) -> tuple[str, bytes]:
    """The output right before and right after a chunk, as far as it exists."""
    if not margin or not chunk.data:
        return "", b""
    first = max(0, chunk.offset - margin)
    before = await tasks.read(key, task_id, first, chunk.offset - first)
    after = await tasks.read(key, task_id, chunk.end, margin)
    return (
        before.data.decode("utf-8", "replace") if before.end == chunk.offset else "",
        after.data if after.offset == chunk.end else b"",
    )


def _view(call: HttpCall, row: TaskRow) -> TaskView:
    return task_view(call.service.tasks, row, now=call.service.clock.now_ms())


async def _task_id(call: HttpCall) -> str:
    """The task that the path names. Raises `NotFound` if its session does not exist."""
    await call.operations.session(call.key)
    return call.path("task_id")


def _without_cut_character(data: bytes) -> bytes:
    """The data without a character at its end whose rest is in the next chunk; unless there is nothing else."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < needed and back < len(data) else data
        if byte & 0x80 == 0:
            break
    return data
