"""Decodes a response of OpenAI's Responses from bytes to chunks, streamed or whole. Pure, and fast: this runs for every
token.

An answer is a list of items: reasoning, messages, function calls. What a stream did not show of an item while it grew
is taken from the finished item, and what it did not show at all from the finished response.
"""

from typing import Final, Literal

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.models.chat_failure import ModelEndpoint
from holdfast.models.kept_reasoning import MAX_KEPT_CHARACTERS
from holdfast.models.lenient_decoder import decode_leniently
from holdfast.models.model import Chunk, Finished, ReasoningDelta, ReasoningEnd, TextDelta, ToolCallDelta
from holdfast.models.responses_shapes import (
    MessageOpening,
    ModelResponse,
    OutputItem,
    ResponseEvent,
    event_in,
    item_in,
    response_in,
    token_usage,
)
from holdfast.models.streamed_answer import StreamedAnswer

_REASONS: Final[dict[str, Literal["length", "content_filter"]]] = {
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "other"]

Place = int | str
"""Identifies an item of the answer: its index or, where a server sends none, its id."""


class ResponsesStream(StreamedAnswer):
    """One response as it arrives."""

    def __init__(self, endpoint: ModelEndpoint) -> None:
        super().__init__(endpoint)
        self._response: ModelResponse | None = None
        self._calls: dict[Place, int] = {}
        """The index of each function call."""
        self._shown: set[Place] = set()
        """The items of which a part was shown as it arrived."""
        self._done: set[Place] = set()
        self._kept_characters = 0
        self._last: type[TextDelta] | type[ReasoningDelta] | None = None
        """The kind of the last block, as long as it can still grow."""

    @property
    def finished(self) -> bool:
        return self._response is not None

    def whole(self, body: bytes) -> list[Chunk]:
        """Decode the answer of a call that does not stream: one object."""
        try:
            response = response_in(body)
        except ValueError:
            self._fail(self._endpoint.garbage("something that is not JSON"))
            return []
        if response.choices is not None or response.object == "chat.completion":
            self._fail(self._endpoint.other_api("/chat/completions"))
        elif response.type == "message":
            self._fail(self._endpoint.other_api("/messages"))
        elif response.output is None and not response.error:
            self._fail(self._endpoint.garbage("an object without output"))
        else:
            self._close(response)
        return self._batch.drain()

    def _take(self, payload: bytes) -> None:
        try:
            event = event_in(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._take_odd_payload(payload)
        try:
            self._take_event(event)
        except ValueError:  # A part that is nested too deeply.
            self._fail(self._endpoint.garbage("something that is not JSON"))
        return None

    def _take_event(self, event: ResponseEvent) -> None:
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                self._show(TextDelta, event)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._show(ReasoningDelta, event)
            case "response.function_call_arguments.delta":
                self._take_arguments(event)
            case "response.reasoning_summary_part.added":
                if event.summary_index:
                    self._add(ReasoningDelta, "\n\n")
            case "response.output_item.added":
                item = item_in(event.item)
                self._begin(_place(event, item), item)
            case "response.output_item.done":
                self._complete(event.output_index, event.item)
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                self._close(response_in(event.response))
            case _:
                self._take_other(event)

    def _take_other(self, event: ResponseEvent) -> None:
        if event.type == "error" or event.error:
            self._fail(self._endpoint.from_error(event.error or {"code": event.code, "message": event.message}))
        elif event.choices is not None:
            self._fail(self._endpoint.other_api("/chat/completions"))
        elif event.type == "message_start":
            self._fail(self._endpoint.other_api("/messages"))
        elif event.type.startswith("response."):
            self._answered = True

    def _take_odd_payload(self, payload: bytes) -> None:
        """Handle a payload that the fast decoder refuses: an end mark, a malformed object, or no JSON at all."""
        payload = payload.strip()
        if not payload or payload == b"[DONE]":
            return None
        try:
            mended = decode_leniently(payload, ResponseEvent)
            self._warn()
            self._take_event(mended)
        except ValueError:
            self._fail(self._endpoint.garbage("something that is not JSON"))
        return None

    def _show(self, kind: type[TextDelta] | type[ReasoningDelta], event: ResponseEvent) -> None:
        self._shown.add(_place(event))
        self._add(kind, event.delta or "")

    def _add(self, kind: type[TextDelta] | type[ReasoningDelta], text: str) -> None:
        self._answered = True
        if text:
            self._last = kind
            self._batch.add(kind, text)

    def _take_arguments(self, event: ResponseEvent) -> None:
        place = _place(event)
        index = self._calls.get(place)
        # A call that did not begin has no name yet: all of it comes with the finished item.
        if index is not None and event.delta:
            self._shown.add(place)
            self._batch.add(index, event.delta)

    def _begin(self, place: Place, item: OutputItem) -> None:
        self._answered = True
        if item.type == "message" and (item.phase or self._last is TextDelta):
            # Two messages in a row stay apart, and each keeps its phase.
            self._end(to_bytes(MessageOpening(item.phase)).decode())
        elif item.type == "function_call" and place not in self._calls:
            index = len(self._calls)
            self._calls[place] = index
            self._last = None
            self._batch.append(ToolCallDelta(index, "", item.call_id or item.id or "", item.name or ""))
        elif item.type == "reasoning" and self._last is ReasoningDelta:
            self._add(ReasoningDelta, "\n\n")

    def _complete(self, index: int | None, raw: msgspec.Raw) -> None:
        """Take a finished item: show what was not shown yet, and keep what goes back."""
        item = item_in(raw)
        place: Place = index if index is not None else item.id or ""
        if place in self._done:
            return
        self._done.add(place)
        if place not in self._shown:
            self._show_whole(place, item)
        self._kept_characters += len(raw) if item.goes_back else 0
        if item.goes_back and self._kept_characters <= MAX_KEPT_CHARACTERS:
            self._end(bytes(raw).decode("utf-8", "replace"))

    def _show_whole(self, place: Place, item: OutputItem) -> None:
        match item.type:
            case "reasoning":
                self._add(ReasoningDelta, item.readable())
            case "message":
                self._add(TextDelta, item.text())
            case "function_call":
                self._begin(place, item)
                if item.arguments:
                    self._batch.add(self._calls[place], item.arguments)
            case _:
                pass

    def _end(self, opaque: str) -> None:
        self._last = None
        self._batch.append(ReasoningEnd(opaque))

    def _close(self, response: ModelResponse) -> None:
        if response.error or response.status in ("failed", "cancelled"):
            gave_up = {"message": "it gave up in the middle of its answer"}
            return self._fail(self._endpoint.from_error(response.error or gave_up))
        for index, raw in enumerate(response.output or ()):
            item = item_in(raw)
            if index not in self._done and item.id not in self._done:
                self._begin(index, item)
                self._complete(index, raw)
        self._response = response
        return self._finish()

    def _finish(self) -> None:
        self.over = True
        response = self._response
        if response is not None and response.usage is not None:
            self._batch.append(token_usage(response.usage))
        self._batch.append(Finished(self._reason(response)))

    def _reason(
        self, response: ModelResponse | None
    ) -> Literal["stop", "length", "tool_calls", "content_filter", "other"]:
        details = response.incomplete_details if response is not None else None
        if details is not None or (response is not None and response.status == "incomplete"):
            return _REASONS.get((details.reason if details else None) or "", "other")
        return "tool_calls" if self._calls else "stop"


def _place(event: ResponseEvent, item: OutputItem | None = None) -> Place:
    if event.output_index is not None:
        return event.output_index
    return event.item_id or (item.id if item is not None else None) or ""
