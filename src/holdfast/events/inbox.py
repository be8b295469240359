"""The items of a session's inbox. An item is durable once it is accepted, and changes nothing until the holder of the
lease promotes it into the log."""

from typing import Any, Literal

import msgspec

from holdfast.events.ids import CompactionId, FileId, MessageId, Position, RequestId, TaskId, ToolCallId, TurnId
from holdfast.events.message import AttachedFile, Image, PageContext
from holdfast.events.request import Decision
from holdfast.events.role import RoleBounds
from holdfast.events.task import TaskNotice
from holdfast.events.tool import ToolError


class Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="kind"):
    """The base of every inbox item."""


class Message(Payload, frozen=True, tag="message"):
    """A message of a person. With `steer` it joins the running turn at its next step; with `enqueue` it waits for a
    turn of its own."""

    message_id: MessageId
    text: str
    delivery: Literal["steer", "enqueue"] = "steer"
    model_text: str = ""
    added: str = ""
    unattended: bool = False
    images: tuple[Image, ...] = ()
    attachments: tuple[dict[str, Any], ...] = ()
    file_ids: tuple[FileId, ...] = ()
    """The files as its sender named them."""
    files: tuple[AttachedFile, ...] = ()
    """Those of them that its owner has, set by the store when it accepts the message."""
    agent_mode: str = ""
    context: PageContext | None = None
    model: str | None = None
    thinking: int | None = None
    rewinds_to: Position | None = None
    """The message replaces the conversation after this position: the unit that starts its turn also rewinds to it."""
    bounds: RoleBounds | None = None
    """The bounds of its sender's role, checked again when it is promoted; None: the sender may use anything."""

    def says_the_same(self, other: "Message") -> bool:
        """Whether both have the same content, so that they may share an id; the sender's role does not matter."""
        return self._as_sent() == other._as_sent()

    def _as_sent(self) -> "Message":
        return msgspec.structs.replace(self, bounds=None, files=())


class PermissionAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="permission"):
    decision: Decision
    feedback: str = ""
    rules: tuple[str, ...] = ()
    """The rules to grant for the session; empty for the rule that the request names."""
    place: str | None = None
    """The directory where the rules hold for later sessions as well; the empty string for everywhere, None for
    nowhere."""


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="client_tool"):
    content: str
    success: bool = True
    error: ToolError | None = None
    images: tuple[Image, ...] = ()


class QuestionAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="question"):
    answer: str
    was_freeform: bool = True
    failed: bool = False
    """The question could not be asked; `answer` says why."""


class Answer(Payload, frozen=True, tag="answer"):
    """The answer to a request. Its key in the inbox is the request id, so that only one can ever be accepted."""

    request_id: RequestId
    answer_id: str
    content: PermissionAnswer | ToolAnswer | QuestionAnswer
    answered_by: str = ""

    def says_the_same(self, other: "Answer") -> bool:
        """Whether both have the same content, so that they may share an id; the sender does not matter."""
        return self.content == other.content


StopCause = Literal["stopped", "suspended", "not continued"]
"""Why a turn is stopped: a person stopped it, a client suspended it, or a client resumed the session without wanting
its pending work continued."""


class Stop(Payload, frozen=True, tag="stop"):
    """Ends the turn that was running when the stop was accepted, and no other."""

    stop_id: str
    keep_queued: bool = False
    cause: StopCause = "stopped"
    meant_for: TurnId | None = None
    """The turn that the sender saw. If another turn runs, or none, the stop changes neither the turn nor the queue."""
    turn_id: TurnId | None = None
    """The turn that the stop ends, set by the store when it accepts the stop; None if no turn was running."""

    def comes_too_late(self, running: TurnId | None) -> bool:
        """Whether the stop is meant for another turn than the running one."""
        return self.meant_for is not None and self.meant_for != running


class Rewind(Payload, frozen=True, tag="rewind"):
    """Continue the conversation from an earlier position. Only an idle session rewinds."""

    rewind_id: str
    kept: Position


class TaskNews(Payload, frozen=True, tag="task"):
    """News of a task. Its key in the inbox is the task and the kind of news, so that each is put once."""

    notice: TaskNotice


class ToBackground(Payload, frozen=True, tag="background"):
    """Move a command that the turn waits for to the background."""

    task_id: TaskId
    tool_call_id: ToolCallId


class Compact(Payload, frozen=True, tag="compact"):
    """Summarise the older part of the conversation now, whatever its size."""

    compaction_id: CompactionId
    instructions: str = ""


class CancelCompaction(Payload, frozen=True, tag="cancel_compaction"):
    """Give up the compaction that is under way."""

    cancel_id: str
    only_manual: bool = False


Item = Message | Answer | Stop | Rewind | TaskNews | ToBackground | Compact | CancelCompaction
"""Every item that this release can put and promote."""

INBOX_VERSION = 2
"""Raised whenever this release can promote an item that the release before it could not: a new kind, or a new shape of
an old one. A process leaves the items that it can't read to processes with a higher version."""


class UnknownItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that a newer release put. This release neither promotes nor changes it, and promotes the items after it
    as if it were not in the inbox."""

    kind: str
    payload: msgspec.Raw


ItemState = Literal["accepted", "promoted", "removed", "refused"]


class InboxItem(msgspec.Struct, frozen=True, kw_only=True):
    """One row of an inbox: the receipt that the sender may read at any time."""

    sequence: int
    """Identifies this version of the item: an edit or a reordering gives a new one. It is not the queue's order."""
    key: str
    state: ItemState
    outcome: str
    """The outcome of a closed item: its delivery (idle, queued, steering) if it is a message, otherwise a word or
    empty."""
    accepted_at: int
    while_running: bool
    """A turn was unfinished when the store accepted the item."""
    item: Item | UnknownItem
