"""Events about tool calls. Only an attempt without a completion is in doubt after a crash."""

from typing import Literal

from holdfast.events.body import Body
from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image

ToolError = Literal[
    "failed", "denied", "rejected", "interrupted", "unknown_tool", "invalid_arguments", "timeout", "too_large"
]


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
    error: ToolError | None = None
    binary: bytes | None = None
    images: tuple[Image, ...] = ()
    """Pictures that the model is shown with the result."""
    details: str = ""
    """For people: more than the model is told, such as a diff."""
    simulated: bool = False
    """A dry run: nothing was done."""
    duration_ms: int = 0
