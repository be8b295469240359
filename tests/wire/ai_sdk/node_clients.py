"""The `ai` package of several releases, unmodified, in one Node process that tests drive."""

import asyncio
import contextlib
import hashlib
import itertools
import os
import shutil
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tests.wire.ai_sdk.harness import Server, patience
from tests.wire.copilot.test_node_client import NO_REGISTRY, NODE, NPM, keep, run

PROJECT = Path(__file__).with_name("node")

Library = Literal["ai5", "ai6", "ai7"]


async def installed(cache: Path) -> Path:
    """The clients with what they need, installed once for each lock file and kept for later runs."""
    lock = (PROJECT / "package-lock.json").read_bytes()
    folder = cache / hashlib.sha256(lock).hexdigest()[:16]
    if not folder.exists():
        await _install(cache, folder)
    return folder


async def _install(cache: Path, folder: Path) -> None:
    """All of it or none of it: another process may be at the same."""
    aside = Path(tempfile.mkdtemp(dir=cache))
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PROJECT / name, aside)
    options = ("--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1")
    code, said = await run(*NPM, "ci", *options, cwd=aside)
    causes = [word for word in NO_REGISTRY if word in said]
    if code != 0 and causes:
        shutil.rmtree(aside)
        pytest.skip(f"THE AI SDK CLIENTS ARE NOT TESTED: no package registry can be reached from here ({causes[0]})")
    assert code == 0, said
    keep(aside, folder)


class Node:
    """Runs commands, side by side."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, folder: Path) -> AsyncIterator["Node"]:
        driver = folder / f"driver-{os.getpid()}.mjs"  # Beside the packages: from there they are found.
        shutil.copy(PROJECT / "driver.mjs", driver)
        process = await asyncio.create_subprocess_exec(
            NODE, driver.name, cwd=folder, stdin=PIPE, stdout=PIPE, limit=2**24
        )
        node = cls(process)
        try:
            yield node
        finally:
            process.kill()
            await process.wait()
            await node._reading
            driver.unlink()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told = msgspec.json.decode(line)
            waiting = self._waiting.pop(told["number"])
            if not waiting.cancelled():
                waiting.set_result(told)

    def start(self, client: str, command: str, **given: Any) -> "asyncio.Future[Any]":
        """Begin a command; what it gives is awaited with `ended`."""
        number = next(self._numbers)
        assert self._process.stdin is not None
        line = {"number": number, "client": client, "command": command, **given}
        self._process.stdin.write(msgspec.json.encode(line) + b"\n")
        self._waiting[number] = asyncio.get_running_loop().create_future()
        return self._waiting[number]


async def ended(command: "asyncio.Future[Any]") -> Any:
    async with patience():
        told = await command
    assert "failed" not in told, told["failed"]
    return told["value"]


class Client:
    """One client of one session: what an application would do with it, and what it has to show for it."""

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._name = name

    @classmethod
    async def of(
        cls, node: Node, server: Server, library: Library, session: str, *, query: str = "", **options: Any
    ) -> "Client":
        client = cls(node, f"client-{next(_names)}")
        given = {"id": session, "api": f"{server.url}/v1/chat{query}", "token": server.token, **options}
        await client.do("new", library=library, **given)
        return client

    def start(self, command: str, **given: Any) -> "asyncio.Future[Any]":
        return self._node.start(self._name, command, **given)

    async def do(self, command: str, **given: Any) -> Any:
        return await ended(self.start(command, **given))

    async def send(self, text: str, **given: Any) -> "Seen":
        await self.do("send", text=text, **given)
        return await self.look()

    async def resume(self) -> "Seen":
        await self.do("resume")
        return await self.look()

    async def look(self) -> "Seen":
        return msgspec.convert(await self.do("look"), Seen)


_names = itertools.count(1)


class Seen(msgspec.Struct, rename="camel"):
    """The state of a client."""

    status: str
    error: str | None
    messages: list[dict[str, Any]]
    requests: int
    data: list[dict[str, Any]]
    tool_calls: list[str]
    finished: list[dict[str, Any]]

    @property
    def answer(self) -> dict[str, Any]:
        """The last message, which is the assistant's."""
        assert self.messages[-1]["role"] == "assistant", self
        return self.messages[-1]

    @property
    def roles(self) -> list[str]:
        return [str(message["role"]) for message in self.messages]

    def tool(self, name: str) -> dict[str, Any]:
        return next(part for part in self.answer["parts"] if part["type"] == f"tool-{name}")

    @property
    def text(self) -> str:
        return "".join(part["text"] for part in self.answer["parts"] if part["type"] == "text")
