"""Events about the session itself. Most are records: any operation may append them without a lease."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.events.body import Body
from holdfast.events.ids import Position, RequestId, SessionId, ToolCallId


class ClientTool(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool that a client runs: Holdfast asks for it by a durable request and waits for the answer."""

    name: str
    description: str
    parameters: dict[str, Any]
    asks_permission: bool = False
    ends_turn: bool = False
    """Once it was called nothing is left to say."""
    delivered_once: bool = False
    """A call that nobody answered is not given to the next client that offers this tool; it waits for its answer."""


Mode = Literal["interactive", "plan", "autopilot"]

Conventions = Literal["holdfast", "copilot"]
"""Whose habits a session follows: what becomes its title, what the model is told besides, how a turn may end."""


class Provider(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A model's endpoint that a session brought along. Its key and headers are never in here, nor in the log."""

    base_url: str
    type: Literal["openai", "azure", "anthropic"] = "openai"
    model: str | None = None
    """What that endpoint calls the model, if not as the session does."""
    wire_api: Literal["completions", "responses"] = "completions"
    api_version: str | None = None
    """Azure's; None is its route without versions."""
    has_secrets: bool = False
    """It can't be asked without what the client gave with it."""
    name: str = ""
    """What the client calls it among several; it is a part of its models' names, as `NAME/MODEL`."""


class DirectoryIdentity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which folder a session works in, whatever its path leads to later."""

    path: str
    """The real path, without a link in it."""
    device: int
    inode: int
    boot: str
    """The start of the machine on which it was seen: the number of a device holds no longer than that."""
    limited: bool = False
    """Chosen by a role whose folders the server bounds: every use is held to those bounds."""


class SessionStarted(Body, frozen=True, tag="session.start"):
    """The first event of every log."""

    session_id: SessionId
    producer: str
    start_time: int
    model: str | None = None
    system_message: str | None = None
    working_directory: str | None = None
    directory_identity: DirectoryIdentity | None = None
    """None: the first holder that uses the folder fixes it."""
    tools: tuple[str, ...] | None = None
    """Names of the local tools that the session uses; None is all that its worker has."""
    client_tools: tuple[ClientTool, ...] = ()
    allow: tuple[str, ...] = ()
    """Permission rules that were granted when the session was made."""
    dry_run: bool = False
    conventions: Conventions = "holdfast"
    process: str = ""
    """The process that the client was attached to."""
    client_name: str = ""
    wants_title: bool = False
    """A model is to make its title of the first message; until then, or without, it is the first words."""
    parent: SessionId | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)


class SessionResumed(Body, frozen=True, tag="session.resume"):
    """A client came back to the session."""

    resume_time: int
    event_count: int
    process: str = ""
    continue_pending_work: bool | None = None
    session_was_active: bool = False
    already_in_use: bool = False


class SettingsChanged(Body, frozen=True, tag="holdfast.settings_changed"):
    """What a client changed about how the session runs, from its next step on. What is unset stays as it was."""

    system_message: str | UnsetType | None = UNSET
    system_mode: Literal["append", "replace"] | UnsetType = UNSET
    working_directory: str | UnsetType | None = UNSET
    directory_identity: DirectoryIdentity | UnsetType | None = UNSET
    tools: tuple[str, ...] | UnsetType = UNSET
    """The built-in tools that the model is offered."""
    client_tools: tuple[ClientTool, ...] | UnsetType = UNSET
    allow: tuple[str, ...] | UnsetType = UNSET
    """All of the permission rules that are granted."""
    place_rules: tuple[str, ...] | UnsetType = UNSET
    """The rules that people granted for the working directory, or everywhere."""
    attached_process: str | UnsetType = UNSET
    """The process that a client has attached to."""
    reasoning_effort: str | UnsetType | None = UNSET
    thinking: int | UnsetType | None = UNSET
    """How many tokens the model may think for before it answers; 0 is off, and None is its own habit."""
    provider: Provider | UnsetType | None = UNSET
    stream: bool | UnsetType = UNSET
    """Whether the model is asked to stream."""
    client_name: str | UnsetType = UNSET


class ModeChanged(Body, frozen=True, tag="session.mode_changed"):
    new_mode: Mode
    previous_mode: Mode


class PlanChanged(Body, frozen=True, tag="session.plan_changed"):
    operation: Literal["create", "update", "delete"]


class ToolDelivered(Body, frozen=True, tag="holdfast.tool_delivered"):
    """A pending call of a client tool was given to a client again: the next attempt at it."""

    request_id: RequestId
    tool_call_id: ToolCallId


class SessionShutdown(Body, frozen=True, tag="session.shutdown"):
    """The last client left, or somebody closed the session. It can be resumed at any time."""

    shutdown_type: Literal["routine", "error"]
    reason: str = ""
    api_duration_ms: int = 0
    model_metrics: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """What was used until then, for each model: `requests` and `usage`, as the wire has them."""


class TitleChanged(Body, frozen=True, tag="session.title_changed"):
    title: str
    chosen: bool = False
    """Somebody gave this name, so that none that is made up replaces it."""
    by_model: bool = False
    """A model made it of the first message, in place of that message's first words."""


class ModelChanged(Body, frozen=True, tag="session.model_change"):
    new_model: str
    previous_model: str | None = None


class SessionInfo(Body, frozen=True, tag="session.info"):
    """A line for people. The model never sees it."""

    info_type: str
    message: str
    level: Literal["info", "warning", "error"] = "info"


class Truncated(Body, frozen=True, tag="holdfast.truncated"):
    """The conversation goes on from `kept` as if what came after had not been said. The log keeps all of it."""

    kept: Position


class SessionError(Body, frozen=True, tag="session.error"):
    """Why a turn failed. It stands in the same unit as the end of that turn."""

    error_type: str
    message: str
    retryable: bool = False
    status_code: int | None = None
