"""`holdfast doctor` ticks a data directory only if it is for one user alone, and says the command that makes it so."""

import os
import subprocess

import pytest

from holdfast.cli.doctor import examine
from holdfast.config import load
from tests.cli.processes import Place


async def folder_line(place: Place) -> tuple[int, str]:
    done = await place.run("doctor")
    (line,) = [line for line in done.out.splitlines() if "Folder:" in line]
    return done.code, line


def run_as_said(line: str) -> None:
    subprocess.run(line.partition("Run: ")[2], shell=True, check=True)


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o705, 0o711, 0o770, 0o777])
async def test_a_folder_that_others_can_get_into_is_not_ticked_and_the_chmod_is_said(place: Place, mode: int) -> None:
    place.data.mkdir(mode=0o700)
    place.data.chmod(mode)
    code, line = await folder_line(place)
    assert (code, line[0]) == (1, "✗")
    assert "others may" in line
    run_as_said(line)
    assert place.data.stat().st_mode & 0o777 == 0o700
    assert await folder_line(place) == (0, f"✓ Folder: {place.data} (mode 700)")


async def test_a_database_file_that_others_can_read_is_named(place: Place) -> None:
    assert (await folder_line(place))[0] == 0
    file = place.data / "holdfast.db"
    file.chmod(0o644)
    code, line = await folder_line(place)
    assert (code, line[0]) == (1, "✗")
    assert "others may read holdfast.db" in line
    run_as_said(line)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
async def test_a_folder_of_another_user_is_not_ticked(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.data.mkdir(mode=0o700)
    os.chown(place.data, 12345, -1)
    await examine(load({"data_dir": str(place.data)}, {}), as_json=False)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "Folder:" in line]
    assert line.startswith("✗ Folder:")
    assert "belongs to user 12345" in line
    assert f"chown {os.geteuid()} {place.data}" in line
