"""Whose command it is: the same key in another folder, a copy of the folder, and a folder that is gone."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from holdfast.commands.command import MARK, CommandStatus, KillReport, Limits
from holdfast.commands.commands import Commands
from holdfast.commands.errors import NoSuchCommand
from holdfast.commands.service import SupervisorSettings
from tests.commands.world import (
    PATIENCE_SECONDS,
    SETTINGS,
    everything,
    is_running,
    kill_supervisor,
    new_key,
    outcome,
    spec,
    started,
    supervisor_pid,
    until,
)


def pid_of(status: CommandStatus) -> int:
    assert status.runner is not None
    return status.runner.pid


def copied(root: Path, to: Path) -> None:
    shutil.copytree(root, to, ignore=lambda _, names: [name for name in names if name == "socket"])


async def end_all(root: Path) -> None:
    async with Commands(root, settings=SETTINGS) as commands:
        for status in await commands.listed():
            await commands.kill(status.key, 0)
        pid = supervisor_pid(root)
    os.kill(pid, signal.SIGTERM)
    await until(lambda: not is_running(pid))


# The same key


async def test_a_kill_spares_the_same_key_in_another_folder(commands: Commands, tmp_path: Path) -> None:
    key = new_key()
    # One that left the session is found by its mark alone.
    what = spec("(setsid sleep 1000 > /dev/null 2>&1 &); exec sleep 1000")
    async with Commands(tmp_path / "other", settings=SETTINGS) as other:
        ours, theirs = await started(commands, key, what), await started(other, key, what)
        await until(lambda: len(marked(ours)) == len(marked(theirs)) == 2)
        report = await commands.kill(key, 5)
        assert len(report.killed) == 2
        assert (marked(ours), len(marked(theirs))) == ([], 2)
        assert (await other.wait(key, 0)).state == "running"
        assert len((await other.kill(key, 5)).killed) == 2
    await end_all(tmp_path / "other")


def marked(status: CommandStatus) -> list[int]:
    """The processes with its mark that already run its program."""
    wanted = f"{MARK}={status.record.mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "comm").read_text() == "sleep\n":
                environment = (entry / "environ").read_bytes().split(b"\0")
                found += [int(entry.name)] if wanted in environment else []
        except OSError:
            continue
    return found


# A copy


async def test_a_copy_on_the_same_machine_says_lost_and_kills_nothing(
    commands: Commands, root: Path, tmp_path: Path
) -> None:
    key = new_key()
    running = await started(commands, key, spec("echo here; exec sleep 1000"))
    await commands.wait_for_output(key, 0)
    copied(root, tmp_path / "copy")
    async with Commands(tmp_path / "copy", settings=SETTINGS) as copy:
        status = await copy.adopt(key)
        assert status.outcome is not None
        assert (status.outcome.reason, "copy" in status.outcome.detail) == ("lost", True)
        assert await everything(copy, key) == b"here\n"
        assert await copy.kill(key, 0) == KillReport(status=status)
        assert await copy.listed() == []
    await end_all(tmp_path / "copy")
    assert is_running(pid_of(running))
    assert (await commands.wait(key, 0)).state == "running"
    assert (await commands.kill(key, 5)).status.outcome is not None


async def test_a_copy_does_not_touch_what_was_left_behind_in_the_original(
    commands: Commands, root: Path, tmp_path: Path
) -> None:
    key = new_key()
    await started(commands, key, spec("sleep 1000 & exit 3", limits=Limits(seconds=PATIENCE_SECONDS * 10)))
    left = (await outcome(commands, key)).left_behind
    copied(root, tmp_path / "copy")
    async with Commands(tmp_path / "copy", settings=SETTINGS) as copy:
        assert (await copy.kill(key, 0)).killed == ()
        assert await copy.listed() == []
    await end_all(tmp_path / "copy")
    assert [is_running(one.pid) for one in left] == [True]


async def test_a_command_that_was_asked_for_before_a_copy_does_not_run_in_the_copy(
    commands: Commands, root: Path, tmp_path: Path
) -> None:
    """In the original it may have run since."""
    key = new_key()
    status = await started(commands, key, spec("true"))
    await outcome(commands, key)
    copied(root, tmp_path / "copy")
    for name in ("runner.json", "outcome.json"):
        (tmp_path / "copy" / Path(status.folder).relative_to(root) / name).unlink()
    async with Commands(tmp_path / "copy", settings=SETTINGS) as copy:
        assert (await outcome(copy, key)).reason == "lost"
    await end_all(tmp_path / "copy")


async def test_a_folder_that_was_moved_is_still_the_same(root: Path, tmp_path: Path) -> None:
    key = new_key()
    async with Commands(root, settings=SETTINGS) as commands:
        running = await started(commands, key, spec("exec sleep 1000"))
        await kill_supervisor(root)
    os.rename(root, tmp_path / "moved")
    async with Commands(tmp_path / "moved", settings=SETTINGS) as moved:
        assert (await moved.adopt(key)).state == "unwatched"
        assert [one.pid for one in (await moved.kill(key, 5)).killed] == [pid_of(running)]
    await end_all(tmp_path / "moved")


# A folder that is gone


async def test_a_supervisor_whose_folder_is_gone_sees_its_commands_out_and_ends(tmp_path: Path) -> None:
    root = tmp_path / "commands"
    os.mkfifo(tmp_path / "go")
    key = new_key()
    async with Commands(root, settings=SETTINGS) as commands:
        running = await started(commands, key, spec("read x < go; echo late; exit 5", tmp_path))
        pid = supervisor_pid(root)
        waiting = asyncio.create_task(commands.wait(key, PATIENCE_SECONDS))
        await asyncio.sleep(0)  # It has asked,
        await commands.status(key)  # and was heard before this was answered.
        shutil.rmtree(root)
        assert is_running(pid_of(running))
        await asyncio.to_thread((tmp_path / "go").write_text, "on\n")
        end = (await waiting).outcome
        assert end is not None
        assert (end.reason, end.exit_code) == ("exited", 5)
        await until(lambda: not is_running(pid))
        assert not root.exists()


async def test_an_unwatched_command_whose_folder_is_gone_is_dropped_as_well(tmp_path: Path) -> None:
    root = tmp_path / "commands"
    async with Commands(root, settings=SETTINGS) as commands:
        key = new_key()
        running = await started(commands, key, spec("exec sleep 1000"))
        await kill_supervisor(root)
        assert (await commands.adopt(key)).state == "unwatched"
        pid = supervisor_pid(root)
        shutil.rmtree(root)
        os.kill(pid_of(running), signal.SIGKILL)
        await until(lambda: not is_running(pid))


async def test_a_command_with_much_output_does_not_wait_for_a_folder_that_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "commands"
    os.mkfifo(tmp_path / "go")
    async with Commands(root, settings=SETTINGS) as commands:
        key = new_key()
        what = spec("read x < go; head -c 900000 /dev/zero; touch done", tmp_path, limits=Limits(output_bytes=4096))
        await started(commands, key, what)
        pid = supervisor_pid(root)
        shutil.rmtree(root)
        await asyncio.to_thread((tmp_path / "go").write_text, "on\n")
        await until((tmp_path / "done").exists)
        await until(lambda: not is_running(pid))


async def test_a_kill_reaches_a_command_whose_folder_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "commands"
    async with Commands(root, settings=SETTINGS) as commands:
        key = new_key()
        running = await started(commands, key, spec("exec sleep 1000"))
        pid = supervisor_pid(root)
        shutil.rmtree(root)
        async with asyncio.timeout(PATIENCE_SECONDS):
            report = await commands.kill(key, 5)
        assert [one.pid for one in report.killed] == [pid_of(running)]
        assert report.status.outcome is not None
        assert report.status.outcome.reason == "killed"
        await until(lambda: not is_running(pid))


async def test_a_folder_that_was_put_in_the_place_of_another_gets_a_supervisor_of_its_own(tmp_path: Path) -> None:
    root = tmp_path / "commands"
    os.mkfifo(tmp_path / "go")
    old, new = new_key(), new_key()
    async with Commands(root, settings=SETTINGS) as commands:
        await started(commands, old, spec("read x < go", tmp_path))
        first = supervisor_pid(root)
        shutil.rmtree(root)
        await started(commands, new, spec("exec sleep 1000"))
        assert supervisor_pid(root) != first
        assert is_running(first)
        await asyncio.to_thread((tmp_path / "go").write_text, "on\n")
        await until(lambda: not is_running(first))
        # The first one took nothing away with it.
        async with Commands(root, settings=SETTINGS) as another:
            assert [status.key for status in await another.listed()] == [new]
        with pytest.raises(NoSuchCommand):
            await commands.wait(old)
    await end_all(root)


async def test_an_idle_supervisor_whose_folder_is_gone_ends_when_it_is_let_go(tmp_path: Path) -> None:
    root = tmp_path / "commands"
    async with Commands(root, settings=SupervisorSettings(idle_seconds=1e6)) as commands:
        await commands.listed()
        pid = supervisor_pid(root)
        shutil.rmtree(root)
    await until(lambda: not is_running(pid))
