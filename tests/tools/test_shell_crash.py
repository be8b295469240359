"""A process that is killed while it runs a command: the command is never run again, and does not go on alone."""

from pathlib import Path

import pytest

from holdfast.events.tool import ToolAttempted, ToolCompleted
from holdfast.models.scripted import Reply
from holdfast.session.decide import UNKNOWN_OUTCOME
from tests.faults.processes import child_on
from tests.faults.world import bodies_of, call, comes_true, runtime_on, says
from tests.tools.using import is_alive

pytestmark = pytest.mark.anyio

COMMAND = "echo $$ >> ran; (sleep 60 & echo $! > child; wait); echo ended >> ran"


async def test_a_command_that_a_crash_cut_off_is_reported_and_never_run_twice(tmp_path: Path) -> None:
    database, work = tmp_path / "holdfast.db", tmp_path / "work"
    work.mkdir()
    script = says(call("bash", command=COMMAND), Reply(text="It said: {last_tool_result}"))
    async with child_on(database, script=script) as doomed:
        await doomed.ask("create", session="s", working_directory=str(work), allow=["shell"])
        await doomed.ask("send", session="s", text="Go", message_id="m")
        await comes_true(lambda: (work / "child").exists() and bool((work / "child").read_text()))
        family = [int((work / name).read_text()) for name in ("ran", "child")]
        assert [pid for pid in family if not is_alive(pid)] == []
        await doomed.kill()
        async with child_on(database, script=script) as heir:
            result = await heir.ask("result", session="s", message_id="m")
            assert (result["reason"], result["text"]) == ("completed", f"It said: {UNKNOWN_OUTCOME}")
    await comes_true(lambda: not any(is_alive(pid) for pid in family))
    assert (work / "ran").read_text() == f"{family[0]}\n", "it ran once, and not to its end"
    async with runtime_on(database, work=False) as reader:
        assert [body.attempt for body in await bodies_of(reader.open("s"), ToolAttempted)] == [1]
        (closed,) = await bodies_of(reader.open("s"), ToolCompleted)
        assert closed.error == "interrupted"
