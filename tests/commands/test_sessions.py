"""The commands of a session lie together, and can be forgotten together once they have ended."""

import asyncio
import os
import signal
import socket
import struct
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.commands.address import address
from holdfast.commands.command import CommandKey, session_name
from holdfast.commands.commands import Commands
from holdfast.commands.errors import CommandRefused
from holdfast.commands.protocol import Response, responses
from tests.commands.world import (
    REPOSITORY,
    SESSION,
    SETTINGS,
    everything,
    is_running,
    kill_supervisor,
    new_key,
    outcome,
    ran,
    refused,
    spec,
    started,
    supervisor_pid,
    until,
)

OTHER = CommandKey("owner", "another session", "call", 1)


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


async def test_all_that_a_session_wrote_is_below_one_folder(commands: Commands, root: Path) -> None:
    ours = [(await ran(commands, spec(f"echo ours {number}")))[0] for number in range(3)]
    await started(commands, OTHER, spec("echo theirs"))
    await outcome(commands, OTHER)
    folder = commands.session_folder("owner", SESSION)
    outputs = [path for path in files_below(folder) if path.name == "output"]
    assert sorted(path.read_bytes() for path in outputs) == [b"ours 0\n", b"ours 1\n", b"ours 2\n"]
    statuses = [await commands.status(key) for key in ours]
    assert sorted(Path(status.output_file) for status in statuses if status is not None) == outputs
    assert sorted((root / "keys").iterdir()) == sorted([folder, commands.session_folder("owner", "another session")])


def test_the_folder_of_a_session_is_absolute_however_the_root_is_given() -> None:
    assert Commands(Path("here")).session_folder("owner", SESSION).is_absolute()


def test_sessions_that_look_alike_are_not_the_same() -> None:
    pairs = [("a", "b"), ("ab", ""), ("", "ab"), ("a", 'b","'), ('a","b', ""), ("..", "/"), ("A", "b"), ("", "")]
    names = {session_name(owner, session) for owner, session in pairs}
    assert len(names) == len(pairs)
    assert all(name.isalnum() and len(name) == 40 for name in names)


async def test_a_session_whose_commands_have_ended_is_forgotten_whole(commands: Commands, root: Path) -> None:
    keys = [(await ran(commands, spec("echo x")))[0] for _ in range(3)]
    await commands.adopt(new_key())
    await started(commands, OTHER, spec("echo theirs"))
    await outcome(commands, OTHER)
    await commands.forget_session("owner", SESSION)
    await commands.forget_session("owner", SESSION)
    await commands.forget_session("nobody", "nowhere")
    assert [await commands.status(key) for key in keys] == [None] * 3
    assert os.listdir(root / "keys") == [session_name("owner", "another session")]
    assert await everything(commands, OTHER) == b"theirs\n"
    assert all("x" not in path.read_text() for path in files_below(root / "used")), "only the keys are remembered"
    for key in keys:
        assert (await refused(commands, key, spec("echo again"))).outcome is not None
        assert await commands.status(key) is None


async def test_forgetting_a_session_names_and_keeps_its_running_commands(commands: Commands) -> None:
    ended, _ = await ran(commands, spec("echo x"))
    running = [new_key(), new_key()]
    for key in running:
        await started(commands, key, spec("sleep 100"))
    with pytest.raises(CommandRefused) as refusal:
        await commands.forget_session("owner", SESSION)
    assert refusal.value.keys == tuple(sorted(running))
    assert all(key.tool_call in str(refusal.value) for key in running)
    assert await commands.status(ended) is None
    await refused(commands, ended, spec("echo again"))
    assert {status.key for status in await commands.listed()} == set(running)
    for key in running:
        await commands.kill(key, 0)
    await commands.forget_session("owner", SESSION)
    assert not commands.session_folder("owner", SESSION).exists()


async def test_a_leftover_process_counts_as_running(commands: Commands) -> None:
    key, end = await ran(commands, spec("sleep 100 & exit 0"))
    with pytest.raises(CommandRefused) as refusal:
        await commands.forget_session("owner", SESSION)
    assert refusal.value.keys == (key,)
    assert is_running(end.left_behind[0].pid)


async def test_a_command_that_is_being_killed_is_not_forgotten(commands: Commands, tmp_path: Path) -> None:
    """It has ended, but what it left behind takes its time."""
    stubborn = "trap 'touch asked' TERM; echo $$ > pid; touch up; for i in {1..9000}; do sleep 0.01; done"
    (tmp_path / "stubborn").write_text(stubborn)
    key, _ = await ran(commands, spec("(setsid bash stubborn > /dev/null 2>&1 &)", tmp_path))
    await until((tmp_path / "up").exists)
    killing = asyncio.create_task(commands.kill(key, 1000))
    await until((tmp_path / "asked").exists)
    for forget in (commands.forget(key), commands.forget_session("owner", SESSION)):
        with pytest.raises(CommandRefused) as refusal:
            await forget
        assert refusal.value.keys == (key,)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    report = await killing
    assert (report.escaped, report.status.key) == ((), key)
    await commands.forget_session("owner", SESSION)


async def test_a_command_without_a_supervisor_is_not_forgotten(commands: Commands, root: Path) -> None:
    key = new_key()
    await started(commands, key, spec("sleep 100"))
    await kill_supervisor(root)
    with pytest.raises(CommandRefused) as refusal:
        await commands.forget_session("owner", SESSION)
    assert refusal.value.keys == (key,)
    await commands.kill(key, 0)
    await commands.forget_session("owner", SESSION)
    assert await commands.status(key) is None


async def test_spoilt_records_keep_no_session_from_being_forgotten(commands: Commands, root: Path) -> None:
    key, _ = await ran(commands, spec("true"))
    for name in ("asked.json", "runner.json"):
        (commands.session_folder("owner", SESSION) / key.name / name).write_text("{")
    await commands.forget_session("owner", SESSION)
    assert os.listdir(root / "keys") == []


@pytest.mark.slow
@pytest.mark.parametrize("at", range(1, 20))
async def test_a_supervisor_killed_at_any_step_of_removing_a_command_leaves_its_key_used(root: Path, at: int) -> None:
    async with Commands(root, settings=SETTINGS) as commands:
        key, _ = await ran(commands, spec("echo x"))
        await kill_supervisor(root)
        launched = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.commands.mortal", str(root)),
            *(msgspec.json.encode(SETTINGS).decode(), str(at)),
            cwd=REPOSITORY,
        )
        assert await launched.wait() == 0
        await commands.forget(key)
        assert await commands.status(key) is None
        await refused(commands, key, spec("echo again"))


@pytest.mark.slow
@pytest.mark.parametrize("at", range(1, 38))
async def test_a_supervisor_killed_at_any_step_of_forgetting_leaves_what_can_be_forgotten_again(
    root: Path, at: int
) -> None:
    """Here the next supervisor is asked the same: in the end all of it is gone, and the other session is whole."""
    async with Commands(root, settings=SETTINGS) as commands:
        keys = [(await ran(commands, spec("echo x; echo y >&2")))[0] for _ in range(2)]
        await started(commands, OTHER, spec("echo theirs"))
        await outcome(commands, OTHER)
        await kill_supervisor(root)
        launched = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.commands.mortal", str(root)),
            *(msgspec.json.encode(SETTINGS).decode(), str(at)),
            cwd=REPOSITORY,
        )
        assert await launched.wait() == 0
        await commands.forget_session("owner", SESSION)
        for key in keys:
            assert await commands.status(key) is None
            await refused(commands, key, spec("echo again"))
        assert await everything(commands, OTHER) == b"theirs\n"
        await kill_supervisor(root)
        assert await commands.listed() == []
        assert os.listdir(root / "keys") == [session_name("owner", "another session")]


async def test_records_from_before_sessions_had_folders_are_ignored(commands: Commands, root: Path) -> None:
    """A command's records lay right below `keys`: they are left alone, and nobody takes them for a session."""
    key, _ = await ran(commands, spec("echo x"))
    await kill_supervisor(root)
    folder = commands.session_folder("owner", SESSION)
    (folder / key.name).rename(root / "keys" / key.name)
    (root / "keys" / "a file").touch()
    assert await commands.status(key) is None
    _, end = await ran(commands, spec("exit 3"))
    assert end.exit_code == 3
    assert (root / "keys" / key.name / "outcome.json").exists()
    assert supervisor_pid(root)


async def test_an_unknown_verb_of_a_later_version_is_answered_and_keeps_the_connection_open(
    commands: Commands, root: Path
) -> None:
    await commands.listed()
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(20)
        caller.connect(address(root))
        for number, verb in enumerate((b'{"type":"foretell"}', b'{"type":"list"}')):
            message = b'{"id":%d,"verb":%s}' % (number, verb)
            caller.sendall(struct.pack(">I", len(message)) + message)
        foretold, listed = _answer(caller), _answer(caller)
    assert (foretold.id, listed.id, listed.error) == (0, 1, "")
    assert "foretell" in foretold.error


def _answer(caller: socket.socket) -> Response:
    (length,) = struct.unpack(">I", _exactly(caller, 4))
    return responses.decode(_exactly(caller, length))


def _exactly(caller: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        piece = caller.recv(count - len(received))
        assert piece, "it hung up"
        received += piece
    return received
