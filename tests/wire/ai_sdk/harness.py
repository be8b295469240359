"""A real `holdfast serve`, a scripted model behind it over real HTTP, and what reads its streams byte by byte.

Nothing here waits for time: a test waits for a chunk, for a model call that it holds, or for a process to end.
"""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Union

import aiohttp
import msgspec

from holdfast.server.ai_sdk import chunks
from holdfast.server.ai_sdk.chunks import UiChunk
from tests.wire.ai_sdk.logs import reduced
from tests.wire.copilot.harness import Hold, Model, calls, calls_all, patience, says

__all__ = ["Answer", "Hold", "Home", "Model", "Server", "Talk", "calls", "calls_all", "patience", "says"]

QUICK = {
    "HOLDFAST_BACKOFF_SECONDS": "0",
    "HOLDFAST_MAX_BACKOFF_SECONDS": "0",
    "HOLDFAST_CLAIM_EVERY_SECONDS": "0.1",
    "HOLDFAST_TITLES": "words",
}
"""A server that never pauses between tries; what it promises is the same."""

STREAM = "text/event-stream"

LEAPS: dict[str, Any] = {"HOLDFAST_LEASE_TTL_SECONDS": "86400", "HOLDFAST_RENEW_EVERY_SECONDS": "3600"}
"""Leases that outlast every leap of a clock."""

_kinds = [
    found
    for found in vars(chunks).values()
    if isinstance(found, type) and issubclass(found, UiChunk) and found not in (UiChunk, chunks.TransientChunk)
]
_AnyChunk: Any = Union[tuple(_kinds)]  # noqa: UP007 - made of a list


class Home:
    """The folders and the model of one server after another."""

    def __init__(self, folder: Path, model: Model) -> None:
        self.model = model
        self.data = folder / "data"
        self.work = folder / "work"
        self.log = folder / "stderr"
        self.program: tuple[str, ...] = ("-m", "holdfast")
        self.work.mkdir(parents=True)

    def with_leaping_clock(self) -> "Home":
        """Servers from now on have a clock that leaps."""
        self.program = (str(Path(__file__).parents[2] / "http" / "leaping_clock.py"),)
        return self

    @contextlib.asynccontextmanager
    async def serve(self, *, port: int = 0, **environ: str) -> AsyncIterator["Server"]:
        server = await Server.start(self, port, environ)
        try:
            yield server
        finally:
            await server.end()


class Server:
    """A running server. It is ended by its own process, whatever it runs."""

    def __init__(self, home: Home, process: Process, url: str) -> None:
        self._home = home
        self._process = process
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self.token = (home.data / f"serve-{self.port}.token").read_text("ascii").strip()

    @classmethod
    async def start(cls, home: Home, port: int, environ: dict[str, str]) -> "Server":
        options = ("--port", str(port), "--data-dir", str(home.data), "--model", "openai/scripted")
        with home.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *home.program, "serve", *options, "--model-base-url", home.model.url),
                cwd=home.work,
                env={**os.environ, **QUICK, "HOME": str(home.data.parent), **environ},
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=log,
            )
        assert process.stdout is not None
        async with patience():
            hello = await process.stdout.readline()
        found = re.search(rb"serves (http://\S+) ", hello)
        assert found is not None, home.log.read_text()
        return cls(home, process, found[1].decode())

    @property
    def pid(self) -> int:
        return self._process.pid

    def leap(self) -> None:
        """Let a minute pass, if its clock leaps."""
        self._process.send_signal(signal.SIGUSR1)

    async def kill(self) -> None:
        """SIGKILL: it has no chance to do anything."""
        self._process.kill()
        await self._process.wait()

    async def terminate(self) -> None:
        """Ask it to end, and wait until it has."""
        self._process.terminate()
        async with patience():
            await self._process.wait()

    async def end(self) -> None:
        if self._process.returncode is None:
            await self.kill()
        assert "Traceback" not in self._home.log.read_text(), self._home.log.read_text()


_names = itertools.count(1)


class Talk:
    """One session, over plain HTTP."""

    def __init__(self, server: Server, name: str = "") -> None:
        self.name = name or f"talk-{next(_names)}"
        self.server = server
        self._answers: list[Answer] = []
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), read_bufsize=2**20)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for answer in self._answers:
            answer.hang_up()
        await self._http.close()

    async def request(self, method: str, path: str, body: Any = None, **headers: str) -> "Answer":
        allowed = {"authorization": f"Bearer {self.server.token}", **headers}
        async with patience():
            found = await self._http.request(method, f"{self.server.url}{path}", json=body, headers=allowed)
        self._answers.append(Answer(found))
        return self._answers[-1]

    async def post(self, body: dict[str, Any], *, query: str = "", **headers: str) -> "Answer":
        return await self.request("POST", f"/v1/chat{query}", {"id": self.name, **body}, **headers)

    async def send(self, text: str, message_id: str = "user-1", **more: Any) -> "Answer":
        """A message as the client sends it."""
        message = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
        return await self.post({"messages": [message], "trigger": "submit-message", **more})

    async def edit(self, text: str, message_id: str = "user-1") -> "Answer":
        return await self.send(text, message_id, messageId=message_id)

    async def regenerate(self, text: str, message_id: str = "user-1", answer_id: str | None = None) -> "Answer":
        return await self.send(text, message_id, trigger="regenerate-message", messageId=answer_id)

    async def give(self, turn_id: str, *parts: dict[str, Any]) -> "Answer":
        """Answers, in the message that asked for them."""
        message = {"id": turn_id, "role": "assistant", "parts": list(parts)}
        return await self.post({"messages": [message], "trigger": "submit-message", "messageId": turn_id})

    async def replay(self, query: str = "") -> "Answer":
        return await self.request("GET", f"/v1/chat/{self.name}/stream{query}")

    async def messages(self) -> list[dict[str, Any]]:
        loaded = await (await self.request("GET", f"/v1/chat/{self.name}")).json()
        found: list[dict[str, Any]] = loaded["messages"]
        return found

    async def stop(self) -> Any:
        return await (await self.request("POST", f"/v1/sessions/{self.name}/cancel", {})).json()

    async def requests(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await (await self.request("GET", f"/v1/sessions/{self.name}/requests")).json())[
            "requests"
        ]
        return found

    async def decide(self, decision: str) -> None:
        """Answer the permission that is asked for, in another way than the client's."""
        (request,) = await self.requests()
        path = f"/v1/sessions/{self.name}/requests/{request['id']}"
        assert (await self.request("POST", path, {"decision": decision})).status == 200

    async def events(self) -> list[dict[str, Any]]:
        found = await (await self.request("GET", f"/v1/sessions/{self.name}/events")).json()
        events: list[dict[str, Any]] = found["events"]
        return events


class Answer:
    """An answer while it is read."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = response.headers
        self.chunks: list[dict[str, Any]] = []
        self.is_done = False
        """The stream said that it was over."""
        self.was_filled = asyncio.Event()
        """A comment came, for want of anything else."""

    async def next(self) -> dict[str, Any] | None:
        """The next chunk; None: the answer is over. Raises when it was broken off."""
        async with patience():
            while line := await self._response.content.readline():
                if line.startswith(b":"):
                    self.was_filled.set()
                elif line == b"data: [DONE]\n":
                    self.is_done = True
                elif line.startswith(b"data: "):
                    assert not self.is_done
                    chunk: dict[str, Any] = msgspec.json.decode(line[6:])
                    self.chunks.append(chunk)
                    return chunk
        return None

    async def rest(self) -> list[dict[str, Any]]:
        while await self.next() is not None:
            pass
        return self.chunks

    async def until(self, kind: str) -> dict[str, Any]:
        """The next chunk of that type."""
        while (chunk := await self.next()) is not None:
            if chunk["type"] == kind:
                return chunk
        raise AssertionError(f"there is no {kind} in {self.types}")

    async def until_text(self, words: str) -> None:
        while words not in self.text:
            assert await self.next() is not None, self.chunks

    async def message(self) -> dict[str, Any]:
        """All of it, as the message that it makes."""
        await self.rest()
        assert self.is_done
        return message_of(self.chunks)

    async def json(self) -> Any:
        async with patience():
            return msgspec.json.decode(await self._response.read())

    async def bytes(self) -> bytes:
        async with patience():
            return await self._response.read()

    def hang_up(self) -> None:
        self._response.close()

    @property
    def types(self) -> list[str]:
        return [chunk["type"] for chunk in self.chunks]

    @property
    def text(self) -> str:
        return "".join(chunk["delta"] for chunk in self.chunks if chunk["type"] == "text-delta")

    @property
    def turn_id(self) -> str:
        (start,) = [chunk for chunk in self.chunks if chunk["type"] == "start"]
        return str(start["messageId"])


def message_of(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that chunks make. Each must be one that we know, with the fields that it has."""
    made: dict[str, Any] = msgspec.to_builtins(reduced(msgspec.convert(chunk, _AnyChunk) for chunk in told))
    return made


def user(text: str, message_id: str = "user-1") -> dict[str, Any]:
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
