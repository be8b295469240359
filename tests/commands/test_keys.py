"""A command starts only by taking its key, and a key is taken once."""

import asyncio
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from holdfast.commands import used_keys
from holdfast.commands.command import CommandKey
from holdfast.commands.commands import AlreadyThere, Commands, Started
from holdfast.commands.errors import CommandRefused, StartTooLate
from holdfast.commands.processes import boot_seconds
from holdfast.commands.service import MEMORY_SECONDS
from tests.commands.world import (
    SETTINGS,
    everything,
    kill_supervisor,
    new_key,
    outcome,
    ran,
    refused,
    spec,
    started,
)


async def test_a_key_starts_one_command_however_many_want_it(root: Path, tmp_path: Path) -> None:
    """Each with a connection of its own, and with no supervisor there yet: there is one in the end."""
    key = new_key()
    everybody = [Commands(root, settings=SETTINGS) for _ in range(6)]
    what = spec("echo ran >> trace", tmp_path)
    answers = await asyncio.gather(*(one.start(key, what) for one in everybody))
    assert [isinstance(answer, Started) for answer in answers].count(True) == 1
    assert len({answer.status.runner for answer in answers}) == 1
    ends = await asyncio.gather(*(outcome(one, key) for one in everybody))
    assert len(set(ends)) == 1
    assert (tmp_path / "trace").read_text() == "ran\n"
    await asyncio.gather(*(one.close() for one in everybody))


async def test_adopting_a_key_before_its_command_started_keeps_it_from_starting(
    commands: Commands, tmp_path: Path
) -> None:
    key = new_key()
    status = await commands.adopt(key)
    assert status.outcome is not None
    assert status.outcome.reason == "not_started"
    assert (await refused(commands, key, spec("touch ran", tmp_path))).outcome == status.outcome
    following = CommandKey(key.owner, key.session, key.tool_call, 2)
    await started(commands, following, spec("touch second", tmp_path))
    await outcome(commands, following)
    assert sorted(os.listdir(tmp_path)) == ["commands", "second"]


async def test_adopting_is_repeatable_and_never_starts_anything(commands: Commands) -> None:
    key, end = await ran(commands, spec("echo once; exit 2"))
    assert [(await commands.adopt(key)).outcome for _ in range(3)] == [end] * 3
    assert await everything(commands, key) == b"once\n"


async def test_keys_that_look_alike_are_not_the_same() -> None:
    keys = [
        CommandKey("a", "b", "c", 1),
        CommandKey("a", "b", "c", 11),
        CommandKey("a", "bc", "", 1),
        CommandKey("ab", "", "c", 1),
        CommandKey("a", 'b","c', "", 1),
        CommandKey("..", "/", "\0", 1),
        CommandKey("A", "b", "c", 1),
    ]
    assert len({key.name for key in keys}) == len(keys)
    assert all(key.name.isalnum() and len(key.name) == 40 for key in keys)


async def test_a_key_taken_without_a_start_never_starts(commands: Commands, root: Path, tmp_path: Path) -> None:
    """As a supervisor leaves it that dies between taking the key and starting the command."""
    key = new_key()
    status = await started(commands, key, spec("touch ran", tmp_path))
    await outcome(commands, key)
    await kill_supervisor(root)
    (tmp_path / "ran").unlink()
    for name in ("runner.json", "outcome.json"):
        (Path(status.folder) / name).unlink()
    assert (await refused(commands, key, spec("touch ran", tmp_path))).outcome is not None
    assert (await outcome(commands, key)).reason == "not_started"
    assert not (tmp_path / "ran").exists()


async def test_folders_that_a_crash_left_half_written_are_removed(commands: Commands, root: Path) -> None:
    key, _ = await ran(commands, spec("true"))
    await kill_supervisor(root)
    session = commands.session_folder(key.owner, key.session)
    for half in (root / "keys" / ".half.gone", session / ".half.1", root / "keys" / "empty"):
        half.mkdir()
    (session / ".half.1" / "asked.json").write_text("{")
    assert await commands.status(key) is not None
    assert list((root / "keys").iterdir()) == [session]
    assert [path.name for path in session.iterdir()] == [key.name]


async def test_output_goes_after_the_retention_but_the_key_stays_used(commands: Commands, root: Path) -> None:
    old, new, ancient = [await ran(commands, spec("echo x")) for _ in range(3)]
    await kill_supervisor(root)
    _age(commands, old[0], 90_000)
    _age(commands, ancient[0], 90_000 + MEMORY_SECONDS)
    assert await everything(commands, new[0]) == b"x\n"
    status = await commands.adopt(old[0])
    assert status.outcome is not None
    assert (status.outcome.exit_code, status.output_bytes) == (0, 0)
    assert await everything(commands, old[0]) == b""
    assert await commands.status(ancient[0]) is None


def _age(commands: Commands, key: CommandKey, seconds: float) -> None:
    file = commands.session_folder(key.owner, key.session) / key.name / "outcome.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"at": time.time() - seconds}))


async def test_a_command_that_has_ended_can_be_forgotten(commands: Commands, root: Path) -> None:
    key, _ = await ran(commands, spec("echo x"))
    await commands.forget(key)
    await commands.forget(key)
    assert os.listdir(root / "keys") == []
    running = new_key()
    await started(commands, running, spec("sleep 100"))
    with pytest.raises(CommandRefused):
        await commands.forget(running)


async def test_the_key_of_a_removed_command_starts_nothing(commands: Commands, root: Path, tmp_path: Path) -> None:
    """A process was frozen right before its request, and another one ran the command; also after a new start of the
    supervisor."""
    what = spec("echo ran >> trace", tmp_path)
    key, _ = await ran(commands, what)
    await commands.forget(key)
    for _ in range(2):
        late = await refused(commands, key, what)
        assert late.outcome is not None
        assert (late.outcome.reason, late.record.command) == ("lost", "")
        assert (await commands.adopt(key)).outcome is not None
        assert await commands.status(key) is None
        await kill_supervisor(root)
    assert (tmp_path / "trace").read_text() == "ran\n"
    assert [path.read_bytes() for path in (root / "used").iterdir()] == [b""]


async def test_the_key_of_a_removed_command_is_forgotten_as_late_as_any_other(commands: Commands, root: Path) -> None:
    (old, _), (newer, _), (new, _) = [await ran(commands, spec("echo x")) for _ in range(3)]
    for key in (old, newer, new):
        await commands.forget(key)
    await kill_supervisor(root)
    kept = SETTINGS.retention_seconds + MEMORY_SECONDS
    for key, age in ((old, kept + 10), (newer, kept - 1000)):
        os.utime(root / "used" / key.name, (time.time() - age,) * 2)
    for key in (newer, new):
        await refused(commands, key, spec("true"))
    await started(commands, old, spec("true"))


@pytest.mark.parametrize("spoilt", ["a file", "a folder in it", "removed"])
async def test_marks_that_can_not_be_read_keep_no_supervisor_from_starting(
    commands: Commands, root: Path, spoilt: str
) -> None:
    key, _ = await ran(commands, spec("echo x"))
    await commands.forget(key)
    await kill_supervisor(root)
    shutil.rmtree(root / "used")
    if spoilt == "a file":
        (root / "used").touch()
    elif spoilt == "a folder in it":
        (root / "used" / "folder").mkdir(parents=True)
        os.utime(root / "used" / "folder", (0, 0))
    assert await commands.listed() == []
    if spoilt != "a file":
        await started(commands, new_key(), spec("true"))
        return
    with pytest.raises(CommandRefused, match="used"):  # Whether the key is free can't be known.
        await commands.start(new_key(), spec("true"))


async def test_the_output_of_a_removed_command_goes_even_if_its_key_can_not_be_marked(
    commands: Commands, root: Path
) -> None:
    """The disk may be full: room is made first, and the rest is removed when there is some."""
    key, _ = await ran(commands, spec("echo x"))
    (root / "used").rmdir()
    (root / "used").touch()
    with pytest.raises(CommandRefused, match="used"):
        await commands.forget(key)
    assert await everything(commands, key) == b""
    assert await commands.status(key) is not None, "its key stays used"
    (root / "used").unlink()
    await commands.forget(key)
    await refused(commands, key, spec("echo again"))


def test_marks_are_on_disk_before_anything_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(used_keys, "sync_directory", lambda path: synced.append(path.name))
    used_keys.UsedKeys(tmp_path).add(["a", "b"])
    assert synced == [tmp_path.name, "used"]
    used_keys.UsedKeys(tmp_path).add(["c"])
    assert synced == [tmp_path.name, "used", "used"]


async def test_a_request_that_comes_too_late_starts_nothing_and_leaves_the_key_free(
    commands: Commands, tmp_path: Path
) -> None:
    """The supervisor looks at the clock, not the sender: a process may be frozen at any moment before it sends."""
    key, what = new_key(), spec("echo ran >> trace", tmp_path)
    with pytest.raises(StartTooLate):
        await commands.start(key, what, start_before=boot_seconds())
    assert await commands.status(key) is None
    assert isinstance(await commands.start(key, what, start_before=boot_seconds() + 1000), Started)
    await outcome(commands, key)
    again = await commands.start(key, what, start_before=boot_seconds())
    assert isinstance(again, AlreadyThere), "what runs already can be found however late"
    assert (tmp_path / "trace").read_text() == "ran\n"
