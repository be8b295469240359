"""The commands of a session: list them, look at what they wrote, end them."""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.commands.command import ProcessInfo
from holdfast.commands.output import OutputChunk
from holdfast.events.ids import Key
from holdfast.server.http.endpoint import Endpoint, routes_of
from holdfast.server.http.service import Service
from holdfast.server.http.views import TaskView, task_view
from holdfast.server.http.wire import answer, nothing, read_query
from holdfast.server.task_operations import MAX_READ_BYTES
from holdfast.store.tasks import TaskRow

DEFAULT_LENGTH: Final = 65_536

MAX_WAIT_SECONDS: Final = 30


class Tasks(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest first, with the commands that turns wait for."""

    tasks: tuple[TaskView, ...]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0
    length: Annotated[int, Meta(ge=1, le=MAX_READ_BYTES)] = DEFAULT_LENGTH
    tail: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Instead of an offset: begin so many bytes before the end of what it has written by now."""
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)] = 0
    """How many seconds to wait for more if there is nothing. The end of the task ends the wait."""


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what a command wrote, standard output and errors as they came. Offsets are bytes."""

    offset: int
    """Where `text` begins. Beyond what was asked for: what lay between is gone."""
    text: str
    next_offset: int
    """Ask from here for what follows. The same as `offset`: there is nothing more, for now."""


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    name: str


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    task: TaskView
    killed: int
    """Processes that were ended."""
    escaped: int
    """Processes that could not be."""
    killed_processes: tuple[ProcessView, ...]
    escaped_processes: tuple[ProcessView, ...]


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
                method="GET",
                path="/v1/tasks",
                handler=self.list_everywhere,
                summary="The commands of all of one's sessions in the background, and those that turns wait for",
                answers={200: Tasks},
            ),
            Endpoint(
                method="GET", path=path, handler=self.list_all, summary="A session's commands", answers={200: Tasks}
            ),
            Endpoint(method="GET", path=one, handler=self.look, summary="One of them", answers={200: TaskView}),
            Endpoint(method="DELETE", path=one, handler=self.kill, summary="End it", answers={200: Killed}),
            Endpoint(
                method="POST",
                path=f"{one}/background",
                handler=self.to_background,
                summary="Let the turn go on without waiting for it",
                answers={204: None},
            ),
            Endpoint(
                method="GET",
                path=f"{one}/output",
                handler=self.output,
                summary="A part of what it wrote",
                query=Part,
                answers={200: Output},
            ),
        ]

    async def list_everywhere(self, request: Request) -> Response:
        rows = await self._tasks.of_owner(self._service.identity(request).owner)
        return answer(Tasks(tasks=tuple(self._shown(row) for row in rows)))

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
        ended, left = _processes(done.report.killed), _processes(done.report.escaped)
        return answer(
            Killed(
                task=self._shown(done.row),
                killed=len(ended),
                escaped=len(left),
                killed_processes=ended,
                escaped_processes=left,
            )
        )

    async def to_background(self, request: Request) -> Response:
        key, task_id = await self._named(request)
        await self._tasks.to_background(key, task_id)
        return nothing()

    async def output(self, request: Request) -> Response:
        part = read_query(request, Part)
        key, task_id = await self._named(request)
        offset = part.offset
        if part.tail is not None:
            offset = max(0, await self._tasks.size(key, task_id) - part.tail)
        chunk = await self._tasks.read(key, task_id, offset, part.length)
        if not chunk.data and part.wait:
            await self._until_more(key, task_id, offset, part.wait)
            chunk = await self._tasks.read(key, task_id, offset, part.length)
        return answer(await self._redacted(key, task_id, chunk))

    async def _until_more(self, key: Key, task_id: str, offset: int, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds), aclosing(self._tasks.follow(key, task_id, offset)) as chunks:
                await anext(chunks, None)
        except TimeoutError:
            pass

    async def _redacted(self, key: Key, task_id: str, chunk: OutputChunk) -> Output:
        """A part without known secrets, also without those of which it has only the beginning or the rest."""
        redaction, whole = self._tasks.desk.redaction, _without_cut_character(chunk.data)
        before, behind = await self._around(key, task_id, chunk, redaction.margin_bytes)
        shown, start = whole.decode("utf-8", "replace"), len(before)
        text = before + shown + (chunk.data[len(whole) :] + behind).decode("utf-8", "replace")
        end = start + len(shown)
        if not behind and (await self._tasks.find(key, task_id)).status == "running":
            end = min(end, max(start, redaction.settled(text)))  # What may be the beginning of one waits for the rest.
        held = len(text[end : start + len(shown)].encode())
        return Output(
            offset=chunk.offset,
            text=redaction.part(text, start, end),
            next_offset=chunk.offset + len(whole) - held,
        )

    async def _around(self, key: Key, task_id: str, chunk: OutputChunk, margin: int) -> tuple[str, bytes]:
        """What stands right before and right behind a part, as far as it is there."""
        if not margin or not chunk.data:
            return "", b""
        first = max(0, chunk.offset - margin)
        before = await self._tasks.read(key, task_id, first, chunk.offset - first)
        behind = await self._tasks.read(key, task_id, chunk.end, margin)
        return (
            before.data.decode("utf-8", "replace") if before.end == chunk.offset else "",
            behind.data if behind.offset == chunk.end else b"",
        )

    def _shown(self, row: TaskRow) -> TaskView:
        now = self._service.clock.now_ms()
        return task_view(self._tasks.desk.without_secrets(row), self._tasks.status(row), now=now)

    async def _named(self, request: Request) -> tuple[Key, str]:
        """The task that the path names, in a session that there is."""
        key = self._service.key(request)
        await self._service.operations.session(key)
        return key, request.path_params["task_id"]


def _processes(found: Iterable[ProcessInfo]) -> tuple[ProcessView, ...]:
    return tuple(ProcessView(pid=process.pid, name=process.name) for process in found)


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
