"""Decodes an answer of Anthropic's Messages from bytes to chunks, streamed or whole. Pure, and fast: this runs for
every token.

However the bytes are split into reads, the chunks join to the same text. A malformed event loses only its unreadable
parts; events of kinds that nobody here knows are ignored. An answer that the provider paused goes on with another call,
and stays one answer.
"""

from typing import Final, Literal

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.models.chat_failure import ModelEndpoint
from holdfast.models.lenient_decoder import decode_leniently
from holdfast.models.messages_blocks import AnswerBlocks
from holdfast.models.messages_request import MESSAGES_END
from holdfast.models.messages_shapes import (
    BlockDelta,
    MessageEvent,
    MessageUsage,
    StopDetails,
    WholeMessage,
    event_in,
    message_in,
    token_usage,
)
from holdfast.models.model import Chunk, Finished, TextDelta
from holdfast.models.streamed_answer import StreamedAnswer

MAX_RESUMPTIONS: Final = 10
"""How often a paused answer is continued. The provider pauses one that ran its own tools for long."""

PAUSE: Final = "pause_turn"

_REASONS: Final[dict[str, Literal["stop", "length", "tool_calls", "content_filter"]]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


class MessagesStream(StreamedAnswer):
    """One message as it arrives."""

    def __init__(self, endpoint: ModelEndpoint) -> None:
        super().__init__(endpoint)
        self._blocks = AnswerBlocks(self._batch)
        self._stop_reason: str | None = None
        self._stop_details: StopDetails | None = None
        self._usages = [MessageUsage()]
        """The usage of each call of the answer."""
        self._paused = False

    @property
    def finished(self) -> bool:
        # Without its end, a pause can't be told from a broken connection.
        return self._stop_reason is not None and self._stop_reason != PAUSE

    def whole(self, body: bytes) -> list[Chunk]:
        """Decode the answer of a call that does not stream: one object."""
        try:
            message = message_in(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            try:
                message = decode_leniently(body, WholeMessage)
            except ValueError:
                self._fail(self._endpoint.garbage("something that is not JSON"))
                return []
            self._warn()
        self._take_whole(message)
        return self._batch.drain()

    def resume(self, body: bytes) -> bytes | None:
        if not self._paused:
            return None
        content = self._blocks.content()
        self.over = self._paused = False
        self._tail.clear()
        self._stop_reason = None
        self._usages.append(MessageUsage())
        if not content:
            return body
        if content[-1].get("type") == "text":
            # The provider refuses white space at the end of what it continues.
            content[-1] = {**content[-1], "text": content[-1]["text"].rstrip()}
        paused = to_bytes({"role": "assistant", "content": content})
        return b"%b,%b%b" % (body.removesuffix(MESSAGES_END), paused, MESSAGES_END)

    def _take_whole(self, message: WholeMessage) -> None:
        if message.error:
            return self._fail(self._endpoint.from_error(message.error))
        if message.choices is not None:
            return self._fail(self._endpoint.other_api("/chat/completions"))
        if message.output is not None:
            return self._fail(self._endpoint.other_api("/responses"))
        if message.content is None:
            return self._fail(self._endpoint.garbage("an object without content"))
        self._take_start(message)
        for index, block in enumerate(message.content):
            self._note(self._blocks.begin(index, bytes(block)))
            self._blocks.end(index)
        self._stop_reason, self._stop_details = message.stop_reason or "", message.stop_details
        return self._finish()

    def _take(self, payload: bytes) -> None:
        try:
            event = event_in(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._take_odd_payload(payload)
        return self._take_event(event)

    def _take_event(self, event: MessageEvent) -> None:
        match event.type:
            case "content_block_delta":
                self._answered = True
                known = event.index is not None and self._blocks.grow(event.index, event.delta or BlockDelta())
                self._note(known)
            case "content_block_start":
                self._answered = True
                self._note(event.index is not None and self._blocks.begin(event.index, bytes(event.content_block)))
            case "content_block_stop":
                self._note(event.index is not None and self._blocks.end(event.index))
            case "message_start":
                self._take_start(event.message or WholeMessage())
            case "message_delta":
                self._take_end(event)
            case "message_stop":
                self._finish()
            case "ping":
                pass
            case _:
                self._take_other(event)

    def _take_start(self, message: WholeMessage) -> None:
        self._answered = True
        self._usages[-1] = self._usages[-1].updated(message.usage or MessageUsage())

    def _take_end(self, event: MessageEvent) -> None:
        delta = event.delta or BlockDelta()
        self._answered = True
        self._usages[-1] = self._usages[-1].updated(event.usage or MessageUsage())
        self._stop_reason = delta.stop_reason or self._stop_reason
        self._stop_details = delta.stop_details or self._stop_details

    def _take_other(self, event: MessageEvent) -> None:
        if event.type == "error" or event.error:
            gave_up = {"message": "it gave up in the middle of its answer"}
            self._fail(self._endpoint.from_error(event.error or gave_up))
        elif event.choices is not None:
            self._fail(self._endpoint.other_api("/chat/completions"))
        elif event.type.startswith("response."):
            self._fail(self._endpoint.other_api("/responses"))

    def _take_odd_payload(self, payload: bytes) -> None:
        """Handle a payload that the fast decoder refuses: an end mark, a malformed object, or no JSON at all."""
        payload = payload.strip()
        if not payload or payload == b"[DONE]":
            return None
        try:
            mended = decode_leniently(payload, MessageEvent)
        except ValueError:
            return self._fail(self._endpoint.garbage("something that is not JSON"))
        self._warn()
        return self._take_event(mended)

    def _note(self, known: bool) -> None:
        if not known:
            self._warn()

    def _finish(self) -> None:
        if not self._answered:
            return self._fail(self._endpoint.garbage("an answer of which nothing could be read"))
        self.over = True
        self._blocks.end_all()
        self._paused = self._stop_reason == PAUSE and len(self._usages) <= MAX_RESUMPTIONS and self._blocks.are_kept
        if self._paused:
            return None
        explanation = self._stop_details.explanation if self._stop_details else None
        if self._stop_reason == "refusal" and explanation and not self._blocks.has_text:
            self._batch.append(TextDelta(explanation))
        if self._usages != [MessageUsage()]:
            self._batch.append(token_usage(self._usages))
        reason = self._stop_reason or ("tool_use" if self._blocks.has_calls else "")
        self._batch.append(Finished(_REASONS.get(reason, "other")))
        return None
