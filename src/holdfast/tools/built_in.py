"""The tools that come with Holdfast, in the order in which a model is told of them."""

from typing import Any

import msgspec

from holdfast.tools.errors import ToolFailure
from holdfast.tools.search import glob, grep
from holdfast.tools.shell import bash
from holdfast.tools.tool import Tool, ToolContext, tool
from holdfast.tools.viewing import view
from holdfast.tools.writing import create, edit


@tool(permission="allow", after_crash="repeat", read_only=True)
async def read_tool_output(tool_call_id: str, context: ToolContext, offset: int = 0, length: int = 20_000) -> str:
    """Read a part of a tool result that was too long to be shown whole: `length` characters from `offset` on."""
    whole = await context.read_output(tool_call_id)
    if whole is None:
        raise ToolFailure(f"There is no result of a call {tool_call_id} in this session")
    start = max(offset, 0)
    return whole[start : start + max(1, min(length, 50_000))] or f"(the result ends at {len(whole)})"


class Question(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    question: str
    choices: tuple[str, ...] = ()
    allow_freeform: bool = True


async def _never(arguments: Any, context: ToolContext) -> Any:
    raise ToolFailure("A question is asked, not run")


ask_user = Tool(
    name="ask_user",
    description="Ask the user a question and wait for the answer, however long it takes. Offer choices where you can.",
    parameters={
        "type": "object",
        "properties": {
            "question": {"type": "string"},
            "choices": {"type": "array", "items": {"type": "string"}},
            "allow_freeform": {"type": "boolean", "default": True},
        },
        "required": ["question"],
    },
    arguments=Question,
    run=_never,
    asks=lambda arguments, directory: None,
    asks_person=True,
    after_crash="repeat",
)

BUILT_IN: tuple[Tool, ...] = (view, create, edit, grep, glob, bash, ask_user, read_tool_output)
