"""Spans of turns, model calls and tools, under the names that OpenTelemetry has for generative AI.

A turn may be run by several processes and wait for days, so no span is open while it waits: each time that a process
holds it is a span of its own (`invoke_agent`), with the model calls and tools of that time below it. The trace is the
turn's: its id is made of the turn's id alone, so that every holder writes into the same one, without being told.

Without a provider nothing is made at all. What people and models say is recorded only where that was asked for, and
then without the secrets that are known.
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
"""Of one message, one argument or one result, where content is recorded at all."""

Attributes = dict[str, AttributeValue]

_USAGE: Final = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
    "cost_microdollars": "holdfast.cost_microdollars",
}


class Content(msgspec.Struct, frozen=True):
    """How what was said is recorded: not at all, or through this."""

    redacted: Callable[[str], str] | None = None

    def text(self, text: str) -> str:
        assert self.redacted is not None
        return self.redacted(text)[:MAX_CONTENT_CHARACTERS]


def tracer() -> trace.Tracer | None:
    """What spans are made with; None where nobody would keep them."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("holdfast", __version__)


def trace_id_of(turn_id: TurnId) -> int:
    """The turn's id itself, which is a random UUID; of any other id a digest."""
    digits = turn_id.replace("-", "")
    try:
        found = int(digits, 16) if len(digits) == 32 else 0
    except ValueError:
        found = 0
    return found or int.from_bytes(hashlib.sha256(turn_id.encode()).digest()[:16]) or 1


def turn_context(turn_id: TurnId) -> SpanContext:
    """The parent of everything in a turn. It is nobody's span: a turn that waits has none that is open."""
    digest = hashlib.sha256(b"turn " + turn_id.encode()).digest()
    return SpanContext(
        trace_id=trace_id_of(turn_id),
        span_id=int.from_bytes(digest[:8]) or 1,
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


class HoldingSpan:
    """One turn while one process holds it."""

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
        """What a client sent has taken effect: these were its requests."""
        for context in contexts:
            self._span.add_link(context)

    def used(self, input_tokens: int | None, output_tokens: int | None) -> None:
        self._tokens["input"] += input_tokens or 0
        self._tokens["output"] += output_tokens or 0

    def end(self, outcome: str, *, error: str = "") -> None:
        """`outcome`: how the turn ended, or why it is let go of: waiting, handed_over, lost."""
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
        made = ModelCallSpan(span, self._below, self._content)
        made.sent(sent)
        return made

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
    """A span around work that a task of its own does. What that makes by itself is below it."""

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
    """One try at a model call."""

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
        """What the provider did not say is left out."""
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
    """One try at a tool call."""

    def ended(self, error: str | None, result: str) -> None:
        if error is not None:
            _mark_failed(self._span, error)
        if self._content.redacted is not None:
            self._span.set_attribute("gen_ai.tool.call.result", self._content.text(result))


class RequestSpan:
    """One HTTP request, in the trace of whoever made it. It ends when the answer begins to stream: a client may read
    for days."""

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
    """A span; whatever a provider's own code does then, the turn goes on."""
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
    """The span that a W3C `traceparent` names; None if it names none."""
    found = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, otel_context.Context())
    context = trace.get_current_span(found).get_span_context()
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
