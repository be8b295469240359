"""The tools that come with Holdfast: what the model is told of them, long results, and questions."""

import msgspec
import pytest

from holdfast.tools.built_in import BUILT_IN, ask_user, read_tool_output
from holdfast.tools.errors import ToolFailure
from holdfast.tools.registry import Registry
from holdfast.tools.tool import Tool
from tests.tools.using import context, use

pytestmark = pytest.mark.anyio


def test_the_model_is_told_of_them_in_this_order() -> None:
    offered = Registry(BUILT_IN).offered(None, ())
    names = ["view", "create", "edit", "grep", "glob", "bash", "ask_user", "read_tool_output"]
    assert [spec.name for spec in offered] == names
    assert all(spec.description for spec in offered)


@pytest.mark.parametrize("tool", BUILT_IN, ids=lambda tool: str(tool.name))
def test_what_the_model_is_told_of_its_arguments_is_what_is_taken(tool: Tool) -> None:
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
    assert {tool.name for tool in BUILT_IN if tool.read_only} == {"view", "grep", "glob", "read_tool_output"}


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
