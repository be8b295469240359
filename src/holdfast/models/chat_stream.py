"""Decodes a chat completion from bytes to chunks, streamed or whole. Pure, and fast: this runs for every token.

However the bytes are split into reads, the chunks join to the same text. A malformed object loses only its unreadable
parts and never ends the stream; only data that is not JSON ends it.
"""

import uuid
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from holdfast.models.call_ids import COMMON_ID
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
from holdfast.models.kept_reasoning import ReasoningCollector
from holdfast.models.model import Chunk, Finished, ReasoningDelta, ReasoningEnd, TextDelta, ToolCallDelta
from holdfast.models.streamed_answer import ChunkBatch, StreamedAnswer

_REASONS: dict[str, Literal["stop", "length", "tool_calls", "content_filter"]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


class ChatStream(StreamedAnswer):
    """One chat completion as it arrives."""

    def __init__(
        self, endpoint: ModelEndpoint, *, new_id: Callable[[], str] = lambda: f"call_{uuid.uuid4().hex}"
    ) -> None:
        super().__init__(endpoint)
        self._tool_calls = _ToolCalls(new_id)
        self._reasoning = ReasoningCollector()
        self._choices: set[int] = set()
        self._finished_choices: set[int] = set()
        self._finish_reason: str | None = None
        self._usage: ChatUsage | None = None
        self._mended = False

    @property
    def finished(self) -> bool:
        """Whether the finish reason has arrived: no part of the answer itself is missing then."""
        return self._finish_reason is not None and self._choices <= self._finished_choices

    def whole(self, body: bytes) -> list[Chunk]:
        """Decode the answer of a call that does not stream: one object."""
        self._take(body)
        if not self.over and not self._answered:
            self._fail(self._endpoint.garbage("an object without choices"))
        elif not self.over:
            self._finish()
        return self._batch.drain()

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
        if not completion.choices:
            return None if self._answered else self._take_foreign(completion)
        self._answered = True
        # Some servers split one answer over several choices, such as text in the first and tool calls in the second. No
        # call asks for alternatives.
        for place, choice in enumerate(completion.choices):
            index = place if choice.index is None else choice.index
            delta = choice.delta or choice.message
            if delta is not None:
                self._choices.add(index)
                self._take_delta(delta, index)
            if choice.finish_reason:
                self._finished_choices.add(index)
                self._take_finish_reason(choice.finish_reason)
        return None

    def _take_foreign(self, completion: Completion) -> None:
        """Fail if this is an answer of another API."""
        kind = completion.type if isinstance(completion.type, str) else ""
        if kind.startswith("response.") or completion.output is not None:
            self._fail(self._endpoint.other_api("/responses"))
        elif kind in ("message_start", "message"):
            self._fail(self._endpoint.other_api("/messages"))

    def _take_delta(self, delta: ChatDelta, choice: int) -> None:
        if delta.reasoning or delta.reasoning_content is not None or delta.reasoning_details:
            self._take_reasoning(delta)
        if text := delta.content or delta.refusal:
            self._batch.add(TextDelta, text)
        if delta.tool_calls:
            for call in delta.tool_calls:
                self._tool_calls.take(call, choice, self._batch)

    def _take_reasoning(self, delta: ChatDelta) -> None:
        if delta.reasoning_content is not None:
            self._reasoning.take_content(delta.reasoning_content)
        if isinstance(delta.reasoning_details, list):
            self._reasoning.take_details(delta.reasoning_details)
        # OpenRouter sends the same text in `reasoning` and in `reasoning_details`: show only the first that is present.
        if reasoning := delta.reasoning or delta.reasoning_content:
            self._batch.add(ReasoningDelta, reasoning)
        elif delta.reasoning_details:
            self._show_reasoning_details(delta.reasoning_details)

    def _take_finish_reason(self, reason: str) -> None:
        if reason == "error":
            self._fail(self._endpoint.from_error({"message": "it gave up in the middle of its answer"}))
        elif self._finish_reason is None or (self._finish_reason == "stop" and reason == "tool_calls"):
            self._finish_reason = reason

    def _show_reasoning_details(self, details: Any) -> None:
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

    def _finish(self) -> None:
        if self._mended and not (self._batch.used or self._usage or self._finish_reason):
            return self._fail(self._endpoint.garbage("an answer of which nothing could be read"))
        self.over = True
        kept = self._reasoning.opaque(calls_tools=self._tool_calls.any, keeps_ids=self._tool_calls.has_odd_id)
        if kept is not None:
            self._batch.append(ReasoningEnd(kept))
        if self._usage is not None:
            self._batch.append(token_usage(self._usage))
        reason = self._finish_reason or ("tool_calls" if self._tool_calls.any else "other")
        self._batch.append(Finished(_REASONS.get(reason, "other")))
        return None


class _ToolCalls:
    """Assigns each piece to its tool call. Providers differ: some leave out the index, some use 0 for every call.

    Our own indices are dense, in order of appearance; the first chunks of a call carry its id and name, once each.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._ids: list[str] = []
        self._named: list[bool] = []
        self._by_provider_index: dict[tuple[int, int | None], int] = {}
        """Our index for each choice and the provider's index in it."""

    @property
    def any(self) -> bool:
        return bool(self._ids)

    @property
    def has_odd_id(self) -> bool:
        return not all(map(COMMON_ID.fullmatch, self._ids))

    def take(self, call: ChatToolCall, choice: int, batch: ChunkBatch) -> None:
        name = (call.function.name if call.function else None) or ""
        arguments = (call.function.arguments if call.function else None) or ""
        place = self._place(call, choice, name)
        if place is None:
            self._by_provider_index[choice, call.index] = len(self._ids)
            self._open(call, name, arguments, batch)
        elif name and not self._named[place]:
            self._named[place] = True
            batch.append(ToolCallDelta(place, arguments, name=name))
        elif arguments:
            batch.add(place, arguments)

    def _place(self, call: ChatToolCall, choice: int, name: str) -> int | None:
        if call.index is None and call.id:
            return self._ids.index(call.id) if call.id in self._ids else None
        place = self._by_provider_index.get((choice, call.index))
        if place is not None and call.id and name and call.id != self._ids[place]:
            return None
        return place

    def _open(self, call: ChatToolCall, name: str, arguments: str, batch: ChunkBatch) -> None:
        place = len(self._ids)
        tool_call_id = call.id or self._new_id()
        self._ids.append(tool_call_id)
        self._named.append(bool(name))
        batch.append(ToolCallDelta(place, arguments, tool_call_id, name))
