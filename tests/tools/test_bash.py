"""`bash` and its companions: the same commands under the names that Copilot's models know, told as they are used to."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.commands.folder import CommandFolder
from holdfast.events.tool import ToolCompleted
from holdfast.models.scripted import Reply
from holdfast.tools import bash as module
from holdfast.tools.bash import Bash, bash, list_bash, read_bash, stop_bash
from holdfast.tools.errors import ToolFailure
from tests.faults.world import bodies_of, call, comes_true, patience, runtime_on, scripted
from tests.tools.shells import SECRET, Session
from tests.tools.test_exec import FAMILY, all_gone, all_here
from tests.tools.using import asked, context, is_alive

pytestmark = pytest.mark.anyio

TOOLS = ("bash", "read_bash", "stop_bash", "list_bash")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo hello", "hello\n<exited with exit code 0>"),
        ("echo hello && echo world", "hello\nworld\n<exited with exit code 0>"),
        ("printf hello", "hello\n<exited with exit code 0>"),
        ("true", "<exited with exit code 0>"),
        ("echo out; echo err >&2; echo out again; exit 3", "out\nerr\nout again\n<exited with exit code 3>"),
        ("no-such-program-here", "bash: line 1: no-such-program-here: command not found\n<exited with exit code 127>"),
        ("printf 'a\\n\\n'", "a\n\n<exited with exit code 0>"),
        ("printf '\\303\\251 \\377'", "é \ufffd\n<exited with exit code 0>"),
        ("kill -9 $$", "<exited with exit code 137>"),
        ("cat; echo nothing to read", "nothing to read\n<exited with exit code 0>"),
        ("yes | head -1", "y\n<exited with exit code 0>"),
        ("(echo deep)\necho 'é\n日'", "deep\né\n日\n<exited with exit code 0>"),
        ("  echo spaces  ", "spaces\n<exited with exit code 0>"),
        ("[[ abc == a* ]] && echo bash", "bash\n<exited with exit code 0>"),
        ("sleep 0 & wait; echo waited", "waited\n<exited with exit code 0>"),
    ],
)
async def test_both_outputs_come_back_in_order_with_the_exit_code(
    session: Session, home: Path, command: str, said: str
) -> None:
    answer = await session.use(bash, home, command=command)
    assert answer.replace("/bin/bash: ", "bash: ").replace("/usr/bin/bash: ", "bash: ") == said


async def test_the_order_of_both_outputs_is_exact(session: Session, home: Path) -> None:
    said = await session.use(bash, home, command="for i in {1..500}; do echo out $i; echo err $i >&2; done")
    assert said.splitlines()[:-1] == [f"{stream} {number}" for number in range(1, 501) for stream in ("out", "err")]


async def test_a_command_that_fails_is_a_result_and_no_error(session: Session, home: Path) -> None:
    found = await session.outcome(bash, home, command="false")
    assert found.success
    assert found.ending is not None
    assert (found.ending.status, found.ending.exit_code) == ("failed", 1)


async def test_a_command_runs_in_the_working_directory(session: Session, home: Path) -> None:
    assert await session.use(bash, home, command="cat a.txt") == "one\ntwo\nthree\n<exited with exit code 0>"
    assert await session.use(bash, home, command="pwd; cd docs") == f"{home}\n<exited with exit code 0>"


async def test_arguments_of_other_shell_tools_are_accepted(session: Session, home: Path) -> None:
    added = {"description": "Say it", "mode": "sync", "initial_wait": 30, "shellId": "main", "detach": False}
    assert await session.use(bash, home, command="echo x", timeout=5.5, **added) == "x\n<exited with exit code 0>"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"command": " \n"}, "command is required"),
        ({"command": "echo a\0b"}, "NUL"),
        ({"command": "x" * 30_001}, "at most 30,000 characters"),
        ({"command": "true", "mode": "later"}, "mode"),
        ({"command": "true", "timeout": "soon"}, "timeout"),
        ({"command": "true", "shellId": "x" * 65}, "at most 64 characters"),
        ({}, "command"),
    ],
)
def test_an_invalid_command_is_refused_before_permission_is_requested(
    home: Path, arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(ToolFailure, match=why):
        asked(bash, home, **arguments)


async def test_without_a_working_directory_there_are_no_commands(session: Session, home: Path) -> None:
    with pytest.raises(ToolFailure, match="no working directory"):
        asked(bash, None, command="true")
    for directory, why in ((home / "gone", "No such file or directory"), (home / "a.txt", "Not a directory")):
        found = await session.outcome(bash, directory, command="true")
        assert not found.success
        assert found.content.startswith("The command can't be started: ")
        assert why in found.content


async def test_a_tool_without_commands_says_that_they_can_not_be_run(home: Path) -> None:
    for tool, arguments in (
        (bash, {"command": "true"}),
        (read_bash, {"shellId": "x"}),
        (stop_bash, {"shellId": "x"}),
        (list_bash, {}),
    ):
        parsed = tool.parse(msgspec.json.encode(arguments).decode())
        with pytest.raises(ToolFailure, match=r"^commands can't be run here$"):
            await tool.run(parsed, context(home))


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 30),
        ({"timeout": -3}, 1),
        ({"timeout": 7.5}, 7.5),
        ({"initial_wait": 0}, 1),
        ({"initial_wait": 9999}, 300),
        ({"initial_wait": 5, "timeout": 50}, 5),
    ],
)
def test_the_wait_is_kept_within_reason(given: dict[str, float], seconds: float) -> None:
    assert Bash(command="true", **given).seconds() == seconds  # type: ignore[arg-type]


def test_a_sleep_is_no_error_for_these_models(home: Path) -> None:
    assert asked(bash, home, command="sleep 30").kind == "shell"


# Long outputs


async def test_of_a_long_output_the_beginning_and_the_end_are_kept(
    session: Session, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = msgspec.structs.replace(module.BOTH_STREAMS, whole_bytes=2_000, head_bytes=1_000, tail_bytes=1_000)
    monkeypatch.setattr(module, "BOTH_STREAMS", small)
    said = await session.use(bash, home, command="seq 100000 999999")
    (row,) = await session.rows()
    lines = said.splitlines()
    assert lines[0] == "100000"
    assert lines[-2:] == ["999999", "<exited with exit code 0>"]
    (marker,) = [line for line in lines if "left out" in line]
    assert f"{900_000 * 7 - 2_000:,} bytes" in marker
    assert row.output_file in marker
    assert len(said) < 2_000 + 300 + len(row.output_file)
    just = "head -c 2000 /dev/zero | tr '\\0' x"
    assert await session.use(bash, home, command=just) == "x" * 2_000 + "\n<exited with exit code 0>"


# What it leaves behind


async def test_a_child_that_keeps_the_output_open_is_not_waited_for(session: Session, home: Path) -> None:
    said = await session.use(bash, home, command="sleep 60 & echo $! > child; echo started")
    child = int((home / "child").read_text())
    try:
        (row,) = await session.rows()
        assert said == (
            "started\n(what it left running in the background goes on, and you will not be told when it ends; "
            f"stop_bash ends it, with the shellId {row.task_id})\n<exited with exit code 0>"
        )
        assert is_alive(child)
        said = await session.use(stop_bash, home, shellId=row.task_id)
        assert said == (
            f"<what the command with shellId: {row.task_id} had left running was ended: sleep (pid {child})>"
        )
        assert not is_alive(child)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


# In the background


async def test_a_command_that_takes_too_long_goes_on_and_says_how_to_go_on(session: Session, home: Path) -> None:
    os.mkfifo(home / "go")
    found = await session.outcome(bash, home, command="echo begun; cat go; exit 5", initial_wait=1, shellId="main")
    assert (found.success, found.went_on, found.ending) == (True, "flipped", None)
    assert found.content.startswith("begun\n<command with shellId: main is still running. It did not finish within ")
    assert all(word in found.content for word in ("No work was lost", "1 seconds", "read_bash", "stop_bash"))
    running = await session.use(read_bash, home, shellId="main", delay=0)
    assert running == "begun\n<command with shellId: main is still running>"
    await asyncio.to_thread((home / "go").write_text, "more\n")
    row = await session.settled("main")
    assert (row.status, row.exit_code) == ("failed", 5)
    assert await session.use(read_bash, home, shellId="main") == "begun\nmore\n<exited with exit code 5>"


async def test_a_command_that_was_moved_to_the_background_says_so(session: Session, home: Path) -> None:
    os.mkfifo(home / "go")
    command = "echo begun; touch here; cat go"
    running = asyncio.create_task(session.outcome(bash, home, command=command, initial_wait=300, shellId="main"))
    await comes_true((home / "here").exists)
    session.to_background.set()
    found = await running
    assert found.went_on == "flipped"
    assert all(word in found.content for word in ("A person moved it", "No work was lost", "still running"))
    assert "did not finish" not in found.content


async def test_that_its_output_is_not_kept_any_more_is_said(session: Session, home: Path) -> None:
    call = session.new_call()
    await session.outcome(bash, home, call, command="echo important", mode="async", shellId="s")
    row = await session.settled("s")
    CommandFolder(Path(row.output_file).parent).remove_output()
    said = "<What it wrote is not kept any more.>\n<exited with exit code 0>"
    assert await session.use(read_bash, home, shellId="s") == said
    again = await session.outcome(bash, home, call, 2, command="echo important", shellId="s")
    assert again.content == said
    await session.outcome(bash, home, command="true", mode="async", shellId="quiet")
    await session.settled("quiet")
    assert await session.use(read_bash, home, shellId="quiet") == "<exited with exit code 0>"


@pytest.mark.parametrize("how", [{"mode": "async"}, {"detach": True}, {"mode": "async", "detach": True}])
async def test_a_command_in_the_background_is_known_by_its_name_or_its_id(
    session: Session, home: Path, how: dict[str, Any]
) -> None:
    for chosen in ("", "server"):
        found = await session.outcome(bash, home, command="exec tail -f /dev/null", shellId=chosen, **how)
        row = (await session.rows())[-1]
        name = chosen or row.task_id
        assert found.went_on == "started"
        assert f"<command started in the background with shellId: {name}. " in found.content
        assert (await session.row(name)).task_id == row.task_id
        said = await session.use(read_bash, home, shellId=name, delay=0)
        assert said == f"<command with shellId: {name} is still running>"


async def test_a_read_waits_for_more_output(session: Session, home: Path) -> None:
    await session.outcome(bash, home, command="while echo news; do sleep 0.05; done", mode="async", shellId="s")
    said = await session.use(read_bash, home, shellId="s", delay=300)
    assert said.startswith("news\n")
    assert said.endswith("news\n<command with shellId: s is still running>")


async def test_a_read_waits_for_the_end(session: Session, home: Path) -> None:
    os.mkfifo(home / "go")
    await session.outcome(bash, home, command="cat go >/dev/null; exit 2", mode="async", shellId="s")
    reading = asyncio.create_task(session.use(read_bash, home, shellId="s", delay=300))
    await asyncio.to_thread((home / "go").write_text, "go\n")
    assert await reading == "<exited with exit code 2>"
    assert (await session.row("s")).exit_code == 2, "whoever reads of an end notes it"


async def test_a_read_shows_no_secret_and_only_the_end_of_much(session: Session, home: Path) -> None:
    (home / "leak").write_text(f"{SECRET}\n")
    await session.outcome(bash, home, command="seq 100000; cat leak", mode="async", shellId="s")
    await session.settled("s")
    said = await session.use(read_bash, home, shellId="s")
    assert said.endswith("99999\n100000\n[redacted]\n<exited with exit code 0>")
    assert len(said) <= module.READ_BYTES + 100


async def test_a_command_is_stopped_with_all_that_it_started(session: Session, home: Path) -> None:
    await session.outcome(bash, home, command=FAMILY, mode="async", shellId="family")
    family = await all_here(home)
    said = await session.use(stop_bash, home, shellId="family")
    assert said == "<command with shellId: family was ended>"
    assert [pid for pid in family if is_alive(pid)] == []
    with pytest.raises(ToolFailure, match="is not running: it is killed"):
        await session.use(stop_bash, home, shellId="family")
    again = await session.outcome(stop_bash, home, attempt=2, shellId="family")
    assert again.content == "<command with shellId: family was ended>"
    assert (await session.use(read_bash, home, shellId="family")).endswith("<was killed>")


async def test_a_command_that_there_is_not_is_not_found(session: Session, home: Path) -> None:
    for tool in (read_bash, stop_bash):
        with pytest.raises(ToolFailure, match="'nobody' not found in this session; list_bash shows those there are"):
            await session.use(tool, home, shellId="nobody")


async def test_all_of_them_are_listed(session: Session, home: Path) -> None:
    assert await session.use(list_bash, home) == "<no commands in the background>"
    await session.outcome(bash, home, command="true")
    await session.outcome(bash, home, command="exit 3", mode="async")
    await session.outcome(
        bash, home, command="exec tail -f /dev/null", description="Watch it", mode="async", shellId="w"
    )
    _, ended, _ = await session.rows()
    await session.settled(ended.task_id)
    said = await session.use(list_bash, home)
    assert said.splitlines() == [f"{ended.task_id}: failed (exit code 3): exit 3", "w: running: Watch it"]


async def test_no_secret_is_listed(session: Session, home: Path) -> None:
    for description in (f"Show {SECRET}", ""):
        command = f": '{'x' * 1990} {SECRET}'"
        await session.outcome(bash, home, command=command, mode="async", description=description)
    listed = (await session.use(list_bash, home)).splitlines()
    assert listed[0].endswith(": Show [redacted]")
    assert "secr" not in listed[1]


# In a session


async def test_a_stop_of_the_turn_ends_the_command_and_is_its_result(tmp_path: Path, home: Path) -> None:
    model = scripted(call("bash", command=FAMILY), Reply(text="Never said."))
    async with runtime_on(tmp_path / "holdfast.db", model) as runtime, patience():
        session = await runtime.session(working_directory=str(home), allow=("shell",), tools=TOOLS)
        sent = await session.send("Go")
        family = await all_here(home)
        await session.stop()
        assert (await session.result_of(sent.message_id)).reason == "stopped"
        await all_gone(family)
        (found,) = await bodies_of(session, ToolCompleted)
        assert (found.success, found.error) == (False, "interrupted")


async def test_a_model_starts_a_command_reads_it_and_stops_it(tmp_path: Path, home: Path) -> None:
    model = scripted(
        call("bash", command="while echo up; do sleep 0.05; done", mode="async", shellId="server"),
        call("read_bash", shellId="server", delay=30),
        call("stop_bash", shellId="server"),
        Reply(text="{last_tool_result}"),
    )
    async with runtime_on(tmp_path / "holdfast.db", model) as runtime, patience():
        session = await runtime.session(working_directory=str(home), allow=("shell",), tools=TOOLS)
        assert (await session.run("Go")).text == "<command with shellId: server was ended>"
        results = [body.content for body in await bodies_of(session, ToolCompleted)]
        assert results[1].startswith("up\n")
        assert results[1].endswith("up\n<command with shellId: server is still running>")
