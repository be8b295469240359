"""Real processes on one database: a server that does not work, and workers that a test may stop or kill."""

import contextlib
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator

from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall
from tests.http.world import LONG, SCRIPT, Client, Place, patience

TWO_STEPS = Rule(
    when="two steps",
    replies=(Reply(text=LONG, tool_calls=(ScriptedCall("view", {"path": "."}),)), Reply(text="Done.")),
)
CLUSTER_SCRIPT = Script(rules=(TWO_STEPS, *SCRIPT.rules))


class Worker:
    """A worker process that is ready."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def said(self, words: str) -> str:
        """Wait for the next line of output that contains these words."""
        assert self.process.stdout is not None
        async with patience():
            while line := (await self.process.stdout.readline()).decode():
                if words in line:
                    return line
        raise AssertionError(f"the worker ended without printing {words!r}")

    async def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return await self.ended()

    async def ended(self) -> int:
        async with patience():
            return await self.process.wait()


class Cluster(Place):
    @contextlib.asynccontextmanager
    async def worker(self, *options: str, **environ: str) -> AsyncIterator[Worker]:
        assert self._model is not None
        model = ("--model", "openai/scripted", "--model-base-url", self._model.url)
        process = await self._start("worker", *model, *options, environ=environ, stderr=DEVNULL)
        try:
            worker = Worker(process)
            await worker.said("works on")
            yield worker
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def until_the_turn_ends(client: Client, session: str) -> None:
    async with patience(), client.follow(session) as frames:
        async for frame in frames:
            if frame.kind == "event" and frame.data["type"] == "holdfast.turn_ended":
                return
    raise AssertionError("the stream ended")


async def send(client: Client, session: str, text: str) -> None:
    """Send a message that is only accepted here: another process runs it."""
    async with client.stream("POST", f"/v1/sessions/{session}/stream", json={"text": text}) as response:
        assert response.status_code == 200
