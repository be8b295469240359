"""Events about the session itself. Most are records: any operation may append them without a lease."""

from typing import Any

import msgspec

from holdfast.events.body import Body
from holdfast.events.ids import Position, SessionId


class ClientTool(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool that a client runs: Holdfast asks for it by a durable request and waits for the answer."""

    name: str
    description: str
    parameters: dict[str, Any]
    asks_permission: bool = False


class SessionStarted(Body, frozen=True, tag="session.start"):
    """The first event of every log."""

    session_id: SessionId
    producer: str
    start_time: int
    model: str | None = None
    system_message: str | None = None
    working_directory: str | None = None
    tools: tuple[str, ...] | None = None
    """Names of the local tools that the session uses; None is all that its worker has."""
    client_tools: tuple[ClientTool, ...] = ()
    allow: tuple[str, ...] = ()
    """Permission rules that were granted when the session was made."""
    dry_run: bool = False
    parent: SessionId | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)


class SessionResumed(Body, frozen=True, tag="session.resume"):
    """A client came back to the session."""

    resume_time: int
    event_count: int


class TitleChanged(Body, frozen=True, tag="session.title_changed"):
    title: str


class ModelChanged(Body, frozen=True, tag="session.model_change"):
    new_model: str
    previous_model: str | None = None


class SessionInfo(Body, frozen=True, tag="session.info"):
    """A line for people. The model never sees it."""

    info_type: str
    message: str


class Truncated(Body, frozen=True, tag="holdfast.truncated"):
    """The conversation goes on from `kept` as if what came after had not been said. The log keeps all of it."""

    kept: Position


class SessionError(Body, frozen=True, tag="session.error"):
    """Why a turn failed. It stands in the same unit as the end of that turn."""

    error_type: str
    message: str
    retryable: bool = False
