"""The tools that come with Holdfast: what the model is told of them, long results, and questions."""

from pathlib import Path

import msgspec
import pytest

from holdfast.app import Runtime
from holdfast.tools.built_in import BUILT_IN, COPILOT_TOOLS, HOLDFAST_TOOLS, ask_user, read_tool_output
from holdfast.tools.errors import ToolFailure
from holdfast.tools.registry import Registry
from holdfast.tools.tool import Tool, tool
from tests.faults.world import runtime_on, scripted, settings
from tests.tools.using import context, use

pytestmark = pytest.mark.anyio


FILES, OTHERS = ("view", "create", "edit", "grep", "glob"), ("ask_user", "read_tool_output")
OURS = ("exec", "list_tasks", "task_status", "wait_for_task", "kill_task")
LATER = ("recall", "read_attached_file")
THEIRS = ("bash", "read_bash", "stop_bash", "list_bash")


def test_the_model_gets_them_in_this_order() -> None:
    offered = Registry(BUILT_IN).offered(None, ())
    assert tuple(spec.name for spec in offered) == (*FILES, *OURS, *THEIRS, *OTHERS, "offer_file", *LATER)
    assert all(spec.description for spec in offered)


def test_commands_have_two_sets_of_names_of_which_one_is_offered() -> None:
    assert (*FILES, *OURS, *OTHERS, "offer_file") == HOLDFAST_TOOLS
    assert (*FILES, *THEIRS, *OTHERS) == COPILOT_TOOLS


async def test_a_session_that_does_not_choose_gets_holdfasts_own_and_every_other_tool(tmp_path: Path) -> None:
    @tool
    def own() -> None:
        """Nothing."""

    async with runtime_on(tmp_path / "holdfast.db", tools=[own]) as runtime:
        (await runtime.session("plain"), await runtime.session("chosen", tools=("bash", "exec")))
        plain, chosen = [await runtime.operations.state(runtime.open(name).key) for name in ("plain", "chosen")]
        assert plain.tools == (*HOLDFAST_TOOLS, "own")
        assert chosen.tools == ("bash", "exec")


async def test_a_tool_of_ones_own_may_be_called_bash_where_ours_is_not(tmp_path: Path) -> None:
    @tool(name="bash")
    def own() -> None:
        """Nothing."""

    config = settings(tmp_path / "holdfast.db")
    async with Runtime(config=config, model=scripted(), tools=[own], built_in_tools=False) as runtime:
        session = await runtime.session()
        assert (await runtime.operations.state(session.key)).tools == ("bash",)


@pytest.mark.parametrize("tool", BUILT_IN, ids=lambda tool: str(tool.name))
def test_the_schema_for_the_model_matches_the_accepted_arguments(tool: Tool) -> None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(tool.arguments)}
    assert set(tool.parameters["properties"]) <= set(fields)
    assert {name for name, field in fields.items() if field.required} <= set(tool.parameters["required"])
    assert set(tool.parameters["required"]) <= set(tool.parameters["properties"])


@pytest.mark.parametrize("tool", BUILT_IN, ids=lambda tool: str(tool.name))
def test_an_argument_that_there_is_not_is_refused_by_name(tool: Tool) -> None:
    given = dict.fromkeys(tool.parameters["required"], "x")
    with pytest.raises(ToolFailure, match="nonsense"):
        tool.parse(msgspec.json.encode({**given, "nonsense": 1}).decode())


def test_only_what_may_happen_twice_is_repeated_after_a_crash() -> None:
    assert {tool.name for tool in BUILT_IN if tool.after_crash == "report"} == {"edit"}, (
        "a command has one key for all attempts, and is watched on"
    )
    looks = {"list_tasks", "task_status", "wait_for_task", "read_bash", "list_bash"}
    looks |= {"view", "grep", "glob", "read_tool_output", "recall", "read_attached_file"}
    assert {tool.name for tool in BUILT_IN if tool.read_only} == looks


# Long results and questions


@pytest.mark.parametrize(
    ("asked_for", "shown"),
    [
        ({}, "0123456789"),
        ({"offset": 4}, "456789"),
        ({"offset": 4, "length": 2}, "45"),
        ({"offset": -9, "length": 1}, "0"),
        ({"offset": 0, "length": -1}, "0"),
        ({"offset": 99}, "(the result ends at 10)"),
    ],
)
async def test_a_part_of_a_long_result_is_read_by_offset(asked_for: dict[str, int], shown: str) -> None:
    assert await use(read_tool_output, None, tool_call_id="c1", **asked_for) == shown


async def test_a_result_that_never_was_is_said_to_be_missing() -> None:
    with pytest.raises(ToolFailure, match="no result of a call c9"):
        await use(read_tool_output, None, tool_call_id="c9")
    assert await use(read_tool_output, None, tool_call_id="empty") == "(the result ends at 0)"


async def test_a_question_is_asked_and_never_run() -> None:
    question = ask_user.parse('{"question": "Which?", "choices": ["a"], "allow_freeform": false}')
    assert (question.question, question.choices, question.allow_freeform) == ("Which?", ("a",), False)
    assert ask_user.asks_person
    with pytest.raises(ToolFailure):
        await ask_user.run(question, context(None))
