"""The events that webhooks report: the types of the log, the name of each for receivers, and its facts.

This is the only list of them. A further event is a further line of `_REPORTED`: the outbox goes by the types that the
rows of webhooks name. The facts are few and stable: no secrets, no money, and no text of unbounded length.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.events.body import Body
from holdfast.events.budget import OVER_BUDGET
from holdfast.events.event import Event, type_of
from holdfast.events.ids import EventId, Position
from holdfast.events.request import ExternalToolRequested, PermissionRequested, UserInputRequested
from holdfast.events.session import SessionError
from holdfast.events.task import TaskNotified
from holdfast.events.turn import TurnEnded, TurnStarted

Facts = dict[str, Any]

REPORT_VERSION: Final = 1
"""The version of the reports. Fields may be added to it; a change of meaning is another version."""

TEST_EVENT: Final = "webhook.test"
"""The name of a report that an owner requests to try a webhook. It belongs to no session."""

MAX_TEXT_CHARACTERS: Final = 500
"""Longer texts in facts are cut: a report only has to say what to look at."""

EVENTS_BEFORE: Final = 16
"""How many events before one its report may need: the error of a turn is in the same unit as its end."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request to a receiver. It is the same in every attempt."""

    type: str
    version: int = REPORT_VERSION
    id: EventId
    """The event's id in the log, and the id of the message: a receiver that saw it before drops the repeat."""
    time: int
    """When the event was written, in milliseconds since 1970."""
    session_id: str
    position: Position
    """The event's position in the session's log: the reports of a session come in this order."""
    data: Facts


def _turn_ended(end: TurnEnded, before: Sequence[Event]) -> Facts:
    error: Facts | None = None
    for event in before:
        match event.body:
            case TurnStarted():
                error = None
            case SessionError(error_type=code, message=message):
                error = {"code": code, "message": _cut(message)}
            case _:
                pass
    shown = error if end.reason == "error" else None
    return {"turn_id": end.turn_id, "reason": end.reason, "duration_ms": end.duration_ms, "error": shown}


def _permission(asked: PermissionRequested, before: Sequence[Event]) -> Facts:
    return _request("permission", asked, asked.tool_name, f"{asked.kind} {asked.subject}")


def _client_tool(asked: ExternalToolRequested, before: Sequence[Event]) -> Facts:
    return _request("client_tool", asked, asked.tool_name, asked.tool_name)


def _question(asked: UserInputRequested, before: Sequence[Event]) -> Facts:
    return _request("question", asked, None, asked.question)


def _request(
    kind: str,
    asked: PermissionRequested | ExternalToolRequested | UserInputRequested,
    tool_name: str | None,
    title: str,
) -> Facts:
    return {
        "request_id": asked.request_id,
        "kind": kind,
        "tool_call_id": asked.tool_call_id,
        "tool_name": tool_name,
        "title": _cut(title),
    }


def _task_ended(notified: TaskNotified, before: Sequence[Event]) -> Facts | None:
    notice = notified.notice
    if notice.kind == "stalled":
        return None
    return {
        "task_id": notice.task_id,
        "status": notice.kind,
        "exit_code": notice.exit_code,
        "duration_ms": notice.duration_ms,
        "description": _cut(notice.description),
    }


def _limit_reached(error: SessionError, before: Sequence[Event]) -> Facts | None:
    return {"code": error.error_type, "message": _cut(error.message)} if error.error_type == OVER_BUDGET else None


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARACTERS else text[: MAX_TEXT_CHARACTERS - 1] + "…"


_REPORTED: Final[Mapping[type[Body], tuple[str, Callable[[Any, Sequence[Event]], Facts | None]]]] = {
    TurnEnded: ("turn.ended", _turn_ended),
    PermissionRequested: ("request.opened", _permission),
    ExternalToolRequested: ("request.opened", _client_tool),
    UserInputRequested: ("request.opened", _question),
    TaskNotified: ("task.ended", _task_ended),
    SessionError: ("limit.reached", _limit_reached),
}
"""For each type of event its name for receivers, and the function that gives its facts. None: this one is not
reported."""

REPORTED_EVENTS: Final = tuple(dict.fromkeys(name for name, _ in _REPORTED.values()))
"""The names that a webhook may subscribe to."""

_NAMES: Final = {str(body.__struct_config__.tag): name for body, (name, _) in _REPORTED.items()}


def reported_name(event_type: str) -> str:
    """The name of an event's type for receivers. A type that a newer release reports keeps its own."""
    return _NAMES.get(event_type, event_type)


def reported_types(names: Sequence[str]) -> tuple[str, ...]:
    """The types of the log that these names stand for."""
    return tuple(event_type for event_type, name in _NAMES.items() if name in names)


def report_of(session_id: str, event: Event, before: Sequence[Event]) -> Report | None:
    """The report of an event, with the events of the log right before it; None: it is not reported."""
    reported = _REPORTED.get(type(event.body))
    facts = reported[1](event.body, before) if reported is not None else None
    if facts is None:
        return None
    return Report(
        type=reported_name(type_of(event.body)),
        id=event.id,
        time=event.time,
        session_id=session_id,
        position=event.position,
        data=facts,
    )


def report_of_test(event_id: EventId, time: int) -> Report:
    return Report(type=TEST_EVENT, id=event_id, time=time, session_id="", position=Position(0), data={})
