"""What may be put into a session's inbox. An item is durable from the moment it is accepted, and changes
nothing until the holder of the lease promotes it into the log."""

from typing import Any, Literal

import msgspec

from holdfast.events.ids import MessageId, Position, RequestId, TaskId, ToolCallId, TurnId
from holdfast.events.message import Image, PageContext
from holdfast.events.request import Decision
from holdfast.events.task import TaskNotice
from holdfast.events.tool import ToolError


class Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag_field="kind"):
    """What an inbox item says."""


class Message(Payload, frozen=True, tag="message"):
    """What a person sent. `steer` joins the running turn at its next step; `enqueue` waits for a turn of its own."""

    message_id: MessageId
    text: str
    delivery: Literal["steer", "enqueue"] = "steer"
    model_text: str = ""
    added: str = ""
    unattended: bool = False
    images: tuple[Image, ...] = ()
    attachments: tuple[dict[str, Any], ...] = ()
    agent_mode: str = ""
    context: PageContext | None = None
    model: str | None = None
    thinking: int | None = None
    rewinds_to: Position | None = None
    """It is sent in place of what was said after that: the unit that starts its turn takes the rest back."""


class PermissionAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="permission"):
    decision: Decision
    feedback: str = ""
    rules: tuple[str, ...] = ()
    """What is approved beyond this once, if not the rule that the request names."""
    place: str | None = None
    """Where it is approved for later sessions as well: a directory, or everywhere (the empty one). None: it is not."""


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="client_tool"):
    content: str
    success: bool = True
    error: ToolError | None = None
    images: tuple[Image, ...] = ()


class QuestionAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="question"):
    answer: str
    was_freeform: bool = True
    failed: bool = False
    """Nobody could be asked; `answer` says why."""


class Answer(Payload, frozen=True, tag="answer"):
    """The answer to a request. Its key in the inbox is the request, so that only one can ever be accepted."""

    request_id: RequestId
    answer_id: str
    content: PermissionAnswer | ToolAnswer | QuestionAnswer
    answered_by: str = ""

    def says_the_same(self, other: "Answer") -> bool:
        """Whether the two may share an id. Who sends it does not matter."""
        return self.content == other.content


StopCause = Literal["stopped", "suspended", "not continued"]
"""Somebody stopped the turn; or left it on purpose; or came back and did not want to go on with what was pending."""


class Stop(Payload, frozen=True, tag="stop"):
    """Ends the turn that was running when it was accepted, and no other."""

    stop_id: str
    keep_queued: bool = False
    cause: StopCause = "stopped"
    meant_for: TurnId | None = None
    """The turn that its sender saw; if another one runs, or none, nothing is stopped and the queue stays as it is."""
    turn_id: TurnId | None = None
    """Set by the store as it accepts the stop: the turn that it ends. None: nothing was running."""

    def comes_too_late(self, running: TurnId | None) -> bool:
        """Whether it is meant for another turn than the one that runs."""
        return self.meant_for is not None and self.meant_for != running


class Rewind(Payload, frozen=True, tag="rewind"):
    """Let the conversation go on from an earlier place. Only an idle session does that."""

    rewind_id: str
    kept: Position


class TaskNews(Payload, frozen=True, tag="task"):
    """Something became of a task. Its key in the inbox is the task and the kind of news, so that each comes once."""

    notice: TaskNotice


class ToBackground(Payload, frozen=True, tag="background"):
    """Somebody wants a command that the turn waits for to go on in the background."""

    task_id: TaskId
    tool_call_id: ToolCallId


Item = Message | Answer | Stop | Rewind | TaskNews | ToBackground
"""Every item that this release can put and promote."""

INBOX_VERSION = 1
"""Raised whenever this release can promote an item that the release before it could not: a new kind, or a new shape of
an old one. A process leaves the items that it can't read to processes with a higher version."""


class UnknownItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that a newer release put. This release keeps it as it is: it is neither promoted nor changed here, and
    the items after it are promoted as if it were not in the inbox."""

    kind: str
    payload: msgspec.Raw


ItemState = Literal["accepted", "promoted", "removed", "refused"]


class InboxItem(msgspec.Struct, frozen=True, kw_only=True):
    """One row of an inbox: the receipt that its sender may read again at any time."""

    sequence: int
    """Names this version of the item: an edit or a new order gives another. It is not the order of the queue."""
    key: str
    state: ItemState
    outcome: str
    """How it ended: a delivery (idle, queued, steering) for a message, otherwise a word or nothing."""
    accepted_at: int
    while_running: bool
    """A turn was unfinished when it was accepted."""
    item: Item | UnknownItem
