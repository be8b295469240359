"""Decodes a chat completion from bytes to chunks, streamed or whole. Pure, and fast: this runs for every token.

However the bytes are split into reads, the chunks join to the same text. A malformed object loses only its unreadable
parts and never ends the stream; only data that is not JSON ends it.
"""

import logging
import uuid
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from holdfast.models.chat_failure import ModelEndpoint
from holdfast.models.chat_shapes import (
    ChatDelta,
    ChatToolCall,
    ChatUsage,
    Completion,
    decode,
    decode_leniently,
    detail_text,
    token_usage,
)
from holdfast.models.model import (
    Chunk,
    Finished,
    ModelError,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""The largest event of a stream: far more than any provider sends, and a bound on memory if one is broken."""

log = logging.getLogger(__name__)


_REASONS: dict[str, Literal["stop", "length", "tool_calls", "content_filter"]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


class ChatStream:
    """One answer as it arrives. It never raises: once `over` is true, the answer is complete unless `failure` is set.

    The last chunks of a complete answer are the usage, if the provider reported it, and then `Finished`, once each.
    """

    def __init__(
        self, endpoint: ModelEndpoint, *, new_id: Callable[[], str] = lambda: f"call_{uuid.uuid4().hex}"
    ) -> None:
        self.over = False
        self.failure: ModelError | None = None
        self._endpoint = endpoint
        self._tail = bytearray()
        self._batch = _Batch()
        self._tool_calls = _ToolCalls(new_id)
        self._finish_reason: str | None = None
        self._usage: ChatUsage | None = None
        self._answered = False
        self._strayed = False
        self._warned = False
        self._mended = False

    @property
    def finished(self) -> bool:
        """Whether the finish reason has arrived: no part of the answer itself is missing then."""
        return self._finish_reason is not None

    def feed(self, data: bytes) -> list[Chunk]:
        """Decode the data of one read of an event stream."""
        end = data.rfind(b"\n")
        if end < 0:
            return self._keep(data)
        whole = bytes(self._tail) + data[:end] if self._tail else data[:end]
        self._tail = bytearray(data[end + 1 :])
        for line in whole.split(b"\n"):
            if self.over:
                break
            if line[:5] == b"data:":
                self._take(line[5:])
            elif line:
                self._take_odd_line(line)
        return self._batch.drain()

    def end(self) -> list[Chunk]:
        """Handle the end of the event stream. Without a finish reason or `[DONE]` the answer was cut."""
        if self._tail and not self.over and not self.finished:
            self._take_last_line(bytes(self._tail))
        if not self.over and self.finished:
            self._finish()
        elif not self.over:
            empty = self._strayed and not self._answered
            self._fail(self._endpoint.garbage("something that is not an event stream") if empty else self._cut())
        return self._batch.drain()

    def whole(self, body: bytes) -> list[Chunk]:
        """Decode the answer of a call that does not stream: one object."""
        self._take(body)
        if not self.over and not self._answered:
            self._fail(self._endpoint.garbage("an object without choices"))
        elif not self.over:
            self._finish()
        return self._batch.drain()

    def _keep(self, data: bytes) -> list[Chunk]:
        self._tail += data
        if len(self._tail) > MAX_EVENT_BYTES:
            self._fail(self._endpoint.garbage("an event that is too long"))
        return []

    def _take(self, payload: bytes) -> None:
        try:
            completion = decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._take_odd_payload(payload)
        self._take_completion(completion)

    def _take_completion(self, completion: Completion) -> None:
        if completion.usage is not None:
            self._usage = completion.usage
        if completion.error:
            return self._fail(self._endpoint.from_error(completion.error))
        if completion.choices:
            self._answered = True
            choice = completion.choices[0]
            delta = choice.delta or choice.message
            if delta is not None:
                self._take_delta(delta)
            if choice.finish_reason:
                self._take_finish_reason(choice.finish_reason)

    def _take_delta(self, delta: ChatDelta) -> None:
        # OpenRouter sends the same text in `reasoning` and in `reasoning_details`: take only the first that is present.
        if reasoning := delta.reasoning or delta.reasoning_content:
            self._batch.add(ReasoningDelta, reasoning)
        elif delta.reasoning_details:
            self._take_reasoning_details(delta.reasoning_details)
        if text := delta.content or delta.refusal:
            self._batch.add(TextDelta, text)
        if delta.tool_calls:
            for call in delta.tool_calls:
                self._tool_calls.take(call, self._batch)

    def _take_finish_reason(self, reason: str) -> None:
        if reason == "error":
            self._fail(self._endpoint.from_error({"message": "it gave up in the middle of its answer"}))
        elif self._finish_reason is None:
            self._finish_reason = reason

    def _take_reasoning_details(self, details: Any) -> None:
        texts = [detail_text(entry) for entry in details] if isinstance(details, list) else [None]
        if None in texts:
            self._warn()
        if reasoning := "".join(text for text in texts if text):
            self._batch.add(ReasoningDelta, reasoning)

    def _take_odd_payload(self, payload: bytes) -> None:
        """Handle a payload that the fast decoder refuses: the end mark, a malformed object, or no JSON at all."""
        payload = payload.strip()
        if payload == b"[DONE]":
            return self._finish()
        if not payload:
            return None
        try:
            mended = decode_leniently(payload)
        except ValueError:
            return self._fail(self._endpoint.garbage("something that is not JSON"))
        self._warn()
        self._mended = True
        return self._take_completion(mended)

    def _take_odd_line(self, line: bytes) -> None:
        """Ignore comments and the other fields of an event; note a line that is not a field at all."""
        line = line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r")
        if line[:5] == b"data:":
            self._take(line[5:])
        elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
            self._strayed = True

    def _take_last_line(self, line: bytes) -> None:
        """Handle a last line without a line break: it may be complete; if it does not decode, the answer was cut."""
        if line[:5] != b"data:":
            return self._take_odd_line(line)
        self._take(line[5:])
        if self.failure is not None and self.failure.code == "model_garbage":
            self.failure = self._cut()
        return None

    def _finish(self) -> None:
        if self._mended and not (self._batch.used or self._usage or self._finish_reason):
            return self._fail(self._endpoint.garbage("an answer of which nothing could be read"))
        self.over = True
        if self._usage is not None:
            self._batch.append(token_usage(self._usage))
        reason = self._finish_reason or ("tool_calls" if self._tool_calls.any else "other")
        self._batch.append(Finished(_REASONS.get(reason, "other")))
        return None

    def _cut(self) -> ModelError:
        return self._endpoint.cut()

    def _fail(self, failure: ModelError) -> None:
        self.over = True
        self.failure = failure

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning("the model at %s sent a malformed chunk; its unreadable parts are dropped", self._endpoint.host)


class _Batch:
    """The chunks of one read, with consecutive pieces of the same kind joined."""

    def __init__(self) -> None:
        self.used = False
        """Whether any chunk of the answer was added yet."""
        self._chunks: list[Chunk] = []
        self._kind: type[TextDelta] | type[ReasoningDelta] | int = TextDelta
        self._parts: list[str] = []

    def add(self, kind: type[TextDelta] | type[ReasoningDelta] | int, text: str) -> None:
        """Add a piece of text, of reasoning, or of the arguments of the tool call with this index."""
        if kind is not self._kind:
            self._join()
            self._kind = kind
        self._parts.append(text)
        self.used = True

    def append(self, chunk: Chunk) -> None:
        self._join()
        self.used = True
        self._chunks.append(chunk)

    def drain(self) -> list[Chunk]:
        self._join()
        chunks, self._chunks = self._chunks, []
        return chunks

    def _join(self) -> None:
        if self._parts:
            text = "".join(self._parts)
            self._parts.clear()
            kind = self._kind
            self._chunks.append(ToolCallDelta(kind, text) if isinstance(kind, int) else kind(text))


class _ToolCalls:
    """Assigns each piece to its tool call. Providers differ: some leave out the index, some use 0 for every call.

    Our own indices are dense, in order of appearance; the first chunks of a call carry its id and name, once each.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._ids: list[str] = []
        self._named: list[bool] = []
        self._by_provider_index: dict[int | None, int] = {}

    @property
    def any(self) -> bool:
        return bool(self._ids)

    def take(self, call: ChatToolCall, batch: _Batch) -> None:
        name = (call.function.name if call.function else None) or ""
        arguments = (call.function.arguments if call.function else None) or ""
        place = self._place(call, name)
        if place is None:
            self._open(call, name, arguments, batch)
        elif name and not self._named[place]:
            self._named[place] = True
            batch.append(ToolCallDelta(place, arguments, name=name))
        elif arguments:
            batch.add(place, arguments)

    def _place(self, call: ChatToolCall, name: str) -> int | None:
        if call.index is None and call.id:
            return self._ids.index(call.id) if call.id in self._ids else None
        place = self._by_provider_index.get(call.index)
        if place is not None and call.id and name and call.id != self._ids[place]:
            return None
        return place

    def _open(self, call: ChatToolCall, name: str, arguments: str, batch: _Batch) -> None:
        place = len(self._ids)
        tool_call_id = call.id or self._new_id()
        self._ids.append(tool_call_id)
        self._named.append(bool(name))
        self._by_provider_index[call.index] = place
        batch.append(ToolCallDelta(place, arguments, tool_call_id, name))
