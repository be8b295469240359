"""A process with a runtime in it, to be killed, stopped and started again. It takes commands on its standard input and
tells on its standard output what it did and where it stands, each as a line of JSON. It ends when its input does."""

import asyncio
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.app import Runtime
from holdfast.config import load
from holdfast.events import codec
from holdfast.events.body import Body
from holdfast.events.event import Event, type_of
from holdfast.events.session import ClientTool
from holdfast.models.scripted import Script, ScriptedModel
from holdfast.server.errors import OperationError
from holdfast.store.errors import StoreError
from holdfast.tools.tool import Tool, ToolContext, tool


class Setup(msgspec.Struct, kw_only=True):
    """How the process is started. Its settings come from its environment."""

    journal: str
    """Where tools leave their traces: one line for each time that one took effect."""
    script: Script | None = None
    holds: list[str] = []
    """Gates that are closed: `model:INDEX` for a piece of an answer, `tool:NAME` for the tool `hold`."""
    work: bool = True
    user: int | None = None
    """Whom to be from then on that everything is imported: root may do anything, and shows nothing."""
    most_bytes_in_a_file: int | None = None
    deadly: str = ""
    """The process dies as soon as it reads an event with this in it, as one does that has no memory for it."""


class Gates:
    """Places where the process says that it has come there, and stays until it is let through."""

    def __init__(self, closed: list[str]) -> None:
        self._closed = {name: asyncio.Event() for name in closed}

    async def pass_by(self, name: str) -> None:
        if name in self._closed:
            say({"at": name})
            await self._closed[name].wait()

    def open(self, name: str) -> None:
        self._closed[name].set()


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Telling(logging.Handler):
    """Forwards the log of the runtime to the parent."""

    def emit(self, record: logging.LogRecord) -> None:
        say({"log": record.getMessage()})


def tools_of(gates: Gates, journal: Path) -> list[Tool]:
    def leave_trace(line: str, context: ToolContext) -> None:
        with journal.open("a", encoding="utf-8") as file:
            file.write(f"{context.key} {line}\n")

    @tool(permission="allow")
    async def note(line: str, context: ToolContext) -> str:
        leave_trace(line, context)
        return f"noted {line}"

    @tool(permission="allow")
    async def hold(name: str, context: ToolContext) -> str:
        leave_trace(name, context)
        await gates.pass_by(f"tool:{name}")
        return f"held {name}"

    @tool(permission="allow", after_crash="repeat")
    async def hold_again(name: str, context: ToolContext) -> str:
        leave_trace(name, context)
        await gates.pass_by(f"tool:{name}")
        return f"held {name}"

    @tool(permission="allow", after_crash="repeat")
    async def die(context: ToolContext) -> str:
        leave_trace("died", context)
        os.kill(os.getpid(), signal.SIGKILL)
        return "never said"

    @tool
    async def careful(line: str, context: ToolContext) -> str:
        leave_trace(line, context)
        return f"done {line}"

    return [note, hold, hold_again, die, careful]


class Commands:
    """The commands of the parent."""

    def __init__(self, runtime: Runtime, gates: Gates, end: asyncio.Event) -> None:
        self._runtime = runtime
        self._gates = gates
        self._end = end

    async def create(self, session: str, client_tools: Sequence[dict[str, Any]] = (), **options: Any) -> str:
        options["client_tools"] = msgspec.convert(client_tools, tuple[ClientTool, ...])
        return (await self._runtime.session(session, **options)).id

    async def send(self, session: str, text: str, **options: Any) -> Any:
        return msgspec.to_builtins(await self._runtime.open(session).send(text, **options))

    async def result(self, session: str, message_id: str) -> Any:
        return msgspec.to_builtins(await self._runtime.open(session).result_of(message_id))

    async def stop(self, session: str) -> Any:
        return msgspec.to_builtins(await self._runtime.open(session).stop())

    async def compact(self, session: str, **options: Any) -> Any:
        return msgspec.to_builtins(await self._runtime.open(session).compact(**options))

    async def context(self, session: str) -> Any:
        return msgspec.to_builtins(await self._runtime.open(session).context())

    async def pin(self, session: str, message_id: str) -> None:
        await self._runtime.open(session).pin(message_id)

    async def requests(self, session: str) -> Any:
        return msgspec.to_builtins(await self._runtime.open(session).requests())

    async def approve(self, session: str, request_id: str, answer_id: str | None = None) -> Any:
        return msgspec.to_builtins(await self._runtime.open(session).approve(request_id, answer_id=answer_id))

    async def log(self, session: str) -> list[str]:
        readings = self._runtime.open(session).events(follow=False)
        return [type_of(reading.body) async for reading in readings if isinstance(reading, Event)]

    async def follow(self, session: str) -> None:
        """Tell of every event as it comes."""
        async for reading in self._runtime.open(session).events():
            if isinstance(reading, Event):
                say({"event": type_of(reading.body), "position": reading.position})

    async def open(self, gate: str) -> None:
        self._gates.open(gate)

    async def close(self, grace_seconds: float = 0) -> None:
        await self._runtime.close(grace_seconds=grace_seconds)

    async def fill(self, path: str) -> int:
        """Write until the disk is full."""
        return fill(Path(path))

    async def free(self, path: str) -> None:
        os.unlink(path)

    async def limit_files(self, size: int | None) -> None:
        """Let no file grow beyond this; None lets them grow again."""
        limit_files(size)

    async def end(self) -> None:
        self._end.set()


def fill(path: Path) -> int:
    written = 0
    with path.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    written += file.write(b"\0" * size)
            except OSError:
                pass
    return written


def limit_files(size: int | None) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


def dying(decode: Callable[[str, int, bytes], Body], deadly: bytes) -> Callable[[str, int, bytes], Body]:
    def dies(event_type: str, version: int, data: bytes) -> Body:
        if deadly in data:
            os.kill(os.getpid(), signal.SIGKILL)
        return decode(event_type, version, data)

    return dies


async def obey(number: int, command: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> None:
    try:
        value = await command(**arguments)
    except (OperationError, StoreError) as error:
        say({"reply": number, "code": error.code, "message": error.message})
    except Exception as error:
        say({"reply": number, "code": type(error).__name__, "message": str(error)})
    else:
        say({"reply": number, "value": value})


async def live(setup: Setup) -> None:
    gates = Gates(setup.holds)
    config = load({}, os.environ)
    model = ScriptedModel(setup.script, gate=lambda index: gates.pass_by(f"model:{index}")) if setup.script else None
    end = asyncio.Event()
    runtime = Runtime(config=config, model=model, tools=tools_of(gates, Path(setup.journal)), work=setup.work)
    async with runtime:
        commands = Commands(runtime, gates, end)
        say({"ready": runtime.store.process, "pid": os.getpid()})
        limit_files(setup.most_bytes_in_a_file)
        listening = asyncio.create_task(listen(commands, end))
        await end.wait()
        listening.cancel()


async def listen(commands: Commands, end: asyncio.Event) -> None:
    reader = asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with asyncio.TaskGroup() as tasks:
        while line := await reader.readline():
            asked = json.loads(line)
            command = getattr(commands, asked["do"])
            tasks.create_task(obey(asked["number"], command, asked["with"]))
    end.set()


def main() -> None:
    logging.getLogger("holdfast").addHandler(Telling())
    logging.getLogger("holdfast").setLevel(logging.INFO)
    setup = msgspec.json.decode(sys.argv[1], type=Setup)
    if setup.deadly:
        setattr(codec, "decode", dying(codec.decode, setup.deadly.encode()))  # noqa: B010
    if setup.user is not None:
        asyncio.run(asyncio.to_thread(os.getpid))  # imports what is imported late
        os.setgroups([])
        os.setgid(setup.user)
        os.setuid(setup.user)
    asyncio.run(live(setup))


if __name__ == "__main__":
    try:
        main()
    except StoreError as unusable:
        say({"failed": unusable.code, "message": unusable.message})
        sys.exit(1)
