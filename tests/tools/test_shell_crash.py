"""A process that is killed while it runs a command: that goes on, is never run again, and its outcome arrives."""

import os
from pathlib import Path

import msgspec
import pytest

from holdfast.events.tool import ToolAttempted, ToolCompleted
from holdfast.models.scripted import Reply, ScriptedModel
from tests.faults.processes import child_on
from tests.faults.world import bodies_of, call, comes_true, patience, runtime_on, says
from tests.tools.using import is_alive

pytestmark = pytest.mark.anyio

COMMAND = "echo $$ >> ran; echo begun; cat go; echo ended >> ran; exit 7"

TOLD = {"stdout": "begun\nwent on\n", "stderr": "", "exit_code": 7}

BOTH = pytest.mark.parametrize(
    ("name", "said"),
    [("bash", "begun\nwent on\n<exited with exit code 7>"), ("exec", msgspec.json.encode(TOLD).decode())],
)


@BOTH
async def test_a_command_outlives_a_runtime_that_is_closed_in_peace(tmp_path: Path, name: str, said: str) -> None:
    database, work = tmp_path / "holdfast.db", tmp_path / "work"
    work.mkdir()
    os.mkfifo(work / "go")
    script = says(call(name, command=COMMAND), Reply(text="It said: {last_tool_result}"))
    async with runtime_on(database, ScriptedModel(script)) as first:
        session = await first.session("s", working_directory=str(work), allow=("shell",), tools=(name,))
        await session.send("Go", message_id="m")
        await comes_true(lambda: (work / "ran").exists() and bool((work / "ran").read_text()))
        pid = int((work / "ran").read_text())
    assert is_alive(pid)
    (work / "go").write_text("went on\n")
    async with runtime_on(database, ScriptedModel(script)) as second, patience():
        found = await second.open("s").result_of("m")
        assert found.text == f"It said: {said}"
    assert (work / "ran").read_text() == f"{pid}\nended\n", "once, and to its end"


@BOTH
async def test_a_command_outlives_a_crash_and_is_never_run_twice(tmp_path: Path, name: str, said: str) -> None:
    database, work = tmp_path / "holdfast.db", tmp_path / "work"
    work.mkdir()
    os.mkfifo(work / "go")
    script = says(call(name, command=COMMAND), Reply(text="It said: {last_tool_result}"))
    async with child_on(database, script=script) as doomed:
        await doomed.ask("create", session="s", working_directory=str(work), allow=["shell"], tools=[name])
        await doomed.ask("send", session="s", text="Go", message_id="m")
        await comes_true(lambda: (work / "ran").exists() and bool((work / "ran").read_text()))
        pid = int((work / "ran").read_text())
        await doomed.kill()
        assert is_alive(pid)
        (work / "go").write_text("went on\n")
        async with child_on(database, script=script) as heir:
            result = await heir.ask("result", session="s", message_id="m")
            assert (result["reason"], result["text"]) == ("completed", f"It said: {said}")
    assert (work / "ran").read_text() == f"{pid}\nended\n", "once, and to its end"
    async with runtime_on(database, work=False) as reader:
        assert [body.attempt for body in await bodies_of(reader.open("s"), ToolAttempted)] == [1, 2]
        (closed,) = await bodies_of(reader.open("s"), ToolCompleted)
        assert closed.success
