"""Sessions, requests, queued messages and tasks as clients see them. Times are milliseconds since 1970."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.events.ids import Key, Owner, SessionId
from holdfast.events.inbox import InboxItem, Message
from holdfast.events.message import PageContext
from holdfast.events.request import RequestKind
from holdfast.server.http.wire import json_response
from holdfast.server.operations import Operations
from holdfast.session.state import State
from holdfast.store.store import Row, Status
from holdfast.store.tasks import TaskRow
from holdfast.tasks.desk import ShownStatus


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list."""

    id: str
    title: str
    status: Status
    turn_id: str | None
    """The unfinished turn."""
    pending_requests: int
    waiting_messages: int
    unread: bool
    """The session said or asked something after the position up to which its owner has seen it."""
    pinned: bool
    model: str | None
    """None: the server's choice, or a model of the session's own provider."""
    parent: str | None
    metadata: Mapping[str, str]
    head: int
    """The position of its last event."""
    seen: int
    """The position up to which its owner has seen it."""
    created_at: int
    updated_at: int


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a session runs."""

    model: str | None
    system_message: str | None
    working_directory: str | None
    tools: tuple[str, ...] | None
    client_tools: tuple[str, ...]
    allow: tuple[str, ...]
    dry_run: bool
    mode: str
    thinking: int | None
    """Tokens that the model may think for: 0 is off, null the model's default."""


class QueuedView(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting message."""

    message_id: str
    text: str
    delivery: str
    accepted_at: int
    context: PageContext | None
    mode: str
    model: str | None
    thinking: int | None


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a session to a person or a client. Its content is in `details`."""

    id: str
    kind: RequestKind
    title: str
    turn_id: str
    tool_call_id: str
    opened_at: int
    details: dict[str, Any]


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A command that was started for a session."""

    id: str
    session_id: str
    command: str
    description: str
    status: ShownStatus
    foreground: bool
    """The turn waits for it."""
    exit_code: int | None
    detail: str
    started_at: int
    ended_at: int | None
    duration_ms: int
    """Until its end, or until now."""
    tool_call_id: str
    working_directory: str
    output_file: str
    alias: str
    """The name that the model chose for it, if it chose one."""


def session_view(row: Row) -> SessionView:
    return SessionView(
        id=row.key.session,
        title=row.title,
        status=row.status,
        turn_id=row.turn_id,
        pending_requests=row.open_requests,
        waiting_messages=row.waiting_messages,
        unread=row.is_unread,
        pinned=row.pinned,
        model=row.model or None,
        parent=row.parent,
        metadata=row.metadata,
        head=row.head,
        seen=row.seen,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


async def created_session(operations: Operations, owner: Owner, session_id: SessionId) -> Response:
    """The response to a request that created a session."""
    row = await operations.session(Key(owner, session_id))
    return json_response(session_view(row), 201, {"location": f"/v1/sessions/{session_id}"})


def settings_view(state: State) -> SessionSettings:
    return SessionSettings(
        model=state.model,
        system_message=state.system_message,
        working_directory=state.working_directory,
        tools=state.tools,
        client_tools=tuple(found.name for found in state.client_tools),
        allow=tuple(state.allow),
        dry_run=state.dry_run,
        mode=state.mode,
        thinking=state.thinking,
    )


def queued_views(items: tuple[InboxItem, ...]) -> tuple[QueuedView, ...]:
    return tuple(
        QueuedView(
            message_id=found.item.message_id,
            text=found.item.text,
            delivery=found.item.delivery,
            accepted_at=found.accepted_at,
            context=found.item.context,
            mode=found.item.agent_mode,
            model=found.item.model,
            thinking=found.item.thinking,
        )
        for found in items
        if isinstance(found.item, Message)
    )


def task_view(row: TaskRow, status: ShownStatus, *, now: int) -> TaskView:
    return TaskView(
        id=row.task_id,
        session_id=row.key.session,
        command=row.command,
        description=row.description,
        status=status,
        foreground=row.foreground,
        exit_code=row.exit_code,
        detail=row.detail,
        started_at=row.started_at,
        ended_at=row.ended_at,
        duration_ms=max(0, (now if row.ended_at is None else row.ended_at) - row.started_at),
        tool_call_id=row.tool_call_id,
        working_directory=row.directory,
        output_file=row.output_file,
        alias=row.alias,
    )
