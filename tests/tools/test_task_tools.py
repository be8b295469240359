"""The tools by which a model looks after its tasks: it sees them, reads them, waits for them and ends them, and no
others."""

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.commands.folder import CommandFolder
from holdfast.events.ids import ToolCallId
from holdfast.events.inbox import TaskNews
from holdfast.events.task import TaskStatus
from holdfast.store.tasks import TaskRow
from holdfast.tasks.shell import ShellArguments
from holdfast.tools import task_tools
from holdfast.tools.errors import ToolFailure
from holdfast.tools.exec import exec_tool
from holdfast.tools.task_tools import kill_task, latest, list_tasks, task_status, wait_for_task
from holdfast.tools.tool import Tool
from tests.faults.world import comes_true
from tests.tools.shells import SECRET, Session, file_says, sessions_in, task_in
from tests.tools.test_exec import FAMILY, all_here
from tests.tools.using import context, is_alive

pytestmark = pytest.mark.anyio

FOR_EVER = "exec tail -f /dev/null"


async def started(session: Session, home: Path, command: str, **more: Any) -> str:
    return task_in(await session.outcome(exec_tool, home, command=command, run_in_background=True, **more))


async def wrote(session: Session, task_id: str, text: bytes) -> None:
    """Wait until a task has written this."""
    row = await session.row(task_id)
    await comes_true(lambda: Path(row.output_file).read_bytes() == text)


# Which there are


async def test_tasks_are_listed_in_the_order_of_their_start(session: Session, home: Path) -> None:
    assert await session.told(list_tasks, home) == {"tasks": []}
    one = await started(session, home, "exit 3", description="Fail")
    two = await started(session, home, FOR_EVER)
    await session.settled(one)
    ended, running = (await session.told(list_tasks, home))["tasks"]
    row = await session.row(one)
    assert (ended["task_id"], ended["status"], ended["exit_code"], ended["description"]) == (one, "failed", 3, "Fail")
    assert (ended["command"], ended["output_file"]) == ("exit 3", row.output_file)
    assert ended["started_at"].endswith("Z")
    assert (running["task_id"], running["status"], running["command"]) == (two, "running", FOR_EVER)
    assert not {"exit_code", "ended_at"} & set(running)


async def test_a_command_that_was_waited_for_is_not_listed_as_a_task(session: Session, home: Path) -> None:
    await session.outcome(exec_tool, home, command="true")
    assert await session.told(list_tasks, home) == {"tasks": []}


def row_of(session: Session, number: int, status: TaskStatus) -> TaskRow:
    words = ShellArguments(command="true", directory="/")
    made = session.shell.row(session.key, ToolCallId(f"c{number}"), f"m:c{number}", words, number)
    return msgspec.structs.replace(made, status=status)


async def test_of_very_many_all_that_run_are_listed_and_the_last_of_the_others(session: Session) -> None:
    rows = tuple(row_of(session, number, "running" if number < 3 else "completed") for number in range(150))
    listed = latest(rows)
    assert len(listed) == task_tools.MAX_LISTED
    assert listed == (*rows[:3], *rows[53:])
    assert latest(rows[:20]) == rows[:20]


# How one stands


async def test_while_it_runs_its_latest_words_are_shown_and_no_exit_code(session: Session, home: Path) -> None:
    os.mkfifo(home / "go")
    task = await started(session, home, "echo begun; cat go; exit 4")
    await wrote(session, task, b"begun\n")
    told = await session.told(task_status, home, task_id=task)
    assert (told["status"], told["output_tail"]) == ("running", "begun\n")
    assert not {"exit_code", "ended_at"} & set(told)
    await asyncio.to_thread((home / "go").write_text, "more\n")
    await session.ended(task)
    told = await session.told(task_status, home, task_id=task)
    assert (told["status"], told["exit_code"], told["output_tail"]) == ("failed", 4, "begun\nmore\n")
    assert (await session.row(task)).exit_code == 4, "whoever sees an end notes it"


async def test_a_part_of_its_output_is_read_by_offset(session: Session, home: Path) -> None:
    task = await started(session, home, "printf 'ab\\303\\251\\377cd'")
    await session.settled(task)
    parts: list[dict[str, Any]] = []
    offset = 0
    while not parts or parts[-1]["output"]:
        parts.append(await session.told(task_status, home, task_id=task, offset=offset, length=4))
        assert parts[-1]["offset"] == offset
        offset = parts[-1]["next_offset"]
    assert [part["output"] for part in parts] == ["abé", "\ufffdcd", ""]
    assert {part["output_bytes"] for part in parts} == {7}
    assert "output_tail" not in parts[0]
    assert (await session.told(task_status, home, task_id=task, offset=3))["output"] == "\ufffdcd"
    assert (await session.told(task_status, home, task_id=task, offset=-5, length=-1))["output"] == "abé"
    assert (await session.told(task_status, home, task_id=task, offset=99))["output"] == ""
    assert (await session.told(task_status, home, task_id=task, length=10**9))["output"] == "abé\ufffdcd"


async def test_every_byte_of_a_long_output_can_be_read(session: Session, home: Path) -> None:
    task = await started(session, home, "seq 30000")
    await session.settled(task)
    text, offset = "", 0
    while part := (found := await session.told(task_status, home, task_id=task, offset=offset))["output"]:
        assert len(part) <= task_tools.DEFAULT_LENGTH
        text += part
        offset = found["next_offset"]
    assert text.splitlines() == [str(number) for number in range(1, 30_001)]


async def test_no_secret_is_shown(session: Session, home: Path) -> None:
    (home / "leak").write_text(f"{SECRET}\n")
    task = await started(session, home, f"cat leak; : '{SECRET}'")
    await session.settled(task)
    for arguments in ({}, {"offset": 0}):
        told = await session.told(task_status, home, task_id=task, **arguments)
        assert SECRET not in str(told.values())
        assert told.get("output_tail", told.get("output")) == "[redacted]\n"
        assert told["command"] == "cat leak; : '[redacted]'"


async def test_no_secret_is_shown_in_halves_where_a_part_ends(session: Session, home: Path) -> None:
    (home / "leak").write_text(f"é{SECRET}z" * 20)
    task = await started(session, home, "cat leak", description=f"Show {SECRET}")
    await session.settled(task)
    for length in range(4, 40):
        text, offset = "", 0
        while True:
            told = await session.told(task_status, home, task_id=task, offset=offset, length=length)
            if told["next_offset"] == offset:
                break
            text, offset = text + told["output"], told["next_offset"]
        assert text == "é[redacted]z" * 20
    for offset in range(60):
        told = await session.told(task_status, home, task_id=task, offset=offset, length=20)
        assert set(told["output"]) <= set("é[redacted]z")
        assert told["description"] == "Show [redacted]"


async def test_output_that_could_become_a_secret_is_held_back(session: Session, home: Path) -> None:
    os.mkfifo(home / "go")
    (home / "one").write_text(f"begun {SECRET[:9]}")
    (home / "two").write_text(SECRET[9:])
    task = await started(session, home, "cat one; cat go two")
    await wrote(session, task, (home / "one").read_bytes())
    told = await session.told(task_status, home, task_id=task, offset=0)
    assert (told["output"], told["next_offset"]) == ("begun ", 6)
    await asyncio.to_thread((home / "go").write_text, "")
    await session.ended(task)
    told = await session.told(task_status, home, task_id=task, offset=6)
    assert (told["output"], told["next_offset"]) == ("[redacted]", 6 + len(SECRET))


async def test_the_news_of_a_task_s_start_and_end_has_no_secret(session: Session, home: Path) -> None:
    task = await started(session, home, f": '{SECRET}'", description=f"Use {SECRET}")
    await session.settled(task)
    (news,) = [item for item in await session.news() if isinstance(item, TaskNews)]
    assert (news.notice.command, news.notice.description) == (": '[redacted]'", "Use [redacted]")
    long = await started(session, home, f": '{'x' * 1990} {SECRET}'")
    await session.settled(long)
    news = [item for item in await session.news() if isinstance(item, TaskNews)][-1]
    assert "secr" not in news.notice.command, "nor where it is shortened"


async def test_output_that_is_not_kept_any_more_is_not_said_to_be_empty(session: Session, home: Path) -> None:
    wrote_something, wrote_nothing = await started(session, home, "echo important"), await started(session, home, ":")
    for task in (wrote_something, wrote_nothing):
        row = await session.settled(task)
        CommandFolder(Path(row.output_file).parent).remove_output()
    for arguments in ({}, {"offset": 0}):
        told = await session.told(task_status, home, task_id=wrote_something, **arguments)
        assert told["note"] == "What it wrote is not kept any more."
        assert "note" not in await session.told(task_status, home, task_id=wrote_nothing, **arguments)


# Waiting


async def test_a_wait_ends_with_the_task_and_says_how_that_ended(session: Session, home: Path) -> None:
    os.mkfifo(home / "go")
    for exit_code, reason in ((0, "completed"), (3, "failed")):
        task = await started(session, home, f"cat go; exit {exit_code}")
        waiting = asyncio.create_task(session.told(wait_for_task, home, task_id=task, timeout=300, idle_timeout=300))
        await asyncio.to_thread((home / "go").write_text, "news\n")
        told = await waiting
        assert (told["reason"], told["status"], told["exit_code"]) == (reason, reason, exit_code)
        assert told["output_tail"] == "news\n"
        again = await session.told(wait_for_task, home, task_id=task)
        assert (again["reason"], again["exit_code"]) == (reason, exit_code), "of one that has ended at once"


async def test_a_wait_ends_when_it_is_killed(session: Session, home: Path) -> None:
    task = await started(session, home, FOR_EVER)
    waiting = asyncio.create_task(session.told(wait_for_task, home, task_id=task, timeout=300, idle_timeout=300))
    await asyncio.sleep(0)
    await session.shell.desk.kill(session.key, task, "person")
    assert (await waiting)["reason"] == "killed"


async def test_a_wait_for_one_that_is_up_and_quiet_is_over(session: Session, home: Path) -> None:
    task = await started(session, home, f"echo listening; {FOR_EVER}")
    await wrote(session, task, b"listening\n")
    told = await session.told(wait_for_task, home, task_id=task, timeout=300, idle_timeout=1)
    assert (told["reason"], told["status"], told["output_tail"]) == ("idle", "running", "listening\n")
    assert (await session.row(task)).status == "running"


async def test_a_wait_for_one_that_wants_an_answer_is_over(session: Session, home: Path) -> None:
    task = await started(session, home, f"printf 'Proceed? [y/n] '; {FOR_EVER}")
    await wrote(session, task, b"Proceed? [y/n] ")
    told = await session.told(wait_for_task, home, task_id=task, timeout=300, idle_timeout=1)
    assert (told["reason"], told["status"]) == ("stalled", "running")


async def test_a_wait_is_over_in_time_and_the_task_goes_on(session: Session, home: Path) -> None:
    task = await started(session, home, "while echo busy; do sleep 0.05; done")
    told = await session.told(wait_for_task, home, task_id=task, timeout=-5, idle_timeout=9999)
    assert (told["reason"], told["status"]) == ("timeout", "running")
    assert (await session.status(task)).state == "running"


async def test_a_wait_that_is_stopped_ends_nothing(session: Session, home: Path) -> None:
    task = await started(session, home, FOR_EVER)
    waiting = asyncio.create_task(session.told(wait_for_task, home, task_id=task))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (await session.status(task)).state == "running"
    assert wait_for_task.waits_by_itself


# Ending


async def test_a_kill_names_all_that_ended_and_sends_no_news(session: Session, home: Path) -> None:
    task = await started(session, home, FAMILY)
    family = await all_here(home)
    told = await session.told(kill_task, home, task_id=task)
    assert (told["task_id"], told["status"], told["escaped"]) == (task, "killed", [])
    assert set(family) <= {one["pid"] for one in told["ended"]}
    assert all(one["name"] for one in told["ended"])
    assert [pid for pid in family if is_alive(pid)] == []
    row = await session.row(task)
    assert row.status == "killed"
    (news,) = [item for item in await session.news() if isinstance(item, TaskNews)]
    assert news.notice.silent, "the model knows"


async def test_killing_an_ended_task_fails_and_says_how_it_ended(session: Session, home: Path) -> None:
    for command, status in (("true", "completed"), ("exit 2", "failed")):
        task = await started(session, home, command)
        await session.settled(task)
        for attempt in (1, 2):
            with pytest.raises(ToolFailure, match=f"is not running: it is {status}"):
                await session.outcome(kill_task, home, attempt=attempt, task_id=task)


async def test_processes_that_a_task_left_running_are_named_and_can_be_killed(session: Session, home: Path) -> None:
    task = await started(session, home, "tail -f /dev/null & echo $! > child; exit 3")
    row = await session.settled(task)
    child = int((home / "child").read_text())
    assert (row.status, row.detail) == ("failed", f"It left something running: tail (pid {child}).")
    (news,) = [item for item in await session.news() if isinstance(item, TaskNews)]
    assert news.notice.detail == row.detail
    assert is_alive(child)
    told = await session.told(kill_task, home, task_id=task)
    assert (told["status"], told["exit_code"]) == ("failed", 3)
    assert (told["ended"], told["escaped"]) == ([{"pid": child, "name": "tail"}], [])
    assert "It had ended before" in told["message"]
    assert not is_alive(child)
    with pytest.raises(ToolFailure, match="is not running: it is failed"):
        await session.outcome(kill_task, home, task_id=task)
    after = msgspec.structs.replace(await session.row(task), host_silent_ms=row.host_silent_ms)
    assert after == row, "how it ended stays as it was"


async def test_a_kill_of_a_task_that_ended_unseen_reports_how_it_ended(session: Session, home: Path) -> None:
    task = await started(session, home, "exit 6")
    await session.ended(task)
    told = await session.told(kill_task, home, task_id=task)
    assert (told["status"], told["exit_code"], told["ended"]) == ("failed", 6, [])
    assert (await session.row(task)).status == "failed"


async def test_a_second_attempt_that_finds_it_killed_by_the_first_says_so(session: Session, home: Path) -> None:
    task = await started(session, home, FOR_EVER)
    await session.outcome(kill_task, home, task_id=task)
    with pytest.raises(ToolFailure, match="is not running: it is killed"):
        await session.outcome(kill_task, home, task_id=task)
    found = await session.outcome(kill_task, home, attempt=2, task_id=task)
    told = msgspec.json.decode(found.content)
    assert (found.success, told["status"]) == (True, "killed")
    assert "earlier attempt" in told["message"]


async def test_a_second_attempt_carries_out_what_the_first_only_wished(session: Session, home: Path) -> None:
    task = await started(session, home, f"echo $$ > pid; {FOR_EVER}")
    pid = int(await file_says(home / "pid"))
    assert await session.store.ask_kill(session.key, (await session.row(task)).task_id, "model")
    found = await session.outcome(kill_task, home, attempt=2, task_id=task)
    assert msgspec.json.decode(found.content)["status"] == "killed"
    assert not is_alive(pid)


# Whose they are


@pytest.mark.parametrize("tool", [task_status, wait_for_task, kill_task], ids=lambda tool: str(tool.name))
async def test_a_task_of_another_session_is_as_one_that_there_is_not(
    commands_folder: Path, tmp_path: Path, home: Path, tool: Tool
) -> None:
    async with sessions_in(commands_folder, tmp_path / "tasks.db") as make:
        mine, other = await make(), await make()
        task = await started(other, home, FOR_EVER)
        said = []
        for task_id in (task, "t00000000000", "", "../x"):
            with pytest.raises(ToolFailure, match="not found in this session") as refused:
                await mine.outcome(tool, home, task_id=task_id)
            said.append(str(refused.value).replace(repr(task_id), "ID"))
        assert len(set(said)) == 1
        assert await mine.told(list_tasks, home) == {"tasks": []}
        assert (await other.status(task)).state == "running"


@pytest.mark.parametrize("tool", [list_tasks, task_status, wait_for_task, kill_task], ids=lambda tool: str(tool.name))
async def test_task_tools_request_no_permission_and_need_commands(home: Path, tool: Tool) -> None:
    arguments = tool.parse("{}" if tool is list_tasks else '{"task_id": "x"}')
    assert tool.asks(arguments, home) is None
    assert tool.after_crash == "repeat"
    with pytest.raises(ToolFailure, match=r"^commands can't be run here$"):
        await tool.run(arguments, context(home))


async def test_a_task_on_another_machine_is_listed_and_can_t_be_reached(session: Session, home: Path) -> None:
    task = await started(session, home, FOR_EVER)
    session.shell.desk.host = "another"
    (listed,) = (await session.told(list_tasks, home))["tasks"]
    assert (listed["task_id"], listed["status"]) == (task, "running")
    told = await session.told(task_status, home, task_id=task)
    assert (told["status"], told["output_tail"]) == ("running", "")
    for tool in (wait_for_task, kill_task):
        with pytest.raises(ToolFailure, match="runs on another machine"):
            await session.outcome(tool, home, task_id=task)
    with pytest.raises(ToolFailure, match="runs on another machine"):
        await session.outcome(task_status, home, task_id=task, offset=0)
