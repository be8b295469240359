"""Tasks: the commands of sessions; listed, read and killed."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response

from holdfast.protocol.task import KilledTask, TaskList, TaskOutput, TaskView
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.wire import json_response, no_content
from holdfast.server.operations.tasks import MAX_READ_BYTES
from holdfast.server.views.task_output import read_output
from holdfast.server.views.tasks import killed_task, task_view
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
    task_id = await _task_id(call)
    await call.check_change()
    done = await call.service.tasks.kill(call.key, task_id)
    return json_response(killed_task(call.service.tasks, done, now=call.service.clock.now_ms()))


@endpoint(
    "POST",
    "/v1/sessions/{session_id}/tasks/{task_id}/background",
    summary="Let the turn continue without waiting for the command",
    results={204: None},
)
async def to_background(call: HttpCall) -> Response:
    task_id = await _task_id(call)
    await call.check_change()
    await call.service.tasks.to_background(call.key, task_id)
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
    output = await read_output(tasks, call.key, task_id, offset=offset, length=query.length, wait_seconds=query.wait)
    return json_response(output)


def _view(call: HttpCall, row: TaskRow) -> TaskView:
    return task_view(call.service.tasks, row, now=call.service.clock.now_ms())


async def _task_id(call: HttpCall) -> str:
    """The task that the path names. Raises `NotFound` if its session does not exist."""
    await call.operations.session(call.key)
    return call.path("task_id")
