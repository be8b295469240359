"""Spans of turns, model calls and tools, under OpenTelemetry's names for generative AI.

Several processes may run one turn, and it may wait for days, so no span is open while it waits: each period in which a
process holds the turn is a span of its own (`invoke_agent`), with the model calls and tools of that period below it.
The trace id is derived from the turn's id alone, so that every holder writes into the same trace without coordination.

Without a tracer provider no span is created. The text of messages is recorded only if the operator asks for it, and
then without the known secrets.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from holdfast.events.context import AssistantTurn, ContextMessage, SystemText, ToolOutcome, UserText
from holdfast.events.ids import Fence, Key, TurnId
from holdfast.events.message import Block, ReasoningBlock, TextBlock, ToolCallBlock
from holdfast.models.model import TokenUsage
from holdfast.version import __version__

log = logging.getLogger(__name__)

MAX_CONTENT_CHARACTERS: Final = 65_536
"""The recorded length of one message list, one set of arguments or one result, where content is recorded at all."""

Attributes = dict[str, AttributeValue]

_USAGE: Final = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
    "cost_microdollars": "holdfast.cost_microdollars",
}


class Content(msgspec.Struct, frozen=True):
    """How the text of messages is recorded: through this redactor, or not at all if it is None."""

    redacted: Callable[[str], str] | None = None

    def text(self, text: str) -> str:
        assert self.redacted is not None
        return self.redacted(text)[:MAX_CONTENT_CHARACTERS]


def tracer() -> trace.Tracer | None:
    """The tracer of the process; None if no tracer provider is set, because its spans would be discarded."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("holdfast", __version__)


def trace_id_of(turn_id: TurnId) -> int:
    """The turn's id as a number if it is a UUID, else a digest of the id."""
    digits = turn_id.replace("-", "")
    try:
        number = int(digits, 16) if len(digits) == 32 else 0
    except ValueError:
        number = 0
    return number or int.from_bytes(hashlib.sha256(turn_id.encode()).digest()[:16]) or 1


def turn_context(turn_id: TurnId) -> SpanContext:
    """The common parent of all spans in a turn. No process ever exports it: a turn that waits has no open span."""
    digest = hashlib.sha256(b"turn " + turn_id.encode()).digest()
    return SpanContext(
        trace_id=trace_id_of(turn_id),
        span_id=int.from_bytes(digest[:8]) or 1,
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


class HoldingSpan:
    """The span of one turn while one process holds it."""

    def __init__(self, maker: trace.Tracer, key: Key, fence: Fence, turn_id: TurnId, content: Content) -> None:
        self._maker = maker
        self._ids: Attributes = {
            "gen_ai.conversation.id": key.session,
            "holdfast.session.id": key.session,
            "holdfast.turn.id": turn_id,
        }
        self._content = content
        self._tokens = {"input": 0, "output": 0}
        parent = trace.set_span_in_context(NonRecordingSpan(turn_context(turn_id)), otel_context.Context())
        self._span = _started(
            maker,
            "invoke_agent",
            context=parent,
            attributes={
                "gen_ai.operation.name": "invoke_agent",
                "holdfast.owner": key.owner,
                "holdfast.fence": fence,
                **self._ids,
            },
        )
        self._below = trace.set_span_in_context(self._span, otel_context.Context())

    def link(self, contexts: Iterable[SpanContext]) -> None:
        """Link the requests whose inbox items took effect in this turn."""
        for context in contexts:
            self._span.add_link(context)

    def used(self, input_tokens: int | None, output_tokens: int | None) -> None:
        self._tokens["input"] += input_tokens or 0
        self._tokens["output"] += output_tokens or 0

    def end(self, outcome: str, *, error: str = "") -> None:
        """End the span. `outcome`: how the turn ended, or why the process released it: waiting, handed_over, lost."""
        self._span.set_attributes(
            {
                "holdfast.turn.outcome": outcome,
                "gen_ai.usage.input_tokens": self._tokens["input"],
                "gen_ai.usage.output_tokens": self._tokens["output"],
            }
        )
        if error:
            _mark_failed(self._span, error)
        _end(self._span)

    def model_call(
        self, model: str, *, message_id: str, attempt: int, stream: bool, sent: Sequence[ContextMessage]
    ) -> "ModelCallSpan":
        provider, _, name = model.partition("/")
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": name or provider,
            "gen_ai.request.stream": stream,
            "holdfast.message.id": message_id,
            "holdfast.attempt": attempt,
            **self._ids,
        }
        span = _started(
            self._maker, f"chat {name or provider}", context=self._below, kind=SpanKind.CLIENT, attributes=attributes
        )
        call = ModelCallSpan(span, self._below, self._content)
        call.sent(sent)
        return call

    def tool_call(self, tool: str, *, tool_call_id: str, attempt: int, arguments: str) -> "ToolCallSpan":
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": tool_call_id,
            "holdfast.attempt": attempt,
            **self._ids,
        }
        if self._content.redacted is not None:
            attributes["gen_ai.tool.call.arguments"] = self._content.text(arguments)
        span = _started(self._maker, f"execute_tool {tool}", context=self._below, attributes=attributes)
        return ToolCallSpan(span, self._below, self._content)


class WorkSpan:
    """A span around work that has its own task. Spans that the work itself creates are its children."""

    def __init__(self, span: Span, parent: otel_context.Context, content: Content) -> None:
        self._span = span
        self._inside = trace.set_span_in_context(span, parent)
        self._content = content

    def __enter__(self) -> Self:
        self._token = otel_context.attach(self._inside)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        otel_context.detach(self._token)
        if isinstance(error, asyncio.CancelledError):
            _mark_failed(self._span, "cancelled")
        elif error is not None:
            _mark_failed(self._span, str(getattr(error, "code", type(error).__name__)))
        _end(self._span)


class ModelCallSpan(WorkSpan):
    """The span of one attempt at a model call."""

    def sent(self, messages: Sequence[ContextMessage]) -> None:
        if self._content.redacted is None or not self._span.is_recording():
            return
        system = [{"type": "text", "content": said.text} for said in messages if isinstance(said, SystemText)]
        rest = [_as_message(said) for said in messages if not isinstance(said, SystemText)]
        self._record("gen_ai.system_instructions", system)
        self._record("gen_ai.input.messages", rest)

    def first_chunk(self, seconds: float) -> None:
        self._span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)

    def answered(self, finish_reason: str, usage: TokenUsage | None, blocks: Callable[[], Iterable[Block]]) -> None:
        """Record the answer; figures that the provider did not report are left out."""
        if finish_reason:
            self._span.set_attribute("gen_ai.response.finish_reasons", (finish_reason,))
        if usage is not None:
            figures = {name: getattr(usage, field) for field, name in _USAGE.items()}
            self._span.set_attributes({name: figure for name, figure in figures.items() if figure is not None})
        if self._content.redacted is not None and self._span.is_recording():
            parts = [_as_part(block) for block in blocks()]
            self._record(
                "gen_ai.output.messages", [{"role": "assistant", "parts": parts, "finish_reason": finish_reason}]
            )

    def _record(self, name: str, value: list[dict[str, Any]]) -> None:
        self._span.set_attribute(name, self._content.text(msgspec.json.encode(value).decode()))


class ToolCallSpan(WorkSpan):
    """The span of one attempt at a tool call."""

    def ended(self, error: str | None, result: str) -> None:
        if error is not None:
            _mark_failed(self._span, error)
        if self._content.redacted is not None:
            self._span.set_attribute("gen_ai.tool.call.result", self._content.text(result))


class RequestSpan:
    """The span of one HTTP request, in the trace of its client. It ends when the response begins to stream: a client
    may read for days."""

    def __init__(self, maker: trace.Tracer, method: str, headers: Mapping[str, str]) -> None:
        parent = TraceContextTextMapPropagator().extract(headers, otel_context.Context())
        self._span = _started(
            maker, method, context=parent, kind=SpanKind.SERVER, attributes={"http.request.method": method}
        )

    @property
    def context(self) -> SpanContext:
        return self._span.get_span_context()

    def end(self, *, method: str, route: str, status: int, request_id: str) -> None:
        if route:
            self._span.update_name(f"{method} {route}")
            self._span.set_attribute("http.route", route)
        self._span.set_attributes({"http.response.status_code": status, "holdfast.request.id": request_id})
        if status >= 500:
            _mark_failed(self._span, str(status))
        _end(self._span)


def _started(maker: trace.Tracer, name: str, **more: Any) -> Span:
    """Start a span. An exception in the tracer provider's code must not fail the turn."""
    try:
        return maker.start_span(name, **more)
    except Exception:
        log.warning("a span could not be begun", exc_info=True)
        return trace.INVALID_SPAN


def _end(span: Span) -> None:
    try:
        span.end()
    except Exception:
        log.warning("a span could not be ended", exc_info=True)


def named_by(traceparent: str) -> SpanContext | None:
    """The span that a W3C `traceparent` names; None if the header is not valid."""
    extracted = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, otel_context.Context())
    context = trace.get_current_span(extracted).get_span_context()
    return context if context.is_valid else None


def _mark_failed(span: Span, error: str) -> None:
    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR))


def _as_message(said: ContextMessage) -> dict[str, Any]:
    match said:
        case AssistantTurn(text=text, tool_calls=calls):
            parts: list[dict[str, Any]] = [{"type": "text", "content": text}] if text else []
            for call in calls:
                parts.append(
                    {"type": "tool_call", "id": call.tool_call_id, "name": call.name, "arguments": call.arguments}
                )
            return {"role": "assistant", "parts": parts}
        case ToolOutcome(tool_call_id=tool_call_id, text=text):
            return {"role": "tool", "parts": [{"type": "tool_call_response", "id": tool_call_id, "response": text}]}
        case UserText(text=text):
            return {"role": "user", "parts": [{"type": "text", "content": text}]}
        case SystemText(text=text):
            return {"role": "system", "parts": [{"type": "text", "content": text}]}


def _as_part(block: Block) -> dict[str, Any]:
    match block:
        case TextBlock(text=text):
            return {"type": "text", "content": text}
        case ReasoningBlock(text=text):
            return {"type": "reasoning", "content": text}
        case ToolCallBlock(tool_call_id=tool_call_id, name=name, arguments=arguments):
            return {"type": "tool_call", "id": tool_call_id, "name": name, "arguments": arguments}
