"""The standard patience of a call, in a whole turn over HTTP, on an event loop whose time leaps."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.events.message import CallFailed
from holdfast.models.anthropic_messages import AnthropicMessages
from holdfast.models.call_wait import STANDARD_PATIENCE
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel, ModelWire
from holdfast.models.openai_responses import OpenAIResponses
from holdfast.models.scripted import Reply
from holdfast.models.server import ModelServer
from holdfast.server.embedded.session import Session
from tests.faults.world import Gate, bodies_of, runtime_on, says

WIRES = (AnthropicMessages("claude-opus-4-5"), OpenAIResponses("gpt-6"), ChatCompletions("m"))

each_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.path)


class LeapingLoop(asyncio.SelectorEventLoop):
    """Its timers become due when a test lets time pass."""

    leapt = 0.0

    def time(self) -> float:
        return super().time() + self.leapt


def on_leaping_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a loop of its own: fixtures of other tests may keep theirs."""

    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=LeapingLoop) as runner:
            runner.run(test(*given, **named))

    return run


def leap(seconds: float) -> None:
    cast(LeapingLoop, asyncio.get_running_loop()).leapt += seconds


@asynccontextmanager
async def silent(wire: ModelWire, database: Path, gate: Gate) -> AsyncIterator[Session]:
    """A session whose model says nothing until the gate opens. Nothing is set: the patience is the standard one."""
    async with (
        ModelServer(says(Reply(text="Here it is.")), gate=gate) as server,
        HttpModel(wire, base_url=server.url, name="m") as model,
        # A lease that outlasts the leaps.
        runtime_on(database, model, lease_ttl_seconds=86_400) as runtime,
    ):
        yield await runtime.session("silent")


@each_wire
@on_leaping_loop
async def test_a_model_that_is_silent_for_three_minutes_completes_its_turn(wire: ModelWire, tmp_path: Path) -> None:
    gate = Gate()
    async with silent(wire, tmp_path / "holdfast.db", gate) as session:
        turn = asyncio.create_task(session.run("Take your time"))
        await gate.reached.wait()
        await session.look()
        for _ in range(18):
            leap(10)
            await session.look()
        gate.open()
        result = await turn
        assert (result.reason, result.text) == ("completed", "Here it is.")
        assert await bodies_of(session, CallFailed) == []
    assert gate.visits == 1


@each_wire
@on_leaping_loop
async def test_a_model_that_is_silent_for_longer_than_the_standard_patience_is_asked_again(
    wire: ModelWire, tmp_path: Path
) -> None:
    gate = Gate()
    async with silent(wire, tmp_path / "holdfast.db", gate) as session:
        turn = asyncio.create_task(session.run("Take your time"))
        await gate.reached.wait()
        await session.look()
        leap(STANDARD_PATIENCE.first_byte_seconds + 1)
        await gate.left.wait()
        gate.open()
        result = await turn
        assert (result.reason, result.text) == ("completed", "Here it is.")
        (failed,) = await bodies_of(session, CallFailed)
        assert failed.error_code == "model_timeout"
        assert "did not begin its answer within 600 s" in failed.message
    assert gate.visits == 2
