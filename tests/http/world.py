"""A real `holdfast serve` in a process of its own, a scripted model that it asks over HTTP, and a real HTTP client.

Nothing here waits for time: a test waits for an answer, for a model call that it holds, or for a process to end.
"""

import asyncio
import contextlib
import os
import re
import signal
import ssl
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall
from holdfast.models.server import ModelServer

PATIENCE_SECONDS = 60.0
"""How long a test waits for something that must come. No test that passes waits so long."""

NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP. Without it every new client reads the certificates of all authorities, slower than most requests."""

LONG = " ".join(f"word{number}" for number in range(40))

SCRIPT = Script(
    rules=(
        Rule(
            when="note",
            replies=(
                Reply(text="I write.", tool_calls=(ScriptedCall("create", {"path": "note.txt", "file_text": "hi"}),)),
                Reply(text="Written."),
            ),
        ),
        Rule(
            when="ask me",
            replies=(
                Reply(tool_calls=(ScriptedCall("ask_user", {"question": "Which?", "choices": ["red", "blue"]}),)),
                Reply(text="You said: {last_tool_result}"),
            ),
        ),
        Rule(
            when="look up",
            replies=(
                Reply(tool_calls=(ScriptedCall("lookup", {"name": "ada"}),)),
                Reply(text="Found: {last_tool_result}"),
            ),
        ),
        Rule(
            when="start it",
            replies=(
                Reply(tool_calls=(ScriptedCall("exec", {"command": "cat pipe", "run_in_background": True}),)),
                Reply(text="Started."),
            ),
        ),
        Rule(
            when="show the environment",
            replies=(Reply(tool_calls=(ScriptedCall("exec", {"command": "env"}),)), Reply(text="That is all.")),
        ),
        Rule(when="long", replies=(Reply(text=LONG),)),
        Rule(replies=(Reply(text="Hello, world.", usage=TokenUsage(input_tokens=7, output_tokens=3)),)),
    )
)


def patience() -> asyncio.Timeout:
    return asyncio.timeout(PATIENCE_SECONDS)


class Model(ModelServer):
    """Answers from the script. It can be held before a piece of an answer, until it is released."""

    def __init__(self, script: Script = SCRIPT) -> None:
        super().__init__(script, gate=self._pass)
        self._held_at: int | None = None
        self._reached = asyncio.Event()
        self._released = asyncio.Event()

    def hold(self, piece: int) -> None:
        self._held_at = piece
        self._reached.clear()
        self._released.clear()

    def release(self) -> None:
        self._held_at = None
        self._released.set()

    async def until_held(self) -> None:
        async with patience():
            await self._reached.wait()

    async def _pass(self, piece: int) -> None:
        if piece == self._held_at:
            self._reached.set()
            await self._released.wait()


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Place:
    """A database and a working directory of a test's own, and the commands on them."""

    def __init__(self, folder: Path, model: Model | None = None, **environ: str) -> None:
        self.data = folder / "data"
        self.work = folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self._model = model
        self._environ = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
            "PYTHONUTF8": "1",
            "HOLDFAST_TITLES": "words",
            **environ,
        }

    async def run(self, *words: str, **environ: str) -> Done:
        """A command from its start to its end."""
        child = await self._start(*words, environ=environ, stderr=PIPE)
        async with patience():
            out, err = await child.communicate()
        assert child.returncode is not None
        return Done(child.returncode, out.decode(), err.decode())

    @contextlib.asynccontextmanager
    async def serve(self, *options: str, port: int = 0, **environ: str) -> "AsyncIterator[Server]":
        more = () if self._model is None else ("--model", "openai/scripted", "--model-base-url", self._model.url)
        process = await self._start("serve", "--port", str(port), *more, *options, environ=environ, stderr=DEVNULL)
        try:
            assert process.stdout is not None
            async with patience():
                said = await process.stdout.readline()
            found = re.search(rb"serves (http://\S+) ", said)
            assert found is not None, said
            yield Server(process, found[1].decode(), self.data)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _start(self, *words: str, environ: dict[str, str], stderr: int) -> Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast", *words, "--data-dir", str(self.data)),
            cwd=self.work,
            env={**self._environ, **environ},
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=stderr,
        )


class Server:
    """One that has said where it is."""

    def __init__(self, process: Process, url: str, data: Path) -> None:
        self.process = process
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self._data = data

    @property
    def token_file(self) -> Path:
        return self._data / f"serve-{self.port}.token"

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    def client(self, token: str | None = None, **more: Any) -> "Client":
        """A client with this token; without one, with the token of the local server."""
        bearer = self.token if token is None else token
        headers = {"authorization": f"Bearer {bearer}"} if bearer else {}
        return Client(base_url=self.url, headers=headers, **more)

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal and wait for its end; its exit status."""
        self.process.send_signal(number)
        async with patience():
            return await self.process.wait()


class Frame(NamedTuple):
    """One event of a stream."""

    id: str
    kind: str
    data: Any


class Client(httpx.AsyncClient):
    """With the few things that nearly every test does."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"timeout": PATIENCE_SECONDS, "trust_env": False, "verify": NO_AUTHORITIES, **settings})

    async def make(self, **options: Any) -> str:
        """A new session; its id."""
        response = await self.post("/v1/sessions", json=options)
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    async def say(self, session: str, text: str, **more: Any) -> httpx.Response:
        """Send a message and wait until its turn rests: it has ended, or waits for somebody."""
        return await self.post(f"/v1/sessions/{session}/stream", json={"text": text, **more})

    async def add(self, session: str, text: str, **more: Any) -> httpx.Response:
        """Send a message into a turn that runs."""
        accept = {"accept": "application/json"}
        return await self.post(f"/v1/sessions/{session}/stream", json={"text": text, **more}, headers=accept)

    async def texts(self, session: str) -> list[str]:
        """The messages of people and of the model, in order."""
        messages = (await self.get(f"/v1/sessions/{session}", params={"limit": 200})).json()["messages"]
        return [text for message in messages for text in _texts(message)]

    async def events(self, session: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.get(f"/v1/sessions/{session}/events?limit=1000")).json()["events"]
        return found

    @contextlib.asynccontextmanager
    async def follow(self, session: str, *, after: str = "", query: str = "") -> "AsyncIterator[AsyncIterator[Frame]]":
        headers = {"accept": "text/event-stream"} | ({"last-event-id": after} if after else {})
        async with self.stream("GET", f"/v1/sessions/{session}/events{query}", headers=headers) as response:
            assert response.status_code == 200
            yield frames_of(response)


async def frames_of(response: httpx.Response) -> AsyncIterator[Frame]:
    found: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            found[name] = value
        elif not line and "data" in found:
            yield Frame(found.get("id", ""), found.get("event", ""), msgspec.json.decode(found["data"]))
            found = {}
        elif not line:
            found = {}


def code_of(response: httpx.Response) -> str:
    """The code of an answer that is an error, in the one shape that errors have."""
    error = response.json()["error"]
    assert set(error) <= {"code", "message", "retry_after"}
    assert error["message"].strip()
    return str(error["code"])


def _texts(message: dict[str, Any]) -> list[str]:
    if message["role"] == "user":
        return [message["text"]]
    if message["role"] == "assistant":
        return [block["text"] for block in message["blocks"] if block["type"] == "text"]
    return []
