"""Holdfast's files are readable by their user alone from their creation, and a file opened to others is reported."""

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Runtime
from holdfast.cli.settings import load_settings
from holdfast.config import load
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.observability.logs import RotatingFile
from tests.wire.copilot.methods.world import desk_at


@pytest.fixture(autouse=True)
def _generous_umask() -> Iterator[None]:
    """A umask with which new files are open to everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """All that is in there, the folder itself included, and not for its user alone."""
    found = [folder, *folder.rglob("*")]
    assert len(found) > 1
    return [f"{path} {path.lstat().st_mode:o}" for path in found if stat.S_IMODE(path.lstat().st_mode) & 0o077]


def runs_a_command() -> ScriptedModel:
    call = ScriptedCall("exec", {"command": "echo hello"})
    return ScriptedModel(Script((Rule(replies=(Reply(tool_calls=(call,)), Reply(text="Done."))),)))


async def work_in(folder: Path, **options: object) -> Path:
    """A data directory that is not there yet, after a session ran a command; and what is above it."""
    data, work = folder / "above" / "data", folder / "work"
    work.mkdir()
    async with Runtime(config=load({"data_dir": str(data), **options}, {}), model=runs_a_command()) as runtime:
        session = await runtime.session(working_directory=str(work), allow=("shell",))
        assert (await session.run("Say hello")).text == "Done."
        return data.parent


async def test_files_in_the_data_directory_are_readable_by_their_user_alone(tmp_path: Path) -> None:
    assert open_to_others(await work_in(tmp_path)) == []


async def test_files_beside_a_postgresql_database_are_readable_by_their_user_alone(
    tmp_path: Path, postgres_url: str
) -> None:
    assert open_to_others(await work_in(tmp_path, database=postgres_url)) == []


async def test_the_folder_of_a_copilot_session_is_for_its_user_alone(tmp_path: Path) -> None:
    async with desk_at(tmp_path) as desk:
        session = await desk.client().session()
        assert session.folder.is_dir()
        assert open_to_others(session.folder.parent) == []


def test_a_log_stays_so_when_it_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.log"
    handler = RotatingFile(path, maxBytes=1, backupCount=2, encoding="utf-8")
    for line in "abc":
        handler.handle(logging.LogRecord("x", logging.INFO, "", 0, line, None, None))
    handler.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["holdfast.log", "holdfast.log.1", "holdfast.log.2"]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * 3


def test_a_folder_that_others_can_get_into_is_warned_of_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    options: dict[str, object] = {"data_dir": str(data)}
    for mode, is_open in ((0o700, False), (0o755, True), (0o711, True), (0o770, True)):
        data.mkdir(exist_ok=True)
        data.chmod(mode)
        (data / "holdfast.db").touch(mode=0o600)
        (data / "holdfast.db").chmod(0o644 if is_open else 0o600)
        load_settings(options)
        said = capsys.readouterr().err
        assert (f"WARNING: {data} is not for you alone: others may" in said) is is_open
        assert (f"Run: chmod u=rwx,go= {data}\n" in said) is is_open
        assert ("others may read holdfast.db" in said) is is_open


async def test_a_program_logs_a_warning_about_a_folder_that_is_open_to_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o777)
    async with Runtime(config=load({"data_dir": str(data)}, {}), model=runs_a_command()):
        pass
    assert [record.levelname for record in caplog.records if "not for you alone" in record.message] == ["WARNING"]
