"""Events about the session itself. Most are records: any operation may append them without a lease."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.events.body import Body
from holdfast.events.compaction import CompactionSettings
from holdfast.events.ids import Position, RequestId, SessionId, ToolCallId


class ClientTool(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool that a client runs: Holdfast asks for it by a durable request and waits for the answer."""

    name: str
    description: str
    parameters: dict[str, Any]
    asks_permission: bool = False
    ends_turn: bool = False
    """The turn ends after a call of this tool."""
    delivered_once: bool = False
    """An unanswered call is not delivered again to the next client that offers this tool; it waits for its answer."""


Mode = Literal["interactive", "plan", "autopilot"]

Conventions = Literal["holdfast", "copilot"]
"""The product whose conventions a session follows: how it gets its title, the extra context for the model, how a turn
may end."""


class Provider(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A model endpoint that the client gave to a session. Its key and headers are neither in here nor in the log."""

    base_url: str
    type: Literal["openai", "azure", "anthropic"] = "openai"
    model: str | None = None
    """The endpoint's own name of the model, if it differs from the session's."""
    wire_api: Literal["completions", "responses"] = "completions"
    api_version: str | None = None
    """The API version of Azure; None for its route without versions."""
    has_secrets: bool = False
    """Calls need the secrets that the client gave with the endpoint."""
    name: str = ""
    """The client's name for this endpoint among several; its models are called `NAME/MODEL`."""
    max_window: int | None = None
    """The model's window in tokens, as the client states it."""
    max_output: int | None = None
    """The model's longest answer in tokens, as the client states it."""


class DirectoryIdentity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The identity of a session's working directory, even if its path leads elsewhere later."""

    path: str
    """The real path, with all links resolved."""
    device: int
    inode: int
    boot: str
    """The boot of the machine during which it was recorded: device numbers do not outlive a boot."""
    limited: bool = False
    """A role with limited directories chose it: the server checks its bounds at every use."""


class SessionStarted(Body, frozen=True, tag="session.start"):
    """The first event of every log."""

    session_id: SessionId
    producer: str
    start_time: int
    model: str | None = None
    system_message: str | None = None
    working_directory: str | None = None
    directory_identity: DirectoryIdentity | None = None
    """None until the first holder that uses the directory records it."""
    tools: tuple[str, ...] | None = None
    """The names of the session's local tools; None for all that its worker has."""
    client_tools: tuple[ClientTool, ...] = ()
    allow: tuple[str, ...] = ()
    """The permission rules granted when the session was created."""
    dry_run: bool = False
    conventions: Conventions = "holdfast"
    process: str = ""
    """The process that the client was attached to."""
    client_name: str = ""
    """The program that created the session: HTTP sets "http", a Copilot session has the `clientName` that its client
    gave; otherwise empty. Workers read it: the path of a directory that came by HTTP is already without links."""
    wants_title: bool = False
    """A model makes the title from the first message; until then, or if that fails, the title is its first words."""
    parent: SessionId | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)


class SessionResumed(Body, frozen=True, tag="session.resume"):
    """A client resumed the session."""

    resume_time: int
    event_count: int
    process: str = ""
    continue_pending_work: bool | None = None
    session_was_active: bool = False
    already_in_use: bool = False


class SettingsChanged(Body, frozen=True, tag="holdfast.settings_changed"):
    """A client changed settings of the session, effective from its next step. An unset field stays as it was."""

    system_message: str | UnsetType | None = UNSET
    system_mode: Literal["append", "replace"] | UnsetType = UNSET
    working_directory: str | UnsetType | None = UNSET
    directory_identity: DirectoryIdentity | UnsetType | None = UNSET
    tools: tuple[str, ...] | UnsetType = UNSET
    """The built-in tools that the model is offered."""
    client_tools: tuple[ClientTool, ...] | UnsetType = UNSET
    allow: tuple[str, ...] | UnsetType = UNSET
    """All granted permission rules, replacing the earlier ones."""
    place_rules: tuple[str, ...] | UnsetType = UNSET
    """The rules that people granted for the working directory, or everywhere."""
    attached_process: str | UnsetType = UNSET
    """The process that a client attached to."""
    reasoning_effort: str | UnsetType | None = UNSET
    thinking: int | UnsetType | None = UNSET
    """The model's thinking budget in tokens; 0 switches thinking off, None leaves it to the model."""
    provider: Provider | UnsetType | None = UNSET
    stream: bool | UnsetType = UNSET
    """Whether model calls stream."""
    compaction_settings: CompactionSettings | UnsetType = UNSET
    """When the session compacts its context."""
    client_name: str | UnsetType = UNSET
    """As in `SessionStarted`. Only Copilot clients change it."""


class ModeChanged(Body, frozen=True, tag="session.mode_changed"):
    new_mode: Mode
    previous_mode: Mode


class PlanChanged(Body, frozen=True, tag="session.plan_changed"):
    operation: Literal["create", "update", "delete"]


class ToolDelivered(Body, frozen=True, tag="holdfast.tool_delivered"):
    """A pending call of a client tool was delivered to a client again, as its next attempt."""

    request_id: RequestId
    tool_call_id: ToolCallId


class SessionShutdown(Body, frozen=True, tag="session.shutdown"):
    """The last client left, or a client closed the session. It can be resumed at any time."""

    shutdown_type: Literal["routine", "error"]
    reason: str = ""
    api_duration_ms: int = 0
    model_metrics: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    """The usage of each model until then: `requests` and `usage`, in the wire's format."""


class TitleChanged(Body, frozen=True, tag="session.title_changed"):
    title: str
    chosen: bool = False
    """A person chose this title, so no generated title replaces it."""
    by_model: bool = False
    """A model made the title from the first message, replacing the first words of that message."""


class ModelChanged(Body, frozen=True, tag="session.model_change"):
    new_model: str
    previous_model: str | None = None


class SessionInfo(Body, frozen=True, tag="session.info"):
    """A line for people. The model never gets it."""

    info_type: str
    message: str
    level: Literal["info", "warning", "error"] = "info"


class Truncated(Body, frozen=True, tag="holdfast.truncated"):
    """The conversation continues from `kept` as if the later events had not happened. The log keeps all of them."""

    kept: Position


class SessionError(Body, frozen=True, tag="session.error"):
    """The error that failed a turn. It is in the same unit as the end of that turn."""

    error_type: str
    """The error code, under its name in the log (`errorType`). Programs read `code`."""
    message: str
    retryable: bool = False
    status_code: int | None = None

    @property
    def code(self) -> str:
        """The error code: stable, for programs. docs/operations.md, "How a turn ends", lists the codes."""
        return self.error_type
