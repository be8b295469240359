"""A command in the background ends while people look at its session in different ways: all of them are told, once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.models.scripted import TASK_NEWS
from tests.wire.ai_sdk.harness import calls, says
from tests.wire.copilot.harness import Pipe
from tests.wire.together.world import World

pytestmark = pytest.mark.anyio


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    made = Pipe(tmp_path / "pipe")
    yield made
    made.close()


async def test_the_end_of_a_background_task_is_shown_on_every_surface(world: World, pipe: Pipe) -> None:
    command = f"read word < {pipe.path}; echo built $word"
    world.model.on("Build it", calls("exec", command=command, run_in_background=True), says("It is being built."))
    world.model.on(TASK_NEWS, says("It is built: {task_status}, {task_last_line}."))
    async with world.gathered("task", allow=("shell",)) as gathered:
        await gathered.chat.send("Build it")
        await gathered.until_said("It is being built.")
        task_id = (await gathered.events.until_event("holdfast.task_started"))["taskId"]
        pipe.write("well")
        for surface in gathered.all.values():
            await surface.until_told_of_task(task_id)
        await gathered.until_said("It is built: completed, built well.")
        for surface in gathered.all.values():
            await surface.until_told_of_task(task_id)  # Still once.
        await gathered.check_unbroken()
