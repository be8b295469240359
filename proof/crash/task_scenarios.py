"""The scenarios of the crash campaign with real commands: in the background, moved there, waited for, killed, stalled,
deleted with their session; and ended while the model speaks, while the session is idle, and while no process lives."""

from holdfast.models.scripted import TASK_NEWS, Reply, Rule, ScriptedCall
from holdfast.server.operations import SessionOptions
from proof.crash.client import Client
from proof.crash.scenario import COMPLETED, DONE, M1, M1_M2, USAGE, Scenario, rule, says
from proof.crash.stage import THE_TASK

NEWS = Rule((says("I have read it."),), TASK_NEWS)
_MAY_RUN = SessionOptions(allow=("shell",))


def _command(name: str, until: str, then: str = "") -> str:
    """A command that writes a line to the file `name`, and continues once the file `until` exists."""
    return f"echo $$ >> {name}; until [ -e {until} ]; do sleep 0.02; done; echo over; {then or 'true'}"


def _runs(text: str, *commands: str, behind: bool = True) -> Reply:
    made = tuple(ScriptedCall("exec", {"command": command, "run_in_background": behind}) for command in commands)
    return Reply(text=text, tool_calls=made, usage=USAGE)


# The programs


async def _one_turn(client: Client) -> None:
    await client.send("m1", "first")
    await client.turns_end(1)


async def _task_ends_in_idleness(client: Client) -> None:
    await client.send("m1", "first")
    await client.turns_end(1)
    client.touch("go")
    await client.told(1)
    await client.turns_end(2)


async def _task_ends_in_a_turn(client: Client) -> None:
    """The model is in the middle of an answer when it ends, and calls a tool after that."""
    await client.send("m1", "first")
    await client.has_run("one")
    client.touch("go")
    await client.tasks_end()
    client.open("hold")
    await client.turns_end(1)


async def _flip(client: Client) -> None:
    await client.send("m1", "first")
    await client.has_run("one")
    await client.to_background()
    await client.turns_end(1)
    client.touch("go")
    await client.told(1)
    await client.turns_end(2)


async def _task_is_told_late(client: Client) -> None:
    await client.told(1)
    await client.turns_end(2)


async def _kills(client: Client) -> None:
    """The model kills the one that it started last, a person the other."""
    await client.send("m1", "first")
    await client.turns_end(1)
    await client.kill_task("one")
    await client.tasks_end()
    await client.told(2)
    await client.turns_end(2)


async def _stop_command(client: Client) -> None:
    """The command that the turn waits for ends with the turn; background commands continue."""
    await client.send("m1", "first")
    await client.has_run("two")
    await client.stop("s1")
    await client.turns_end(1)
    client.touch("go")
    await client.told(1)
    await client.turns_end(2)
    await client.tasks_end()
    await client.send("m2", "second")
    await client.turns_end(3)


async def _delete_with_commands(client: Client) -> None:
    await client.send("m1", "first")
    await client.has_run("one")
    await client.has_run("two")
    await client.delete()
    await client.commands_are_forgotten()


async def _stuck(client: Client) -> None:
    await client.send("m1", "first")
    await client.told(1)
    client.touch("go")
    await client.told(2)
    await client.at_rest()
    await client.tasks_are_forgotten()


TASK_SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="task-idle",
        stages=(_task_ends_in_idleness,),
        rules=(NEWS, rule("first", _runs("I will.", _command("one", "go", "exit 3")), DONE)),
        says=M1,
        ends={"m1": COMPLETED},
        tasks=("failed 3",),
        runs={"one": (1,)},
        options=_MAY_RUN,
    ),
    Scenario(
        name="task-mid-turn",
        stages=(_task_ends_in_a_turn,),
        rules=(
            NEWS,
            rule("first", _runs("I will.", _command("one", "go")), says("And hold this.", "append_line"), DONE),
        ),
        says=M1,
        ends={"m1": COMPLETED},
        tasks=("completed 0",),
        runs={"one": (1,)},
        options=_MAY_RUN,
    ),
    Scenario(
        name="task-flip",
        stages=(_flip,),
        rules=(NEWS, rule("first", _runs("I will.", _command("one", "go", "exit 4"), behind=False), DONE)),
        says=M1,
        ends={"m1": COMPLETED},
        tasks=("failed 4",),
        runs={"one": (1,)},
        options=_MAY_RUN,
    ),
    Scenario(
        name="task-alone",
        stages=(_one_turn, _task_is_told_late),
        rules=(NEWS, rule("first", _runs("I will.", _command("one", "stage-1", "kill -9 $$")), DONE)),
        says=M1,
        ends={"m1": COMPLETED},
        tasks=("failed 137",),
        runs={"one": (1,)},
        rests=True,
        options=_MAY_RUN,
    ),
    Scenario(
        name="task-kill",
        stages=(_kills,),
        rules=(
            NEWS,
            rule(
                "first",
                _runs("I will.", _command("one", "never")),
                _runs("And that.", _command("two", "never")),
                Reply(text="Not that.", tool_calls=(ScriptedCall("kill_task", {"task_id": THE_TASK}),), usage=USAGE),
                DONE,
            ),
        ),
        says=M1,
        ends={"m1": COMPLETED},
        tasks=("killed 143 silent", "killed 143"),
        runs={"one": (1,), "two": (0, 1)},  # It may be killed before its first word.
        options=_MAY_RUN,
    ),
    Scenario(
        name="task-stop",
        stages=(_stop_command,),
        rules=(
            NEWS,
            rule(
                "first",
                _runs("I will.", _command("one", "go")),
                _runs("And wait.", _command("two", "never"), behind=False),
                DONE,
            ),
            rule("second", DONE),
        ),
        says=M1_M2,
        ends={"m1": ("stopped",), "m2": COMPLETED},
        tasks=("completed 0",),
        runs={"one": (1,), "two": (1,)},
        options=_MAY_RUN,
    ),
    Scenario(
        name="task-delete",
        stages=(_delete_with_commands,),
        rules=(
            NEWS,
            rule(
                "first",
                _runs("I will.", _command("one", "never")),
                _runs("And wait.", _command("two", "never"), behind=False),
                DONE,
            ),
        ),
        says=(),
        ends={},
        runs={"one": (1,), "two": (1,)},
        is_deleted=True,
        options=_MAY_RUN,
    ),
    Scenario(
        name="task-stuck",
        stages=(_stuck,),
        rules=(NEWS, rule("first", _runs("I will.", "printf 'Continue? '; " + _command("one", "go")), DONE)),
        says=M1,
        ends={"m1": COMPLETED},
        tasks=("stalled None", "completed 0"),
        runs={"one": (1,)},
        retention_seconds=0.02,
        options=_MAY_RUN,
    ),
)
