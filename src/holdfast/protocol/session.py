"""Sessions: in lists, in detail, and at a glance."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.events.ids import Position
from holdfast.protocol.compaction import ContextView
from holdfast.protocol.message import MessageView

SessionStatus = Literal["idle", "queued", "running", "waiting"]


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list."""

    # A field that is added later has a default, so that a client can read the view of an older server.

    id: str
    title: str
    status: SessionStatus
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
    head: Position
    """The position of its last event."""
    seen: Position
    """The position up to which its owner has seen it."""
    created_at: int
    updated_at: int


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest first, pinned or not: a client that shows pinned sessions first requests them separately."""

    sessions: tuple[SessionView, ...]
    next: str | None
    """The `cursor` of the next page."""
    unsearched: int = 0
    """With `q`: in how many sessions the newest messages were not searched, because the index has still to be made for
    them, as after an upgrade. The same search again goes on with that."""


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


class SessionDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A session and a page of its messages."""

    session: SessionView
    settings: SessionSettings
    messages: tuple[MessageView, ...]
    before: int | None
    """The `before` of the next older page. None: this is the first page."""
    cursor: str
    """The cursor from which to follow the session's events: where the newest page ends."""
    context: ContextView | None = None
    """How full the session's context is; None from a server before it could say so."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """The session's head, and whether the session has come to rest."""

    head: Position
    """The position of its last event."""
    is_settled: bool
    """Nothing more happens until a client sends, answers or stops something, or a task ends."""


class SeenView(msgspec.Struct, frozen=True, kw_only=True):
    """The position up to which the owner has seen the session. It never decreases."""

    position: int
    unread: bool
    """The session said or asked something after the position."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    needs_attention: int
    """Sessions that wait for an answer."""
    running: int
    queued: int
    finished_lately: int
    """Idle sessions that changed within the last day."""
    idle: int
    """The other idle sessions."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    counts: Counts
    items: tuple[SessionView, ...]
    """The latest sessions; those that wait for an answer come first."""
