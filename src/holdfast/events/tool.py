"""Events about tool calls. After a crash, only an attempt without a completion is in doubt."""

from typing import Final, Literal

from holdfast.events.body import Body
from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image

ToolError = Literal[
    "failed", "denied", "rejected", "interrupted", "unknown_tool", "invalid_arguments", "timeout", "too_large"
]

Origin = Literal["unknown", "runtime", "person", "file", "command", "network", "client", "tool"]
"""The source of a result's text. `runtime`: Holdfast itself. `person`: an answer or a refusal. `tool`: a tool that did
not name a source. `unknown`: the event is of a release that did not record it. All but `runtime` and `person` are
outside."""

MAX_RESULT_BYTES: Final = 10_000_000
"""The largest result of a tool, text in UTF-8 and images together, wherever the tool runs. It bounds a client's answer
as well: every surface accepts images of this size in one, and less text."""

MAX_ANSWER_BYTES: Final = 5_000_000
"""The largest text of a client's answer: reading it back takes many times as much memory for a moment."""

MAX_RESULT_JSON_BYTES: Final = 14_000_000
"""The largest JSON message with a result that a surface accepts: it fits images of `MAX_RESULT_BYTES`, which base64
makes a third larger, and text, whose bytes JSON may escape as two or three. It is parsed in one go, so
`server/json_bounds.py` also bounds its content."""


class ToolStarted(Body, frozen=True, tag="tool.execution_start"):
    """The model requested this call. Written for all calls of a step before any permission; nothing has run yet."""

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
    """The part for the model, if the whole result is too long."""
    origin: Origin = "unknown"
    error: ToolError | None = None
    code: str = ""
    """The stable code of a refusal, if it has one."""
    binary: bytes | None = None
    images: tuple[Image, ...] = ()
    """Images that the model gets with the result."""
    details: str = ""
    """More for people than the model gets, such as a diff."""
    simulated: bool = False
    """A dry run: the call had no effect."""
    duration_ms: int = 0
