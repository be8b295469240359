"""Commands in a chat: sent to the background, killed with their chat or without it, come back to, and told of."""

import json
import re

from holdfast.cli.transcript import WOKEN
from tests.cli.processes import Place
from tests.cli.scripts import model
from tests.cli.slow_commands import SLOW, Gate, ended_on_disk, started

# Killed, and come back to


async def test_killed_while_a_command_runs_in_the_background_the_next_chat_tells_of_its_end(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        async with place.piped("chat", "--allow", "shell") as first:
            first.type("background, please")
            said = await first.until("It is on its way.")
            (task,) = re.findall(r"in the background, task (\w+): holdfast tasks tail", said)
            await first.kill()
        async with place.piped("chat") as second:
            await second.until("it is idle, and 1 task runs")
            await gate.let_go()
            said = await second.until("News: completed, 0, two.")
            second.end_of_input()
            await second.ended()
    assert f"{WOKEN}\n✓ Task {task} completed · exit code 0 · " in said
    assert "runs on" not in second.said


async def test_killed_while_a_command_is_waited_for_the_next_chat_waits_on_for_the_same(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        async with place.piped("chat", "--allow", "shell") as first:
            first.type("patient, please")
            await first.until("  one\n")
            await first.kill()
        before = json.loads((await place.run("tasks", "list", "--json")).out)
        async with place.piped("chat") as second:
            await second.until("Continuing session")
            await gate.let_go()
            said = await second.until("It has an outcome.")
            second.end_of_input()
            await second.ended()
        assert (await place.run("tasks", "list", "--all")).out.startswith("No task runs")
    assert before["status"] == "running"
    assert said.count("✓ exec") == 1
    assert WOKEN not in second.said


async def test_a_task_that_ended_unwatched_is_reported_before_a_chat_leaves(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        task = await started(place)
        await gate.let_go("fail, please")
        await ended_on_disk(place)
        told = await place.run("chat")
        assert f"✗ Task {task} failed · exit code 3 · " in told.out
        assert "News: failed, 3, fail, please." in told.out
        again = await place.run("chat", typed="hello\n")
    assert "News" not in again.out, "it was told, and there is nothing unfinished any more"


async def test_leaving_says_which_tasks_run_on_and_how_to_come_back(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        left = await place.run("chat", "--allow", "shell", typed="background, please\n")
        assert left.code == 0
        (task,) = re.findall(r"· Task (\w+) runs on: holdfast tasks tail \1 --data-dir", left.out)
        assert re.search(r"Come back to it with:\n  holdfast chat --session \w{8}", left.out)
        await gate.let_go()
        await place.run("tasks", "tail", task)
        told = await place.run("chat")
    assert f"✓ Task {task} completed" in told.out


async def test_a_command_that_takes_longer_than_its_call_waits_is_not_cut(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW), place.piped("chat", "--allow", "shell") as chat:
        chat.type("flip, please")
        await chat.until("· It goes on in the background, task t")
        await gate.let_go()
        await chat.until("News: completed, 0, two.")


async def test_a_woken_conversation_looks_the_same_live_and_loaded_later(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW), place.piped("chat", "--allow", "shell") as chat:
        chat.type("background, please")
        await chat.until("It is on its way.")
        await gate.let_go()
        await chat.until("News: completed, 0, two.")
        chat.end_of_input()
        said = await chat.ended()
        listed = await place.run("sessions", "list")
        shown = await place.run("sessions", "show", listed.out.split()[0])
    later = re.sub(r"^[\d,]+ tokens .*in the context.*\n", "", shown.out.split("\n", 2)[2])
    assert said.split("\n", 1)[1].strip() == later.strip()


# Before a terminal


async def test_a_key_puts_what_the_turn_waits_for_into_the_background(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW), place.terminal("chat", "--allow", "shell") as terminal:
        await terminal.until("ready")
        terminal.type("patient, please\r")
        await terminal.until("Ctrl-B to the background")
        await terminal.until("  one\n")
        terminal.type("\x02")
        await terminal.until("goes on in the background, task t")
        await terminal.until("It has an outcome.")
        await terminal.until("ready · 1 task runs")
        await gate.let_go()
        await terminal.until(WOKEN)
        await terminal.until("News: completed, 0, two.")


async def test_slash_commands_look_after_tasks(place: Place) -> None:
    Gate(place)
    async with model(place, SLOW), place.terminal("chat", "--allow", "shell", term="dumb") as terminal:
        await terminal.until("/help")
        terminal.type("/tasks\n")
        await terminal.until("This session has no tasks.")
        terminal.type("/background\n")
        await terminal.until("[no_command_runs]")
        terminal.type("patient, please\n")
        await terminal.until("  one\n")
        terminal.type("/tasks\n")
        await terminal.until("(waited for) A patient thing")
        terminal.type("/background\n")
        await terminal.until("goes on in the background, task t")
        await terminal.until("It has an outcome.")
        (task,) = re.findall(r"in the background, task (\w+)", terminal.text)
        terminal.type("/kill\n")
        await terminal.until("[task_missing]")
        terminal.type("/kill tnosuch\n")
        await terminal.until("[task_not_found]")
        terminal.type(f"/kill {task[:6]}\n")
        await terminal.until(f"· Killed task {task}; ended: ")
        await terminal.until(f"■ Task {task} was killed")
        await terminal.until("News: killed, ")
        terminal.type(f"/kill {task}\n")
        await terminal.until("[task_not_running]")
        terminal.type("\x04")
        assert await terminal.ended() == 0


async def test_a_hostile_description_never_reaches_the_terminal(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW), place.terminal("chat", "--allow", "shell") as terminal:
        await terminal.until("ready")
        terminal.type("hostile, please\r")
        await terminal.until("It is on its way.")
        terminal.type("/tasks\r")
        await terminal.until("\\u001b]0;owned\\u0007\\u001b[2Ja slow")
        await gate.let_go()
        await terminal.until("News: completed, 0, two.")
        assert "\x1b]0;" not in terminal.raw
        assert "\x07" not in terminal.raw
        assert "\x1b[2J" not in terminal.raw


# Beside chat


async def test_a_run_that_leaves_a_task_behind_says_so_and_how_to_follow_it(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        done = await place.run("run", "background, please", "--allow", "shell")
        assert (done.code, done.out) == (0, "It is on its way.\n")
        (task,) = re.findall(r"A task runs on in the background \(A slow thing\): holdfast tasks tail (\w+)", done.err)
        assert "holdfast chat --session" in done.err
        await gate.let_go()
        assert (await place.run("tasks", "tail", task)).code == 0
        as_json = await place.run("run", "background, please", "--allow", "shell", "--json")
        (other,) = json.loads(as_json.out.splitlines()[-1])["tasks"]
        assert (other["status"], other["description"]) == ("running", "A slow thing")
        assert other["id"] in as_json.err
        await gate.let_go()
        assert (await place.run("tasks", "tail", other["id"])).code == 0
        finished = await place.run("run", "hello", "--session", other["session_id"])
    assert finished.err == "", "nothing runs any more"


async def test_a_run_that_leaves_a_task_behind_names_it_in_characters_that_no_terminal_obeys(place: Place) -> None:
    gate = Gate(place)
    async with model(place, SLOW):
        done = await place.run("run", "hostile, please", "--allow", "shell")
        assert "A task runs on in the background (\\u001b]0;owned\\u0007\\u001b[2Ja slow thing)" in done.err
        assert not any(sign in done.err for sign in ("\x1b", "\x07"))
        await gate.let_go()
        (task,) = re.findall(r"holdfast tasks tail (\w+)", done.err)
        assert (await place.run("tasks", "tail", task)).code == 0


async def test_a_deleted_session_leaves_no_command_behind(place: Place) -> None:
    Gate(place)
    async with model(place, SLOW):
        task = await started(place)
        (line,) = (await place.run("tasks", "list", "--json")).out.splitlines()
        async with place.piped("tasks", "tail", task) as tail:
            await tail.until("one")
            deleted = await place.run("sessions", "delete", json.loads(line)["session_id"], "--yes")
            assert deleted.code == 0, deleted.err
            await tail.ended()
        assert (await place.run("tasks", "list", "--all")).out == "No task runs, and none ended lately.\n"
        refused = await place.run("tasks", "show", task)
    assert refused.code == 2
    assert "[task_not_found]" in refused.err
