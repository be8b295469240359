"""The log as Copilot clients see it: their names, their envelope, their chain of parents. Pure.

What they call a turn is a step here, and an interaction is a turn. Persisted events are those that a client may read
again; each names the one before it. The others are told once, and are never pointed at.
"""

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET

from holdfast.events import codec, message, request, session, task, tool, turn
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import MessageId, ToolCallId, TurnId, random_id
from holdfast.live.live import Delta
from holdfast.session.fold import INTERRUPTED
from holdfast.session.history import system_text
from holdfast.session.notices import notice_text
from holdfast.session.policy import COPILOT, policy_of
from holdfast.session.state import State
from holdfast.session.tool_results import UNKNOWN_OUTCOME
from holdfast.version import __version__

LOG_VERSION: Final = 1
PRODUCER: Final = "holdfast"

ERROR_TYPES: Final = {
    "model_unauthorized": "authorization",
    "model_rate_limited": "rate_limit",
}
"""The words that clients have for why a turn failed; anything else is a `query`."""

_NO_CODE_CHANGES: Final = {"linesAdded": 0, "linesRemoved": 0, "filesModified": []}


class WireEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An event in the envelope of the wire."""

    type: str
    data: dict[str, Any]
    id: str
    timestamp: str
    parent_id: str | None
    ephemeral: bool = False


class _Shown(msgspec.Struct, frozen=True):
    """What an event is on the wire."""

    type: str
    data: dict[str, Any]
    ephemeral: bool = False
    about: str = ""
    """What tells it from others of its type that come of the same event."""


class CopilotProjection:
    """What of a session's past is needed to show what comes next: fed with every event of its log, in order."""

    def __init__(self, session_id: str, instructions: str = "") -> None:
        self._session_id = session_id
        self._instructions = instructions
        self._system = State(policy=COPILOT)
        self._tells_system = False
        """The next message is the first of its session, or since a client came back: the model's system text is told
        with it."""
        self._parent: str | None = None
        self._directory: str | None = None
        self._model: str | None = None
        self._effort: str | None = None
        self._turn_id: TurnId | None = None
        self._step = 0
        self._asked_by: MessageId | None = None
        self._at_work: list[ToolCallId] = []
        """Calls of the step that were attempted and have no result yet."""
        self._streamed: MessageId | None = None
        self._streamed_bytes = 0

    @property
    def parent(self) -> str | None:
        """The last persisted event."""
        return self._parent

    def start_from(self, state: State, tail: Iterable[Event]) -> None:
        """Begin in the middle: at the end of `tail`, the last events of a log that folds to `state`."""
        self._directory = state.working_directory
        self._system = State(policy=state.policy, system_message=state.system_message, system_mode=state.system_mode)
        for event in tail:
            self.project(event)
        self._model, self._effort = shown_model(state.model), state.reasoning_effort
        if state.turn is not None:
            self._turn_id, self._step = state.turn.turn_id, state.turn.step
            self._asked_by = next(iter(state.turn.message_ids), None)
            reply = state.reply()
            unfinished = reply.unfinished() if reply is not None else []
            self._at_work = [call.tool_call_id for call in unfinished if call.attempts]

    def project(self, event: Event) -> list[WireEvent]:
        """One event of the log, as clients are told of it; often not at all."""
        self._note(event.body)
        shown = self._shown(event)
        first = next((found for found in shown if not (found.ephemeral or found.about)), shown[0] if shown else None)
        return [
            self._wire(found, event.id if found is first else _also(event, found.type + found.about), event.time)
            for found in shown
        ]

    def delta(self, delta: Delta, now_ms: int) -> list[WireEvent]:
        """A piece of the message in flight."""
        if delta.kind == "tool_call" or not delta.text:
            return []
        pieces = []
        if delta.message_id != self._streamed:
            self._streamed, self._streamed_bytes = delta.message_id, 0
            pieces.append(_Shown("assistant.message_start", {"messageId": delta.message_id}, ephemeral=True))
        self._streamed_bytes += len(delta.text.encode())
        size = {"totalResponseSizeBytes": self._streamed_bytes}
        pieces.append(_Shown("assistant.streaming_delta", size, ephemeral=True))
        if delta.kind == "text":
            piece = {"messageId": delta.message_id, "deltaContent": delta.text}
            pieces.append(_Shown("assistant.message_delta", piece, ephemeral=True))
        else:
            piece = {"reasoningId": reasoning_id(delta.message_id, delta.block), "deltaContent": delta.text}
            pieces.append(_Shown("assistant.reasoning_delta", piece, ephemeral=True))
        return [self._wire(piece, random_id(), now_ms) for piece in pieces]

    def passing(self, type: str, data: dict[str, Any], now_ms: int, *, own_id: str | None = None) -> WireEvent:
        """Something that is told once and is not in the log."""
        return self._wire(_Shown(type, data, ephemeral=True), own_id or random_id(), now_ms)

    def _wire(self, shown: _Shown, own: str, time: int) -> WireEvent:
        wire = WireEvent(
            type=shown.type,
            data=shown.data,
            id=own,
            timestamp=iso(time),
            parent_id=self._parent,
            ephemeral=shown.ephemeral,
        )
        if not shown.ephemeral:
            self._parent = own
        return wire

    def _note(self, body: Body) -> None:
        """Remember what later events will have to say."""
        match body:
            case session.SessionStarted():
                self._directory, self._model = body.working_directory, shown_model(body.model)
                self._system.policy, self._system.system_message = policy_of(body.conventions), body.system_message
                self._tells_system = True
            case session.SessionResumed():
                self._tells_system = True
            case session.ModelChanged():
                self._model = shown_model(body.new_model)
            case session.SettingsChanged():
                self._note_settings(body)
            case turn.TurnStarted():
                self._turn_id, self._step, self._asked_by = body.turn_id, 0, None
            case turn.StepStarted():
                self._turn_id, self._step, self._at_work = body.turn_id, body.step, []
            case tool.ToolAttempted(tool_call_id=call) if call not in self._at_work:
                self._at_work.append(call)
            case tool.ToolCompleted(tool_call_id=call) if call in self._at_work:
                self._at_work.remove(call)
            case message.UserMessage():
                self._turn_id = body.turn_id
                self._asked_by = self._asked_by or body.message_id
            case _:
                pass

    def _note_settings(self, body: session.SettingsChanged) -> None:
        if isinstance(body.working_directory, str):
            self._directory = body.working_directory
        if body.reasoning_effort is not UNSET:
            self._effort = body.reasoning_effort
        if body.system_message is not UNSET:
            self._system.system_message = body.system_message
        if body.system_mode is not UNSET:
            self._system.system_mode = body.system_mode

    def _shown(self, event: Event) -> list[_Shown]:
        body = event.body
        match body:
            case message.UserMessage() | message.AssistantMessage() | message.Usage() | message.CallFailed():
                return self._of_messages(body)
            case turn.StepStarted():
                return [_Shown("assistant.turn_start", self._of_step())]
            case turn.StepEnded():
                return [*self._without_results(), _Shown("assistant.turn_end", self._of_step())]
            case turn.Aborted():
                return [_Shown("abort", {"reason": body.reason})]
            case tool.ToolStarted() | tool.ToolCompleted():
                return self._of_tools(body)
            case task.TaskNotified(notice=notice):
                return [] if notice.silent else [_Shown("system.notification", _notification(notice))]
            case (
                request.PermissionRequested()
                | request.PermissionCompleted()
                | request.ExternalToolRequested()
                | request.ExternalToolCompleted()
                | request.UserInputRequested()
                | request.UserInputCompleted()
            ):
                return self._of_requests(body)
            case _:
                return self._of_session(event)

    def _of_step(self) -> dict[str, Any]:
        """What Copilot calls a turn is counted from 0 within an interaction."""
        return {"turnId": str(max(0, self._step - 1)), "interactionId": self._turn_id}

    def _of_session(self, event: Event) -> list[_Shown]:
        body = event.body
        match body:
            case session.SessionStarted():
                chosen = {"newModel": self._model, "previousModel": None, "source": "startup"}
                started = _Shown("session.start", self._started(body))
                return [started, _Shown("session.model_change", chosen)] if self._model else [started]
            case session.SessionResumed():
                return [_Shown("session.resume", self._resumed(body))]
            case session.TitleChanged(title=title):
                return [_Shown("session.title_changed", {"title": title}, ephemeral=True)]
            case session.ModelChanged(previous_model=previous):
                change = {"newModel": self._model, "previousModel": shown_model(previous)}
                if self._effort is not None:
                    change["reasoningEffort"] = self._effort
                return [_Shown("session.model_change", change)]
            case session.ModeChanged():
                return [_Shown("session.mode_changed", {"newMode": body.new_mode, "previousMode": body.previous_mode})]
            case session.PlanChanged(operation=operation):
                return [_Shown("session.plan_changed", {"operation": operation})]
            case session.SettingsChanged():
                return self._of_settings(body)
            case session.SessionInfo():
                return [_info(body)]
            case session.SessionError():
                return [_Shown("session.error", self._error(body))]
            case session.SessionShutdown():
                return [_Shown("session.shutdown", self._shutdown(body, event.time))]
            case session.Truncated():
                return []
            case _:
                return []

    def _started(self, body: session.SessionStarted) -> dict[str, Any]:
        return {
            "sessionId": self._session_id,
            "version": LOG_VERSION,
            "producer": PRODUCER,
            "copilotVersion": __version__,
            "startTime": iso(body.start_time),
            "selectedModel": self._model,
            "context": self._context(),
            "alreadyInUse": False,
            "remoteSteerable": False,
        }

    def _resumed(self, body: session.SessionResumed) -> dict[str, Any]:
        told: dict[str, Any] = {
            "resumeTime": iso(body.resume_time),
            "eventCount": body.event_count,
            "selectedModel": self._model,
            "context": self._context(),
            "alreadyInUse": body.already_in_use,
            "sessionWasActive": body.session_was_active,
            "remoteSteerable": False,
        }
        if body.continue_pending_work is not None:
            told["continuePendingWork"] = body.continue_pending_work
        return told

    def _context(self) -> dict[str, Any] | None:
        return {"cwd": self._directory} if self._directory else None

    def _of_settings(self, body: session.SettingsChanged) -> list[_Shown]:
        shown = []
        if isinstance(body.working_directory, str):
            shown.append(_Shown("session.context_changed", {"cwd": body.working_directory}))
        if isinstance(body.client_tools, tuple) or isinstance(body.tools, tuple):
            shown.append(_Shown("session.tools_updated", {"model": self._model or ""}, ephemeral=True))
        return shown

    def _error(self, body: session.SessionError) -> dict[str, Any]:
        told: dict[str, Any] = {
            "errorType": ERROR_TYPES.get(body.error_type, "query"),
            "errorCode": body.error_type,
            "message": body.message,
        }
        if body.status_code is not None:
            told["statusCode"] = body.status_code
        if self._asked_by is not None:
            told["originatingMessageId"] = self._asked_by
        return told

    def _shutdown(self, body: session.SessionShutdown, time: int) -> dict[str, Any]:
        told: dict[str, Any] = {
            "shutdownType": body.shutdown_type,
            "totalPremiumRequests": 0,
            "totalApiDurationMs": body.api_duration_ms,
            "sessionStartTime": time,
            "codeChanges": _NO_CODE_CHANGES,
            "modelMetrics": body.model_metrics,
            "currentModel": self._model,
        }
        if body.reason:
            told["errorReason" if body.shutdown_type == "error" else "reason"] = body.reason
        return told

    def _of_messages(
        self, body: message.UserMessage | message.AssistantMessage | message.Usage | message.CallFailed
    ) -> list[_Shown]:
        match body:
            case message.UserMessage():
                return [_Shown("user.message", self._said(body)), *self._system_text()]
            case message.AssistantMessage():
                return [*_reasoning(body), _Shown("assistant.message", self._answered(body))]
            case message.Usage():
                return [_Shown("assistant.usage", self._used(body), ephemeral=True)]
            case message.CallFailed():
                return [_Shown("model.call_failure", self._failed(body), ephemeral=True)]

    def _system_text(self) -> list[_Shown]:
        if not self._tells_system:
            return []
        self._tells_system = False
        return [_Shown("system.message", {"role": "system", "content": system_text(self._system, self._instructions)})]

    def _said(self, body: message.UserMessage) -> dict[str, Any]:
        told: dict[str, Any] = {
            "content": body.content,
            "transformedContent": "\n\n".join(filter(None, (body.added, body.model_text or body.content))),
            "delivery": body.delivery,
            "messageId": body.message_id,
            **self._of_step(),
        }
        if body.attachments:
            told["attachments"] = list(body.attachments)
        if body.agent_mode:
            told["agentMode"] = body.agent_mode
        return told

    def _answered(self, body: message.AssistantMessage) -> dict[str, Any]:
        told: dict[str, Any] = {
            "messageId": body.message_id,
            "content": "".join(block.text for block in body.blocks if isinstance(block, message.TextBlock)),
            "toolRequests": [
                {
                    "toolCallId": block.tool_call_id,
                    "name": block.name,
                    "arguments": codec.arguments(block.arguments),
                    "type": "function",
                }
                for block in body.blocks
                if isinstance(block, message.ToolCallBlock)
            ],
            **self._of_step(),
        }
        thought = "".join(block.text for block in body.blocks if isinstance(block, message.ReasoningBlock))
        if thought:
            told["reasoningText"] = thought
        if body.model:
            told["model"] = shown_model(body.model)
        if self._asked_by is not None:
            told["originatingMessageId"] = self._asked_by
        return told

    def _used(self, body: message.Usage) -> dict[str, Any]:
        figures = {
            "inputTokens": body.input_tokens,
            "outputTokens": body.output_tokens,
            "cacheReadTokens": body.cache_read_tokens,
            "reasoningTokens": body.reasoning_tokens,
        }
        known = {name: figure for name, figure in figures.items() if figure is not None}
        initiator = "agent" if self._asked_by is None else "user"
        return {"model": shown_model(body.model) or "", "duration": body.duration_ms, "initiator": initiator, **known}

    def _failed(self, body: message.CallFailed) -> dict[str, Any]:
        told: dict[str, Any] = {
            "source": "top_level",
            "errorCode": body.error_code,
            "errorMessage": body.message,
            "model": self._model,
            "retryAttempt": body.attempt - 1,
        }
        if body.status_code is not None:
            told["statusCode"] = body.status_code
        return told

    def _of_tools(self, body: tool.ToolStarted | tool.ToolCompleted) -> list[_Shown]:
        match body:
            case tool.ToolStarted():
                started = {
                    "toolCallId": body.tool_call_id,
                    "toolName": body.tool_name,
                    "arguments": codec.arguments(body.arguments),
                    "model": self._model,
                    "turnId": self._of_step()["turnId"],
                }
                return [_Shown("tool.execution_start", started)]
            case tool.ToolCompleted(error="interrupted", content=content) if content == INTERRUPTED:
                return []  # It never ran: clients learn from the end of the turn.
            case tool.ToolCompleted():
                return [_Shown("tool.execution_complete", self._completed(body))]

    def _without_results(self) -> list[_Shown]:
        """Of the calls that their step left without a result: its turn was ended by a process that could not read the
        log, and so did not know of them."""
        unknown, self._at_work = self._at_work, []
        return [
            _Shown(
                "tool.execution_complete",
                self._completed(
                    tool.ToolCompleted(tool_call_id=call, success=False, content=UNKNOWN_OUTCOME, error="interrupted")
                ),
                about=call,
            )
            for call in unknown
        ]

    def _completed(self, body: tool.ToolCompleted) -> dict[str, Any]:
        told: dict[str, Any] = {
            "toolCallId": body.tool_call_id,
            "success": body.success,
            "model": self._model,
            **self._of_step(),
        }
        if body.success:
            told["result"] = {"content": body.content, "detailedContent": body.details or body.content}
        else:
            told["error"] = {"message": body.content, "code": "failure" if body.error == "failed" else body.error}
        return told

    def _of_requests(self, body: Body) -> list[_Shown]:
        match body:
            case request.PermissionRequested():
                asked = {"requestId": body.request_id, "permissionRequest": _permission(body)}
                return [_Shown("permission.requested", asked)]
            case request.PermissionCompleted():
                decided = {"requestId": body.request_id, "toolCallId": body.tool_call_id, "result": _decision(body)}
                return [_Shown("permission.completed", decided)]
            case request.ExternalToolRequested():
                return [_Shown("external_tool.requested", self._handed_out(body))]
            case request.ExternalToolCompleted(cancelled=False):
                return [_Shown("external_tool.completed", {"requestId": body.request_id})]
            case request.UserInputRequested():
                question = {
                    "requestId": body.request_id,
                    "question": body.question,
                    "choices": list(body.choices),
                    "allowFreeform": body.allow_freeform,
                    "toolCallId": body.tool_call_id,
                }
                return [_Shown("user_input.requested", question, ephemeral=True)]
            case request.UserInputCompleted():
                answer = {"requestId": body.request_id, "answer": body.answer, "wasFreeform": body.was_freeform}
                return [_Shown("user_input.completed", answer, ephemeral=True)]
            case _:
                return []

    def _handed_out(self, body: request.ExternalToolRequested) -> dict[str, Any]:
        return {
            "requestId": body.request_id,
            "sessionId": self._session_id,
            "toolCallId": body.tool_call_id,
            "toolName": body.tool_name,
            "arguments": codec.arguments(body.arguments),
            "workingDirectory": self._directory,
        }


def _also(event: Event, wire_type: str) -> str:
    """The id of what is told beside an event: always the same, for every reader."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{event.id} {wire_type}"))


def still_said(events: Iterable[Event]) -> list[Event]:
    """A log without what a later rewind took back."""
    kept: list[Event] = []
    for event in events:
        if isinstance(event.body, session.Truncated):
            limit = event.body.kept
            kept = [found for found in kept if found.position <= limit]
        else:
            kept.append(event)
    return kept


def reasoning_id(message_id: str, block: int) -> str:
    return f"{message_id}-{block}"


def shown_model(name: str | None) -> str | None:
    """A model as clients name it: without the prefix of the endpoint that they themselves brought."""
    return name.removeprefix("copilot/") if name else name


def iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _info(body: session.SessionInfo) -> _Shown:
    match body.level:
        case "info":
            return _Shown("session.info", {"infoType": body.info_type, "message": body.message})
        case "warning":
            return _Shown("session.warning", {"warningType": body.info_type, "message": body.message})
        case "error":
            return _Shown("session.error", {"errorType": body.info_type, "message": body.message})


def _reasoning(body: message.AssistantMessage) -> list[_Shown]:
    return [
        _Shown(
            "assistant.reasoning",
            {"reasoningId": reasoning_id(body.message_id, number), "content": block.text},
            ephemeral=True,
        )
        for number, block in enumerate(body.blocks)
        if isinstance(block, message.ReasoningBlock)
    ]


def _notification(notice: task.TaskNotice) -> dict[str, Any]:
    """What the model is told of a task. Clients have one word for all that ended, however it did; the text says how."""
    about: dict[str, Any] = {"shellId": notice.task_id}
    if notice.description:
        about["description"] = notice.description
    if notice.kind == "stalled":
        kind: dict[str, Any] = {"type": "unclassified", "metadata": {**about, "status": "stalled"}}
    else:
        kind = {"type": "shell_completed", **about}
        if notice.exit_code is not None:
            kind["exitCode"] = notice.exit_code
    return {"content": notice_text(notice), "kind": kind}


def _permission(body: request.PermissionRequested) -> dict[str, Any]:
    """What is asked for; `details` has the fields of its kind, and what a tool left out is filled in."""
    told: dict[str, Any] = {"kind": body.kind, "toolCallId": body.tool_call_id}
    match body.kind:
        case "read":
            told |= {"intention": f"Read {body.subject}", "path": body.subject}
        case "write":
            told |= {
                "intention": f"Write {body.subject}",
                "fileName": body.subject,
                "diff": "",
                "canOfferSessionApproval": True,
            }
        case "shell":
            told |= {
                "intention": "Run a command",
                "fullCommandText": body.subject,
                "commands": [],
                "possiblePaths": [],
                "possibleUrls": [],
                "hasWriteFileRedirection": False,
                "canOfferSessionApproval": False,
            }
        case "custom-tool":
            told |= {"toolName": body.tool_name, "toolDescription": "", "args": {}}
    return told | body.details


def _decision(body: request.PermissionCompleted) -> dict[str, Any]:
    match body.decision:
        case "approved" | "approved-for-session":
            return {"kind": "approved"}
        case "denied-interactively-by-user":
            return {"kind": body.decision, **({"feedback": body.feedback} if body.feedback else {})}
        case "denied-no-approval-rule-and-could-not-request-from-user":
            return {"kind": body.decision}
        case "cancelled":
            return {"kind": "cancelled", "reason": body.feedback}
