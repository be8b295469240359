"""The actions of `decide`. The holder of the session carries one out, then decides again."""

import msgspec

from holdfast.events.body import Body
from holdfast.events.ids import MessageId, RequestId, ToolCallId
from holdfast.events.request import RequestKind
from holdfast.session.state import Compaction, ToolCall


class Opened(msgspec.Struct, frozen=True):
    """A request that an `Append` opens."""

    request_id: RequestId
    kind: RequestKind
    tool_call_id: ToolCallId
    title: str


class Promoted(msgspec.Struct, frozen=True):
    """An inbox item that an `Append` takes into the log, and the outcome that its receipt shows."""

    sequence: int
    outcome: str
    refused: bool = False


class Append(msgspec.Struct, kw_only=True):
    """Commit all of this as one unit."""

    events: list[Body] = []
    promotes: list[Promoted] = []
    opens: list[Opened] = []
    closes: list[RequestId] = []
    drops_segments: bool = False
    ends_commands: bool = False
    """Asks the task keeper to kill the commands that the turn waits for."""
    supposes_head: bool = False
    """Commit only if no record was appended since the state was folded."""


class CallModel(msgspec.Struct, frozen=True):
    """Make the model call that answers with the message `message_id`, after a pause if it failed before."""

    message_id: MessageId
    attempt: int
    delay_seconds: float = 0


class RunTools(msgspec.Struct, frozen=True):
    """Start these tool calls."""

    calls: tuple[ToolCall, ...]


class Summarise(msgspec.Struct, frozen=True):
    """Start making the summary of this compaction, beside everything else."""

    compaction: Compaction


class GoToBackground(msgspec.Struct, frozen=True):
    """End this running call, and let the command that it started go on as a task."""

    tool_call_id: ToolCallId


class Deny(msgspec.Struct, frozen=True):
    """Put a denial of these permission requests. An answer that was accepted earlier wins against it."""

    request_ids: tuple[RequestId, ...]


class Interrupt(msgspec.Struct, frozen=True):
    """Cancel the model call and the tools that run."""


class Pause(msgspec.Struct, frozen=True):
    """Wait until a running activity ends or an item is put into the inbox."""


class Release(msgspec.Struct, frozen=True):
    """Give the lease back: nothing is left to do here.

    `for_another`: only another process may run the session. `for_newer`: the inbox has items that only a process of a
    newer release can promote."""

    for_another: bool = False
    for_newer: bool = False


Action = Append | CallModel | RunTools | Summarise | GoToBackground | Deny | Interrupt | Pause | Release
