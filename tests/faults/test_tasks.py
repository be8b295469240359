"""Commands in the background, while processes, supervisors and turns come to their ends around them.

A command that reads the named pipe `go` waits there until the test lets it go on.
"""

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.events.task import TaskNotified, TaskStarted
from holdfast.events.tool import ToolAttempted, ToolCompleted
from holdfast.events.turn import TurnEnded, TurnStarted
from holdfast.models.scripted import TASK_NEWS, Reply, Rule, Script, ScriptedCall
from holdfast.protocol.task import TaskView
from holdfast.server.embedded.session import Session
from tests.faults.processes import Child, child_on
from tests.faults.world import bodies_of, call, comes_true, endings_of, log_of, patience, runtime_on
from tests.tasks.world import end_supervisor, gone, is_running, let_go, pipe, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def work(tmp_path: Path) -> AsyncIterator[Path]:
    (tmp_path / "work").mkdir()
    pipe(tmp_path / "work")
    yield tmp_path / "work"
    await end_supervisor(tmp_path / "holdfast.db.commands")


def script(command: str, **arguments: Any) -> Script:
    """To "Go" run it, and say so; to news say that it was read."""
    return answering(call("exec", command=command, **arguments), Reply(text="It runs."))


def answering(*replies: Reply) -> Script:
    return Script((Rule((Reply(text="Read."),), TASK_NEWS), Rule(replies, "Go"), Rule((Reply(text="Fine."),))))


BEHIND = {"run_in_background": True}


@asynccontextmanager
async def begun(
    database: Path, work: Path, command: str | Script, **arguments: Any
) -> AsyncIterator[tuple[Child, Session]]:
    """A process that runs a turn with this command in it, and the session as it is seen from another one."""
    wanted = script(command, **arguments) if isinstance(command, str) else command
    async with child_on(database, script=wanted) as child:
        await child.ask("create", session="s", working_directory=str(work), allow=["shell"])
        await child.ask("send", session="s", text="Go", message_id="m")
        async with runtime_on(database, work=False) as watching, patience():
            yield child, watching.open("s")


async def the_task(session: Session) -> TaskView:
    """The only one, once there is one."""

    async def is_there() -> bool:
        return bool(await session.tasks())

    await until(is_there)
    (row,) = await session.tasks()
    return row


async def told(session: Session, count: int = 1) -> list[TaskNotified]:
    """All the news, once so much of it is in the log and every turn has ended."""

    async def is_told() -> bool:
        kinds = Counter(type(event.body) for event in await log_of(session))
        return kinds[TaskNotified] >= count and kinds[TurnStarted] == kinds[TurnEnded]

    await until(is_told)
    return await bodies_of(session, TaskNotified)


def text_in(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def pid_in(file: Path) -> int:
    await comes_true(lambda: text_in(file).endswith("\n"))
    return int(text_in(file).splitlines()[0])


def supervisor_of(database: Path) -> int:
    return int((database.with_name("holdfast.db.commands") / "supervisor.lock").read_text())


# 41


async def test_fault_41_the_end_of_a_task_is_announced_once_to_an_idle_session(database: Path, work: Path) -> None:
    """Two processes look after it. The session is woken for one turn, in which the model reads it."""
    same = script("cat go; exit 3", **BEHIND)
    async with begun(database, work, same) as (child, session), child_on(database, script=same):
        await child.ask("result", session="s", message_id="m")
        await let_go(work / "go", "one\n")
        (notified,) = await told(session)
        assert (notified.notice.kind, notified.notice.exit_code) == ("failed", 3)
        assert notified.notice.output_tail == "one\n"
        assert [body.woken for body in await bodies_of(session, TurnStarted)] == [False, True]
        assert await endings_of(session) == ["completed", "completed"]
        async with child_on(database, script=script("true")) as third:
            await third.ask("send", session="s", text="And now?", message_id="n", delivery="enqueue")
            await third.ask("result", session="s", message_id="n")
            assert len(await bodies_of(session, TaskNotified)) == 1


async def test_fault_41_the_end_of_a_task_is_announced_once_to_a_restarted_session(database: Path, work: Path) -> None:
    """It ends while no process lives; the next one tells it, and the one after that does not."""
    async with begun(database, work, "cat go; exit 3", **BEHIND) as (child, session):
        await child.ask("result", session="s", message_id="m")
        row = await the_task(session)
        await child.kill()
        await let_go(work / "go")
        await until(lambda: has_ended(session, row))
        assert await bodies_of(session, TaskNotified) == []
        for _ in range(2):
            async with child_on(database, script=script("true")):
                assert len(await told(session)) == 1
        (notified,) = await told(session)
        assert (notified.notice.task_id, notified.notice.exit_code) == (row.id, 3)
        assert [body.woken for body in await bodies_of(session, TurnStarted)] == [False, True]


async def has_ended(session: Session, row: TaskView) -> bool:
    """The command, that is: nobody may have looked since."""
    status = await session._tasks.desk.status(await session._tasks.find(session.key, row.id))
    return status is not None and status.outcome is not None


async def test_fault_41_the_end_of_each_of_several_tasks_is_reported_once_despite_kills(
    database: Path, work: Path
) -> None:
    for number in range(4):
        pipe(work, f"go{number}")
    calls = tuple(ScriptedCall("exec", {"command": f"cat go{n}; exit {n}", **BEHIND}) for n in range(4))
    four = answering(Reply(tool_calls=calls), Reply(text="They run."))
    async with begun(database, work, four) as (child, session):
        await child.ask("result", session="s", message_id="m")
        await let_go(work / "go0")
        await told(session, 1)
        await let_go(work / "go1")
        await child.kill()
        await let_go(work / "go2")
        async with child_on(database, script=four):
            await let_go(work / "go3")
            notified = await told(session, 4)
        assert sorted(body.notice.exit_code or 0 for body in notified) == [0, 1, 2, 3]


# 42


@pytest.mark.parametrize("how", ["a person", "a stop"])
async def test_fault_42_a_kill_reaches_the_process_group(database: Path, work: Path, how: str) -> None:
    """Of a task, by a person; and of what a turn waits for, by its stop."""
    command = "sh -c 'echo $$ > child; cat go' & sh -c 'trap \"\" TERM; echo $$ > deaf; cat go' & echo $$ > shell; wait"
    arguments = BEHIND if how == "a person" else {}
    async with begun(database, work, command, **arguments) as (child, session):
        pids = [await pid_in(work / name) for name in ("child", "deaf", "shell")]
        assert all(map(is_running, pids))
        if how == "a person":
            row = await the_task(session)
            await session.kill_task(row.id)
            (notified,) = await told(session)
            assert notified.notice.kind == "killed"
        else:
            await child.ask("stop", session="s")
            await child.ask("result", session="s", message_id="m")
            assert await endings_of(session) == ["stopped"]
        for pid in pids:
            await until(lambda pid=pid: gone(pid))  # type: ignore[misc]


# 43


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [("exit 7", 7), ("kill -TERM $$", 128 + signal.SIGTERM), ("yes | head -n 1; exit ${PIPESTATUS:-9}", 141)],
)
@pytest.mark.parametrize("moved", ["from the start", "flipped"])
async def test_fault_43_the_true_exit_code_survives_a_flip_and_a_restart(
    database: Path, work: Path, command: str, exit_code: int, moved: str
) -> None:
    arguments = BEHIND if moved == "from the start" else {}
    async with begun(database, work, f"cat go; {command}", **arguments) as (child, session):
        if moved == "flipped":
            await until(lambda: runs_in_front(session))
            (row,) = await session._tasks.of_session(session.key, foreground=True)
            await session._tasks.to_background(session.key, row.task_id)
        await child.ask("result", session="s", message_id="m")
        (started,) = await bodies_of(session, TaskStarted)
        assert started.flipped is (moved == "flipped")
        await child.kill()
        async with child_on(database, script=script("true")):
            await let_go(work / "go")
            (notified,) = await told(session)
        assert notified.notice.exit_code == exit_code
        assert (await the_task(session)).exit_code == exit_code


async def runs_in_front(session: Session) -> bool:
    return bool(await session._tasks.of_session(session.key, foreground=True))


# 45


async def has_written(session: Session, text: str) -> bool:
    return (await session.task_output((await the_task(session)).id)).text == text


async def test_fault_45_a_task_is_adopted_after_a_restart_and_its_output_goes_on(database: Path, work: Path) -> None:
    command = "echo $$ > ran; echo begun; cat go; echo over"
    async with begun(database, work, command, **BEHIND) as (child, session):
        await child.ask("result", session="s", message_id="m")
        pid = await pid_in(work / "ran")
        await until(lambda: has_written(session, "begun\n"))
        await child.kill()
        assert is_running(pid)
        async with child_on(database, script=script("true")) as heir:
            assert await has_written(session, "begun\n")
            await let_go(work / "go", "more\n")
            (notified,) = await told(session)
            assert (notified.notice.kind, notified.notice.output_tail) == ("completed", "begun\nmore\nover\n")
            assert heir.said("failed") == []
        assert (work / "ran").read_text() == f"{pid}\n", "it was not run again"


@pytest.mark.parametrize("dead", ["the supervisor", "the supervisor and the runtime", "all three"])
async def test_fault_45_a_task_whose_supervisor_was_killed_is_reported_lost_once(
    database: Path, work: Path, dead: str
) -> None:
    command = "echo $$ > ran; echo begun; cat go"
    async with begun(database, work, command, **BEHIND) as (child, session):
        await child.ask("result", session="s", message_id="m")
        pid = await pid_in(work / "ran")
        await until(lambda: has_written(session, "begun\n"))
        supervisor = supervisor_of(database)
        if dead != "the supervisor":
            await child.kill()
        os.kill(supervisor, signal.SIGKILL)
        await until(lambda: gone(supervisor))
        if dead == "all three":
            os.killpg(pid, signal.SIGKILL)
            await until(lambda: gone(pid))
        async with child_on(database, script=script("true")):
            if dead != "all three":
                assert is_running(pid), "nobody told it to end"
                await let_go(work / "go")
            (notified,) = await told(session)
        assert (notified.notice.kind, notified.notice.exit_code) == ("lost", None)
        assert "supervisor" in notified.notice.detail
        assert notified.notice.output_tail == "begun\n", "what is known is told"
        async with child_on(database, script=script("true")) as another:
            await another.ask("send", session="s", text="And now?", message_id="n", delivery="enqueue")
            await another.ask("result", session="s", message_id="n")
        assert len(await bodies_of(session, TaskNotified)) == 1
        assert (work / "ran").read_text() == f"{pid}\n", "it was not run again"


async def test_fault_45_what_a_turn_waits_for_is_adopted_by_the_next_process(database: Path, work: Path) -> None:
    async with begun(database, work, "echo $$ > ran; cat go; exit 6") as (child, session):
        pid = await pid_in(work / "ran")
        await child.kill()
        async with child_on(database, script=script("unused")) as heir:
            await let_go(work / "go", "more\n")
            assert (await heir.ask("result", session="s", message_id="m"))["text"] == "It runs."
        (completed,) = await bodies_of(session, ToolCompleted)
        assert msgspec.json.decode(completed.content) == {"stdout": "more\n", "stderr": "", "exit_code": 6}
        assert [body.attempt for body in await bodies_of(session, ToolAttempted)] == [1, 2]
        assert (work / "ran").read_text() == f"{pid}\n", "it was not run again"
        assert await session.tasks() == ()


async def test_fault_45_what_a_turn_waits_for_has_an_unknown_outcome_if_its_supervisor_was_killed(
    database: Path, work: Path
) -> None:
    async with begun(database, work, "echo $$ > ran; cat go; exit 6") as (child, session):
        pid = await pid_in(work / "ran")
        await child.kill()
        os.kill(supervisor_of(database), signal.SIGKILL)
        await let_go(work / "go")
        async with child_on(database, script=script("unused")) as heir:
            await heir.ask("result", session="s", message_id="m")
        (completed,) = await bodies_of(session, ToolCompleted)
        assert not completed.success
        assert "unknown" in completed.content
        assert (work / "ran").read_text() == f"{pid}\n", "it was not run again"
