"""The activity of a session, computed from its log: its phase, its open requests, its running tools and tasks."""

import time
from typing import Final

from holdfast.cli.request_lines import OpenedRequest
from holdfast.events.body import Body
from holdfast.events.compaction import CompactionEnded, CompactionStarted
from holdfast.events.event import Event
from holdfast.events.ids import MessageId, Position, RequestId, TaskId
from holdfast.events.message import UserMessage
from holdfast.events.request import (
    ExternalToolCompleted,
    ExternalToolRequested,
    PermissionCompleted,
    PermissionRequested,
    UserInputCompleted,
    UserInputRequested,
)
from holdfast.events.session import ModelChanged, SessionStarted
from holdfast.events.task import TaskNotified, TaskStarted
from holdfast.events.tool import ToolAttempted, ToolCompleted, ToolStarted
from holdfast.events.turn import TurnStarted
from holdfast.session.state import TRANSITIONS, Phase

COMMAND_TOOLS: Final = frozenset({"exec", "bash"})


class SessionActivity:
    """Follows a log event by event. Every reader of the log computes the same."""

    def __init__(self) -> None:
        self.position = Position(0)
        self.phase = Phase.IDLE
        self.model: str | None = None
        self.open_requests: dict[RequestId, OpenedRequest] = {}
        self.turns = 0
        self.turn_started_at = 0.0
        self.running_tools: dict[str, str] = {}
        self.running_tasks: dict[TaskId, str] = {}
        """The description or command of each task whose end is not in the log yet."""
        self.unpromoted: dict[MessageId, str] = {}
        """Messages sent from here that are not in the log yet."""
        self.compaction: CompactionStarted | None = None
        """The compaction that is under way."""
        self._names: dict[str, str] = {}

    @property
    def busy(self) -> bool:
        return self.phase is not Phase.IDLE

    @property
    def waits_for_summary(self) -> bool:
        """Whether the next model call waits for a compaction, as far as its trigger tells."""
        return self.busy and self.compaction is not None and self.compaction.trigger in ("full", "too_long")

    @property
    def runs_command(self) -> bool:
        """Whether the turn waits for a command, judged by the names of its tools."""
        return any(name in COMMAND_TOOLS for name in self.running_tools.values())

    def take(self, event: Event) -> None:
        body = event.body
        self.position = event.position
        self.phase = TRANSITIONS.get((self.phase, type(body)), self.phase)
        self._follow_requests(body)
        self._follow_tasks(body)
        match body:
            case SessionStarted(model=model):
                self.model = model
            case ModelChanged(new_model=model):
                self.model = model
            case TurnStarted():
                self.turns += 1
                self.turn_started_at = time.monotonic()
            case UserMessage(message_id=message_id):
                self.unpromoted.pop(message_id, None)
            case CompactionStarted():
                self.compaction = body
            case CompactionEnded():
                self.compaction = None
            case ToolStarted(tool_call_id=call, tool_name=name):
                self._names[call] = name
            case ToolAttempted(tool_call_id=call):
                self.running_tools[call] = self._names.get(call, "a tool")
            case ToolCompleted(tool_call_id=call):
                self.running_tools.pop(call, None)
                self._names.pop(call, None)
            case _:
                pass

    def _follow_requests(self, body: Body) -> None:
        match body:
            case PermissionRequested() | UserInputRequested() | ExternalToolRequested():
                self.open_requests[body.request_id] = body
            case PermissionCompleted() | UserInputCompleted() | ExternalToolCompleted():
                self.open_requests.pop(body.request_id, None)
            case _:
                pass

    def _follow_tasks(self, body: Body) -> None:
        match body:
            case TaskStarted(task_id=task_id):
                self.running_tasks[task_id] = body.description or body.command
            case TaskNotified(notice=notice) if notice.kind != "stalled":
                self.running_tasks.pop(notice.task_id, None)
            case _:
                pass
