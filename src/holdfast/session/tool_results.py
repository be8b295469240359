"""The results that the runtime itself writes for tool calls: refusals, interruptions, and previews of long results."""

from typing import Final

from holdfast.events import tool
from holdfast.events.ids import ToolCallId
from holdfast.session.fold import INTERRUPTED
from holdfast.session.inputs import Inputs, InterruptedCall
from holdfast.session.state import State, ToolCall

DENIED: Final = "Permission denied and could not request permission from user"
REJECTED: Final = "The user rejected this tool call."
NO_MORE_ROUNDS: Final = "This was the last round of this turn: no tool is run in it."
UNKNOWN_OUTCOME: Final = (
    "The runtime was interrupted while this tool ran. Whether it took effect is unknown: check before doing it again."
)


def refusal(
    tool_call_id: ToolCallId, text: str, error: tool.ToolError, origin: tool.Origin = "runtime", code: str = ""
) -> tool.ToolCompleted:
    """The result of a call that is not run."""
    return tool.ToolCompleted(
        tool_call_id=tool_call_id, success=False, content=text, error=error, origin=origin, code=code
    )


def interruption(state: State, inputs: Inputs, call: ToolCall, by: str) -> tool.ToolCompleted:
    """The result of a call that the end of its turn leaves without one.

    `by` is the first half of a sentence that names the cause; empty after a crash."""
    origin: tool.Origin = "runtime"
    if not state.policy.explains_interruptions:
        text = INTERRUPTED
    elif by:
        cancelled = inputs.interrupted.get(call.tool_call_id)
        text = _progress_of(call, cancelled, by)
        origin = cancelled.origin if cancelled and cancelled.known else "runtime"
    else:
        text = INTERRUPTED if call.attempts == 0 else UNKNOWN_OUTCOME
    return tool.ToolCompleted(
        tool_call_id=call.tool_call_id,
        success=False,
        content=text,
        preview=preview(text, inputs.bounds.max_tool_characters, call.tool_call_id),
        origin=origin,
        error="interrupted",
    )


def _progress_of(call: ToolCall, cancelled: InterruptedCall | None, by: str) -> str:
    if call.attempts == 0:
        return f"{by} before this tool was run."
    if cancelled is None:
        return f"{by} while this tool ran. Whether it took effect is unknown: check before doing it again."
    if not cancelled.has_ended:
        return f"{by} while this tool ran. It was told to end, but was still running then: it may still take effect."
    if not cancelled.known:
        return (
            f"{by} while this tool ran, which was ended. What it had done by then stays: check before doing it again."
        )
    return f"{by} while this tool ran, which was ended. What is known of it:\n{cancelled.known}"


def preview(text: str, limit: int, tool_call_id: ToolCallId) -> str | None:
    """The beginning and the end of a text that is too long, with a line between them that says how to read the rest;
    None if the text is short enough."""
    if len(text) <= limit:
        return None
    head, tail = limit * 3 // 4, limit // 4
    left_out = len(text) - head - tail
    marker = (
        f"\n\n[… {left_out:,} of {len(text):,} characters are left out here. The whole result is kept: read more of "
        f"it with read_tool_output, tool_call_id {tool_call_id}, offset {head} …]\n\n"
    )
    return text[:head] + marker + text[len(text) - tail :]
