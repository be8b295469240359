"""One turn as one message of the UI-message stream. Pure: readings of a session in, chunks out.

Every reader of the turn gets a message with the same parts, in whatever pieces it reads. Text, reasoning and tool input
are opened, extended and closed one after the other, and always closed when the turn ends.
"""

from typing import Final

import msgspec

from holdfast.events import compaction, message, session, task, turn
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import TurnId
from holdfast.events.message import BlockKind
from holdfast.events.task import TaskNotice
from holdfast.live.live import Delta, Progress, WaitStatus
from holdfast.server.ai_sdk import chunks
from holdfast.server.ai_sdk.chunks import FinishReason, Metadata, UiChunk
from holdfast.server.ai_sdk.tool_parts import Release, ToolParts
from holdfast.server.reader import Reading

_FINISH_REASONS: Final[dict[str, FinishReason]] = {
    "": "stop",
    "stop": "stop",
    "length": "length",
    "content_filter": "content-filter",
}
"""A turn that has ended waits for no client: `tool_calls` becomes `other`, as does an unknown reason."""


class UiProjection:
    """Turns every reading of a turn into chunks, in order from the turn's first event on."""

    def __init__(self, release: Release = 6) -> None:
        self.turn_id: TurnId | None = None
        self.has_ended = False
        self._tools = ToolParts(release)
        self._started_with: Metadata = {}
        self._step_is_open = False
        self._messages = 0
        """How many messages the model has written, including the one that grows."""
        self._growing: tuple[str, int] = ("", 0)
        """The message that grows, and its block that grows."""
        self._open_part: tuple[BlockKind, str] | None = None
        """The kind and the id of the text or reasoning part that grows."""
        self._used = _Used()
        self._finish_reason = ""
        self._error: session.SessionError | None = None

    def start(self) -> list[UiChunk]:
        """The first chunk of every stream about this turn: all are about the same message."""
        assert self.turn_id is not None, "a turn starts before its chunks"
        return [chunks.StartChunk(self.turn_id, self._started_with)]

    def pause(self) -> list[UiChunk]:
        """The last chunks of a stream where the turn waits for answers."""
        return [*self._finish_step(), chunks.FinishChunk("tool-calls", self._used.as_metadata() or None)]

    def take(self, reading: Reading) -> list[UiChunk]:
        match reading:
            case Delta():
                return self._delta(reading)
            case Event():
                return self._event(reading)
            case Progress(tool_call_id=tool_call_id, text=text):
                return [chunks.DataToolProgressChunk({"toolCallId": tool_call_id, "text": text})]
            case WaitStatus() if self.turn_id is not None:
                return [chunks.DataStatusChunk(_status(reading))]
            case _:
                return []

    # The message as it grows

    def _delta(self, delta: Delta) -> list[UiChunk]:
        grown = self._next_block(delta) if (delta.message_id, delta.block) != self._growing else []
        if delta.kind == "tool_call":
            return [*grown, *self._tools.grow(delta)]
        if not delta.text:
            return grown
        if self._open_part is None:
            self._open_part = delta.kind, f"{self._messages}-{delta.block}"
            _, part = self._open_part
            grown.append(chunks.TextStartChunk(part) if delta.kind == "text" else chunks.ReasoningStartChunk(part))
        kind, part = self._open_part
        grown.append(
            chunks.TextDeltaChunk(part, delta.text) if kind == "text" else chunks.ReasoningDeltaChunk(part, delta.text)
        )
        return grown

    def _next_block(self, delta: Delta) -> list[UiChunk]:
        if delta.message_id != self._growing[0]:
            self._messages += 1
        self._growing = delta.message_id, delta.block
        return self._close_part()

    def _close_part(self) -> list[UiChunk]:
        if self._open_part is None:
            return []
        (kind, part), self._open_part = self._open_part, None
        return [chunks.TextEndChunk(part) if kind == "text" else chunks.ReasoningEndChunk(part)]

    def _finish_step(self) -> list[UiChunk]:
        """Close the open part and the open step. The rest of a step that was paused has no step of its own."""
        closed = self._close_part()
        if self._step_is_open:
            self._step_is_open = False
            closed.append(chunks.FinishStepChunk())
        return closed

    # The log

    def _event(self, event: Event) -> list[UiChunk]:
        match event.body:
            case turn.TurnStarted(turn_id=turn_id, woken=woken):
                self.turn_id = turn_id
                self._started_with = {"createdAt": event.time, **({"woken": True} if woken else {})}
            case turn.StepStarted():
                self._step_is_open = True
                self._tools.start_step()
                return [chunks.StartStepChunk()]
            case turn.StepEnded():
                return [*self._tools.end_step(), *self._finish_step()]
            case turn.TurnEnded() as ended:
                return self._ended(ended)
            case session.SessionError() as error:
                self._error = error
            case session.TitleChanged() as named if self.turn_id and (named.chosen or named.by_model):
                return [chunks.DataTitleChunk({"title": named.title})]
            case compaction.CompactionStarted() | compaction.CompactionEnded() as compacted if self.turn_id:
                return [chunks.DataCompactionChunk(_compaction(compacted))]
            case body:
                return self._message(body) or self._tools.take(body)
        return []

    def _message(self, body: Body) -> list[UiChunk]:
        match body:
            case message.UserMessage(delivery="steering"):
                return [chunks.DataFollowUpChunk(body.message_id, {"messageId": body.message_id, "text": body.content})]
            case message.AssistantMessage():
                self._finish_reason = body.finish_reason
                self._tools.complete_input(body)
                return self._close_part()
            case message.Sealed():
                self._used.is_partial = True
                return [chunks.DataInterruptedChunk(body.message_id, {"cause": body.cause})]
            case message.Usage():
                self._used.add(body)
            case task.TaskNotified(notice=notice) if not notice.silent:
                return [chunks.DataTaskChunk(f"{notice.task_id}-{notice.kind}", _task(notice))]
            case _:
                pass
        return []

    def _ended(self, ended: turn.TurnEnded) -> list[UiChunk]:
        self.has_ended = True
        closed = self._finish_step()
        if self._tools.hold_client_calls():
            # Without another step, a client that sends its results automatically would answer a turn that has ended.
            closed += [chunks.StartStepChunk(), chunks.FinishStepChunk()]
        metadata = {**self._used.as_metadata(), "durationMs": ended.duration_ms, "reason": ended.reason}
        match ended.reason:
            case "completed":
                return [*closed, chunks.FinishChunk(_FINISH_REASONS.get(self._finish_reason, "other"), metadata)]
            case "stopped" | "interrupted":
                return [*closed, chunks.MessageMetadataChunk(metadata), chunks.AbortChunk()]
            case "error":
                text, details = _error(self._error)
                return [*closed, chunks.MessageMetadataChunk({**metadata, "error": details}), chunks.ErrorChunk(text)]


class _Used:
    """The tokens that the model calls of a turn used, as far as they were reported."""

    def __init__(self) -> None:
        self._figures: dict[str, int] = {}
        self.is_partial = False
        """A call reported no usage, or was cut before it could."""

    def add(self, usage: message.Usage) -> None:
        reported = {
            "inputTokens": usage.input_tokens,
            "outputTokens": usage.output_tokens,
            "cachedInputTokens": usage.cache_read_tokens,
            "reasoningTokens": usage.reasoning_tokens,
        }
        self.is_partial = self.is_partial or usage.input_tokens is None or usage.output_tokens is None
        for name, figure in reported.items():
            if figure is not None:
                self._figures[name] = self._figures.get(name, 0) + figure

    def as_metadata(self) -> Metadata:
        used: Metadata = dict(self._figures)
        if "inputTokens" in used and "outputTokens" in used:
            used["totalTokens"] = used["inputTokens"] + used["outputTokens"]
        if self.is_partial:
            used["partial"] = True
        return {"usage": used} if used else {}


def _error(error: session.SessionError | None) -> tuple[str, Metadata]:
    if error is None:
        return "The turn failed.", {"code": "unknown", "message": "The turn failed.", "retryable": False}
    return error.message, {"code": error.error_type, "message": error.message, "retryable": error.retryable}


def _compaction(body: compaction.CompactionStarted | compaction.CompactionEnded) -> Metadata:
    about: Metadata = {"compactionId": body.compaction_id, "trigger": body.trigger}
    match body:
        case compaction.CompactionStarted(tokens=tokens):
            return {**about, "state": "started", "tokensBefore": tokens}
        case compaction.CompactionEnded(success=False, error=error):
            return {**about, "state": "failed", "error": error}
        case compaction.CompactionEnded(method=method, tokens_before=before, tokens_after=after):
            return {**about, "state": "ended", "method": method, "tokensBefore": before, "tokensAfter": after}


def _task(notice: TaskNotice) -> Metadata:
    metadata: Metadata = msgspec.to_builtins(notice)
    metadata.pop("outputFile", None)
    return metadata


def _status(status: WaitStatus) -> Metadata:
    data: Metadata = {
        "awaits": status.awaits,
        "seconds": status.seconds,
        "since": status.since,
        "attempt": status.attempt,
    }
    more = {"toolCallId": status.tool_call_id, "reason": status.reason, "until": status.until}
    return {**data, **{name: value for name, value in more.items() if value}}
