"""Events about requests: the questions of a session to people and clients, and their answers."""

from typing import Any, Literal

import msgspec

from holdfast.events.body import Body
from holdfast.events.ids import RequestId, ToolCallId

RequestKind = Literal["permission", "client_tool", "question"]

PermissionKind = Literal["read", "write", "shell", "custom-tool"]

Decision = Literal[
    "approved",
    "approved-for-session",
    "denied-interactively-by-user",
    "denied-no-approval-rule-and-could-not-request-from-user",
    "cancelled",
]


class PermissionAsk(msgspec.Struct, frozen=True, kw_only=True):
    """The effect that a tool call asks permission for, in the terms of permission rules."""

    kind: PermissionKind
    subject: str
    """The path, the command or the tool that the call would use."""
    inside: bool = True
    """The effect stays within the session's working directory."""
    details: dict[str, Any] = {}
    """More for people to see (the diff, the whole command, the arguments), under the wire's field names."""


class PermissionRequested(Body, frozen=True, tag="permission.requested"):
    request_id: RequestId
    tool_call_id: ToolCallId
    tool_name: str
    kind: PermissionKind
    subject: str
    rule: str
    """The rule that approving for the session would grant."""
    details: dict[str, Any] = msgspec.field(default_factory=dict)


class PermissionCompleted(Body, frozen=True, tag="permission.completed"):
    request_id: RequestId
    tool_call_id: ToolCallId
    decision: Decision
    feedback: str = ""
    answered_by: str = ""
    rules: tuple[str, ...] = ()
    """The rules that the answer grants; empty for the rule of the request."""
    place: str | None = None
    """Where later sessions have the rules too; the empty place is everywhere. The session has them from there, for as
    long as they are granted there, and not from this event. None: the answer is for this session alone."""


class ExternalToolRequested(Body, frozen=True, tag="external_tool.requested"):
    request_id: RequestId
    tool_call_id: ToolCallId
    tool_name: str
    arguments: str


class ExternalToolCompleted(Body, frozen=True, tag="external_tool.completed"):
    """The request is closed. Its result is the `ToolCompleted` of the same unit."""

    request_id: RequestId
    answered_by: str = ""
    cancelled: bool = False
    """The turn ended before an answer came."""


class UserInputRequested(Body, frozen=True, tag="user_input.requested"):
    request_id: RequestId
    tool_call_id: ToolCallId
    question: str
    choices: tuple[str, ...] = ()
    allow_freeform: bool = True


class UserInputCompleted(Body, frozen=True, tag="user_input.completed"):
    request_id: RequestId
    answer: str = ""
    was_freeform: bool = True
    cancelled: bool = False
    answered_by: str = ""
