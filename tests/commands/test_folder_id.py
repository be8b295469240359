"""A folder of commands has one name, whoever asks for it first."""

import asyncio
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from holdfast.commands.commands import Commands
from holdfast.commands.errors import FolderIdUnusable
from holdfast.commands.folder_id import folder_id_of
from tests.commands.world import REPOSITORY, kill_supervisor, ran, spec

ASKING = (
    "import sys; from pathlib import Path; from holdfast.commands.folder_id import folder_id_of; sys.stdin.readline(); "
)
SAY = "print(folder_id_of(Path(sys.argv[1])))"


async def test_the_name_stays_for_as_long_as_the_folder_does(commands: Commands, root: Path) -> None:
    name = await commands.folder_id()
    await ran(commands, spec("true"))
    await kill_supervisor(root)
    assert await commands.folder_id() == name
    async with Commands(root) as another:
        assert await another.folder_id() == name
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in (root / "place", root)] == [0o600, 0o700]


def test_a_copy_has_the_same_name_and_another_folder_another(tmp_path: Path) -> None:
    name = folder_id_of(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    assert folder_id_of(tmp_path / "copy") == name
    assert folder_id_of(tmp_path / "two") != name


async def test_any_number_of_processes_that_race_get_the_same(tmp_path: Path) -> None:
    root = tmp_path / "commands"
    asking = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ASKING + SAY, str(root)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(6)
    ]
    said = await asyncio.gather(*(one.communicate(b"go\n") for one in asking))
    assert {name.decode().strip() for name, _ in said} == {folder_id_of(root)}
    assert os.listdir(root) == ["place"]


def test_a_process_that_loses_the_race_for_the_folder_id_takes_the_winners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link
    first: list[str] = []

    def late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        first.append(folder_id_of(tmp_path))
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    assert [folder_id_of(tmp_path)] == first
    assert os.listdir(tmp_path) == ["place"]


@pytest.mark.parametrize("at", range(1, 10))
async def test_a_process_killed_while_it_writes_the_folder_id_leaves_a_whole_one_or_none(
    tmp_path: Path, at: int
) -> None:
    root = tmp_path / "commands"
    mortal = f"from tests.commands.mortal import arm; arm({at}); "
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ASKING + mortal + SAY, str(root)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
    )
    said, _ = await killed.communicate()
    left = (root / "place").read_text().strip() if (root / "place").exists() else ""
    name = folder_id_of(root)
    assert len(name) == 32
    assert left in ("", name)
    assert said.decode().strip() in ("", name)


@pytest.mark.parametrize("spoilt", [b"", b"\xff", b"short\n", b"x" * 32])
def test_a_name_that_was_spoilt_is_an_error_and_not_another_name(tmp_path: Path, spoilt: bytes) -> None:
    (tmp_path / "place").write_bytes(spoilt)
    with pytest.raises(FolderIdUnusable):
        folder_id_of(tmp_path)
    assert (tmp_path / "place").read_bytes() == spoilt


async def test_a_folder_that_can_not_be_made_is_an_error_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderIdUnusable, match="Not a directory"):
        await Commands(tmp_path / "file" / "below").folder_id()
