"""Starts the nodes of a cluster as processes of their own, each with a name, a data directory and a log."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from proof.chaos import audit, node

ROOT: Final = Path(__file__).parents[2]
"""The folder that has `proof`, which is not installed."""

START_SECONDS: Final = 60.0

_SERVES: Final = re.compile(r"serves (http://\S+) ")


class NotStarted(Exception):
    """A node ended before it was ready. The text has the end of its log."""


class Node:
    """One that runs, or ran."""

    def __init__(self, name: str, process: Process, folder: Path) -> None:
        self.name = name
        self.process = process
        self.folder = folder
        self.url = ""
        self._heard: list[str] = []
        self._news = asyncio.Condition()
        self._listening = asyncio.create_task(self._listen())

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def token(self) -> str:
        return (self.folder / "data" / f"serve-{self.port}.token").read_text().strip()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            self.send(number)
        code = await self.process.wait()
        await self._listening
        return code

    async def said(self, words: str) -> str:
        """The first line that it said, or says, with these words in it."""
        async with asyncio.timeout(START_SECONDS), self._news:
            while True:
                for line in self._heard:
                    if words in line:
                        return line
                if self._listening.done():
                    raise NotStarted(f"{self.name} ended without a word of {words!r}: {self.log[-3000:]}")
                await self._news.wait()

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self._news:
                self._heard.append(line.decode())
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()


class Fleet:
    """The environment of nodes: one database, one model, perhaps a Redis, and a folder for their files."""

    def __init__(
        self,
        folder: Path,
        *,
        database: str,
        model_url: str,
        redis: str = "",
        settings: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.effects = folder / "effects"
        self.effects.mkdir(exist_ok=True)
        self.database = database
        self._before = tuple(before)
        self._settings = {
            "HOLDFAST_MODEL": "openai/scripted",
            "HOLDFAST_MODEL_BASE_URL": model_url,
            "HOLDFAST_TITLES": "words",
            "HOLDFAST_LOG_TO": "stderr",
            "HOLDFAST_FOLLOW_UPS_PER_MINUTE": "100000",
            "HOLDFAST_SHARED_DIRECTORIES": str(folder),
            **({"HOLDFAST_REDIS": redis} if redis else {}),
            **(settings or {}),
        }

    def open_gate(self, name: str) -> None:
        """Let through the tools that wait there, and whichever come."""
        (self.effects / name).touch()

    async def worker(self, name: str, *options: str, before: Sequence[str] = (), **settings: str) -> Node:
        """Returns once it looks for work. `before` is put in front of its command line."""
        started = await self._start(name, ("worker", *options), before, settings)
        await started.said("works on")
        return started

    async def server(self, name: str, *options: str, port: int = 0, works: bool = False, **settings: str) -> Node:
        """Returns once it answers."""
        words = ("serve", "--port", str(port), *(() if works else ("--no-work",)), *options)
        started = await self._start(name, words, (), settings)
        found = _SERVES.search(await started.said("serves"))
        assert found is not None
        started.url = found[1]
        await started.said("End it with")
        return started

    @asynccontextmanager
    async def using(self, *nodes: Node) -> AsyncIterator[None]:
        """End all nodes, in whatever state they are."""
        try:
            yield
        finally:
            for found in nodes:
                await found.end(signal.SIGKILL)

    async def _start(self, name: str, words: Sequence[str], before: Sequence[str], settings: Mapping[str, str]) -> Node:
        folder = self.folder / name
        (folder / "data").mkdir(parents=True, exist_ok=True)
        settings = {**self._settings, "HOLDFAST_DATABASE": self.database, **settings}
        # The database's audit shows which connections belong to which node.
        settings["HOLDFAST_DATABASE"] = audit.named(settings["HOLDFAST_DATABASE"], name)
        told = {node.FOLDER: str(self.effects), node.NAME: name, "HOLDFAST_NODE": name}
        with (folder / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(*self._before, *before, sys.executable, "-m", "proof.chaos.node", *words),
                cwd=self.folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "HOLDFAST_DATA_DIR": str(folder / "data"),
                    **told,
                    **settings,
                },
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=log,
            )
        return Node(name, process, folder)
