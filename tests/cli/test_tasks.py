"""`holdfast tasks`, with commands that are really running: nothing else need be open, and nothing is asked twice."""

import asyncio
import json
import os
import signal
from asyncio.subprocess import PIPE

import pytest

from holdfast.cli.errors import Refusal
from holdfast.cli.task_lines import heading, task_line
from holdfast.cli.tasks import print_kill
from holdfast.events.ids import TaskId
from holdfast.protocol.task import KilledTask, ProcessView, ShownTaskStatus, TaskView
from tests.cli.processes import SECONDS, Place
from tests.cli.scripts import model
from tests.cli.slow_commands import SECRET, SLOW, Gate, ended_on_disk, started

# Listing


async def test_no_tasks_is_a_sentence_and_no_json(place: Place) -> None:
    assert (await place.run("tasks", "list")) == (0, "No task runs.\n", "")
    assert (await place.run("tasks", "list", "--all")) == (0, "No task runs, and none ended lately.\n", "")
    assert (await place.run("tasks", "list", "--json")) == (0, "", "")


async def test_the_list_says_what_the_machine_knows_though_nothing_else_is_open(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        task = await started(place)
        listed = await place.run("tasks", "list")
        title, line = listed.out.splitlines()
        assert title.split() == ["TASK", "SESSION", "STATUS", "STARTED", "TIME", "EXIT", "WHAT"]
        assert line.split()[0] == task
        assert line.split()[2] == "running"
        assert line.endswith("-  A slow thing")
        await gate.let_go("failed it has")
        assert (await place.run("tasks", "tail", task)).code == 0, "it ends when the task does"
        ended = await place.run("tasks", "list")
        assert "No task runs. 1 has ended: holdfast tasks list --all" in ended.out
        (_, line) = (await place.run("tasks", "list", "--all")).out.splitlines()
        assert line.split()[2] == "failed"
        assert line.endswith("3  A slow thing")


async def test_running_ones_come_first_and_json_has_one_object_to_a_line(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        ended = await started(place)
        await gate.let_go()
        await place.run("tasks", "tail", ended)
        runs = await started(place)
        listed = await place.run("tasks", "list", "--all", "--json")
        first, second = map(json.loads, listed.out.splitlines())
        assert set(first) == set(second) == set(TaskView.__struct_fields__)
        assert (first["id"], first["status"], first["exit_code"], first["ended_at"]) == (
            runs,
            "running",
            None,
            None,
        )
        assert (second["id"], second["status"], second["exit_code"]) == (ended, "completed", 0)
        assert second["duration_ms"] == second["ended_at"] - second["started_at"]
        assert first["working_directory"] == str(place.work)
        of_one = await place.run("tasks", "list", "--all", "--json", "--session", second["session_id"][:8])
        assert [json.loads(line)["id"] for line in of_one.out.splitlines()] == [ended]
        await place.run("tasks", "kill", runs)


async def test_the_list_is_right_while_another_process_works(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW), place.piped("chat", "--allow", "shell") as chat:
        chat.type("background, please")
        await chat.until("It is on its way.")
        (line,) = (await place.run("tasks", "list", "--json")).out.splitlines()
        assert json.loads(line)["status"] == "running"
        await gate.let_go()
        await chat.until("News: completed, 0, two.")
        (line,) = (await place.run("tasks", "list", "--all", "--json")).out.splitlines()
        assert json.loads(line)["status"] == "completed"


async def test_a_foreground_command_whose_runtime_died_is_shown_as_it_is(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        async with place.piped("chat", "--allow", "shell") as chat:
            chat.type("patient, please")
            await chat.until("  one\n")
            await chat.kill()
        (line,) = (await place.run("tasks", "list", "--json")).out.splitlines()
        task = json.loads(line)
        assert (task["status"], task["foreground"]) == ("running", True)
        await gate.let_go()
        assert "completed · exit code 0" in (await place.run("tasks", "tail", task["id"])).err
        (line,) = (await place.run("tasks", "list", "--all", "--json")).out.splitlines()
        assert (json.loads(line)["status"], json.loads(line)["exit_code"]) == ("completed", 0)
        again = await place.run("chat")
    assert "It has an outcome." in again.out, "the turn is told by the result of its call, as if nothing had been"
    assert "News" not in again.out


# Looking at one


async def test_a_task_is_shown_with_what_it_wrote_and_nothing_that_a_terminal_obeys(place: Place) -> None:
    Gate(place)
    async with model(place, SLOW):
        task = await started(place, "hostile")
        for command in (("show", task), ("list",), ("show", task, "--json")):
            done = await place.run("tasks", *command)
            assert done.code == 0
            assert "a slow thing" in done.out
            assert "\x1b" not in done.out
            assert "\x07" not in done.out
        shown = (await place.run("tasks", "show", task)).out
        assert f"task:         {task}\n" in shown
        assert "status:       runs · " in shown
        assert f"directory:    {place.work}\n" in shown
        assert "[2Jxone\n" in shown, "the last of what it wrote, made harmless"
        assert f"To follow it: holdfast tasks tail {task}" in shown
        await place.run("tasks", "kill", task)


async def test_no_secret_is_shown(place: Place) -> None:
    Gate(place)
    place.environ["GH_TOKEN"] = SECRET
    async with model(place, SLOW):
        task = await started(place, "secret")
        for command in (("show", task), ("list",), ("show", task, "--json"), ("list", "--json")):
            done = await place.run("tasks", *command)
            assert "[redacted]" in done.out
            assert SECRET not in done.out
        await place.run("tasks", "kill", task)


async def test_a_task_is_named_by_the_beginning_of_its_id(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        task = await started(place)
        await gate.let_go()
        await place.run("tasks", "tail", task)
        shown = await place.run("tasks", "show", task[:5], "--json")
        assert json.loads(shown.out)["id"] == task
        for command in ("show", "tail", "kill"):
            for wanted in (task[:3], "tnosuch", "t%"):
                refused = await place.run("tasks", command, wanted)
                assert (refused.code, refused.out) == (2, "")
                assert "[task_not_found]" in refused.err
            other = await place.run("tasks", command, task, HOLDFAST_OWNER="somebody-else")
            assert (other.code, other.out) == (2, "")
            assert "[task_not_found]" in other.err
        assert "No task" in (await place.run("tasks", "list", "--all", HOLDFAST_OWNER="somebody-else")).out


async def test_a_session_that_there_is_not_is_an_error(place: Place) -> None:
    refused = await place.run("tasks", "list", "--session", "nosuch")
    assert refused.code == 2
    assert "[session_not_found]" in refused.err


async def test_a_task_of_another_machine_is_listed_but_can_neither_be_followed_nor_killed(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        task = await started(place)
        copy = place.work / "elsewhere" / "copy.db"
        copy.parent.mkdir()
        assert (await place.run("db", "backup", str(copy))).code == 0
        there = ("--database", f"sqlite:///{copy}")
        assert json.loads((await place.run("tasks", "list", "--json", *there)).out)["id"] == task
        assert "Its output is on another machine." in (await place.run("tasks", "show", task, *there)).out
        for command in ("tail", "kill"):
            refused = await place.run("tasks", command, task, *there)
            assert (refused.code, refused.out) == (1, "")
            assert "[task_unreachable]" in refused.err
        await gate.let_go()
        assert (await place.run("tasks", "tail", task)).code == 0, "it is as it was"


# Following


async def test_a_tail_gives_the_bytes_as_they_are_and_ends_with_the_task(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        task = await started(place, "hostile")
        child = await place.start("tasks", "tail", task)
        assert child.stdout is not None
        async with asyncio.timeout(SECONDS):
            assert await child.stdout.readline() == b"\x1b[2Jxone\n"
            await gate.let_go()
            out, err = await child.communicate()
        assert (child.returncode, out) == (0, b"two\n")
        assert err.decode().startswith(f"holdfast: Task {task} completed · exit code 0 · ")
        again = await place.run("tasks", "tail", task, "--bytes", "4")
        assert (again.code, again.out) == (0, "two\n")
        assert "completed" in again.err


async def test_a_tail_that_does_not_follow_ends_at_once(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        task = await started(place)
        await _has_written(place, task, "one\n")
        now = await place.run("tasks", "tail", task, "--no-follow", "--bytes", "3")
        assert (now.code, now.out) == (0, "ne\n")
        assert f"Task {task} runs · " in now.err
        refused = await place.run("tasks", "tail", task, "--bytes", "-1")
        assert refused.code == 2
        await gate.let_go()


async def test_ctrl_c_leaves_a_tail_and_the_task_goes_on(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        task = await started(place)
        child = await asyncio.create_subprocess_exec(
            *place.command("tasks", "tail", task),
            env=place.environ,
            stdout=PIPE,
            stderr=PIPE,
            # Whoever runs the tests in the background of a shell has them, and all below them, ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert child.stdout is not None
        async with asyncio.timeout(SECONDS):
            await child.stdout.readline()
            child.send_signal(signal.SIGINT)
            out, err = await child.communicate()
        assert (child.returncode, out, err) == (130, b"", b"")
        assert json.loads((await place.run("tasks", "list", "--json")).out)["status"] == "running"
        await gate.let_go()
        assert (await place.run("tasks", "tail", task)).out == "one\ntwo\n"


async def test_a_reader_that_leaves_ends_a_tail_without_a_word(place: Place) -> None:
    Gate(place)
    async with model(place, SLOW):
        task = await started(place)
        read, write = os.pipe()
        os.close(read)
        child = await asyncio.create_subprocess_exec(
            *place.command("tasks", "tail", task), env=place.environ, stdout=write, stderr=PIPE
        )
        os.close(write)
        async with asyncio.timeout(SECONDS):
            _, err = await child.communicate()
        assert (child.returncode, err) == (141, b"")
        await place.run("tasks", "kill", task)


# Killing


async def test_a_kill_says_what_ended_and_reaches_the_session(place: Place) -> None:
    Gate(place)
    async with model(place, SLOW):
        task = await started(place, "family")
        await _has_written(place, task, "one\n")
        killed = await place.run("tasks", "kill", task)
        assert killed.code == 0, killed.err
        assert killed.out.startswith(f"Killed task {task}; ended: ")
        assert "bash (pid " in killed.out
        assert killed.out.count("(pid ") >= 3, "the shell, and what it started"
        again = await place.run("tasks", "kill", task)
        assert (again.code, again.out) == (1, "")
        assert "is not running: it is killed" in again.err
        assert "[task_not_running]" in again.err
        told = await place.run("chat")
        assert f"■ Task {task} was killed" in told.out
        assert "News: killed, 143, one." in told.out


async def test_a_task_that_ended_unnoticed_is_not_killed(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        task = await started(place)
        await gate.let_go()
        await ended_on_disk(place)
        refused = await place.run("tasks", "kill", task)
    assert refused.code == 1
    assert "it is completed" in refused.err


async def test_a_kill_ends_the_processes_that_a_task_left_running(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        task = await started(place, "server")
        await gate.let_go()
        await ended_on_disk(place)
        child = (place.work / "child").read_text().strip()
        shown = await place.run("tasks", "show", task)
        assert f"It left something running: cat (pid {child})." in shown.out
        killed = await place.run("tasks", "kill", task)
        assert (killed.code, killed.out) == (
            0,
            f"Task {task} had completed; ended what it had left running: cat (pid {child}).\n",
        )
        again = await place.run("tasks", "kill", task)
        assert (again.code, "[task_not_running]" in again.err) == (1, True)


def ended(status: ShownTaskStatus = "killed", **more: object) -> TaskView:
    about = {"command": "make", "description": "", "exit_code": None, **more}
    return TaskView(
        id=TaskId("t0123456789ab"),
        session_id="s" * 36,
        status=status,
        foreground=False,
        detail="",
        started_at=0,
        ended_at=0,
        duration_ms=0,
        tool_call_id="",
        working_directory="",
        output_file="",
        alias="",
        **about,  # type: ignore[arg-type]
    )


def kill(task: TaskView, *, killed: tuple[ProcessView, ...] = (), escaped: tuple[ProcessView, ...] = ()) -> KilledTask:
    counts = {"killed": len(killed), "escaped": len(escaped)}
    return KilledTask(task=task, killed_processes=killed, escaped_processes=escaped, **counts)


def test_a_kill_that_a_process_escaped_fails_and_names_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    shell, server = ProcessView(pid=10, name="bash"), ProcessView(pid=11, name="server\x1b[2J")
    with pytest.raises(Refusal) as refused:
        print_kill(kill(ended(), killed=(shell,), escaped=(server,)))
    assert capsys.readouterr().out == "Killed task t0123456789ab; ended: bash (pid 10).\n"
    assert (refused.value.code, refused.value.exit_code) == ("task_escaped", 1)
    assert refused.value.message == "Not everything ended. Still running: server\\u001b[2J (pid 11)."


def test_a_kill_of_an_ended_task_names_the_leftover_processes(capsys: pytest.CaptureFixture[str]) -> None:
    server = ProcessView(pid=11, name="server")
    print_kill(kill(ended("completed", exit_code=0), killed=(server,)))
    said = "Task t0123456789ab had completed; ended what it had left running: server (pid 11).\n"
    assert capsys.readouterr().out == said
    with pytest.raises(Refusal) as refused:
        print_kill(kill(ended("completed", exit_code=0), escaped=(server,)))
    assert (capsys.readouterr().out, refused.value.code) == ("", "task_escaped")


def test_a_task_that_was_quicker_than_its_kill_is_not_said_to_be_killed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refusal) as refused:
        print_kill(kill(ended("completed", exit_code=0)))
    assert capsys.readouterr().out == ""
    assert (refused.value.code, refused.value.exit_code) == ("task_not_running", 1)


# Lines


@pytest.mark.parametrize("width", [40, 60, 80, 99, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = ended("unreachable", exit_code=137, command="make \n\t\x1b[2J" + "very " * 100)
    lines = task_line(long, width=width).splitlines()
    assert len(lines) == (2 if width < 100 else 1)
    assert all(len(line) <= max(width, 46) for line in lines)
    assert len(heading(width=width)) <= max(width, 46)
    assert "make \\u001b[2Jvery" in lines[-1]


async def _has_written(place: Place, task: str, text: str) -> None:
    """Follow it until it has."""
    async with place.piped("tasks", "tail", task) as tail:
        await tail.until(text)
