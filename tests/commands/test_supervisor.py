"""The supervisor itself: one for each folder, lean, and gone when nobody needs it."""

import asyncio
import os
import signal
import socket
import struct
import time
from pathlib import Path

import pytest
import uvloop

from holdfast.commands import commands as commands_module
from holdfast.commands.address import address
from holdfast.commands.commands import Commands
from holdfast.commands.errors import SupervisorUnavailable
from holdfast.commands.service import SupervisorSettings
from tests.commands.world import (
    SETTINGS,
    everything,
    is_running,
    kill_supervisor,
    new_key,
    outcome,
    ran,
    spec,
    started,
    supervisor_pid,
    until,
)

SOON_IDLE = SupervisorSettings(idle_seconds=2.0)
"""Long enough to connect to a supervisor that has just started, however busy the machine is."""


def supervisors(root: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
        except OSError:
            continue
        if b"holdfast.commands.supervisor" in words and os.fsencode(root) in words:
            found.append(int(entry.name))
    return found


async def test_a_race_to_start_one_ends_with_one(root: Path) -> None:
    everybody = [Commands(root, settings=SETTINGS) for _ in range(8)]
    await asyncio.gather(*(one.listed() for one in everybody))
    assert supervisors(root) == [supervisor_pid(root)]
    await kill_supervisor(root)
    await asyncio.gather(*(one.listed() for one in everybody))
    assert supervisors(root) == [supervisor_pid(root)]
    await asyncio.gather(*(one.close() for one in everybody))


async def test_a_supervisor_without_commands_and_clients_ends_by_itself(tmp_path: Path) -> None:
    root = tmp_path / "commands"
    async with Commands(root, settings=SOON_IDLE) as commands:
        key = new_key()
        await started(commands, key, spec("sleep 0.5; exit 3"))
    pid = supervisor_pid(root)
    await until(lambda: not is_running(pid))
    assert not (root / "socket").exists()
    async with Commands(root, settings=SOON_IDLE) as commands:
        assert (await outcome(commands, key)).exit_code == 3, "it stayed as long as the command ran"
        second = supervisor_pid(root)
        assert second != pid
    await until(lambda: not is_running(second))


async def test_a_supervisor_finishes_its_commands_after_sigterm(commands: Commands, root: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    key = new_key()
    await started(commands, key, spec("read x < go; exit 5", tmp_path))
    pid = supervisor_pid(root)
    os.kill(pid, signal.SIGTERM)
    assert (await commands.wait(key, 0.05)).state == "running"
    await asyncio.to_thread((tmp_path / "go").write_text, "on\n")
    await until(lambda: not is_running(pid))
    assert (await outcome(commands, key)).exit_code == 5


async def test_an_idle_supervisor_ends_after_sigterm_though_clients_are_connected(
    commands: Commands, root: Path
) -> None:
    key, end = await ran(commands, spec("exit 3"))
    pid = supervisor_pid(root)
    os.kill(pid, signal.SIGTERM)
    await until(lambda: not is_running(pid))
    assert (await commands.adopt(key)).outcome == end
    assert supervisor_pid(root) != pid


async def test_a_folder_with_a_very_long_path_works(tmp_path: Path) -> None:
    root = tmp_path / ("long" * 30) / ("longer" * 20)
    assert len(address(root)) <= 103
    async with Commands(root, settings=SOON_IDLE) as commands:
        key, end = await ran(commands, spec("echo far away"))
        assert (end.exit_code, await everything(commands, key)) == (0, b"far away\n")
        # Somebody cleans up /tmp.
        Path(address(root)).parent.unlink()
        async with Commands(root, settings=SETTINGS) as another:
            assert (await another.adopt(key)).outcome == end
        pid = supervisor_pid(root)
    await until(lambda: not is_running(pid))
    Path(address(root)).parent.unlink()


async def test_a_supervisor_that_can_not_start_is_an_error_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with Commands(tmp_path / "file" / "below") as commands:
        with pytest.raises(SupervisorUnavailable, match="Not a directory"):
            await commands.listed()


async def test_a_caller_who_talks_nonsense_is_let_go(commands: Commands, root: Path) -> None:
    await commands.listed()
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 2) + b"{}", struct.pack(">I", 1 << 31)):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(address(root))
            caller.sendall(nonsense)
            caller.settimeout(10)
            assert caller.recv(1) == b""
    assert await commands.listed() == []


async def test_a_supervisor_that_is_stopped_is_an_error_and_goes_on_later(
    commands: Commands, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = new_key()
    await started(commands, key, spec("echo on; exec sleep 100"))
    monkeypatch.setattr(commands_module, "ANSWER_SECONDS", 0.2)
    os.kill(supervisor_pid(root), signal.SIGSTOP)
    with pytest.raises(SupervisorUnavailable, match="did not answer"):
        await commands.status(key)
    with pytest.raises(SupervisorUnavailable, match="did not answer"):
        await commands.wait(key, 0.1)
    os.kill(supervisor_pid(root), signal.SIGCONT)
    monkeypatch.undo()
    assert (await commands.wait(key, 0.1)).state == "running"


async def test_a_cancelled_caller_harms_no_other(root: Path) -> None:
    async with Commands(root, settings=SETTINGS) as commands:
        asking = asyncio.create_task(commands.listed())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await commands.listed() == []


def test_a_supervisor_started_under_uvloop_works_and_inherits_no_descriptor(tmp_path: Path) -> None:
    """Which that loop would let through."""
    ours, held = os.pipe()
    os.set_inheritable(held, True)

    async def work() -> tuple[int | None, bytes]:
        async with Commands(tmp_path / "commands", settings=SOON_IDLE) as commands:
            key = new_key()
            await commands.listed()
            os.close(held)
            assert await asyncio.to_thread(os.read, ours, 1) == b"", "nobody else holds the other end"
            os.close(ours)
            await started(commands, key, spec("echo fast; exit 2"))
            seen = b"".join([chunk.data async for chunk in commands.follow(key)])
            return (await outcome(commands, key)).exit_code, seen

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(work()) == (2, b"fast\n")


def memory_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.slow
async def test_two_hundred_commands_cost_little_memory_and_no_time(commands: Commands, root: Path) -> None:
    keys = [new_key() for _ in range(200)]
    await asyncio.gather(*(started(commands, key, spec("echo up; exec sleep 1000")) for key in keys))
    for key in keys:
        await commands.wait_for_output(key, 0)
    pid = supervisor_pid(root)
    assert memory_kb(pid) < 40_000, "a tenth of what is allowed"
    waiting = [asyncio.create_task(commands.wait(key)) for key in keys]
    before, began = cpu_ticks(pid), time.monotonic()
    await asyncio.sleep(2)  # Not a wait for anything: this is the time that is measured.
    used = (cpu_ticks(pid) - before) / os.sysconf("SC_CLK_TCK")
    assert used / (time.monotonic() - began) < 0.01
    reports = await asyncio.gather(*(commands.kill(key, 0) for key in keys))
    assert {report.escaped for report in reports} == {()}
    ends = [status.outcome for status in await asyncio.gather(*waiting)]
    assert {(end.reason, end.exit_code) for end in ends if end} == {("killed", 137)}
