"""One command from its start to its end, also one that is out to make trouble."""

import asyncio
import hashlib
import os
import shutil
import stat
from pathlib import Path

import pytest

from holdfast.commands.command import Limits, Spec
from holdfast.commands.commands import Commands
from holdfast.commands.errors import CommandRefused, NoSuchCommand
from holdfast.commands.output import STDERR, STDOUT
from tests.commands.world import everything, is_running, new_key, outcome, ran, spec, started, told, until


def content(path: str) -> bytes:
    return Path(path).read_bytes()


def below(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


async def test_a_command_has_its_exit_code_and_its_output(commands: Commands) -> None:
    key, end = await ran(commands, spec("echo out; exit 7"))
    assert (end.reason, end.exit_code, end.output_bytes) == ("exited", 7, 4)
    assert await everything(commands, key) == b"out\n"
    status = await commands.status(key)
    assert status is not None
    assert content(status.output_file) == b"out\n"


async def test_a_signal_is_128_and_its_number(commands: Commands) -> None:
    _, end = await ran(commands, spec("kill -SEGV $$"))
    assert (end.reason, end.exit_code) == ("exited", 139)


async def test_output_of_any_bytes_is_exact(commands: Commands) -> None:
    """Every byte, invalid UTF-8, NUL, no newline at the end."""
    key, _ = await ran(commands, spec('for i in {0..255}; do printf "\\\\x$(printf %x $i)"; done'))
    assert await everything(commands, key) == bytes(range(256))


async def test_streams_can_be_told_apart(commands: Commands) -> None:
    key = new_key()
    await started(commands, key, spec("echo a; sleep 0.05; echo b >&2; sleep 0.05; echo c; sleep 0.05; echo d >&2"))
    await outcome(commands, key)
    assert await everything(commands, key) == b"a\nb\nc\nd\n"
    assert (await commands.read(key, 0, 99, "stdout")).data == b"a\nc\n"
    assert (await commands.read(key, 0, 99, "stderr")).data == b"b\nd\n"
    assert (await commands.read(key, 3, 99, "stderr")).data == b"\n"
    assert (await commands.size(key, "stderr"), await commands.size(key)) == (4, 8)
    assert [run.stream for run in await commands.runs(key)] == [STDOUT, STDERR, STDOUT, STDERR]


async def test_merged_streams_are_in_the_exact_order(commands: Commands) -> None:
    key, _ = await ran(commands, spec("for i in {1..200}; do echo $i; echo $i >&2; done", merged=True))
    assert await everything(commands, key) == b"".join(f"{i}\n{i}\n".encode() for i in range(1, 201))


async def test_a_command_reads_nothing(commands: Commands) -> None:
    key, end = await ran(commands, spec("cat; read x; echo $?"))
    assert (end.exit_code, await everything(commands, key)) == (0, b"1\n")


async def test_fault_61_the_environment_is_an_allow_list(root: Path) -> None:
    """Neither the command nor the supervisor, whose environment it may read, holds a secret."""
    world = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "LC_ALL": "C", "HOLDFAST_TOKEN": "s3", "MY_KEY": "s3"}
    async with Commands(root, environment=world) as commands:
        key = new_key()
        look = Spec(
            command="env; tr '\\0' '\\n' < /proc/$PPID/environ; tr '\\0' '\\n' < /proc/self/environ",
            directory="/",
            environment={"EXTRA": "given"},
        )
        await started(commands, key, look)
        await outcome(commands, key)
        written = await everything(commands, key)
    assert b"s3" not in written
    assert {b"HOME=/nowhere", b"LC_ALL=C", b"EXTRA=given"} <= set(written.splitlines())
    records = [path for path in below(root) if path.suffix == ".json"]
    assert len(records) == 3
    assert [path for path in records if b"given" in content(str(path))] == []


async def test_no_descriptor_of_ours_reaches_a_command(commands: Commands) -> None:
    held = new_key()
    await started(commands, held, spec("sleep 100"))
    key, _ = await ran(commands, spec("ls -l /proc/self/fd"))
    listed = (await everything(commands, key)).decode().splitlines()[1:]
    assert [line.split()[8] for line in listed] == ["0", "1", "2", "3"]
    assert listed[3].endswith("/fd")


async def test_files_are_closed_to_others_but_a_command_has_the_callers_umask(commands: Commands, root: Path) -> None:
    key, _ = await ran(commands, spec("umask"))
    here = os.umask(0)
    os.umask(here)
    assert int(await everything(commands, key), 8) == here
    assert [path for path in (root, *below(root)) if stat.S_IMODE(path.lstat().st_mode) & 0o077] == []


async def test_a_command_has_the_limit_on_files_that_we_have(commands: Commands) -> None:
    key, _ = await ran(commands, spec("ulimit -Sn; ulimit -Hn"))
    here, _ = await asyncio.gather(
        asyncio.create_subprocess_shell("ulimit -Sn; ulimit -Hn", stdout=asyncio.subprocess.PIPE), asyncio.sleep(0)
    )
    assert await everything(commands, key) == (await here.communicate())[0]


async def test_the_directory_may_be_one_that_only_we_can_enter(commands: Commands, tmp_path: Path) -> None:
    key, _ = await ran(commands, spec("pwd", tmp_path))
    assert await everything(commands, key) == f"{tmp_path}\n".encode()


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (Spec(command="true", directory="/nowhere/at/all"), "No such file"),
        (Spec(command="true", directory="/dev/null"), "Not a directory"),
        (Spec(command="true", directory="/", shell="/dev/null"), "Permission denied"),
        (Spec(command="true", directory="/", shell="/no/shell"), "No such file"),
        (Spec(command=":" * 3_000_000, directory="/"), "Argument list too long"),
        (Spec(command="a\0b", directory="/"), "null byte"),
        (Spec(command="true", directory="/", inside=("no-such-sandbox",)), "No such file"),
        (Spec(command="true", directory="/", environment={"A=B": "c"}), "illegal environment"),
    ],
    ids=["no directory", "a file", "not executable", "no shell", "too long", "NUL", "no sandbox", "environment"],
)
async def test_a_command_that_can_not_be_started_says_why(commands: Commands, broken: Spec, why: str) -> None:
    _, end = await ran(commands, broken)
    assert (end.reason, end.exit_code) == ("not_started", None)
    assert why in end.detail
    assert await commands.listed() == []


async def test_a_key_stays_free_if_the_process_that_asked_died_before_its_folder_was_opened(
    commands: Commands, tmp_path: Path
) -> None:
    """The folder has the name under which that process had it open; the next process asks again with its own."""
    key = new_key()
    dead = await asyncio.create_subprocess_exec("true")
    await dead.wait()
    with pytest.raises(CommandRefused):
        await commands.start(key, Spec(command="true", directory=f"/proc/{dead.pid}/fd/3"))
    assert await commands.status(key) is None
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        await started(commands, key, Spec(command="pwd", directory=f"/proc/{os.getpid()}/fd/{descriptor}"))
    finally:
        os.close(descriptor)
    await outcome(commands, key)
    assert await everything(commands, key) == f"{tmp_path}\n".encode()


async def test_a_long_command_line_runs(commands: Commands) -> None:
    key, _ = await ran(commands, spec("echo " + "x" * 100_000))
    assert await everything(commands, key) == b"x" * 100_000 + b"\n"


async def test_a_program_may_be_put_around_the_shell(commands: Commands) -> None:
    key, end = await ran(commands, Spec(command="exit $((LEVEL + 1))", directory="/", inside=("env", "LEVEL=3")))
    assert (end.exit_code, await everything(commands, key)) == (4, b"")


async def test_output_is_read_while_it_comes(commands: Commands, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    key = new_key()
    await started(commands, key, spec("echo first; read x < go; echo second", tmp_path))
    pieces = commands.follow(key)
    assert (await anext(pieces)).data == b"first\n"
    assert (await commands.wait(key, 0.01)).outcome is None
    await asyncio.to_thread((tmp_path / "go").write_text, "on\n")
    assert [piece.data async for piece in pieces] == [b"second\n"]
    assert [piece.data async for piece in commands.follow(key, 2)] == [b"rst\nsecond\n"]


async def test_many_follow_one_command(commands: Commands) -> None:
    key = new_key()
    await started(commands, key, spec("for i in {1..20000}; do echo line $i; done"))

    async def followed() -> bytes:
        return b"".join([chunk.data async for chunk in commands.follow(key)])

    wanted = b"".join(f"line {i}\n".encode() for i in range(1, 20_001))
    assert [one == wanted for one in await asyncio.gather(*(followed() for _ in range(8)))] == [True] * 8


async def test_a_wait_that_is_over_leaves_nothing_with_the_supervisor(commands: Commands, root: Path) -> None:
    key = new_key()
    await started(commands, key, spec("sleep 100"))
    for _ in range(50):
        assert (await commands.wait(key, 0.001)).state == "running"
    assert (await commands.wait_for_output(key, 0, 0.001)).state == "running"
    assert (await commands.kill(key, 0)).escaped == ()
    assert (await outcome(commands, key)).reason == "killed"


async def test_a_command_may_close_its_outputs(commands: Commands) -> None:
    key, end = await ran(commands, spec("echo a; exec >&- 2>&-; sleep 0.2; exit 5"))
    assert (end.exit_code, await everything(commands, key)) == (5, b"a\n")


async def test_a_leftover_process_is_named_and_can_still_write_output(commands: Commands, tmp_path: Path) -> None:
    """It holds the pipe, but nobody waits for it."""
    os.mkfifo(tmp_path / "go")
    key, end = await ran(commands, spec("(read x < go; echo late) & echo early; exit 3", tmp_path))
    assert (end.exit_code, end.output_bytes) == (3, 6)
    assert [one.name for one in end.left_behind] == ["bash"]
    assert [status.key for status in await commands.listed()] == [key]
    await asyncio.to_thread((tmp_path / "go").write_text, "on\n")
    status = await commands.status(key)
    assert status is not None
    await until(lambda: Path(status.output_file).read_bytes() == b"early\nlate\n")
    await until(lambda: not is_running(end.left_behind[0].pid))


async def test_output_of_a_process_that_ends_right_after_the_shell_is_kept(commands: Commands) -> None:
    """It is waited for, a little; on a slow machine it may be named as left behind, and is heard all the same."""
    key, _ = await ran(commands, spec("echo hello > >(sleep 0.03; cat)"))
    async with asyncio.timeout(30):
        while (await everything(commands, key)) != b"hello\n":  # noqa: ASYNC110 - the supervisor is another process
            await asyncio.sleep(0.01)


async def test_bytes_in_the_pipe_at_the_end_of_a_command_belong_to_its_output(commands: Commands) -> None:
    """Also when something was left behind that keeps the pipe open."""
    keys = [new_key() for _ in range(40)]
    fast = spec("exec 3>&1; head -c 60000 /dev/zero; sleep 5 & exit 1")
    await asyncio.gather(*(started(commands, key, fast) for key in keys))
    assert {(await outcome(commands, key)).output_bytes for key in keys} == {60_000}


async def test_large_output_is_whole(commands: Commands) -> None:
    key, end = await ran(commands, spec("seq 1 6000000"))
    digest = hashlib.sha256()
    async for chunk in commands.follow(key):
        digest.update(chunk.data)
    wanted = b"".join(b"%d\n" % i for i in range(1, 6_000_001))
    assert (end.output_bytes, digest.digest()) == (len(wanted), hashlib.sha256(wanted).digest())


async def test_ceilings_of_the_system_hold(commands: Commands, tmp_path: Path) -> None:
    limits = Limits(file_bytes=1_000_000, memory_bytes=200_000_000)
    _, end = await ran(commands, spec("exec head -c 5000000 /dev/zero > big", tmp_path, limits=limits))
    assert (end.exit_code, (tmp_path / "big").stat().st_size) == (128 + 25, 1_000_000)
    _, end = await ran(commands, spec("exec head -c 1000000000 /dev/zero | tail -c 1000000000", limits=limits))
    assert end.exit_code not in (0, None)


async def test_the_ceiling_of_files_is_not_one_of_the_output(commands: Commands) -> None:
    key, end = await ran(commands, spec("seq 1 20000", limits=Limits(file_bytes=1000)))
    assert (end.exit_code, await everything(commands, key)) == (0, b"".join(b"%d\n" % i for i in range(1, 20_001)))


async def test_the_ceiling_of_processes_holds_for_every_user_but_root(commands: Commands) -> None:
    """The system counts all processes of the user."""
    stranger = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups") if os.getuid() == 0 else ()
    if stranger and not shutil.which("setpriv"):
        pytest.skip("root is never held to it, and nothing is here to become somebody else")
    script, limits = "echo on; /bin/true; echo $?", Limits(processes=1)
    # The plain shell, which does not try again for a quarter of a minute.
    key, end = await ran(commands, Spec(command=script, directory="/", inside=stranger, limits=limits, shell="/bin/sh"))
    assert end.exit_code not in (0, None)
    assert (await commands.read(key, 0, 99, "stdout")).data == b"on\n"
    assert b"fork" in (await commands.read(key, 0, 9999, "stderr")).data


async def test_the_ceiling_of_time_ends_it_with_the_reason(commands: Commands) -> None:
    key, end = await ran(commands, spec("echo begun; sleep 100", limits=Limits(seconds=0.3)))
    assert (end.reason, end.exit_code) == ("time", 143)
    assert await everything(commands, key) == b"begun\n"


async def test_waiting_for_an_unknown_key_is_refused(commands: Commands) -> None:
    key = new_key()
    assert await commands.status(key) is None
    for asked in (commands.wait(key), commands.read(key, 0, 1), commands.kill(key)):
        with pytest.raises(NoSuchCommand):
            await asked


async def test_fault_43_a_broken_pipe_does_not_hide_the_exit_code(commands: Commands) -> None:
    key = new_key()
    await started(commands, key, spec("set -o pipefail; yes | head -1; echo ready; exit 6"))
    await told(commands, key, b"ready")
    assert (await outcome(commands, key)).exit_code == 6
