"""The operations on a session's tasks for tools, people and clients: list, find, read, wait, kill."""

import asyncio
from pathlib import Path

import pytest

from holdfast.commands.command import CommandKey
from holdfast.events.ids import Key, Owner, SessionId
from holdfast.store.tasks import TaskChange
from holdfast.tasks.desk import command_key, task_id_of
from holdfast.tasks.endings import ending_of
from holdfast.tasks.errors import TaskNotFound, TaskNotRunning, TaskUnreachable
from holdfast.testing.store_conformance.tasks import commit, in_front
from holdfast.testing.store_conformance.words import KEY
from tests.tasks.world import QUICK, SECRET, Machine, Machines, is_running, let_go, pipe, until

pytestmark = pytest.mark.anyio

LONG = 60.0
"""Longer than any wait of these tests."""


# Ids


def test_a_call_has_the_same_task_in_every_attempt_and_shares_it_with_no_other_call() -> None:
    keys = [
        CommandKey(owner, session, call, 1)
        for owner in ("ann", "bob")
        for session in ("s1", "s2", "")
        for call in (f"m{number}:c{other}" for number in range(40) for other in range(10))
    ]
    ids = [task_id_of(key) for key in keys]
    assert len(set(ids)) == len(keys)
    assert [task_id_of(CommandKey(*key)) for key in (("ann", "s1", "m0:c0", 1),)] == ids[:1]


def test_parts_that_run_together_are_not_the_same() -> None:
    assert task_id_of(CommandKey("a", "bc", "d", 1)) != task_id_of(CommandKey("ab", "c", "d", 1))


# Looking


async def test_tasks_are_listed_without_what_a_turn_waits_for_and_commands_with_it(
    machine: Machine, work: Path
) -> None:
    pipe(work)
    rows = [machine.row("cat go", work), machine.row("exit 0", work), machine.row("exit 0", work)]
    lease = await in_front(machine.store, *rows)
    waited_for, finished, task = rows
    for row in rows:
        await machine.start(row)
    ending = (await machine.commands.wait(command_key(finished))).outcome
    assert ending is not None
    changes = (
        TaskChange(task_id=task.task_id, goes_on=True),
        TaskChange(task_id=finished.task_id, ending=ending_of(ending, 1)),
    )
    await commit(machine.store, lease, changes_tasks=changes)
    assert [row.task_id for row in await machine.desk.tasks(KEY)] == [task.task_id]
    shown = {row.task_id for row in await machine.desk.commands(KEY)}
    assert shown == {waited_for.task_id, task.task_id}
    assert {row.task_id for row in await machine.desk.all_tasks(KEY.owner)} == shown
    assert await machine.desk.all_tasks(Owner("bob")) == ()


async def test_a_task_is_found_by_its_id_or_by_the_latest_use_of_its_name(machine: Machine, work: Path) -> None:
    first, second = await machine.begin("exit 0", "exit 1", directory=work, alias="server")
    latest = [row.task_id for row in await machine.store.tasks(KEY)][-1]
    assert (await machine.desk.find(KEY, first.task_id)).task_id == first.task_id
    assert (await machine.desk.find(KEY, second.task_id)).task_id == second.task_id
    assert (await machine.desk.find(KEY, "server")).task_id == latest


@pytest.mark.parametrize("key", [KEY, Key(KEY.owner, SessionId("other")), Key(Owner("bob"), KEY.session)])
@pytest.mark.parametrize("name", ["", "t0123456789ab", "server", "../../etc"])
async def test_a_missing_or_foreign_task_is_not_found(machine: Machine, work: Path, key: Key, name: str) -> None:
    (row,) = await machine.begin("exit 0", directory=work)
    with pytest.raises(TaskNotFound, match="not found"):
        await machine.desk.find(key, name)
    if key != KEY:
        with pytest.raises(TaskNotFound):
            await machine.desk.find(key, row.task_id)
        with pytest.raises(TaskNotFound):
            await machine.desk.kill(key, row.task_id, "person")


# What it wrote


async def test_the_output_of_a_task_is_readable_while_it_runs_and_afterwards(machine: Machine, work: Path) -> None:
    pipe(work)
    (row,) = await machine.begin("echo out; echo err >&2; cat go", directory=work)

    async def has_written() -> bool:
        return await machine.desk.size(row) == 8

    await until(has_written)
    assert (await machine.desk.read(row, 0, 100, "stdout")).data == b"out\n"
    assert (await machine.desk.read(row, 1, 2, "stderr")).data == b"rr"
    assert await machine.desk.size(row, "stderr") == 4
    await let_go(work / "go", "more\n")
    seen = b""
    async for chunk in machine.desk.follow(row, 8):
        seen += chunk.data
    assert seen == b"more\n"
    status = await machine.desk.status(row)
    assert status is not None
    assert status.outcome is not None
    assert (await machine.desk.tail(row)).endswith("more\n")


async def test_a_tail_is_short_whole_in_its_letters_and_without_secrets(machine: Machine, work: Path) -> None:
    (work / "text").write_text(f"{'x' * 9000}{SECRET}{'é' * 5}")
    (row,) = await machine.begin("cat text", directory=work)
    await machine.commands.wait(command_key(row))
    assert await machine.desk.tail(row, 15) == "cted]ééééé"
    assert await machine.desk.tail(row, 20) == "[redacted]ééééé"
    assert await machine.desk.tail(row, 1) == "", "half a letter is none"
    assert len((await machine.desk.tail(row)).encode()) == 4096


async def test_no_part_of_a_secret_is_shown_wherever_a_tail_is_cut(machine: Machine, work: Path) -> None:
    """It wrote a secret over and over, and what takes its place is shorter."""
    (work / "text").write_text(f"{SECRET}\n" * 2000)
    (row,) = await machine.begin("cat text", directory=work)
    await machine.commands.wait(command_key(row))
    for length in (*range(1, 80), 4096):
        shown = await machine.desk.tail(row, length)
        assert not any(SECRET[start : start + 4] in shown for start in range(len(SECRET) - 4)), (length, shown)
        assert 0 < len(shown) <= length


async def test_the_tail_of_what_is_not_here_any_more_is_empty(machine: Machine, machines: Machines, work: Path) -> None:
    (row,) = await machine.begin("echo x", directory=work)
    await machine.commands.wait(command_key(row))
    there = await machines.open("there")
    assert await there.desk.tail(row) == ""
    await machine.commands.forget(command_key(row))
    assert await machine.desk.tail(row) == ""


async def test_another_machine_shows_a_task_and_can_do_nothing_with_it(
    machine: Machine, machines: Machines, work: Path
) -> None:
    pipe(work)
    (row,) = await machine.begin("cat go", directory=work)
    there = await machines.open("there")
    assert [found.task_id for found in await there.desk.tasks(KEY)] == [row.task_id]
    for attempt in (
        there.desk.read(row, 0, 1),
        there.desk.size(row),
        there.desk.status(row),
        there.desk.wait(row, 1, 1),
        there.desk.kill(KEY, row.task_id, "person"),
        anext(there.desk.follow(row)),
    ):
        with pytest.raises(TaskUnreachable, match="another machine"):
            await attempt
    assert (await machine.now(row)).kill_asked is None
    assert is_running(await machine.pid_of(row))


# Waiting


@pytest.mark.parametrize(
    ("command", "reason"), [("cat go", "completed"), ("cat go; exit 3", "failed"), ("cat go; kill -9 $$", "failed")]
)
async def test_a_wait_ends_with_the_task_and_the_end_is_written_down_by_then(
    machine: Machine, work: Path, command: str, reason: str
) -> None:
    """Also where nobody else looks after it."""
    pipe(work)
    (row,) = await machine.begin(command, directory=work)
    waiting = asyncio.create_task(machine.desk.wait(row, LONG, LONG))
    await let_go(work / "go")
    found, now = await waiting
    assert (found, now.status) == (reason, reason)
    assert [notice.kind for notice in await machine.news()] == [reason]
    assert await machine.desk.wait(now, LONG, LONG) == (reason, now)
    assert len(await machine.news()) == 1


async def test_a_task_that_is_killed_ends_a_wait(machine: Machine, work: Path) -> None:
    pipe(work)
    (row,) = await machine.begin("cat go", directory=work)
    waiting = asyncio.create_task(machine.desk.wait(row, LONG, LONG))
    await machine.desk.kill(KEY, row.task_id, "model")
    assert (await waiting)[0] == "killed"


async def test_a_wait_that_is_over_leaves_the_task_running(machine: Machine, work: Path) -> None:
    pipe(work)
    (row,) = await machine.begin("cat go; exit 2", directory=work)
    reason, now = await machine.desk.wait(row, 0.05, LONG)
    assert (reason, now.status) == ("timeout", "running")
    assert is_running(await machine.pid_of(row))
    await let_go(work / "go")
    assert (await machine.desk.wait(row, LONG, LONG))[0] == "failed"


@pytest.mark.parametrize(("says", "reason"), [("Listening", "idle"), ("Continue? [y/n] ", "stalled")])
async def test_a_task_that_is_quiet_is_up_or_stuck(machine: Machine, work: Path, says: str, reason: str) -> None:
    pipe(work)
    (row,) = await machine.begin(f"printf '{says}'; cat go", directory=work)

    async def has_written() -> bool:
        return await machine.desk.size(row) > 0

    await until(has_written)
    assert (await machine.desk.wait(row, LONG, 0.05))[0] == reason
    assert (await machine.now(row)).status == "running"
    assert await machine.news() == [], "a look is no news"


async def test_a_wait_for_what_a_turn_waits_for_ends_when_its_result_is_written_down(
    machine: Machine, work: Path
) -> None:
    lease, (row,) = await machine.wait_for("exit 3", directory=work)
    waiting = asyncio.create_task(machine.desk.wait(row, LONG, LONG))
    outcome = (await machine.commands.wait(command_key(row))).outcome
    assert outcome is not None
    change = TaskChange(task_id=row.task_id, ending=ending_of(outcome, 1))
    await commit(machine.store, lease, changes_tasks=(change,))
    assert (await waiting)[0] == "failed"
    assert await machine.news() == []


# Ending


async def test_killing_an_ended_task_is_refused_and_the_error_says_how_it_ended(machine: Machine, work: Path) -> None:
    (row,) = await machine.begin("exit 3", directory=work)
    await machine.desk.wait(row, LONG, LONG)
    with pytest.raises(TaskNotRunning, match="not running: it is failed") as refused:
        await machine.desk.kill(KEY, row.task_id, "person")
    assert refused.value.status == "failed"
    assert len(await machine.news()) == 1


async def test_a_kill_that_comes_too_late_does_not_change_how_it_ended(machine: Machine, work: Path) -> None:
    """It has ended, and nobody has looked since. Then the model is told, since it did not kill it."""
    (row,) = await machine.begin("exit 3", directory=work)
    await machine.commands.wait(command_key(row))
    killed = await machine.desk.kill(KEY, row.task_id, "model")
    assert (killed.row.status, killed.row.exit_code) == ("failed", 3)
    assert [(notice.kind, notice.silent) for notice in await machine.news()] == [("failed", False)]


async def test_two_that_kill_it_at_once_end_it_once(machine: Machine, machines: Machines, work: Path) -> None:
    pipe(work)
    (row,) = await machine.begin("trap '' TERM; cat go & while :; do wait; done", directory=work)
    other = await machines.open()
    async with machine.keeper(QUICK):
        killed = await asyncio.gather(
            machine.desk.kill(KEY, row.task_id, "person", grace_seconds=0.1),
            other.desk.kill(KEY, row.task_id, "person", grace_seconds=0.1),
            return_exceptions=True,
        )
    assert not [found for found in killed if isinstance(found, Exception) and not isinstance(found, TaskNotRunning)]
    assert [notice.kind for notice in await machine.news()] == ["killed"]


async def test_a_person_may_kill_what_a_turn_waits_for_and_the_result_of_its_call_tells_it(
    machine: Machine, work: Path
) -> None:
    pipe(work)
    _, (row,) = await machine.wait_for("cat go", directory=work)
    pid = await machine.pid_of(row)
    killed = await machine.desk.kill(KEY, row.task_id, "person")
    assert not is_running(pid)
    assert (killed.row.status, killed.report.status.state) == ("running", "ended"), "its call has yet to say so"
    assert await machine.news() == []
