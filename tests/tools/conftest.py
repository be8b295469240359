"""A working directory with a neighbour that is none of its business, and sessions that run commands there."""

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.tools.shells import Session, sessions_in
from tests.tools.using import is_alive

NOBODY = 65534


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("hidden")
    work = tmp_path / "work"
    (work / "docs").mkdir(parents=True)
    (work / "a.txt").write_text("one\ntwo\nthree\n")
    (work / "to_secret").symlink_to(tmp_path / "secret.txt")
    (work / "to_parent").symlink_to(tmp_path)
    (work / "to_docs").symlink_to("docs")
    return work


@pytest.fixture
def home_without_root(home: Path) -> Iterator[Path]:
    """A copy of `home`, seen by a user who may not read and write everything, as root may."""
    if os.geteuid() != 0:
        yield home
        return
    with tempfile.TemporaryDirectory() as folder:  # Below `tmp_path`, other users can't open anything.
        copied = Path(shutil.copytree(home, Path(folder, "work"), symlinks=True))
        for path in (Path(folder), copied, *copied.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        os.setresuid(NOBODY, NOBODY, 0)
        try:
            yield copied
        finally:
            os.setresuid(0, 0, 0)


@pytest.fixture(scope="session")
def commands_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One supervisor for all tests that do it no harm."""
    folder = tmp_path_factory.mktemp("shared") / "commands"
    yield folder
    end_supervisor(folder)


def end_supervisor(folder: Path) -> None:
    lock = folder / "supervisor.lock"
    if lock.exists() and is_alive(pid := int(lock.read_text())):
        os.kill(pid, signal.SIGTERM)


@pytest.fixture
async def session(commands_folder: Path, tmp_path: Path) -> AsyncIterator[Session]:
    """A session that can run commands."""
    async with sessions_in(commands_folder, tmp_path / "tasks.db") as make:
        yield await make()
