"""A command outlives the runtime; and the supervisor's own death is never silent."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from holdfast.commands.command import CommandKey, Spec
from holdfast.commands.commands import Commands, Started
from tests.commands.world import (
    REPOSITORY,
    SETTINGS,
    everything,
    is_running,
    kill_supervisor,
    new_key,
    outcome,
    refused,
    spec,
    started,
    told,
    until,
)


class Runtime:
    """Another process that uses the same data directory."""

    def __init__(self, root: Path, wanted: list[tuple[CommandKey, Spec]]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.commands.runtime", str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(wanted) + b"\n")
        self._process.stdin.flush()

    async def line(self) -> list[str]:
        assert self._process.stdout is not None
        return (await asyncio.to_thread(self._process.stdout.readline)).decode().split()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


async def test_fault_45_commands_outlive_a_killed_runtime(root: Path, tmp_path: Path) -> None:
    """All three go on as the same processes; every line is there once, in order; exit codes are true."""
    os.mkfifo(tmp_path / "go")
    script = "for i in {1..500}; do echo $i; done; read x < go; for i in {501..1000}; do echo $i; done; exit "
    wanted = [(new_key(), spec(script + str(code), tmp_path)) for code in (0, 3, 255)]
    first = Runtime(root, wanted)
    pids = {line[1]: int(line[2]) for line in [await first.line() for _ in wanted]}
    first.kill()
    assert all(is_running(pid) for pid in pids.values())
    second = Runtime(root, wanted)
    again = [await second.line() for _ in wanted]
    assert {line[0] for line in again} == {"there"}
    assert {line[1]: int(line[2]) for line in again} == pids
    second.kill()
    async with Commands(root, settings=SETTINGS) as commands:
        for key, _ in wanted:
            status = await commands.adopt(key)
            assert status.state == "running"
            assert status.runner is not None
            assert status.runner.pid == pids[key.tool_call]
        # One writer for three readers of the pipe: each takes a line.
        await asyncio.to_thread(_let_all_go, tmp_path / "go", len(wanted))
        ends = [await outcome(commands, key) for key, _ in wanted]
        assert [end.exit_code for end in ends] == [0, 3, 255]
        for key, _ in wanted:
            assert await everything(commands, key) == b"".join(b"%d\n" % i for i in range(1, 1001))


def _let_all_go(gate: Path, count: int) -> None:
    with open(gate, "w") as file:
        file.write("on\n" * count)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
async def test_a_runtime_killed_at_any_moment_loses_and_repeats_nothing(root: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    trace = tmp_path / "trace"
    wanted = [
        (new_key(), spec(f"echo {i} >> {trace}; for n in 1 2 3; do echo {i} $n; sleep 0.0{n}; done; exit {i}"))
        for i, n in enumerate([chance.randint(1, 9) for _ in range(4)])
    ]
    for _ in range(4):
        runtime = Runtime(root, wanted)
        await asyncio.sleep(chance.uniform(0.05, 0.35))
        runtime.kill()
    async with Commands(root, settings=SETTINGS) as commands:
        for i, (key, what) in enumerate(wanted):
            status = await commands.adopt(key)
            if status.outcome is not None and status.outcome.reason == "not_started":
                assert status.record.command == "", "a command that was accepted must run"
                key = msgspec.structs.replace(key, attempt=2)
                await started(commands, key, what)
            end = await outcome(commands, key)
            assert (end.reason, end.exit_code) == ("exited", i)
            assert await everything(commands, key) == b"".join(b"%d %d\n" % (i, n) for n in (1, 2, 3))
    assert sorted(trace.read_text().split()) == ["0", "1", "2", "3"]


async def test_the_supervisor_outlives_the_terminal_and_its_process_group(root: Path) -> None:
    key = new_key()
    runtime = Runtime(root, [(key, spec("echo up; sleep 100"))])
    (_, _, pid) = await runtime.line()
    supervisor = int((root / "supervisor.lock").read_text())
    assert os.getsid(supervisor) not in (os.getsid(0), os.getsid(int(pid)))
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        os.kill(supervisor, number)
    runtime.kill()
    async with Commands(root, settings=SETTINGS) as commands:
        assert (await commands.adopt(key)).state == "running"
        kept = sorted(os.readlink(f"/proc/{supervisor}/fd/{n}") for n in (0, 1, 2))
        assert kept == sorted(["/dev/null", *[str(root / "supervisor.log")] * 2])
        # A signal that the supervisor takes, and one that the runtime ignores, is an ordinary one to a command.
        assert int(_field(pid, "SigIgn"), 16) & (1 << signal.SIGHUP - 1 | 1 << signal.SIGPIPE - 1) == 0
        assert int(_field(pid, "SigBlk"), 16) & 1 << signal.SIGHUP - 1 == 0


def _field(pid: str, name: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(name))


async def test_commands_of_a_dead_supervisor_are_unwatched_then_lost(commands: Commands, root: Path) -> None:
    key, gone = new_key(), new_key()
    running = await started(commands, key, spec("echo first; read x < <(sleep 100)"))
    await started(commands, gone, spec("echo short; sleep 100"))
    await told(commands, key, b"first")
    await told(commands, gone, b"short")
    waiting = asyncio.create_task(commands.wait(gone))
    status = await commands.status(gone)
    assert status is not None
    assert status.runner is not None
    await kill_supervisor(root)
    os.kill(status.runner.pid, signal.SIGKILL)
    end = (await waiting).outcome
    assert end is not None
    assert (end.reason, end.exit_code) == ("lost", None)
    assert await everything(commands, gone) == b"short\n"
    status = await commands.adopt(key)
    assert status.state == "unwatched"
    assert status.runner == running.runner
    assert await everything(commands, key) == b"first\n"
    report = await commands.kill(key, 1)
    assert report.escaped == ()
    assert report.status.outcome is not None
    assert (report.status.outcome.reason, report.status.outcome.exit_code) == ("killed", None)
    assert {one.name for one in report.killed} >= {"bash", "sleep"}


async def test_the_end_of_an_unwatched_command_reaches_those_who_wait(commands: Commands, root: Path) -> None:
    key = new_key()
    running = await started(commands, key, spec("sleep 100"))
    assert running.runner is not None
    await kill_supervisor(root)
    assert (await commands.adopt(key)).state == "unwatched"
    waiting = asyncio.create_task(commands.wait(key))
    await asyncio.sleep(0)
    os.kill(running.runner.pid, signal.SIGTERM)
    end = (await waiting).outcome
    assert end is not None
    assert (end.reason, end.exit_code) == ("lost", None)


@pytest.mark.parametrize("changed", ["started", "boot"])
async def test_a_pid_alone_is_not_the_command(commands: Commands, root: Path, changed: str) -> None:
    """Another process has the number by now, or the machine was started again."""
    key = new_key()
    running = await started(commands, key, spec("sleep 100"))
    assert running.runner is not None
    await kill_supervisor(root)
    # Starts are told in hundredths of a second: in the same one it would be the same process.
    began = int(running.runner.started)
    await until(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") > began + 1)
    bystander = await asyncio.create_subprocess_exec("sleep", "100")
    folder = Path(running.folder)
    record = msgspec.json.decode((folder / "runner.json").read_bytes())
    record |= {"pid": bystander.pid} if changed == "started" else {"boot": "another"}
    (folder / "runner.json").write_bytes(msgspec.json.encode(record))
    status = await commands.adopt(key)
    assert status.outcome is not None
    assert status.outcome.reason == "lost"
    await commands.kill(key, 0)
    assert bystander.returncode is None
    os.kill(bystander.pid, 0)
    bystander.kill()
    await bystander.wait()
    with contextlib.suppress(ProcessLookupError):
        os.kill(running.runner.pid, signal.SIGKILL)


async def test_a_key_of_an_earlier_boot_without_a_runner_is_lost_and_not_free(commands: Commands, root: Path) -> None:
    key = new_key()
    status = await started(commands, key, spec("true"))
    await outcome(commands, key)
    await kill_supervisor(root)
    folder = Path(status.folder)
    (folder / "outcome.json").unlink()
    (folder / "runner.json").unlink()
    record = msgspec.json.decode((folder / "asked.json").read_bytes()) | {"boot": "another"}
    (folder / "asked.json").write_bytes(msgspec.json.encode(record))
    assert (await outcome(commands, key)).reason == "lost"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
async def test_a_supervisor_killed_at_any_moment_is_never_silent(root: Path, tmp_path: Path, seed: int) -> None:
    """Three times while commands start, write and end: each one has an outcome, and each outcome is true."""
    chance = random.Random(seed)
    keys = [new_key() for _ in range(12)]
    async with Commands(root, settings=SETTINGS) as commands:

        async def run(number: int) -> None:
            await asyncio.sleep(chance.uniform(0, 0.4))
            script = f"echo x >> {tmp_path}/{number}; for n in 1 2 3; do echo $n; sleep 0.02; done; exit {number}"
            await commands.start(keys[number], spec(script))
            await commands.wait(keys[number])

        async def strike() -> None:
            for _ in range(3):
                await asyncio.sleep(chance.uniform(0.02, 0.25))
                await commands.listed()
                await kill_supervisor(root)

        await asyncio.gather(strike(), *(run(number) for number in range(len(keys))))
        for number, key in enumerate(keys):
            end = await outcome(commands, key)
            ran = (tmp_path / str(number)).read_text() if (tmp_path / str(number)).exists() else ""
            written = await everything(commands, key)
            match end.reason:
                case "exited":
                    assert (end.exit_code, ran, written) == (number, "x\n", b"1\n2\n3\n")
                case "lost":
                    assert ran in ("", "x\n")
                    assert b"1\n2\n3\n".startswith(written)
                case other:
                    assert (other, ran, written) == ("not_started", "", b"")


@pytest.mark.slow
@pytest.mark.parametrize("at", range(1, 49))
async def test_a_supervisor_killed_at_any_step_starts_nothing_twice(root: Path, tmp_path: Path, at: int) -> None:
    """The records are true: a command recorded as not started has not run, and one recorded as ended has ended."""
    trace = tmp_path / "trace"
    key, what = new_key(), spec(f"echo ran >> {trace}; echo said; echo more >&2; exit 7")
    launched = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.commands.mortal", str(root), msgspec.json.encode(SETTINGS).decode(), str(at)),
        cwd=REPOSITORY,
    )
    assert await launched.wait() == 0
    async with Commands(root, settings=SETTINGS) as commands:
        answer = await commands.start(key, what)
        end = await outcome(commands, key)
        marked = answer.status.runner.pid if answer.status.runner else None
        await until(lambda: marked is None or not is_running(marked))
        ran = trace.read_text().split() if trace.exists() else []
        match end.reason:
            case "exited":
                assert (end.exit_code, ran) == (7, ["ran"])
                assert sorted((await everything(commands, key)).split()) == [b"more", b"said"]
            case "not_started":
                assert ran == []
            case "lost":
                assert ran in ([], ["ran"])
                assert not isinstance(answer, Started) or end.exit_code is None
            case other:
                raise AssertionError(other)
        assert (await refused(commands, key, what)).outcome == end
        assert (await commands.adopt(key)).outcome == end
        assert (trace.read_text().split() if trace.exists() else []) == ran
