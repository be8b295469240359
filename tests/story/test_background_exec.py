"""Slow commands, told from the model's side: what it is answered, and what it reads in its later calls.

The model is a real HTTP server and the commands are real processes. A command waits at a named pipe: the test says when
it ends.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.app import Runtime
from holdfast.events.quote import unmarked
from holdfast.events.task import TaskNotified
from holdfast.events.tool import ToolCompleted
from holdfast.events.turn import TurnEnded, TurnStarted
from holdfast.protocol.task import TaskView
from holdfast.server.embedded.session import Session
from tests.faults.world import bodies_of, comes_true, patience, settings
from tests.wire.copilot.harness import Model, calls, says, system_text, texts_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    async with Model() as server:
        yield server


class World:
    """A runtime on the model over HTTP, a session that may run commands, and a directory for them."""

    def __init__(self, runtime: Runtime, session: Session, work: Path) -> None:
        self.runtime = runtime
        self.session = session
        self.work = work

    def pipe(self, name: str) -> Path:
        """A command that reads it waits until somebody writes."""
        os.mkfifo(self.work / name)
        return self.work / name

    async def task(self, fits: Callable[[TaskView], bool] = lambda row: True) -> TaskView:
        """The only task, once it is as wanted."""
        while True:
            if found := [row for row in await self.session.tasks() if fits(row)]:
                (row,) = found
                return row
            await asyncio.sleep(0.005)


@asynccontextmanager
async def world(tmp_path: Path, model: Model) -> AsyncIterator[World]:
    work = tmp_path / "work"
    work.mkdir()
    config = settings(
        tmp_path / "holdfast.db", model="openai/scripted", model_base_url=model.url, model_api_key="not-a-real-key"
    )
    async with Runtime(config=config) as runtime, patience():
        session = await runtime.session("s", working_directory=str(work), allow=("shell",))
        yield World(runtime, session, work)


def write(pipe: Path, text: str = "go\n") -> None:
    pipe.write_text(text)


def result_of(call: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """The result of a tool, as the model sees it."""
    results = [message for message in call["messages"] if message["role"] == "tool"]
    decoded: dict[str, Any] = msgspec.json.decode(unmarked(texts_of(results[number])))
    return decoded


def notices(call: dict[str, Any]) -> list[str]:
    users = [texts_of(message) for message in call["messages"] if message["role"] == "user"]
    return [text for text in users if "<task-notification>" in text]


def lists_of_tasks(call: dict[str, Any]) -> list[str]:
    users = [unmarked(texts_of(message)) for message in call["messages"] if message["role"] == "user"]
    return [text for text in users if text.startswith("Currently running background tasks:")]


async def test_E2E_ExplicitBackgroundExec(tmp_path: Path, model: Model) -> None:  # noqa: N802
    install = "cat go; echo added 42 packages"
    model.on(
        "install deps and say hi",
        calls("exec", command=install, run_in_background=True, description="Install dependencies"),
        calls("exec", command="echo hello"),
        says("All done!"),
    )
    second_step = model.hold("install deps", round=1)
    async with world(tmp_path, model) as here:
        pipe = here.pipe("go")
        await here.session.send("install deps and say hi", message_id="m")
        await second_step.until_reached()
        await asyncio.to_thread(write, pipe)
        await here.task(lambda row: row.status == "completed")
        second_step.release()
        assert (await here.session.result_of("m")).text == "All done!"
    third = model.calls_about("install deps")[-1]
    started = result_of(third)
    assert started["status"] == "background_started"
    assert started["task_id"]
    (notice,) = notices(third)
    assert notice.startswith("[runtime note ")
    assert unmarked(notice).startswith("A background task completed:")
    assert "<status>completed</status>" in notice
    assert f"<task-id>{started['task_id']}</task-id>" in notice
    assert "added 42 packages" in notice
    assert result_of(third, 1) == {"stdout": "hello\n", "stderr": "", "exit_code": 0}


async def test_E2E_ForegroundTimeoutFlip(tmp_path: Path, model: Model) -> None:  # noqa: N802
    build = "cat go; echo build completed successfully"
    model.on(
        "run the build",
        calls("exec", command=build, timeout=1, description="Run slow build"),
        says("Build moved to background."),
    )
    model.on("task-notification", says("The build is done."))
    async with world(tmp_path, model) as here:
        pipe = here.pipe("go")
        result = await here.session.run("run the build")
        assert result.text == "Build moved to background."
        flipped = result_of(model.last_call_about("run the build"))
        assert flipped["status"] == "auto_backgrounded"
        assert flipped["task_id"]
        assert "no work was lost" in flipped["message"]
        await asyncio.to_thread(write, pipe)
        told = [event async for event in _until_told(here.session)][-1]
        assert told.notice.kind == "completed"
        assert "build completed" in told.notice.output_tail
        await comes_true(lambda: any(notices(call) for call in model.calls_about("run the build")))


async def test_E2E_SleepRejection(tmp_path: Path, model: Model) -> None:  # noqa: N802
    model.on("wait 10 seconds", calls("exec", command="sleep 10"), says("Got it, won't sleep."))
    async with world(tmp_path, model) as here:
        assert (await here.session.run("wait 10 seconds")).text == "Got it, won't sleep."
        (completed,) = await bodies_of(here.session, ToolCompleted)
        assert not completed.success
        assert completed.error is not None
        assert completed.content.startswith("blocked: sleep 10 is not allowed in foreground execution")
        assert await here.runtime.task_operations.of_owner(here.runtime.owner) == (), "nothing was started"


async def test_E2E_RunningTasksSummaryInjected(tmp_path: Path, model: Model) -> None:  # noqa: N802
    model.on(
        "start background and check",
        calls("exec", command="cat never", run_in_background=True, description="Long running task"),
        calls("exec", command="echo check"),
        says("Done checking."),
    )
    async with world(tmp_path, model) as here:
        here.pipe("never")
        await here.session.run("start background and check")
        first, second, third = model.calls_about("start background")
        assert lists_of_tasks(first) == []
        (told,) = lists_of_tasks(third)
        assert "Long running task" in told
        assert lists_of_tasks(second) == [told], "the list is told again only when a task starts or ends"
        assert system_text(first) == system_text(third)
        task = await here.task()
        assert told.endswith(f"output: {task.output_file})")
        await here.session.kill_task(task.id)


async def test_the_end_of_a_task_wakes_an_idle_session_for_one_turn(tmp_path: Path, model: Model) -> None:
    model.on(
        "start two",
        calls("exec", command="cat one", run_in_background=True),
        calls("exec", command="cat two; exit 3", run_in_background=True),
        says("Started."),
    )
    model.on("task-notification", says("I see."))
    async with world(tmp_path, model) as here:
        one, two = here.pipe("one"), here.pipe("two")
        await here.session.run("start two")
        await asyncio.to_thread(write, one)
        await asyncio.to_thread(write, two)
        kinds: list[str] = []
        async for told in _until_told(here.session, times=2):
            kinds.append(told.notice.kind)
        assert sorted(kinds) == ["completed", "failed"]
        while not await _all_over(here.session):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        woken = [body for body in await bodies_of(here.session, TurnStarted) if body.woken]
        assert 1 <= len(woken) <= 2, "one turn for what there is, however it came"
        assert len(await bodies_of(here.session, TaskNotified)) == 2, "each is told once"


async def _all_over(session: Session) -> bool:
    started, ended = await bodies_of(session, TurnStarted), await bodies_of(session, TurnEnded)
    return len(started) == len(ended) and len(await bodies_of(session, TaskNotified)) == 2


async def _until_told(session: Session, times: int = 1) -> AsyncIterator[TaskNotified]:
    async for reading in session.events():
        body = getattr(reading, "body", None)
        if isinstance(body, TaskNotified):
            yield body
            times -= 1
            if times == 0:
                return
