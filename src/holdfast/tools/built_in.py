"""The tools that come with Holdfast, in the order in which models see them."""

from typing import Any, Final

import msgspec

from holdfast.tools.bash import bash, list_bash, read_bash, stop_bash
from holdfast.tools.errors import ToolFailure
from holdfast.tools.exec import exec_tool
from holdfast.tools.file_edits import create, edit
from holdfast.tools.offer_file import offer_file
from holdfast.tools.read_attached_file import read_attached_file
from holdfast.tools.recall import recall
from holdfast.tools.search import glob, grep
from holdfast.tools.task_tools import kill_task, list_tasks, task_status, wait_for_task
from holdfast.tools.tool import Tool, ToolContext, tool
from holdfast.tools.view import view


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
    origin="person",
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

_FILES: Final = (view, create, edit, grep, glob)
_OTHERS: Final = (ask_user, read_tool_output)

HOLDFAST_SHELL: Final = (exec_tool, list_tasks, task_status, wait_for_task, kill_task)
COPILOT_SHELL: Final = (bash, read_bash, stop_bash, list_bash)
"""Command tools under two sets of names. A model is offered one set, unless the session chose tools from both."""

HOLDFAST_ONLY: Final = (*HOLDFAST_SHELL, offer_file)
"""Tools that clients of the Copilot protocol get only if they name them."""

BUILT_IN: Final[tuple[Tool, ...]] = (
    *_FILES,
    *HOLDFAST_SHELL,
    *COPILOT_SHELL,
    *_OTHERS,
    offer_file,
    recall,
    read_attached_file,
)

HOLDFAST_TOOLS: Final = tuple(tool.name for tool in (*_FILES, *HOLDFAST_SHELL, *_OTHERS, offer_file))
COPILOT_TOOLS: Final = tuple(tool.name for tool in (*_FILES, *COPILOT_SHELL, *_OTHERS))
"""The tools offered by default: by Holdfast itself, and to Copilot clients. A session does not choose `recall`: it has
it from its first compaction on; nor `read_attached_file`, which it has from its first file on."""
