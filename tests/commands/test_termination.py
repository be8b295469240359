"""Kill reaches everything that can be found, and says exactly what it did."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.commands.command import KillReport, Limits
from holdfast.commands.commands import Commands
from tests.commands.world import (
    PATIENCE_SECONDS,
    REPOSITORY,
    SETTINGS,
    is_running,
    kill_supervisor,
    new_key,
    outcome,
    ran,
    spec,
    started,
    supervisor_pid,
    told,
    until,
)

OURS = f"9{os.getpid()}"
"""How long our commands sleep begins with it, so that those of another run are not taken for them."""


def all_dead(report: KillReport) -> bool:
    return report.escaped == () and not any(is_running(one.pid) for one in report.killed)


async def test_fault_42_kill_reaches_the_process_group(commands: Commands) -> None:
    key = new_key()
    await started(commands, key, spec("sleep N0 & sleep N0 | sleep N0 & wait".replace("N", OURS)))
    await until(lambda: len(_sleeps(f"{OURS}0")) == 3)
    report = await commands.kill(key)
    assert all_dead(report)
    assert sorted(one.name for one in report.killed) == ["bash", "sleep", "sleep", "sleep"]
    assert report.status.outcome is not None
    assert (report.status.outcome.reason, report.status.outcome.exit_code) == ("killed", 143)
    assert report.status.outcome.killed == report.killed
    assert (await outcome(commands, key)) == report.status.outcome


async def test_a_command_may_use_its_grace(commands: Commands) -> None:
    key = new_key()
    await started(commands, key, spec("trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.01; done"))
    await told(commands, key, b"up")
    report = await commands.kill(key, 10)
    assert report.status.outcome is not None
    assert (report.status.outcome.reason, report.status.outcome.exit_code) == ("killed", 5)
    assert (await commands.read(key, 0, 99, "stdout")).data == b"up\nbye\n"


async def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(commands: Commands) -> None:
    key = new_key()
    await started(commands, key, spec("trap '' TERM INT HUP; echo up; while :; do sleep 0.01; done"))
    await told(commands, key, b"up")
    report = await commands.kill(key, 0.2)
    assert all_dead(report)
    assert report.status.outcome is not None
    assert report.status.outcome.exit_code == 137


async def test_a_stopped_command_is_killed(commands: Commands) -> None:
    key = new_key()
    status = await started(commands, key, spec("echo up; kill -STOP $$; sleep 100"))
    await told(commands, key, b"up")
    assert status.runner is not None
    report = await commands.kill(key, 5)
    assert all_dead(report)


async def test_processes_that_left_the_process_session_are_found(commands: Commands, root: Path) -> None:
    """By descent, by the subreaper, and by the mark in their environment."""
    key = new_key()
    escapes = "setsid sleep N1 & (setsid sleep N2 &); (setsid env -i sleep N3 &); setsid -w env -i sleep N4 &"
    await started(commands, key, spec(f"{escapes} echo up; wait; sleep 100".replace("N", OURS)))
    await told(commands, key, b"up")
    await until(lambda: len(_escaped()) == 4)
    (orphan,) = _sleeps(f"{OURS}3")
    assert _parent(orphan) == supervisor_pid(root)
    # Of another command, and as hidden: it stays.
    bystander = new_key()
    await started(commands, bystander, spec("(setsid env -i sleep N9 &)".replace("N", OURS)))
    await until(lambda: len(_sleeps(f"{OURS}9")) == 1)
    report = await commands.kill(key, 1)
    assert all_dead(report)
    assert len(_sleeps(f"{OURS}9")) == 1
    assert all_dead(await commands.kill(bystander))
    assert _sleeps(f"{OURS}9") == []
    assert _escaped() == []


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _sleeps(argument: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
        except OSError:
            continue
        if words[:1] == [b"sleep"] and words[1] == argument.encode():
            found.append(int(entry.name))
    return found


def _escaped() -> list[int]:
    return [pid for number in (1, 2, 3, 4) for pid in _sleeps(f"{OURS}{number}")]


async def test_a_crowd_of_grandchildren_is_killed(commands: Commands) -> None:
    """All of them are deaf to TERM, and half of them are each in a session of its own."""
    key = new_key()
    crowd = "trap '' TERM; for i in {1..100}; do (setsid sleep N5 & sleep N5) & done; wait".replace("N", OURS)
    await started(commands, key, spec(crowd))
    await until(lambda: len(_sleeps(f"{OURS}5")) == 200)
    assert len({os.getsid(pid) for pid in _sleeps(f"{OURS}5")}) == 101
    report = await commands.kill(key, 0.1)
    assert all_dead(report)
    assert [one.name for one in report.killed].count("sleep") == 200
    assert _sleeps(f"{OURS}5") == []


async def test_a_command_that_forks_without_end_is_killed(commands: Commands) -> None:
    key = new_key()
    forks = "trap '' TERM; echo up; while :; do sleep 0.05 & (exec setsid sleep 0.05) & sleep 0.002; done"
    await started(commands, key, spec(forks))
    await told(commands, key, b"up")
    report = await commands.kill(key, 0.1)
    assert report.escaped == ()
    assert report.status.state == "ended"


async def test_leftover_processes_can_be_killed_later(commands: Commands) -> None:
    key, end = await ran(commands, spec("sleep 100 & (setsid sleep 100 > /dev/null 2>&1 &) ; exit 4"))
    assert end.exit_code == 4
    report = await commands.kill(key, 1)
    assert all_dead(report)
    assert [one.name for one in report.killed] == ["sleep", "sleep"]
    assert report.status.outcome == end
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await commands.listed():
            pass


async def test_killing_an_ended_command_touches_no_process(commands: Commands) -> None:
    key, end = await ran(commands, spec("true"))
    report = await commands.kill(key)
    assert (report.killed, report.escaped, report.status.outcome) == ((), (), end)


async def test_many_kills_of_one_command_get_the_same_answer(commands: Commands) -> None:
    key, other = new_key(), new_key()
    await started(commands, key, spec("sleep 100"))
    await started(commands, other, spec("sleep 100"))
    reports = await asyncio.gather(*(commands.kill(key, 1) for _ in range(5)))
    assert len(set(reports)) == 1
    assert [status.key for status in await commands.listed()] == [other]


async def test_a_second_kill_shortens_the_grace_of_the_first(commands: Commands) -> None:
    key = new_key()
    await started(commands, key, spec("trap 'echo asked' TERM; echo up; while :; do sleep 0.01; done"))
    await told(commands, key, b"up")
    first = asyncio.create_task(commands.kill(key, 1e6))
    await told(commands, key, b"asked")
    async with asyncio.timeout(PATIENCE_SECONDS):
        second = await commands.kill(key, 0)
        assert await first == second
    assert second.status.outcome is not None
    assert second.status.outcome.exit_code == 137


async def test_a_second_kill_does_not_lengthen_the_grace_of_the_first(commands: Commands) -> None:
    key = new_key()
    await started(commands, key, spec("trap 'echo asked' TERM; echo up; while :; do sleep 0.01; done"))
    await told(commands, key, b"up")
    first = asyncio.create_task(commands.kill(key, 1))
    await told(commands, key, b"asked")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await commands.kill(key, 1e6)
        end = (await first).status.outcome
    assert end is not None
    assert end.exit_code == 137


# One that can't be signalled


async def powerless(root: Path, until_there: Path) -> None:
    launched = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.commands.powerless", str(root)),
        *(msgspec.json.encode(SETTINGS).decode(), str(until_there)),
        cwd=REPOSITORY,
    )
    assert await launched.wait() == 0


@pytest.mark.parametrize("why", ["killed", "time"])
async def test_a_command_that_can_not_be_killed_still_has_an_outcome(
    commands: Commands, root: Path, tmp_path: Path, why: str
) -> None:
    """As with `sudo`, which becomes another user. It is no longer waited for, but what it writes is still read, and a
    later kill ends it if it can."""
    os.mkfifo(tmp_path / "go")
    await powerless(root, tmp_path / "mighty")
    key = new_key()
    script = "echo early; read x < go; echo late; while :; do sleep 0.01; done"
    limits = Limits(seconds=1 if why == "time" else 0)
    running = await started(commands, key, spec(script, tmp_path, limits=limits))
    await told(commands, key, b"early")
    report = await commands.kill(key, 0) if why == "killed" else None
    end = await outcome(commands, key)
    assert (end.reason, end.exit_code, end.output_bytes) == (why, None, 6)
    assert running.runner is not None
    assert running.runner.pid in [one.pid for one in end.escaped]
    assert report is None or (report.escaped, report.status.outcome) == (end.escaped, end)
    assert [status.key for status in await commands.listed()] == [key]
    await asyncio.to_thread((tmp_path / "go").write_text, "on\n")
    await until(lambda: Path(running.output_file).read_bytes() == b"early\nlate\n")
    (tmp_path / "mighty").touch()
    report = await commands.kill(key, 0)
    assert all_dead(report)
    assert running.runner.pid in [one.pid for one in report.killed]
    assert report.status.outcome == end, "it was told, and does not change"
    await commands.forget(key)


async def test_a_command_that_can_not_be_killed_is_over_when_it_ends_by_itself(
    commands: Commands, root: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    await powerless(root, tmp_path / "mighty")
    key = new_key()
    await started(commands, key, spec("read x < go; exit 3", tmp_path))
    end = (await commands.kill(key, 0)).status.outcome
    await asyncio.to_thread((tmp_path / "go").write_text, "on\n")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await commands.listed():
            pass
    assert await outcome(commands, key) == end
    (tmp_path / "mighty").touch()


async def test_an_unwatched_one_that_can_not_be_ended_has_an_outcome_too(
    commands: Commands, root: Path, tmp_path: Path
) -> None:
    key = new_key()
    running = await started(commands, key, spec("exec sleep 1000"))
    assert running.runner is not None
    await kill_supervisor(root)
    await powerless(root, tmp_path / "mighty")
    report = await commands.kill(key, 0)
    assert report.status.outcome is not None
    assert (report.status.outcome.reason, report.status.outcome.exit_code) == ("killed", None)
    assert [one.pid for one in report.escaped] == [running.runner.pid]
    assert [status.key for status in await commands.listed()] == [key]
    os.kill(running.runner.pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await commands.listed():
            pass
    (tmp_path / "mighty").touch()


async def test_orphans_leave_no_zombies(commands: Commands, root: Path) -> None:
    await ran(commands, spec("for i in {1..20}; do (setsid sleep 0.05 &) ; done"))
    supervisor = int((root / "supervisor.lock").read_text())
    await until(lambda: Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text() == "")
