"""The real Python client against a real `holdfast-copilot`, which calls a scripted model over real HTTP.

No test sleeps: it waits for an event, for a model call that it holds, or for a process to end.
"""

import asyncio
import contextlib
import contextvars
import os
import re
import select
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from copilot import CopilotClient, CopilotSession, RuntimeConnection
from copilot.session import PermissionHandler
from copilot.session_events import (
    AssistantMessageData,
    SessionErrorData,
    SessionEvent,
    SessionIdleData,
    UserMessageData,
)
from copilot.tools import Tool, ToolInvocation, ToolResult

from holdfast.events.quote import unmarked
from holdfast.models import scripted
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.models.served_protocol import ServedProtocol
from holdfast.models.server import ModelServer

PATIENCE_SECONDS = 60.0
"""Timeout for an expected event. No passing test waits this long."""

TOKEN = "py-tcp-shared-test-token"
EXECUTABLE = str(Path(sys.executable).with_name("holdfast-copilot"))

MODELS = ("scripted", "gpt-4.1", "gpt-5.4", "claude-sonnet-4.5")
"""The models of the endpoint; the first is the default."""

QUICK = {"HOLDFAST_BACKOFF_SECONDS": "0", "HOLDFAST_MAX_BACKOFF_SECONDS": "0", "HOLDFAST_CLAIM_EVERY_SECONDS": "0.1"}
"""Settings of a runtime that retries without a pause; its guarantees are the same."""

D = TypeVar("D")


def patience() -> asyncio.Timeout:
    return asyncio.timeout(PATIENCE_SECONDS)


# The model


def says(text: str, **more: Any) -> Reply:
    """A reply with this text, in which `{last_tool_result}` stands for the last tool's result."""
    return Reply(text=text, **more)


def calls(tool_name: str, /, **arguments: Any) -> Reply:
    """A reply that calls one tool."""
    return calls_all((tool_name, arguments))


def calls_all(*wanted: tuple[str, dict[str, Any]], text: str = "") -> Reply:
    """A reply that calls several tools at once."""
    return Reply(text=text, tool_calls=tuple(ScriptedCall(name, arguments) for name, arguments in wanted))


def calls_raw(tool_name: str, arguments: str) -> Reply:
    """A reply that calls a tool with exactly these characters as arguments, which need not be JSON."""
    return Reply(tool_calls=(ScriptedCall(tool_name, arguments),))


class Hold:
    """A model call that blocks until it is released."""

    def __init__(self, when: str, *, round: int, piece: int | None) -> None:
        self.when = when
        self.round = round
        self.piece = piece
        self.reached = asyncio.Event()
        self.left = asyncio.Event()
        """The caller closed the connection."""
        self.visits = 0
        self._released = asyncio.Event()

    def release(self) -> None:
        self._released.set()

    async def until_reached(self) -> None:
        async with patience():
            await self.reached.wait()

    async def until_left(self) -> None:
        async with patience():
            await self.left.wait()

    async def stand(self) -> None:
        self.visits += 1
        self.reached.set()
        try:
            await self._released.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise


class Model(ModelServer):
    """A scripted model that can be held in mid-answer and records its calls."""

    def __init__(self) -> None:
        listed = [{"id": name, "object": "model", "owned_by": "holdfast"} for name in MODELS]
        super().__init__(Script(rules=()), gate=self._pass, models=listed)
        self._rules: list[Rule] = []
        self._holds: list[Hold] = []
        self._held: contextvars.ContextVar[Hold | None] = contextvars.ContextVar("held", default=None)
        self._asked: list[tuple[str, dict[str, str]]] = []

    def on(self, when: str, *replies: Reply) -> None:
        """Set the replies to a message that contains these words: one for each round of tools."""
        self._rules.insert(0, Rule(replies, when))
        self._model = ScriptedModel(Script(tuple(self._rules)), gate=self._pass)

    def hold(self, when: str, *, round: int = 0, piece: int | None = None) -> Hold:
        """Hold the answer to a message with these words, after this many rounds of tools: before the answer, or before
        one piece of its stream."""
        held = Hold(when, round=round, piece=piece)
        self._holds.insert(0, held)
        return held

    def calls_about(self, words: str) -> list[dict[str, Any]]:
        """The bodies of all model calls with a person's message that contains these words."""
        bodies: Iterable[dict[str, Any]] = map(msgspec.json.decode, self.requests)
        return [body for body in bodies if any(words in text for text in _said_by("user", body))]

    def last_call_about(self, words: str) -> dict[str, Any]:
        return self.calls_about(words)[-1]

    def headers_about(self, words: str) -> list[dict[str, str]]:
        """The headers of all model calls whose last message of a person ends with these words."""
        return [headers for said, headers in self._asked if said.endswith(words)]

    async def _complete(self, protocol: ServedProtocol, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = msgspec.json.decode(await request.read())
        said, rounds = _last_words(body)
        self._asked.append((said, dict(request.headers)))
        held = next((hold for hold in self._holds if hold.when in said and hold.round == rounds), None)
        if held is not None and held.piece is None:
            await held.stand()
        self._held.set(held)
        return await super()._complete(protocol, request)

    async def _pass(self, piece: int) -> None:
        # Each call is answered in a task of its own, and so are its pieces.
        held = self._held.get()
        if held is not None and held.piece == piece:
            await held.stand()


def texts_of(message: dict[str, Any]) -> str:
    """A message's text, given as one string or in parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def tool_results(call: dict[str, Any]) -> list[str]:
    """The tool results in a model call, without the marks of their origin."""
    return [unmarked(text) for text in _said_by("tool", call)]


def system_text(call: dict[str, Any]) -> str:
    return "\n".join(_said_by("system", call))


def tool_names(call: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in call.get("tools", ())]


def _said_by(role: str, call: dict[str, Any]) -> list[str]:
    return [texts_of(message) for message in call["messages"] if message["role"] == role and not _is_task_list(message)]


def _is_task_list(message: dict[str, Any]) -> bool:
    return message["role"] == "user" and unmarked(texts_of(message)).startswith(scripted.TASK_LISTS)


def _last_words(call: dict[str, Any]) -> tuple[str, int]:
    """The last message of a person, and the number of tool rounds after it."""
    rounds = 0
    for message in reversed(call["messages"]):
        if message["role"] == "user" and not _is_task_list(message):
            return texts_of(message), rounds
        rounds += bool(message["role"] == "assistant" and message.get("tool_calls"))
    return "", rounds


# The runtime


class Home:
    """The data folder, working directory and environment that a test starts its runtimes with."""

    def __init__(self, folder: Path, model: Model) -> None:
        self.model = model
        self.folder = folder
        self.data = folder / "home"
        self.work = folder / "work"
        self.log = folder / "stderr"
        self.data.mkdir()
        self.work.mkdir()

    @property
    def environ(self) -> dict[str, str]:
        where = {"COPILOT_HOME": str(self.data), "COPILOT_API_URL": self.model.url, "HOME": str(self.folder)}
        return {**os.environ, **QUICK, **where}

    def stdio(self, *args: str, **options: Any) -> CopilotClient:
        """A client that starts its own runtime and talks to it through pipes."""
        return self._client(RuntimeConnection.for_stdio(path=EXECUTABLE, args=args), options)

    def tcp(self, *args: str, **options: Any) -> CopilotClient:
        """A client that starts a runtime to which other clients can connect."""
        token = options.pop("connection_token", TOKEN)
        return self._client(RuntimeConnection.for_tcp(path=EXECUTABLE, args=args, connection_token=token), options)

    def _client(self, connection: RuntimeConnection, options: dict[str, Any]) -> CopilotClient:
        given = {"working_directory": str(self.work), "env": self.environ, **options}
        return CopilotClient(connection=connection, **given)

    @contextlib.asynccontextmanager
    async def serve(self, *args: str, **environ: str) -> AsyncIterator["Server"]:
        """A runtime that the test starts itself, as a client would, so that the test can kill it."""
        server = await Server.start(self, args, environ)
        try:
            yield server
        finally:
            await server.end()


class Server:
    """A running runtime that listens on a port."""

    def __init__(self, process: Process, port: int, home: Home) -> None:
        self._process = process
        self._stderr = home.log
        self._logs = home.data / "logs"
        self._clients: list[CopilotClient] = []
        self.port = port

    @classmethod
    async def start(cls, home: Home, args: tuple[str, ...], environ: dict[str, str]) -> "Server":
        given = {**home.environ, "COPILOT_CONNECTION_TOKEN": TOKEN, **environ}
        command = (EXECUTABLE, *args, "--headless", "--no-auto-update", "--log-level", "info")
        with home.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=home.work, env=given, stdin=DEVNULL, stdout=PIPE, stderr=log
            )
        port = await _announced_port(process)
        assert port is not None, f"it ended without saying its port: {_text_of(home.log)}"
        return cls(process, port, home)

    @property
    def url(self) -> str:
        return f"localhost:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def client(self, token: str | None = TOKEN, **options: Any) -> CopilotClient:
        """A client that is not connected yet."""
        client = CopilotClient(connection=RuntimeConnection.for_uri(self.url, connection_token=token), **options)
        self._clients.append(client)
        return client

    async def kill(self) -> None:
        """Kill the runtime with SIGKILL, which gives it no chance to clean up."""
        self._process.kill()
        await self._process.wait()

    async def end(self) -> None:
        """End the runtime if it still runs. Unexpected errors in its log fail the test."""
        for client in self._clients:
            await client.force_stop()
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            async with patience():
                await self._process.wait()
        self.check_log()

    def check_log(self) -> None:
        for log in (self._stderr, *self._logs.glob("*")):
            assert "Traceback" not in _text_of(log), _text_of(log)


def _text_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


async def _announced_port(process: Process) -> int | None:
    assert process.stdout is not None
    async with patience():
        while line := await process.stdout.readline():
            if found := re.search(rb"listening on port (\d+)", line, re.IGNORECASE):
                return int(found[1])
    return None


class Pipe:
    """A named pipe between a test and a command that the runtime runs. Neither side waits for the other to open it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    async def line(self) -> str:
        """The next line that the command wrote."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._fd, readable.set)
        try:
            async with patience():
                await readable.wait()
            return os.read(self._fd, 65536).decode().strip()
        finally:
            loop.remove_reader(self._fd)

    def write(self, line: str) -> None:
        os.write(self._fd, f"{line}\n".encode())

    def close(self) -> None:
        os.close(self._fd)


def is_gone(pid: int) -> bool:
    """Wait, in a thread, for the end of a process that is not a child of the test."""
    try:
        if sys.platform == "linux":
            handle = os.pidfd_open(pid)
        else:
            queue = select.kqueue()
            exits = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
            queue.control([exits], 0)
            handle = queue.fileno()
    except ProcessLookupError:
        return True
    try:
        waiting = select.poll()  # Unlike select, it takes any number of a file.
        waiting.register(handle, select.POLLIN)
        return bool(waiting.poll(PATIENCE_SECONDS * 1000))
    finally:
        os.close(handle)


# Clients


@contextlib.contextmanager
def last_answers_race() -> Iterator[None]:
    """Ignore a known, harmless race of the client: when an answer and the end of the connection arrive together, it
    sets a result and then an error on the same future, which its loop reports."""
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()

    def heed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        callback = getattr(context.get("handle"), "_callback", None)
        is_race = isinstance(context.get("exception"), asyncio.InvalidStateError)
        if is_race and getattr(callback, "__name__", "") == "set_exception":
            return
        if handler is None:
            loop.default_exception_handler(context)
        else:
            handler(loop, context)

    loop.set_exception_handler(heed)
    try:
        yield
    finally:
        loop.set_exception_handler(handler)


@contextlib.asynccontextmanager
async def running(client: CopilotClient) -> AsyncIterator[CopilotClient]:
    """A client that starts its runtime, and is stopped at the end."""
    with pipes_closed(client):
        await client.start()
        try:
            yield client
        finally:
            await stop(client)


@contextlib.contextmanager
def pipes_closed(client: CopilotClient) -> Iterator[list[Popen[bytes]]]:
    """Close the pipes of the client's processes, which the client leaves to the garbage collector: it would warn."""
    started: list[Popen[bytes]] = []
    start_process = client._start_cli_server

    async def start_and_remember() -> None:
        try:
            await start_process()
        finally:
            if client._cli_process is not None:
                started.append(client._cli_process)

    client._start_cli_server = start_and_remember  # type: ignore[method-assign]
    try:
        yield started
    finally:
        client._start_cli_server = start_process  # type: ignore[method-assign]
        for process in started:
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


@contextlib.asynccontextmanager
async def connected(client: CopilotClient) -> AsyncIterator[CopilotClient]:
    """A client of a runtime that is already running."""
    await client.start()
    try:
        yield client
    finally:
        await leave(client)


async def stop(client: CopilotClient) -> None:
    """Stop the client, by force if need be."""
    try:
        await client.stop()
    except Exception:
        await client.force_stop()


async def leave(client: CopilotClient) -> None:
    """Detach from every session and close the connection. `stop` would also wait a second for its own thread."""
    for session in list(client._sessions.values()):
        with contextlib.suppress(Exception):  # the test may have killed the runtime
            async with patience():
                await session.disconnect()
    await client.force_stop()


async def ask(asker: CopilotClient | CopilotSession, method: str, **params: Any) -> Any:
    """Send any request over the client's own connection."""
    about = {"sessionId": asker.session_id} if isinstance(asker, CopilotSession) else {}
    async with patience():
        return await asker._client.request(method, {**about, **params})  # type: ignore[union-attr]


# Sessions


class Heard:
    """Records a session's events in order, as an `on_event` handler or as a listener."""

    def __init__(self, session: CopilotSession | None = None) -> None:
        self.events: list[SessionEvent] = []
        self._news = asyncio.Event()
        if session is not None:
            session.on(self)

    def __call__(self, event: SessionEvent) -> None:
        self.events.append(event)
        self._news.set()

    @property
    def types(self) -> list[str]:
        return [event.raw_type or event.type.value for event in self.events]

    def all(self, kind: type[D]) -> list[D]:
        return [event.data for event in self.events if isinstance(event.data, kind)]

    async def until(self, kind: type[D], fits: Callable[[D], bool] = lambda data: True, *, times: int = 1) -> D:
        """The data of the first matching event, past or future. An error event that comes first is raised."""
        expects_errors = kind in (SessionErrorData, SessionIdleData)
        async with patience():
            while len(found := [data for data in self.all(kind) if fits(data)]) < times:
                assert expects_errors or not self.all(SessionErrorData), self.all(SessionErrorData)[-1].message
                await self.news()
        return found[times - 1]

    async def news(self) -> None:
        """The next event of any type."""
        self._news.clear()
        await self._news.wait()

    async def until_so(self, is_so: Callable[[], Awaitable[D | None]]) -> D:
        """Repeat a check after each event until it returns something other than None."""
        async with patience():
            while True:
                self._news.clear()
                found = await is_so()
                if found is not None:
                    return found
                await self._news.wait()

    async def until_idle(self, times: int = 1) -> SessionIdleData:
        return await self.until(SessionIdleData, times=times)


def approving(**options: Any) -> dict[str, Any]:
    """Session options that approve every permission request."""
    return {"on_permission_request": PermissionHandler.approve_all, **options}


async def history(session: CopilotSession, kind: type[D]) -> list[D]:
    """The data of all events of one type in the session's history."""
    return [event.data for event in await session.get_events() if isinstance(event.data, kind)]


async def reply_to(session: CopilotSession, prompt: str, **options: Any) -> str:
    """The assistant's final answer to a message."""
    answer = await session.send_and_wait(prompt, timeout=PATIENCE_SECONDS, **options)
    return content_of(answer)


def content_of(event: SessionEvent | None) -> str:
    assert event is not None
    assert isinstance(event.data, AssistantMessageData)
    return event.data.content or ""


async def get_final_assistant_message(session: CopilotSession) -> SessionEvent:
    """The assistant's last message of the current turn, which may have ended already."""
    heard = Heard()
    unsubscribe = session.on(heard)
    try:
        return await heard.until_so(lambda: _final_message(session))
    finally:
        unsubscribe()


async def final_answer(session: CopilotSession) -> str:
    """The text of the final message."""
    return content_of(await get_final_assistant_message(session))


async def _final_message(session: CopilotSession) -> SessionEvent | None:
    """The last message of the last turn, once the session is idle."""
    if (await ask(session, "session.metadata.isProcessing"))["processing"]:
        return None
    events = await session.get_events()
    asked = max((at for at, event in enumerate(events) if isinstance(event.data, UserMessageData)), default=0)
    turn = events[asked:]
    for event in turn:
        if isinstance(event.data, SessionErrorData):
            raise RuntimeError(event.data.message or "session error")
    return next((event for event in reversed(turn) if isinstance(event.data, AssistantMessageData)), None)


# Tools of a client

VALUE = {
    "type": "object",
    "properties": {"value": {"type": "string", "description": "Value to look up"}},
    "required": ["value"],
}


def client_tool(name: str, handler: Callable[[dict[str, Any]], Any], **more: Any) -> Tool:
    """A tool that takes a value; the handler may be a coroutine function."""

    async def wrapped(invocation: ToolInvocation) -> ToolResult:
        result = handler(invocation.arguments or {})
        if asyncio.iscoroutine(result):
            result = await result
        return result if isinstance(result, ToolResult) else ToolResult(text_result_for_llm=str(result))

    options: dict[str, Any] = {"description": "Looks up a value", "parameters": VALUE, **more}
    return Tool(name=name, handler=wrapped, **options)


class Waiting:
    """A tool handler that starts and then waits until the test releases it."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self._started = asyncio.Event()
        self.release: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def __call__(self, arguments: dict[str, Any]) -> str:
        self.values.append(arguments.get("value", ""))
        self._started.set()
        return await asyncio.shield(self.release)

    async def started(self) -> str:
        async with patience():
            await self._started.wait()
        return self.values[-1]


# Raw frames, for bytes that no proper client sends


class RawClient:
    """A connection that writes exactly the given bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, port: int, *, token: str | None = TOKEN) -> AsyncIterator["RawClient"]:
        """Connect and, with a token, authenticate."""
        reader, writer = await asyncio.open_connection("localhost", port, limit=1 << 27)
        raw = cls(reader, writer)
        try:
            if token is not None:
                assert (await raw.request("connect", token=token))["result"]["ok"] is True
            yield raw
        finally:
            raw.hang_up()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    @property
    def unsent_bytes(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    async def drain(self) -> None:
        await self._writer.drain()

    def stop_reading(self) -> None:
        """Stop reading from the socket altogether, notifications included."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def read_on(self) -> None:
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    def send(self, message: Any) -> None:
        self.write(frame(msgspec.json.encode(message)))

    def begin(self, method: str, **params: Any) -> int:
        self._number += 1
        self.send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        return self._number

    async def request(self, method: str, **params: Any) -> dict[str, Any]:
        """The whole response: a result or an error."""
        return await self.response(self.begin(method, **params))

    async def response(self, number: int) -> dict[str, Any]:
        return await self.until(lambda message: message.get("id") == number and "method" not in message)

    async def until(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next message that matches; earlier ones are dropped."""
        while True:
            message = await self.read()
            assert message is not None, "the runtime hung up"
            if fits(message):
                return message

    async def read(self) -> dict[str, Any] | None:
        """The next message; None if the runtime closed the connection."""
        try:
            async with patience():
                head = await self._reader.readuntil(b"\r\n\r\n")
                length = int(head.split(b":")[1])
                message: dict[str, Any] = msgspec.json.decode(await self._reader.readexactly(length))
                return message
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def outcome(self) -> dict[str, Any] | None:
        """The error response, or None if the runtime closed the connection."""
        while True:
            message = await self.read()
            if message is None or "error" in message:
                return message

    def hang_up(self) -> None:
        self._writer.transport.abort()


def frame(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
