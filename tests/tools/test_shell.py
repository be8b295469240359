"""`bash`: one command from its start to its end, whatever it does. A stop or the time limit ends all that it
started."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from holdfast import event_loop
from holdfast.events.tool import ToolCompleted
from holdfast.models.scripted import Reply
from holdfast.tools import processes, shell
from holdfast.tools.errors import ToolFailure
from holdfast.tools.shell import Kept, bash, cut_end, cut_start
from tests.faults.world import bodies_of, call, comes_true, patience, runtime_on, scripted
from tests.tools.using import asked, context, is_alive, open_files, outcome, programs, use

pytestmark = pytest.mark.anyio


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
async def test_both_outputs_come_back_in_order_with_the_exit_code(home: Path, command: str, said: str) -> None:
    answer = await use(bash, home, command=command)
    assert answer.replace("/bin/bash: ", "bash: ").replace("/usr/bin/bash: ", "bash: ") == said


async def test_a_command_that_fails_is_a_result_and_no_error(home: Path) -> None:
    assert (await outcome(bash, home, command="false")).success


async def test_a_command_runs_in_the_working_directory(home: Path) -> None:
    assert await use(bash, home, command="cat a.txt") == "one\ntwo\nthree\n<exited with exit code 0>"
    assert await use(bash, home, command="pwd; cd docs") == f"{home}\n<exited with exit code 0>"


async def test_what_models_that_know_another_shell_add_is_taken(home: Path) -> None:
    added = {"description": "Say it", "mode": "sync", "initial_wait": 30, "shellId": "main", "detach": False}
    assert await use(bash, home, command="echo x", timeout=5.5, **added) == "x\n<exited with exit code 0>"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"command": " \n"}, "command is required"),
        ({"command": "echo a\0b"}, "NUL"),
        ({"command": "x" * 30_001}, "at most 30,000 characters"),
        ({"command": "true", "mode": "async"}, "background"),
        ({"command": "true", "detach": True}, "background"),
        ({"command": "true", "mode": "later"}, "mode"),
        ({"command": "true", "timeout": "soon"}, "timeout"),
        ({}, "command"),
    ],
)
def test_what_is_no_command_is_refused_before_anybody_is_asked(home: Path, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ToolFailure, match=why):
        asked(bash, home, **arguments)


async def test_without_a_working_directory_there_are_no_commands(home: Path) -> None:
    with pytest.raises(ToolFailure, match="no working directory"):
        asked(bash, None, command="true")
    with pytest.raises(ToolFailure, match="The command can't be started: No such file or directory"):
        await use(bash, home / "gone", command="true")
    with pytest.raises(ToolFailure, match="The command can't be started: Not a directory"):
        await use(bash, home / "a.txt", command="true")


async def test_the_longest_command_fits(home: Path) -> None:
    command = "echo " + "\N{GRINNING FACE}" * 29_995
    assert (await use(bash, home, command=command)).endswith("\N{GRINNING FACE}\n<exited with exit code 0>")


# Secrets


SECRETS = """
    HOLDFAST_MODEL_API_KEY HOLDFAST_SECRET_KEY HOLDFAST_DATABASE COPILOT_SDK_AUTH_TOKEN COPILOT_CONNECTION_TOKEN
    COPILOT_GITHUB_TOKEN OPENAI_API_KEY OPENROUTER_API_KEY ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN GH_TOKEN GITHUB_TOKEN
    GITHUB_COPILOT_API_TOKEN
"""


async def test_a_command_finds_no_secret_in_its_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS.split():
        monkeypatch.setenv(name, "the-secret")
    monkeypatch.setenv("HARMLESS", "the-rest-is-there")
    said = await use(bash, home, command="env; tr '\\0' '\\n' < /proc/self/environ 2>/dev/null; true")
    assert "the-secret" not in said
    assert "HARMLESS=the-rest-is-there" in said
    assert "PATH=" in said


async def test_a_command_inherits_nothing_that_is_open(home: Path) -> None:
    inheritable = os.open(home / "a.txt", os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    try:
        said = await use(bash, home, command=f"cat <&{inheritable}")
    finally:
        os.close(inheritable)
    assert "Bad file descriptor" in said


# Long outputs


async def test_of_a_long_output_the_beginning_and_the_end_are_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "MAX_OUTPUT_BYTES", 2_000)
    said = await use(bash, home, command="seq 100000 999999")
    lines = said.splitlines()
    assert lines[0] == "100000"
    assert lines[-2:] == ["999999", "<exited with exit code 0>"]
    (marker,) = [line for line in lines if "left out" in line]
    assert marker == f"[… {900_000 * 7 - 2_000:,} bytes are left out here …]"
    assert len(said) < 2_100


async def test_an_output_that_just_fits_is_whole(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "MAX_OUTPUT_BYTES", 2_000)
    command = "head -c 2000 /dev/zero | tr '\\0' x"
    assert await use(bash, home, command=command) == "x" * 2_000 + "\n<exited with exit code 0>"


async def test_a_flood_is_bounded_and_does_not_hold_up_the_loop(home: Path) -> None:
    running = asyncio.create_task(outcome(bash, home, command="yes", timeout=1))
    turns = 0
    while not running.done():
        await asyncio.sleep(0.005)
        turns += 1
    result = await running
    assert turns > 20
    assert not result.success
    assert result.content.endswith("y\n<did not finish within 1 seconds and was ended>")
    assert len(result.content) < shell.MAX_OUTPUT_BYTES + 200
    assert programs("yes") == []


@given(text=some.text(max_size=40), cut=some.integers(0, 100))
def test_a_cut_never_makes_half_a_character(text: str, cut: int) -> None:
    data = bytearray(text.encode())
    head, tail = data[:cut], data[cut:]
    assert text.startswith(cut_end(head).decode())
    assert text.endswith(cut_start(tail).decode())
    assert len(cut_end(head)) > len(head) - 4
    assert len(cut_start(tail)) > len(tail) - 4


@given(data=some.binary(max_size=30))
def test_bytes_that_are_no_text_are_cut_too(data: bytes) -> None:
    assert len(cut_end(bytearray(data))) > len(data) - 4
    assert len(cut_start(bytearray(data))) > len(data) - 4


@given(chunks=some.lists(some.binary(max_size=30)), limit=some.integers(2, 40))
def test_what_is_kept_is_the_beginning_and_the_end_and_all_of_it_if_that_fits(chunks: list[bytes], limit: int) -> None:
    kept, ascii_chunks = Kept(limit), [bytes(byte & 0x7F for byte in chunk) for chunk in chunks]
    for chunk in ascii_chunks:
        kept.add(chunk)
    whole, half = b"".join(ascii_chunks).decode(), limit // 2
    if len(whole) <= 2 * half:
        assert kept.text() == whole
    else:
        gone = f"\n[… {len(whole) - 2 * half:,} bytes are left out here …]\n"
        assert kept.text() == whole[:half] + gone + whole[-half:]


# While it runs


async def test_people_see_what_it_writes_while_it_runs(home: Path) -> None:
    shown: list[str] = []
    watched = context(home, report=shown.append)
    command = "echo first é; while [ ! -e go-on ]; do sleep 0.01; done; echo second; printf '\\303'; exit"
    running = asyncio.ensure_future(bash.run(bash.parse(json.dumps({"command": command})), watched))
    await comes_true(lambda: bool(shown))
    assert shown == ["first é\n"]
    (home / "go-on").touch()
    assert (await running).startswith("first é\nsecond\n")


async def test_a_flood_is_shown_now_and_then_and_in_part(home: Path) -> None:
    shown: list[str] = []
    arguments = bash.parse('{"command": "yes é", "timeout": 1}')
    await bash.run(arguments, context(home, report=shown.append))
    assert 1 <= len(shown) <= 8
    assert all(0 < len(text.encode()) <= shell.REPORT_BYTES and "\ufffd" not in text for text in shown)


# What it leaves behind


def pid_in(file: Path) -> int:
    return int(file.read_text())


async def test_a_child_that_keeps_the_output_open_is_not_waited_for(home: Path) -> None:
    started = time.monotonic()
    said = await use(bash, home, command="sleep 60 & echo $! > child; echo started")
    child = pid_in(home / "child")
    try:
        assert said == (
            "started\n(what it left running in the background goes on; its output is no longer read)\n"
            "<exited with exit code 0>"
        )
        assert time.monotonic() - started < 10
        assert is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


async def test_a_child_that_writes_elsewhere_is_no_matter(home: Path) -> None:
    said = await use(bash, home, command="sleep 60 >/dev/null 2>&1 & echo $! > child; echo started")
    os.kill(pid_in(home / "child"), signal.SIGKILL)
    assert said == "started\n<exited with exit code 0>"


async def test_nothing_of_ours_stays_behind(home: Path) -> None:
    await use(bash, home, command="true")
    before = open_files()
    for command in ("true", "exit 1", "kill -9 $$"):
        await use(bash, home, command=command)
    with pytest.raises(ToolFailure):
        await use(bash, home / "gone", command="true")
    assert open_files() == before
    assert programs("read -r group") == []


# Its end

FAMILY = """
echo $$ > shell
bash -c 'trap "" TERM; echo $$ > stubborn; for n in {1..600}; do sleep 0.1; done' &
bash -c 'echo $$ > child; sleep 60 & echo $! > grandchild; touch all-here; wait' | cat
"""
"""A shell, children of which one refuses to end when it is asked, and a grandchild."""


def family_of(home: Path) -> list[int]:
    return [pid_in(home / name) for name in ("shell", "stubborn", "child", "grandchild")]


async def all_here(home: Path) -> list[int]:
    names = ("stubborn", "grandchild", "all-here")
    await comes_true(lambda: all((home / name).exists() for name in names) and bool((home / "stubborn").read_text()))
    return family_of(home)


async def all_gone(family: list[int]) -> None:
    await comes_true(lambda: not any(is_alive(pid) for pid in family))


async def test_a_stop_ends_all_that_it_started(home: Path) -> None:
    running = asyncio.create_task(use(bash, home, command=FAMILY))
    family = await all_here(home)
    assert [pid for pid in family if not is_alive(pid)] == []
    before = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - before < 5
    await all_gone(family)
    assert programs("read -r group") == []


@pytest.mark.parametrize("turns", range(10))
async def test_a_stop_finds_a_command_that_is_only_just_starting(home: Path, turns: int) -> None:
    before = open_files()
    running = asyncio.create_task(use(bash, home, command="sleep 60 & sleep 60; : the-one-that-starts"))
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await comes_true(lambda: not programs("the-one-that-starts") and not programs("read -r group"))
    await comes_true(lambda: open_files() == before)


async def test_a_second_stop_does_not_save_what_the_first_is_ending(home: Path) -> None:
    running = asyncio.create_task(use(bash, home, command=FAMILY))
    family = await all_here(home)
    running.cancel()
    await comes_true(lambda: not is_alive(family[0]))
    running.cancel()  # The one that refuses is still there, if this came in time.
    with pytest.raises(asyncio.CancelledError):
        await running
    await all_gone(family)


async def test_a_command_that_is_asked_to_end_may_tidy_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE_SECONDS", 20)
    command = "trap ': > tidied; exit' TERM; touch all-here; while :; do sleep 0.01; done"
    running = asyncio.create_task(use(bash, home, command=command))
    await comes_true((home / "all-here").exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (home / "tidied").exists()


async def test_the_time_limit_ends_all_that_it_started_and_keeps_what_it_wrote(home: Path) -> None:
    result = await outcome(bash, home, command="echo begun" + FAMILY, timeout=1.5)
    assert result.content == "begun\n<did not finish within 1.5 seconds and was ended>"
    assert not result.success
    await all_gone(family_of(home))


async def test_a_stop_does_not_save_what_the_time_limit_is_ending(home: Path) -> None:
    running = asyncio.create_task(use(bash, home, command=FAMILY, timeout=1))
    family = await all_here(home)
    await comes_true(lambda: not is_alive(family[0]))
    running.cancel()  # The one that refuses is still there, if this came in time.
    await asyncio.wait([running])
    await all_gone(family)


@pytest.mark.parametrize(("asked_for", "seconds"), [(None, 120), (-3, 1), (0, 1), (7.5, 7.5), (9999, 290)])
def test_a_time_limit_is_kept_within_reason(asked_for: float | None, seconds: float) -> None:
    assert bash.parse(json.dumps({"command": "true", "timeout": asked_for})).seconds() == seconds


def test_it_runs_and_is_stopped_under_uvloop_too(home: Path) -> None:
    async def both() -> str:
        said = await use(bash, home, command="echo hi; echo err >&2; exit 3")
        running = asyncio.create_task(use(bash, home, command=FAMILY))
        family = await all_here(home)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await all_gone(family)
        return said

    assert event_loop.run(both()) == "hi\nerr\n<exited with exit code 3>"


# In a session


async def test_a_stop_of_the_turn_ends_the_command_and_is_its_result(tmp_path: Path, home: Path) -> None:
    model = scripted(call("bash", command=FAMILY), Reply(text="Never said."))
    async with runtime_on(tmp_path / "holdfast.db", model) as runtime, patience():
        session = await runtime.session(working_directory=str(home), allow=("shell",))
        sent = await session.send("Go")
        family = await all_here(home)
        await session.stop()
        assert (await session.result_of(sent.message_id)).reason == "stopped"
        await all_gone(family)
        (result,) = await bodies_of(session, ToolCompleted)
        assert (result.success, result.error) == (False, "interrupted")


async def test_a_command_asks_and_with_nobody_there_is_denied(tmp_path: Path, home: Path) -> None:
    model = scripted(call("bash", command="touch ran"), Reply(text="I see."))
    async with runtime_on(tmp_path / "holdfast.db", model) as runtime, patience():
        attended, alone = [await runtime.session(working_directory=str(home)) for _ in range(2)]
        waiting = await attended.run("Go")
        assert [(request.kind, request.title) for request in waiting.requests] == [("permission", "shell touch ran")]
        assert (await alone.run("Go", unattended=True)).text == "I see."
        assert not (home / "ran").exists()


async def test_a_dry_run_runs_no_command(tmp_path: Path, home: Path) -> None:
    model = scripted(call("bash", command="touch ran"), Reply(text="{last_tool_result}"))
    async with runtime_on(tmp_path / "holdfast.db", model) as runtime, patience():
        session = await runtime.session(working_directory=str(home), dry_run=True)
        assert (await session.run("Go")).text == "(dry run: bash was not run; suppose that it succeeded)"
        assert not (home / "ran").exists()
