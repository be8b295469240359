"""The commands of a turn's calls: recorded before they start, and always watched."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.app import Runtime
from holdfast.commands.command import Spec
from holdfast.events.task import TaskNotified, TaskStarted
from holdfast.events.tool import ToolAttempted, ToolCompleted
from holdfast.events.turn import Claimed, TurnEnded
from holdfast.live.live import Changed
from holdfast.models.scripted import TASK_NEWS, Reply, Rule, Script, ScriptedModel
from holdfast.server.embedded.session import Session
from holdfast.server.errors import Conflict
from holdfast.store import crash_points
from holdfast.store.tasks import TaskRow
from holdfast.tasks.desk import command_key
from holdfast.tasks.shell import ShellArguments
from holdfast.tools.tool import AfterCrash, Tool, ToolContext, ToolResult
from tests.faults.world import bodies_of, call, patience, runtime_on
from tests.tasks.world import end_supervisor, gone, is_running, let_go, pipe, until

pytestmark = pytest.mark.anyio

Run = Callable[[ToolContext], Awaitable[Any]]


class Arguments(msgspec.Struct, kw_only=True):
    command: str = "cat go"


def words(arguments: Arguments, directory: Path | None) -> ShellArguments:
    return ShellArguments(command=arguments.command, directory=str(directory))


class Stricter(Arguments, kw_only=True):
    reason: str


def tool_that(
    run: Run, *, words: Any = words, after_crash: AfterCrash = "repeat", arguments: type[Arguments] = Arguments
) -> Tool:
    """A tool `run` whose call starts a command, and then does this."""

    async def call(arguments: Arguments, context: ToolContext) -> Any:
        assert context.shell is not None
        assert context.command is not None
        row = context.command
        await context.shell.commands.start(command_key(row), Spec(command=row.command, directory=row.directory))
        return await run(context)

    return Tool(
        name="run",
        description="Runs a command.",
        parameters={"type": "object"},
        arguments=arguments,
        run=call,
        asks=lambda arguments, directory: None,
        after_crash=after_crash,
        waits_by_itself=True,
        shell_arguments=words,
    )


def model_of(*replies: Reply) -> ScriptedModel:
    """The same to everything, but to news of tasks."""
    return ScriptedModel(Script((Rule((Reply(text="I have read it."),), TASK_NEWS), Rule(replies))))


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path / "holdfast.db"
    await end_supervisor(tmp_path / "holdfast.db.commands")


async def session_in(runtime: Runtime, work: Path) -> Session:
    return await runtime.session("s", working_directory=str(work))


async def only_row(runtime: Runtime) -> TaskRow:
    (row,) = await runtime.store.owner_tasks(runtime.owner)
    return row


async def pid_of(runtime: Runtime) -> int:
    status = await runtime.task_operations.desk.status(await only_row(runtime))
    assert status is not None
    assert status.runner is not None
    return status.runner.pid


async def has_started(runtime: Runtime) -> bool:
    rows = await runtime.store.owner_tasks(runtime.owner)
    return bool(rows) and await runtime.task_operations.desk.status(rows[0]) is not None


async def forever(context: ToolContext) -> str:
    await asyncio.Event().wait()
    return "never"


# To the background


async def flip(context: ToolContext) -> ToolResult:
    await context.to_background.wait()
    return ToolResult(content="It goes on.", went_on="flipped")


class Held:
    """Holds up the writer at a crash point, until it is let go."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self.go = threading.Event()

    def __call__(self, point: str) -> None:
        if self._part in point and point.endswith(":before") and not self.go.is_set():
            self._loop.call_soon_threadsafe(self.reached.set)
            assert self.go.wait(30)


@pytest.fixture
async def held() -> AsyncIterator[Held]:
    found = Held("task_started")
    crash_points.install(found)
    yield found
    found.go.set()
    crash_points.install(None)


async def test_a_call_that_has_ended_is_not_asked_again_while_its_result_is_being_written(
    database: Path, work: Path, held: Held
) -> None:
    pipe(work)
    model = model_of(call("run"), Reply(text="It runs."))
    async with runtime_on(database, model, tools=[tool_that(flip)]) as runtime, patience():
        session = await session_in(runtime, work)
        await session.send("Go", message_id="m")
        await until(lambda: has_started(runtime))
        asked = await runtime.task_operations.to_background(session.key, (await only_row(runtime)).task_id)
        await held.reached.wait()
        for _ in range(20):
            runtime.operations.live.publish(session.key, Changed())
            await runtime.store.row(session.key)
        held.go.set()
        assert (await session.result_of("m")).text == "It runs."
        assert await bodies_of(session, Claimed) == [], "its holder was not troubled"
        receipt = await runtime.store.receipt(session.key, asked.key)
        assert receipt is not None
        assert (receipt.state, receipt.outcome) == ("promoted", "backgrounded")
        (started,) = await bodies_of(session, TaskStarted)
        assert started.flipped
        await let_go(work / "go")


async def test_a_move_to_the_background_that_has_no_room_is_a_conflict_and_the_turn_goes_on_waiting(
    database: Path, work: Path
) -> None:
    pipe(work)
    model = model_of(call("run"), Reply(text="It runs."))
    bounds: dict[str, Any] = {"auth": "keys", "commands_without_sandbox": "allow", "max_bytes_per_owner": 20_000}
    async with runtime_on(database, model, tools=[tool_that(flip)], **bounds) as runtime, patience():
        session = await session_in(runtime, work)
        await session.send("Go", message_id="m")
        await until(lambda: has_started(runtime))
        while (await runtime.store.stored(runtime.owner)).stored_bytes < 20_000:
            await runtime.operations.rename(session.key, "y" * 200)
        row = await only_row(runtime)
        with pytest.raises(Conflict) as refused:
            await runtime.task_operations.to_background(session.key, row.task_id)
        assert refused.value.code == "storage_full"
        assert (await only_row(runtime)).foreground
        await let_go(work / "go")
        await session.stop()


# What may go wrong with a call


async def test_arguments_that_a_tool_can_not_read_a_command_from_are_the_models_error(
    database: Path, work: Path
) -> None:
    def refuses(arguments: Arguments, directory: Path | None) -> ShellArguments:
        raise ValueError("no command in there")

    model = model_of(call("run"), Reply(text="I see."))
    async with runtime_on(database, model, tools=[tool_that(forever, words=refuses)]) as runtime, patience():
        session = await session_in(runtime, work)
        assert (await session.run("Go")).text == "I see."
        (completed,) = await bodies_of(session, ToolCompleted)
        assert (completed.success, completed.error) == (False, "failed")
        assert "no command in there" in completed.content
        assert await bodies_of(session, ToolAttempted) == []
        assert await runtime.store.owner_tasks(runtime.owner) == ()


async def test_the_start_of_a_task_is_written_down_without_secrets(
    database: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(context: ToolContext) -> ToolResult:
        return ToolResult(content="It runs.", went_on="started")

    def spoken(arguments: Arguments, directory: Path | None) -> ShellArguments:
        return ShellArguments(
            command=": ghp_4711471147114711", description="ghp_4711471147114711", directory=str(directory)
        )

    monkeypatch.setenv("GH_TOKEN", "ghp_4711471147114711")
    model = model_of(call("run"), Reply(text="Done."))
    async with runtime_on(database, model, tools=[tool_that(start, words=spoken)]) as runtime, patience():
        session = await session_in(runtime, work)
        await session.run("Go")
        (body,) = await bodies_of(session, TaskStarted)
        assert (body.command, body.description) == (": [redacted]", "[redacted]")


async def test_a_task_whose_result_is_too_long_goes_on_all_the_same(database: Path, work: Path) -> None:
    pipe(work)

    async def say_much(context: ToolContext) -> ToolResult:
        return ToolResult(content="x" * 100_000, went_on="started")

    model = model_of(call("run"), Reply(text="It runs."))
    tools = [tool_that(say_much)]
    async with runtime_on(database, model, tools=tools, max_tool_result_bytes=50_000) as runtime, patience():
        session = await session_in(runtime, work)
        await session.run("Go")
        (completed,) = await bodies_of(session, ToolCompleted)
        assert completed.error == "too_large"
        assert len(await bodies_of(session, TaskStarted)) == 1
        row = await only_row(runtime)
        assert (row.foreground, row.status, row.kill_asked) == (False, "running", None)
        await let_go(work / "go")

        async def is_told() -> bool:
            return [body.notice.kind for body in await bodies_of(session, TaskNotified)] == ["completed"]

        await until(is_told)


@pytest.mark.parametrize("outcome", ["raised", "said nothing of it"])
async def test_a_command_of_which_the_result_says_nothing_is_killed(database: Path, work: Path, outcome: str) -> None:
    pipe(work)

    async def fail(context: ToolContext) -> str:
        if outcome == "raised":
            raise RuntimeError("something went wrong")
        return "done"

    model = model_of(call("run"), Reply(text="Well."))
    async with runtime_on(database, model, tools=[tool_that(fail)]) as runtime, patience():
        session = await session_in(runtime, work)
        await session.run("Go")
        await until(lambda: is_killed(runtime))
        assert not is_running(await pid_of(runtime))
        assert await bodies_of(session, TaskNotified) == []


async def is_killed(runtime: Runtime) -> bool:
    return (await only_row(runtime)).status == "killed"


@pytest.mark.parametrize("after_crash", ["repeat", "report"])
async def test_a_command_whose_call_is_refused_after_a_restart_does_not_outlive_its_turn(
    database: Path, work: Path, after_crash: AfterCrash
) -> None:
    """The next process has another version of the tool, or the tool does not want to be called again."""
    pipe(work)
    model = model_of(call("run"), Reply(text="So be it."))
    tool = tool_that(forever, after_crash=after_crash)
    async with runtime_on(database, model, tools=[tool]) as first, patience():
        session = await session_in(first, work)
        await session.send("Go", message_id="m")
        await until(lambda: has_started(first))
        pid = await pid_of(first)
    assert is_running(pid), "a process that only lets go of it ends nothing"
    newer = tool_that(forever, after_crash=after_crash, arguments=Arguments if after_crash == "report" else Stricter)
    async with runtime_on(database, model, tools=[newer]) as second, patience():
        session = second.open("s")
        assert (await session.result_of("m")).text == "So be it."
        (ended,) = await bodies_of(session, TurnEnded)
        assert ended.reason == "completed"
        await until(lambda: is_killed(second))
    assert await gone(pid)
