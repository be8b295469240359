"""Somebody looks after every task: its end is told once, a wish to kill it is carried out, whoever dies meanwhile."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.commands.command import Limits
from holdfast.commands.errors import NoSuchCommand
from holdfast.store.clock import SystemClock
from holdfast.store.tasks import Killer, TaskChange, TaskRow
from holdfast.tasks.desk import command_key
from holdfast.tasks.keeper import KeeperTimings
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_conformance.tasks import commit, in_front
from holdfast.testing.store_conformance.words import KEY, MANY, send
from tests.tasks.world import QUICK, SECRET, Machine, Machines, gone, is_running, let_go, pipe, until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
SOURCES = Path(str(holdfast.__file__)).parents[1]


def care(**more: float) -> KeeperTimings:
    return msgspec.structs.replace(QUICK, **more)


@asynccontextmanager
async def another_process(machine: Machine, machines: Machines) -> AsyncIterator[subprocess.Popen[str]]:
    """Another keeper of the same machine. It is killed in the end."""
    process = started(machine, machines)
    try:
        assert process.stdout is not None
        assert (await asyncio.to_thread(process.stdout.readline)).strip() == "ready"
        yield process
    finally:
        process.kill()
        process.communicate()


def started(machine: Machine, machines: Machines, *kill: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.tasks.keeping", str(machines.database), str(machine.root), *kill]
    environment = {**os.environ, "PYTHONPATH": f"{SOURCES}{os.pathsep}{ROOT}"}
    pipes = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipes, stdout=pipes, text=True, cwd=ROOT, env=environment)


# The end


@pytest.mark.parametrize(
    ("command", "kind", "exit_code"),
    [
        ("echo out; echo err >&2", "completed", 0),
        ("echo out; echo err >&2; exit 3", "failed", 3),
        ("echo out; echo err >&2; kill -TERM $$", "failed", 128 + signal.SIGTERM),
        ("echo out; echo err >&2; kill -KILL $$", "failed", 128 + signal.SIGKILL),
    ],
)
async def test_the_end_of_a_task_is_reported_with_its_true_exit_code(
    machine: Machine, work: Path, command: str, kind: str, exit_code: int
) -> None:
    pipe(work)
    (row,) = await machine.begin(f"cat go; {command}", directory=work)
    async with machine.keeper(QUICK):
        assert await machine.news() == []
        await let_go(work / "go")
        (told,) = await machine.is_told(1)
    assert (told.task_id, told.kind, told.exit_code) == (row.task_id, kind, exit_code)
    assert sorted(told.output_tail.splitlines()) == ["err", "out"]
    assert (told.command, told.output_file) == (row.command, row.output_file)
    assert (work.parent / told.output_file).read_text() in ("out\nerr\n", "err\nout\n")
    ended = await machine.now(row)
    assert (ended.status, ended.exit_code) == (kind, exit_code)
    assert ended.ended_at is not None
    assert told.duration_ms == ended.ended_at - row.started_at
    assert [claim.lease.key for claim in await machine.store.claim(limit=MANY)] == [KEY], "its session is woken"


async def test_a_task_that_ended_without_a_keeper_is_reported_by_the_next_one(machine: Machine, work: Path) -> None:
    (row,) = await machine.begin("exit 5", directory=work)
    await machine.commands.wait(command_key(row))
    assert (await machine.now(row)).status == "running", "nobody looked"
    async with machine.keeper(QUICK):
        (told,) = await machine.is_told(1)
    assert (told.kind, told.exit_code) == ("failed", 5)
    async with machine.keeper(QUICK):
        assert await machine.news() == [told]


async def test_a_keeper_that_goes_leaves_its_tasks_alone(machine: Machine, work: Path) -> None:
    pipe(work)
    (row,) = await machine.begin("cat go; exit 4", directory=work)
    async with machine.keeper(QUICK) as keeper:
        keeper.look()
    pid = await machine.pid_of(row)
    assert is_running(pid)
    await let_go(work / "go")
    async with machine.keeper(QUICK):
        (told,) = await machine.is_told(1)
    assert told.exit_code == 4


async def test_fault_41_two_processes_that_look_after_the_same_tasks_tell_each_end_once(
    machine: Machine, machines: Machines, work: Path
) -> None:
    """They look on while all end at once; one is killed in the middle, and another comes after it."""
    for number in range(12):
        pipe(work, f"go{number}")
    rows = await machine.begin(*(f"cat go{number}; exit {number}" for number in range(12)), directory=work)
    async with another_process(machine, machines) as doomed, another_process(machine, machines):
        for number in range(12):
            await let_go(work / f"go{number}")
            if number == 5:
                await machine.is_told(1)
                doomed.kill()
        for row in rows:
            await machine.has_ended(row)
        async with another_process(machine, machines), machine.keeper(QUICK):
            told = await machine.is_told(12)
    assert Counter(notice.task_id for notice in told) == Counter(row.task_id for row in rows)
    assert sorted(notice.exit_code or 0 for notice in told) == list(range(12))


async def test_a_command_that_a_turn_waits_for_sends_no_news(machine: Machine, work: Path) -> None:
    """Also if it has ended: the result of its call says so. Once it goes on, it is a task like any other."""
    lease, (row,) = await machine.wait_for("exit 6", directory=work)
    other = machine.row("exit 7", work)
    await commit(machine.store, lease, opens_tasks=(other,))
    await machine.start(other)
    async with machine.keeper(QUICK):
        await machine.commands.wait(command_key(row))
        await commit(machine.store, lease, changes_tasks=(TaskChange(task_id=other.task_id, goes_on=True),))
        assert [notice.exit_code for notice in await machine.is_told(1)] == [7]
        assert (await machine.now(row)).status == "running"
        await commit(machine.store, lease, changes_tasks=(TaskChange(task_id=row.task_id, goes_on=True),))
        assert [notice.exit_code for notice in await machine.is_told(2)] == [7, 6]


async def test_a_task_that_meets_its_ceiling_has_failed_and_the_notice_says_why(machine: Machine, work: Path) -> None:
    pipe(work)
    (row,) = await machine.begin("trap 'exit 0' TERM; cat go & wait", directory=work, limits=Limits(seconds=0.1))
    async with machine.keeper(QUICK):
        (told,) = await machine.is_told(1)
    assert told.kind == "failed"
    assert "0.1 seconds" in told.detail
    assert (await machine.now(row)).detail == told.detail


async def test_the_tail_of_a_notice_is_its_last_bytes_without_secrets(machine: Machine, work: Path) -> None:
    (work / "text").write_text(f"{'x' * 100_000}\n{'é' * 3000}{SECRET}\nend\n")
    await machine.begin("cat text", directory=work)
    async with machine.keeper(QUICK):
        (told,) = await machine.is_told(1)
    assert len(told.output_tail.encode()) <= 4096
    assert told.output_tail.endswith("ééé[redacted]\nend\n")
    assert set(told.output_tail.removesuffix("[redacted]\nend\n")) == {"é"}


# Stuck


async def test_a_task_that_seems_to_wait_for_an_answer_is_reported_once_and_its_end_as_well(
    machine: Machine, machines: Machines, work: Path
) -> None:
    pipe(work, "quiet")
    pipe(work, "asking")
    quiet, asking = await machine.begin(
        "echo at work; cat quiet", "printf 'Overwrite? [y/n] '; cat asking; exit 1", directory=work
    )
    impatient = care(stall_after_seconds=0.05)
    other = await machines.open()
    async with machine.keeper(impatient), other.keeper(impatient):
        (stalled,) = await machine.is_told(1)
        assert (stalled.task_id, stalled.kind, stalled.output_tail) == (asking.task_id, "stalled", "Overwrite? [y/n] ")
        row = await machine.now(asking)
        assert (row.status, row.stalled) == ("running", True)
        assert machine.desk.shown_status(row) == "stalled"
        assert is_running(await machine.pid_of(asking))
        await let_go(work / "asking")
        await machine.is_told(2)
        await let_go(work / "quiet")
        told = await machine.is_told(3)
    assert [(notice.task_id, notice.kind) for notice in told] == [
        (asking.task_id, "stalled"),
        (asking.task_id, "failed"),
        (quiet.task_id, "completed"),
    ]
    assert not (await machine.now(asking)).stalled


async def test_a_restarted_keeper_does_not_say_again_that_a_task_is_stuck(machine: Machine, work: Path) -> None:
    pipe(work)
    (row,) = await machine.begin("printf 'Password: '; cat go", directory=work)
    impatient = care(stall_after_seconds=0.02)
    for _ in range(2):
        async with machine.keeper(impatient):
            await machine.is_told(1)
    async with machine.keeper(impatient):
        await let_go(work / "go")
        told = await machine.is_told(2)
    assert [notice.kind for notice in told] == ["stalled", "completed"]
    assert told[1].task_id == row.task_id


# Kills


@pytest.mark.parametrize(("by", "news"), [("model", [("killed", True)]), ("person", [("killed", False)])])
async def test_a_kill_by_a_person_wakes_the_model_and_its_own_does_not(
    machine: Machine, work: Path, by: Killer, news: list[tuple[str, bool]]
) -> None:
    pipe(work)
    (row,) = await machine.begin("echo begun; cat go", directory=work)
    pid = await machine.pid_of(row)
    async with machine.keeper(QUICK):
        killed = await machine.desk.kill(KEY, row.task_id, by)
        assert killed.row.status == "killed"
        assert killed.report.escaped == ()
        assert not is_running(pid)
        assert [(notice.kind, notice.silent) for notice in await machine.is_told(1)] == news
    assert bool(await machine.store.claim(limit=MANY)) is (by == "person"), "what is silent wakes nobody"


async def test_fault_42_a_kill_reaches_the_whole_process_group_and_what_left_it(machine: Machine, work: Path) -> None:
    """Children, what ignores TERM, what made a session of its own, and what lost its parent."""
    for name in ("a", "b", "c", "d"):
        pipe(work, name)
    script = (
        "sh -c 'echo $$ >> pids; cat a' & "
        "sh -c 'trap \"\" TERM; echo $$ >> pids; while :; do cat b; done' & "
        "setsid sh -c 'echo $$ >> pids; cat c' & "
        "(sh -c 'echo $$ >> pids; cat d' &) ; echo $$ >> pids; wait"
    )
    (row,) = await machine.begin(script, directory=work)

    async def all_there() -> bool:
        return (work / "pids").exists() and len((work / "pids").read_text().splitlines()) == 5

    await until(all_there)
    pids = [int(line) for line in (work / "pids").read_text().splitlines()]
    assert all(map(is_running, pids))
    async with machine.keeper(QUICK):
        killed = await machine.desk.kill(KEY, row.task_id, "person", grace_seconds=0.2)
    assert not any(map(is_running, pids))
    assert killed.report.escaped == ()
    assert {process.pid for process in killed.report.killed} >= set(pids)


async def test_the_stop_of_a_turn_kills_the_awaited_task_without_news(machine: Machine, work: Path) -> None:
    pipe(work)
    lease, (row,) = await machine.wait_for("cat go", directory=work)
    pid = await machine.pid_of(row)
    async with machine.keeper(QUICK):
        assert is_running(pid)
        await commit(machine.store, lease, ends_commands=True)
        ended = await machine.has_ended(row)
    assert ended.status == "killed"
    assert not is_running(pid)
    assert await machine.news() == []


async def test_a_stop_before_a_command_was_started_keeps_it_from_ever_starting(machine: Machine, work: Path) -> None:
    """Its holder is about to start it, and late."""
    row = machine.row("touch ran", work)
    lease = await in_front(machine.store, row)
    await commit(machine.store, lease, ends_commands=True)
    async with machine.keeper(QUICK):
        ended = await machine.has_ended(row)
    assert ended.status == "failed"
    await machine.start(row)
    status = await machine.commands.wait(command_key(row))
    assert status.outcome is not None
    assert status.outcome.reason == "not_started"
    assert not (work / "ran").exists()


@pytest.mark.parametrize(("by", "silent"), [("model", True), ("person", False)])
async def test_a_wish_to_kill_is_carried_out_though_the_process_that_noted_it_was_killed(
    machine: Machine, machines: Machines, work: Path, by: Killer, silent: bool
) -> None:
    pipe(work)
    (row,) = await machine.begin("cat go", directory=work)
    pid = await machine.pid_of(row)
    doomed = started(machine, machines, row.task_id, by)
    await asyncio.to_thread(doomed.communicate)
    assert doomed.returncode == -signal.SIGKILL
    wished = await machine.now(row)
    assert (wished.status, wished.kill_asked) == ("running", by)
    assert is_running(pid)
    async with another_process(machine, machines):
        assert (await machine.has_ended(row)).status == "killed"
        (told,) = await machine.is_told(1)
    assert told.silent is silent
    assert not is_running(pid)


async def test_a_wish_that_is_noted_while_it_is_watched_is_heard(machine: Machine, work: Path) -> None:
    pipe(work)
    (row,) = await machine.begin("cat go", directory=work)
    async with machine.keeper(QUICK) as keeper:
        keeper.look()
        await machine.store.ask_kill(KEY, row.task_id, "person")
        assert (await machine.has_ended(row)).status == "killed"


# Deletion


async def is_forgotten(machine: Machine) -> bool:
    return await machine.store.host_tasks(machine.host) == ()


async def test_the_deletion_of_a_session_kills_its_commands_and_forgets_them(machine: Machine, work: Path) -> None:
    pipe(work)
    running, ended = await machine.begin("echo secret; cat go", "echo secret", directory=work)
    pid = await machine.pid_of(running)
    folder = Path(running.output_file).parents[1]
    async with machine.keeper(QUICK):
        await machine.has_ended(ended)
        assert is_running(pid)
        await machine.store.delete(KEY)
        await until(lambda: is_forgotten(machine))
    assert not is_running(pid)
    for row in (running, ended):
        with pytest.raises(NoSuchCommand):
            await machine.commands.read(command_key(row), 0, 1)
    assert not folder.exists()


async def test_the_deletion_of_a_session_ends_what_its_finished_commands_left_behind(
    machine: Machine, work: Path
) -> None:
    pipe(work)
    (row,) = await machine.begin("sh -c 'echo $$ > pid; cat go' & while [ ! -s pid ]; do :; done", directory=work)
    async with machine.keeper(QUICK):
        await machine.has_ended(row)
        pid = int((work / "pid").read_text())
        assert is_running(pid)
        await machine.store.delete(KEY)
        await until(lambda: is_forgotten(machine))
    await until(lambda: gone(pid))


async def test_a_command_that_was_not_started_when_its_session_was_deleted_never_is(
    machine: Machine, work: Path
) -> None:
    row = machine.row("touch ran", work)
    await in_front(machine.store, row)
    await machine.store.delete(KEY)
    async with machine.keeper(QUICK):
        await until(lambda: is_forgotten(machine))
    await machine.start(row)
    assert await machine.commands.listed() == []
    assert not (work / "ran").exists()
    assert not Path(row.output_file).parents[1].exists()


async def test_a_process_that_wakes_after_the_deletion_does_not_start_the_command_again(
    machine: Machine, work: Path
) -> None:
    """It was frozen between its attempt and its request. Another process took over and ran the command."""
    pipe(work)
    (row,) = await machine.begin("echo ran >> trace; cat go", directory=work)
    await machine.pid_of(row)
    await until(lambda: asyncio.to_thread((work / "trace").exists))
    async with machine.keeper(QUICK):
        await machine.store.delete(KEY)
        await until(lambda: is_forgotten(machine))
    await machine.start(row)
    assert await machine.commands.listed() == []
    assert (work / "trace").read_text() == "ran\n"


async def test_a_deletion_is_finished_though_the_keeper_died_after_it_removed_the_command(
    machine: Machine, work: Path
) -> None:
    (row,) = await machine.begin("true", directory=work)
    await machine.commands.wait(command_key(row))
    await machine.store.delete(KEY)
    await machine.commands.forget(command_key(row))
    async with machine.keeper(QUICK):
        await until(lambda: is_forgotten(machine))


# Machines


async def test_a_task_whose_machine_is_not_heard_of_is_unreachable_then_lost_and_corrected_when_it_comes_back(
    machines: Machines, work: Path
) -> None:
    clock = ManualClock()
    here, there = await machines.open("here", clock=clock), await machines.open("there", clock=clock)
    pipe(work)
    (row,) = await here.begin("cat go; exit 9", directory=work)
    async with here.keeper(QUICK):
        await until(lambda: is_seen(here, row))
    assert there.desk.shown_status(await there.now(row)) == "running"
    machines.age_tasks(110)
    assert there.desk.shown_status(await there.now(row)) == "running"
    machines.age_tasks(10)
    assert there.desk.shown_status(await there.now(row)) == "unreachable"
    assert here.desk.shown_status(await here.now(row)) == "running", "it is here"
    machines.age_tasks(3480)
    async with there.keeper(QUICK):
        (lost,) = await there.is_told(1)
        assert lost.kind == "lost"
        assert lost.exit_code is None
        assert (await there.now(row)).status == "lost"
        await let_go(work / "go")
        async with here.keeper(QUICK):
            told = await here.is_told(2)
    assert [(notice.kind, notice.exit_code) for notice in told] == [("lost", None), ("failed", 9)]
    assert (await here.now(row)).status == "failed"


async def is_seen(machine: Machine, row: TaskRow) -> bool:
    """Whether its machine was heard of since the last hour passed."""
    return (await machine.now(row)).host_silent_ms < 3_000_000


async def test_a_machine_that_says_that_it_lives_keeps_its_tasks(machines: Machines, work: Path) -> None:
    clock = ManualClock()
    here, there = await machines.open("here", clock=clock), await machines.open("there", clock=clock)
    pipe(work)
    (row,) = await here.begin("cat go", directory=work)
    async with here.keeper(QUICK), there.keeper(QUICK):
        for _ in range(4):
            await until(lambda: is_seen(here, row))
            machines.age_tasks(3000)
            await clock.advance(3000)
        await until(lambda: is_seen(here, row))
        await let_go(work / "go")
        (told,) = await here.is_told(1)
    assert told.kind == "completed"


@pytest.mark.parametrize("minutes_off", [-61, 61])
async def test_a_machine_whose_clock_is_wrong_gives_up_nothing_and_is_not_given_up(
    machines: Machines, work: Path, minutes_off: int
) -> None:
    """Two machines an hour apart, each with a task: each sweeps, and finds the other's alive."""
    wrong_clock = ManualClock(start_ms=SystemClock().now_ms() + minutes_off * 60_000)
    right, wrong = await machines.open("right"), await machines.open("wrong", clock=wrong_clock)
    pipe(work)
    (row,) = await right.begin("cat go", directory=work)
    async with right.keeper(QUICK):
        await until(lambda: is_seen(right, row))
    own = wrong.row("cat go", work)
    await send(wrong.store, "again")
    (claim,) = await wrong.store.claim(limit=MANY)
    await commit(wrong.store, claim.lease, opens_tasks=(own,))
    await wrong.start(own)
    await commit(wrong.store, claim.lease, changes_tasks=(TaskChange(task_id=own.task_id, goes_on=True),))
    for keeper, other in ((wrong, row), (right, own)):
        swept = keeper.row("exit 0", work)
        await commit(wrong.store, claim.lease, opens_tasks=(swept,))
        await keeper.start(swept)
        await commit(wrong.store, claim.lease, changes_tasks=(TaskChange(task_id=swept.task_id, goes_on=True),))
        async with keeper.keeper(QUICK):
            await keeper.has_ended(swept)
        assert (await keeper.now(other)).status == "running"
        assert keeper.desk.shown_status(await keeper.now(other)) == "running"
    assert {notice.kind for notice in await right.news()} == {"completed"}


async def test_a_machine_that_starts_first_gives_up_nothing_of_those_that_were_never_heard_of(
    machines: Machines, work: Path
) -> None:
    """A command has just been started elsewhere, and nobody had the time yet to say that it is looked after."""
    here, there = await machines.open("here"), await machines.open("there")
    pipe(work)
    (row,) = await here.begin("cat go", directory=work)
    own = there.row("exit 0", work)
    await send(there.store, "again")
    (claim,) = await there.store.claim(limit=MANY)
    await commit(there.store, claim.lease, opens_tasks=(own,))
    await there.start(own)
    await commit(there.store, claim.lease, changes_tasks=(TaskChange(task_id=own.task_id, goes_on=True),))
    async with there.keeper(QUICK):
        await there.has_ended(own)
    assert (await here.now(row)).status == "running"


async def test_the_commands_of_a_deleted_session_on_a_machine_that_is_gone_are_given_up(
    machines: Machines, work: Path
) -> None:
    clock = ManualClock()
    here, there = await machines.open("here", clock=clock), await machines.open("there", clock=clock)
    pipe(work)
    await here.begin("cat go", directory=work)
    await there.store.delete(KEY)
    machines.age_tasks(3600)
    async with there.keeper(QUICK):
        await until(lambda: is_forgotten(here))


async def test_a_supervisor_that_is_killed_loses_its_tasks_and_says_so_once(machine: Machine, work: Path) -> None:
    pipe(work)
    (row,) = await machine.begin("cat go; exit 3", directory=work)
    pid = await machine.pid_of(row)
    async with machine.keeper(QUICK):
        os.kill(int((machine.root / "supervisor.lock").read_text()), signal.SIGKILL)
        assert is_running(pid), "it goes on, but nobody is its parent any more"
        await let_go(work / "go")
        (told,) = await machine.is_told(1)
    assert (told.kind, told.exit_code) == ("lost", None)
    assert "supervisor" in told.detail


# Time passes


async def test_a_task_that_ended_long_ago_is_forgotten_and_one_that_runs_is_not(machines: Machines, work: Path) -> None:
    clock = ManualClock()
    machine = await machines.open(clock=clock)
    pipe(work)
    ended, running = await machine.begin("exit 1", "cat go", directory=work)
    async with machine.keeper(QUICK):
        await machine.has_ended(ended)
        machines.age_tasks(86_400)
        await clock.advance(QUICK.sweep_every_seconds)

        async def is_dropped() -> bool:
            return await machine.store.task(KEY, ended.task_id) is None

        await until(is_dropped)
        assert [row.task_id for row in await machine.store.tasks(KEY)] == [running.task_id]
    assert [notice.task_id for notice in await machine.news()] == [ended.task_id], "what was told stays told"
