"""Commands that wait at a named pipe until the test lets them go on, and a model that runs them."""

import asyncio
import json
import os
from pathlib import Path

from holdfast.models.scripted import TASK_NEWS, Reply, Rule, Script, ScriptedCall
from tests.cli.processes import SECONDS, Place

HOSTILE = "\x1b]0;owned\x07\x1b[2Ja slow thing"
"""A description that a terminal would act on."""

SECRET = "ghp_4711471147114711"

WAITS = 'echo one; read line < gate; echo "$line"; case $line in fail*) exit 3;; esac'

STARTS_OTHERS = "cat gate & cat gate & echo one; wait"


def runs(command: str, text: str = "It is on its way.", **more: object) -> tuple[Reply, ...]:
    return (Reply(tool_calls=(ScriptedCall("exec", {"command": command, **more}),)), Reply(text=text))


SLOW = Script(
    rules=(
        Rule(when=TASK_NEWS, replies=(Reply(text="News: {task_status}, {task_exit_code}, {task_last_line}."),)),
        Rule(when="background", replies=runs(WAITS, description="A slow thing", run_in_background=True)),
        Rule(when="secret", replies=runs(f": {SECRET}; " + WAITS, description=SECRET, run_in_background=True)),
        Rule(
            when="server", replies=runs("mkfifo never; cat never & echo $! > child; " + WAITS, run_in_background=True)
        ),
        Rule(when="family", replies=runs(STARTS_OTHERS, run_in_background=True)),
        Rule(when="hostile", replies=runs("printf '\\033[2Jx'; " + WAITS, description=HOSTILE, run_in_background=True)),
        Rule(when="patient", replies=runs(WAITS, "It has an outcome.", description="A patient thing", timeout=300)),
        Rule(when="flip", replies=runs(WAITS, description="A slow thing", timeout=1)),
        Rule(replies=(Reply(text="You said {user}."),)),
    )
)


class Gate:
    """The named pipe in the working directory of a place. One command at a time waits at it."""

    def __init__(self, place: Place) -> None:
        self.path: Path = place.work / "gate"
        os.mkfifo(self.path)
        place.environ["HOLDFAST_COMMAND_SECONDS"] = "300"  # what a test that fails leaves waiting ends by itself

    async def let_go(self, line: str = "two") -> None:
        """Returns once a command that waits has been told."""
        await asyncio.to_thread(self.path.write_text, f"{line}\n")


async def started(place: Place, prompt: str = "background") -> str:
    """A command that runs in the background, of a process that has ended; the id of its task."""
    done = await place.run("run", prompt, "--allow", "shell", "--json")
    assert done.code == 0, done.err
    (task,) = json.loads(done.out.splitlines()[-1])["tasks"]
    return str(task["id"])


async def ended_on_disk(place: Place) -> None:
    """Wait until the supervisor has written down how the only command ended; nobody else has looked."""
    async with asyncio.timeout(SECONDS):
        while True:
            if list(place.data.glob("**/outcome.json")):
                return
            await asyncio.sleep(0.02)
