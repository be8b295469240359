"""A session and its settings, as clients see them."""

from holdfast.protocol.session import SessionSettings, SessionView
from holdfast.session.state import State
from holdfast.store.store import Row


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
