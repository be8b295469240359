"""A turn that nobody asked for: what became of a command in the background is told like any other turn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.wire.ai_sdk.harness import Model, Talk, calls, patience, says
from tests.wire.copilot.harness import Pipe

pytestmark = pytest.mark.anyio


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    made = Pipe(tmp_path / "pipe")
    yield made
    made.close()


async def test_the_end_of_a_task_is_streamed_as_a_turn_of_its_own(talk: Talk, model: Model, pipe: Pipe) -> None:
    command = f"read word < {pipe.path}; echo built $word"
    model.on("A background task completed", says("It is built."))
    model.on("Build it", calls("exec", command=command, run_in_background=True), says("It is being built."))
    await (await talk.send("Build it")).rest()
    await talk.decide("approve")
    first = await (await talk.replay()).message()
    assert first["parts"][-1]["text"] == "It is being built."
    pipe.write("well")
    woken = await until_woken(talk)
    assert [part["type"] for part in woken["parts"]] == ["data-task", "step-start", "text"]
    part = woken["parts"][0]
    assert (part["data"]["kind"], part["data"]["exitCode"], part["data"]["command"]) == ("completed", 0, command)
    assert "outputFile" not in part["data"]
    assert woken["parts"][-1]["text"] == "It is built."
    loaded = await talk.messages()
    assert [found["id"] for found in loaded] == ["user-1", first["id"]], "the woken turn is replayed, not loaded"


async def until_woken(talk: Talk) -> dict[str, Any]:
    async with patience():
        while True:
            message = await (await talk.replay()).message()
            if message["metadata"].get("woken"):
                return message
