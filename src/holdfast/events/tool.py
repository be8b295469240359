"""Events about tool calls. Only an attempt without a completion is in doubt after a crash."""

from typing import Final, Literal

from holdfast.events.body import Body
from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image

ToolError = Literal[
    "failed", "denied", "rejected", "interrupted", "unknown_tool", "invalid_arguments", "timeout", "too_large"
]

Origin = Literal["unknown", "runtime", "person", "file", "command", "network", "client", "tool"]
"""Where the text of a result is from. `runtime`: Holdfast's own words. `person`: an answer or a refusal. `tool`: a tool
that did not say more. `unknown`: a release wrote the event that did not note it. All but the runtime's words and
people's are from outside."""

MAX_RESULT_BYTES: Final = 10_000_000
"""The largest result of a tool, text in UTF-8 and images together, wherever the tool runs. A client's answer is such a
result, of which every surface takes pictures of this size, and less text."""

MAX_ANSWER_BYTES: Final = 5_000_000
"""The text of a client's answer: who reads it again takes many times as much memory for a moment."""

MAX_RESULT_JSON_BYTES: Final = 14_000_000
"""The largest JSON message with a result that a surface takes: pictures of that size fit, which take up a third more
there, and text, of which JSON writes some bytes as two or three. It is read in one go, so `server/json_bounds.py` also
bounds what is in it."""


class ToolStarted(Body, frozen=True, tag="tool.execution_start"):
    """The model asked for this call. Written for all calls of a step before any permission; nothing has run yet."""

    tool_call_id: ToolCallId
    tool_name: str
    arguments: str


class ToolAttempted(Body, frozen=True, tag="holdfast.tool_attempt"):
    """The side effect starts right after this is durable."""

    tool_call_id: ToolCallId
    attempt: int


class ToolCompleted(Body, frozen=True, tag="tool.execution_complete"):
    tool_call_id: ToolCallId
    success: bool
    content: str
    """The whole result."""
    preview: str | None = None
    """What the model is sent of it, when the whole is too long."""
    origin: Origin = "unknown"
    error: ToolError | None = None
    code: str = ""
    """The stable name of why it was refused, where there is one."""
    binary: bytes | None = None
    images: tuple[Image, ...] = ()
    """Pictures that the model is shown with the result."""
    details: str = ""
    """For people: more than the model is told, such as a diff."""
    simulated: bool = False
    """A dry run: nothing was done."""
    duration_ms: int = 0
