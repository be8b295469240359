"""The commands of a session: list them, look at what they wrote, end them."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.events.ids import Key
from holdfast.server.http.endpoint import Endpoint, routes_of
from holdfast.server.http.service import Service
from holdfast.server.http.views import TaskView, task_view
from holdfast.server.http.wire import answer, read_query
from holdfast.server.task_operations import MAX_READ_BYTES
from holdfast.store.tasks import TaskRow

DEFAULT_LENGTH: Final = 65_536


class Tasks(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest first, with the command that the turn waits for."""

    tasks: tuple[TaskView, ...]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0
    length: Annotated[int, Meta(ge=1, le=MAX_READ_BYTES)] = DEFAULT_LENGTH


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what a command wrote, standard output and errors as they came. Offsets are bytes."""

    offset: int
    """Where `text` begins. Beyond what was asked for: what lay between is gone."""
    text: str
    next_offset: int
    """Ask from here for what follows. The same as `offset`: there is nothing more, for now."""


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    task: TaskView
    killed: int
    """Processes that were ended."""
    escaped: int
    """Processes that could not be."""


def routes(service: Service) -> list[Route]:
    return routes_of(TaskRoutes(service).endpoints())


class TaskRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks = service.tasks

    def endpoints(self) -> list[Endpoint]:
        path = "/v1/sessions/{session_id}/tasks"
        one = f"{path}/{{task_id}}"
        return [
            Endpoint(
                method="GET", path=path, handler=self.list_all, summary="A session's commands", answers={200: Tasks}
            ),
            Endpoint(method="GET", path=one, handler=self.look, summary="One of them", answers={200: TaskView}),
            Endpoint(method="DELETE", path=one, handler=self.kill, summary="End it", answers={200: Killed}),
            Endpoint(
                method="GET",
                path=f"{one}/output",
                handler=self.output,
                summary="A part of what it wrote",
                query=Part,
                answers={200: Output},
            ),
        ]

    async def list_all(self, request: Request) -> Response:
        rows = await self._tasks.of_session(self._service.key(request), foreground=True)
        return answer(Tasks(tasks=tuple(self._shown(row) for row in rows)))

    async def look(self, request: Request) -> Response:
        key, task_id = await self._named(request)
        row = await self._tasks.refresh(await self._tasks.find(key, task_id))
        return answer(self._shown(row))

    async def kill(self, request: Request) -> Response:
        key, task_id = await self._named(request)
        done = await self._tasks.kill(key, task_id)
        view = self._shown(done.row)
        return answer(Killed(task=view, killed=len(done.report.killed), escaped=len(done.report.escaped)))

    async def output(self, request: Request) -> Response:
        part = read_query(request, Part)
        key, task_id = await self._named(request)
        chunk = await self._tasks.read(key, task_id, part.offset, part.length)
        whole = _without_cut_character(chunk.data)
        text = self._tasks.desk.redaction.text(whole.decode("utf-8", "replace"))
        return answer(Output(offset=chunk.offset, text=text, next_offset=chunk.offset + len(whole)))

    def _shown(self, row: TaskRow) -> TaskView:
        return task_view(self._tasks.desk.without_secrets(row), self._tasks.status(row))

    async def _named(self, request: Request) -> tuple[Key, str]:
        """The task that the path names, in a session that there is."""
        key = self._service.key(request)
        await self._service.operations.session(key)
        return key, request.path_params["task_id"]


def _without_cut_character(data: bytes) -> bytes:
    """Without the beginning of a character whose rest is in the next part; unless there is nothing else."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < needed and back < len(data) else data
        if byte & 0x80 == 0:
            break
    return data
