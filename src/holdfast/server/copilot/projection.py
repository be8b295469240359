"""Projects a session's log onto the events of the Copilot protocol: types, envelope and chain of parents. Pure.

A Copilot turn is a step here, and a Copilot interaction is a turn. Clients may read persisted events again, and each
one names its predecessor. Ephemeral events are sent once, and no event names one as its parent.
"""

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET

from holdfast.events import codec, compaction, message, request, session, task, tool, turn
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
"""The protocol's names for reasons why a turn failed; every other reason is a `query`."""

COMPACTION_TRIGGERS: Final = {
    "threshold": "threshold",
    "full": "threshold",
    "too_long": "context_limit_retry",
    "manual": "manual",
}
"""The protocol's names for reasons why a compaction started; clients know no others."""

_NO_CODE_CHANGES: Final = {"linesAdded": 0, "linesRemoved": 0, "filesModified": []}


class WireEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An event in the envelope of the Copilot protocol."""

    type: str
    data: dict[str, Any]
    id: str
    timestamp: str
    parent_id: str | None
    ephemeral: bool = False


class _Shown(msgspec.Struct, frozen=True):
    """A wire event without its envelope."""

    type: str
    data: dict[str, Any]
    ephemeral: bool = False
    discriminator: str = ""
    """Separates wire events of the same type that are made from one log event."""


class CopilotProjection:
    """Projects the events of one log, fed in order, and keeps the state that later events refer to."""

    def __init__(self, session_id: str, instructions: str = "") -> None:
        self._session_id = session_id
        self._instructions = instructions
        self._system = State(policy=COPILOT)
        self._sends_system_text = False
        """Send the system text with the next message: it is the first of the session, or the first after a resume."""
        self._parent: str | None = None
        self._directory: str | None = None
        self._model: str | None = None
        self._effort: str | None = None
        self._turn_id: TurnId | None = None
        self._step = 0
        self._asked_by: MessageId | None = None
        self._at_work: list[ToolCallId] = []
        """Tool calls of the step that were attempted and have no result yet."""
        self._compaction: compaction.CompactionStarted | None = None
        self._streamed: MessageId | None = None
        self._streamed_bytes = 0

    @property
    def parent(self) -> str | None:
        """Id of the last persisted event."""
        return self._parent

    def start_from(self, state: State, tail: Iterable[Event]) -> None:
        """Start at the end of `tail`, the last events of a log that folds to `state`."""
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
        """The wire events for one event of the log; many have none."""
        self._note(event.body)
        shown = self._shown(event)
        main = next((item for item in shown if not (item.ephemeral or item.discriminator)), shown[0] if shown else None)
        return [self._wire(item, event.id if item is main else _derived_id(event, item), event.time) for item in shown]

    def delta(self, delta: Delta, now_ms: int) -> list[WireEvent]:
        """The wire events for a piece of the message in flight."""
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

    def ephemeral_event(self, type: str, data: dict[str, Any], now_ms: int, *, own_id: str | None = None) -> WireEvent:
        """An event that is sent once and is not in the log."""
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
        """Remember what the data of later events needs."""
        match body:
            case session.SessionStarted():
                self._directory, self._model = body.working_directory, shown_model(body.model)
                self._system.policy, self._system.system_message = policy_of(body.conventions), body.system_message
                self._sends_system_text = True
            case session.SessionResumed():
                self._sends_system_text = True
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
                return self._message_events(body)
            case turn.StepStarted():
                return [_Shown("assistant.turn_start", self._step_ids())]
            case turn.StepEnded():
                return [*self._missing_results(), _Shown("assistant.turn_end", self._step_ids())]
            case turn.Aborted():
                return [_Shown("abort", {"reason": body.reason})]
            case tool.ToolStarted() | tool.ToolCompleted():
                return self._tool_events(body)
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
                return self._request_events(body)
            case _:
                return self._session_events(event)

    def _step_ids(self) -> dict[str, Any]:
        """The ids of the current Copilot turn, counted from 0 within its interaction."""
        return {"turnId": str(max(0, self._step - 1)), "interactionId": self._turn_id}

    def _session_events(self, event: Event) -> list[_Shown]:
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
                return self._settings_events(body)
            case session.SessionInfo():
                return [_info(body)]
            case session.SessionError():
                return [_Shown("session.error", self._error(body))]
            case session.SessionShutdown():
                return [_Shown("session.shutdown", self._shutdown(body, event.time))]
            case compaction.CompactionStarted() | compaction.CompactionEnded():
                return self._compaction_events(body)
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
        data: dict[str, Any] = {
            "resumeTime": iso(body.resume_time),
            "eventCount": body.event_count,
            "selectedModel": self._model,
            "context": self._context(),
            "alreadyInUse": body.already_in_use,
            "sessionWasActive": body.session_was_active,
            "remoteSteerable": False,
        }
        if body.continue_pending_work is not None:
            data["continuePendingWork"] = body.continue_pending_work
        return data

    def _context(self) -> dict[str, Any] | None:
        return {"cwd": self._directory} if self._directory else None

    def _settings_events(self, body: session.SettingsChanged) -> list[_Shown]:
        shown = []
        if isinstance(body.working_directory, str):
            shown.append(_Shown("session.context_changed", {"cwd": body.working_directory}))
        if isinstance(body.client_tools, tuple) or isinstance(body.tools, tuple):
            shown.append(_Shown("session.tools_updated", {"model": self._model or ""}, ephemeral=True))
        return shown

    def _error(self, body: session.SessionError) -> dict[str, Any]:
        data: dict[str, Any] = {
            "errorType": ERROR_TYPES.get(body.error_type, "query"),
            "errorCode": body.error_type,
            "message": body.message,
        }
        if body.status_code is not None:
            data["statusCode"] = body.status_code
        if self._asked_by is not None:
            data["originatingMessageId"] = self._asked_by
        return data

    def _shutdown(self, body: session.SessionShutdown, time: int) -> dict[str, Any]:
        data: dict[str, Any] = {
            "shutdownType": body.shutdown_type,
            "totalPremiumRequests": 0,
            "totalApiDurationMs": body.api_duration_ms,
            "sessionStartTime": time,
            "codeChanges": _NO_CODE_CHANGES,
            "modelMetrics": body.model_metrics,
            "currentModel": self._model,
        }
        if body.reason:
            data["errorReason" if body.shutdown_type == "error" else "reason"] = body.reason
        return data

    def _compaction_events(self, body: compaction.CompactionStarted | compaction.CompactionEnded) -> list[_Shown]:
        """Clients see one start, although a compaction whose process died is started again."""
        match body:
            case compaction.CompactionStarted(attempt=attempt):
                self._compaction = body
                return [_Shown("session.compaction_start", _compaction_start(body))] if attempt == 1 else []
            case compaction.CompactionEnded():
                started, self._compaction = self._compaction, None
                return [_Shown("session.compaction_complete", _compaction_complete(body, started))]

    def _message_events(
        self, body: message.UserMessage | message.AssistantMessage | message.Usage | message.CallFailed
    ) -> list[_Shown]:
        match body:
            case message.UserMessage():
                return [_Shown("user.message", self._user_message(body)), *self._system_text()]
            case message.AssistantMessage():
                return [*_reasoning(body), _Shown("assistant.message", self._assistant_message(body))]
            case message.Usage():
                return [_Shown("assistant.usage", self._usage(body), ephemeral=True)]
            case message.CallFailed():
                return [_Shown("model.call_failure", self._call_failure(body), ephemeral=True)]

    def _system_text(self) -> list[_Shown]:
        if not self._sends_system_text:
            return []
        self._sends_system_text = False
        return [_Shown("system.message", {"role": "system", "content": system_text(self._system, self._instructions)})]

    def _user_message(self, body: message.UserMessage) -> dict[str, Any]:
        data: dict[str, Any] = {
            "content": body.content,
            "transformedContent": "\n\n".join(filter(None, (body.added, body.model_text or body.content))),
            "delivery": body.delivery,
            "messageId": body.message_id,
            **self._step_ids(),
        }
        if body.attachments:
            data["attachments"] = list(body.attachments)
        if body.agent_mode:
            data["agentMode"] = body.agent_mode
        return data

    def _assistant_message(self, body: message.AssistantMessage) -> dict[str, Any]:
        data: dict[str, Any] = {
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
            **self._step_ids(),
        }
        thought = "".join(block.text for block in body.blocks if isinstance(block, message.ReasoningBlock))
        if thought:
            data["reasoningText"] = thought
        if body.model:
            data["model"] = shown_model(body.model)
        if self._asked_by is not None:
            data["originatingMessageId"] = self._asked_by
        return data

    def _usage(self, body: message.Usage) -> dict[str, Any]:
        figures = {
            "inputTokens": body.input_tokens,
            "outputTokens": body.output_tokens,
            "cacheReadTokens": body.cache_read_tokens,
            "cacheWriteTokens": body.cache_write_tokens,
            "reasoningTokens": body.reasoning_tokens,
        }
        known = {name: figure for name, figure in figures.items() if figure is not None}
        initiator = "agent" if self._asked_by is None else "user"
        return {"model": shown_model(body.model) or "", "duration": body.duration_ms, "initiator": initiator, **known}

    def _call_failure(self, body: message.CallFailed) -> dict[str, Any]:
        data: dict[str, Any] = {
            "source": "top_level",
            "errorCode": body.error_code,
            "errorMessage": body.message,
            "model": self._model,
            "retryAttempt": body.attempt - 1,
        }
        if body.status_code is not None:
            data["statusCode"] = body.status_code
        return data

    def _tool_events(self, body: tool.ToolStarted | tool.ToolCompleted) -> list[_Shown]:
        match body:
            case tool.ToolStarted():
                started = {
                    "toolCallId": body.tool_call_id,
                    "toolName": body.tool_name,
                    "arguments": codec.arguments(body.arguments),
                    "model": self._model,
                    "turnId": self._step_ids()["turnId"],
                }
                return [_Shown("tool.execution_start", started)]
            case tool.ToolCompleted(error="interrupted", content=content) if content == INTERRUPTED:
                return []  # The call never ran. Clients see the end of the turn instead.
            case tool.ToolCompleted():
                return [_Shown("tool.execution_complete", self._completed(body))]

    def _missing_results(self) -> list[_Shown]:
        """Completions for calls that their step left without a result. A process that could not read the log ended the
        turn, and so did not know of them."""
        unfinished, self._at_work = self._at_work, []
        return [
            _Shown(
                "tool.execution_complete",
                self._completed(
                    tool.ToolCompleted(tool_call_id=call, success=False, content=UNKNOWN_OUTCOME, error="interrupted")
                ),
                discriminator=call,
            )
            for call in unfinished
        ]

    def _completed(self, body: tool.ToolCompleted) -> dict[str, Any]:
        data: dict[str, Any] = {
            "toolCallId": body.tool_call_id,
            "success": body.success,
            "model": self._model,
            **self._step_ids(),
        }
        if body.success:
            data["result"] = {"content": body.content, "detailedContent": body.details or body.content}
        else:
            data["error"] = {"message": body.content, "code": "failure" if body.error == "failed" else body.error}
        return data

    def _request_events(self, body: Body) -> list[_Shown]:
        match body:
            case request.PermissionRequested():
                requested = {"requestId": body.request_id, "permissionRequest": _permission(body)}
                return [_Shown("permission.requested", requested)]
            case request.PermissionCompleted():
                decided = {"requestId": body.request_id, "toolCallId": body.tool_call_id, "result": _decision(body)}
                return [_Shown("permission.completed", decided)]
            case request.ExternalToolRequested():
                return [_Shown("external_tool.requested", self._external_tool(body))]
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

    def _external_tool(self, body: request.ExternalToolRequested) -> dict[str, Any]:
        return {
            "requestId": body.request_id,
            "sessionId": self._session_id,
            "toolCallId": body.tool_call_id,
            "toolName": body.tool_name,
            "arguments": codec.arguments(body.arguments),
            "workingDirectory": self._directory,
        }


def _compaction_start(body: compaction.CompactionStarted) -> dict[str, Any]:
    return {
        "trigger": COMPACTION_TRIGGERS[body.trigger],
        "compactionAttemptId": body.compaction_id,
        "currentTokens": body.tokens,
        "tokenLimit": body.window,
    }


def _compaction_complete(
    body: compaction.CompactionEnded, started: compaction.CompactionStarted | None
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "success": body.success,
        "trigger": COMPACTION_TRIGGERS[body.trigger],
        "compactionAttemptId": body.compaction_id,
        "preCompactionTokens": body.tokens_before,
    }
    if body.success:
        data |= {
            "postCompactionTokens": body.tokens_after,
            "tokensRemoved": max(0, body.tokens_before - body.tokens_after),
            "messagesRemoved": body.removed,
            "summaryContent": body.summary,
        }
    else:
        data["error"] = body.message or body.error
    if started is not None:
        data["tokenLimit"] = started.window
        if started.instructions:
            data["customInstructions"] = started.instructions
    if body.model:
        data |= {"model": shown_model(body.model), "compactionTokensUsed": _compaction_use(body)}
    return data


def _compaction_use(body: compaction.CompactionEnded) -> dict[str, Any]:
    figures = {
        "inputTokens": body.input_tokens,
        "outputTokens": body.output_tokens,
        "cacheReadTokens": body.cache_read_tokens,
        "cacheWriteTokens": body.cache_write_tokens,
    }
    known = {name: figure for name, figure in figures.items() if figure is not None}
    return {"model": shown_model(body.model), "duration": body.duration_ms, **known}


def _derived_id(event: Event, shown: _Shown) -> str:
    """The id of a further wire event made from a log event: the same for every reader."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{event.id} {shown.type}{shown.discriminator}"))


def without_rewound(events: Iterable[Event]) -> list[Event]:
    """A log without the events that a later rewind took back."""
    kept: list[Event] = []
    for event in events:
        if isinstance(event.body, session.Truncated):
            limit = event.body.kept
            kept = [event for event in kept if event.position <= limit]
        else:
            kept.append(event)
    return kept


def reasoning_id(message_id: str, block: int) -> str:
    return f"{message_id}-{block}"


def shown_model(name: str | None) -> str | None:
    """A model's name for clients: without the prefix that marks models of the Copilot endpoint."""
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
        if isinstance(block, message.ReasoningBlock) and block.text
    ]


def _notification(notice: task.TaskNotice) -> dict[str, Any]:
    """The notice about a task. The protocol has one kind for every end of a task; the text says how it ended."""
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
    """The permission request on the wire: defaults for its kind, overridden by the tool's own `details`."""
    data: dict[str, Any] = {"kind": body.kind, "toolCallId": body.tool_call_id}
    match body.kind:
        case "read":
            data |= {"intention": f"Read {body.subject}", "path": body.subject}
        case "write":
            data |= {
                "intention": f"Write {body.subject}",
                "fileName": body.subject,
                "diff": "",
                "canOfferSessionApproval": True,
            }
        case "shell":
            data |= {
                "intention": "Run a command",
                "fullCommandText": body.subject,
                "commands": [],
                "possiblePaths": [],
                "possibleUrls": [],
                "hasWriteFileRedirection": False,
                "canOfferSessionApproval": False,
            }
        case "custom-tool":
            data |= {"toolName": body.tool_name, "toolDescription": "", "args": {}}
    return data | body.details


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
