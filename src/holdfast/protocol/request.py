"""Requests of sessions to people and clients, and the receipts of their answers."""

from typing import Any

import msgspec

from holdfast.events.ids import RequestId, ToolCallId, TurnId
from holdfast.events.request import RequestKind


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a session to a person or a client. Its content is in `details`."""

    id: RequestId
    kind: RequestKind
    title: str
    turn_id: TurnId
    tool_call_id: ToolCallId
    opened_at: int
    details: dict[str, Any]


class RequestList(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest first."""

    requests: tuple[RequestView, ...]


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    request_id: RequestId
    answer_id: str
    duplicate: bool = False
