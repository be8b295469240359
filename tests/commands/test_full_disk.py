"""A disk without room: commands wait, nothing is lost, nothing is told that is not written."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.commands.commands import Commands
from holdfast.commands.errors import CommandRefused
from tests.commands.world import (
    SETTINGS,
    everything,
    is_running,
    new_key,
    outcome,
    spec,
    started,
    supervisor_pid,
    until,
)

SIZE = 2_000_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(file: Path) -> None:
    with open(file, "wb", buffering=0) as filling:
        try:
            while True:
                filling.write(bytes(4096))
        except OSError:
            pass


async def test_output_waits_for_room_and_is_whole_then(small_disk: Path) -> None:
    async with Commands(small_disk / "commands", settings=SETTINGS) as commands:
        key = new_key()
        await started(commands, key, spec("seq 1 600000; exit 3"))
        await until(lambda: _free(small_disk) == 0)
        status = await commands.wait(key, 1)
        assert (status.state, status.outcome) == ("running", None)
        _remount(small_disk, 3 * SIZE)
        end = await outcome(commands, key)
        assert (end.reason, end.exit_code) == ("exited", 3)
        assert await everything(commands, key) == b"".join(b"%d\n" % number for number in range(1, 600_001))
        pid = supervisor_pid(small_disk / "commands")
        os.kill(pid, 15)
    await until(lambda: not is_running(pid))


async def test_without_room_nothing_starts_and_no_outcome_is_reported(small_disk: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    async with Commands(small_disk / "commands", settings=SETTINGS) as commands:
        running, refused = new_key(), new_key()
        await started(commands, running, spec("read x < go; exit 4", tmp_path))
        fill(small_disk / "filling")
        with pytest.raises(CommandRefused, match="No space left"):
            await commands.start(refused, spec("touch ran", tmp_path))
        (tmp_path / "go").write_text("on\n")
        assert (await commands.wait(running, 1)).state == "running"
        (small_disk / "filling").unlink()
        assert (await outcome(commands, running)).exit_code == 4
        assert await commands.status(refused) is None
        assert not (tmp_path / "ran").exists()
        pid = supervisor_pid(small_disk / "commands")
        os.kill(pid, 15)
    await until(lambda: not is_running(pid))


def _free(place: Path) -> int:
    return os.statvfs(place).f_bavail


def _remount(place: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)
