"""The JSON shapes of a response of OpenAI's Responses, whole or streamed, and the form in which the log keeps what goes
back to the provider."""

from typing import Any

import msgspec

from holdfast.models.chat_shapes import microdollars, token_count
from holdfast.models.lenient_decoder import decode_leniently
from holdfast.models.model import TokenUsage


class ResponsePart(msgspec.Struct, gc=False):
    """A part of a message's content, or of a summary of reasoning."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None


class OutputItem(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    phase: str | None = None
    content: list[ResponsePart] | None = None
    summary: list[ResponsePart] | None = None
    encrypted_content: str | None = None

    def text(self) -> str:
        return "".join(part.text or part.refusal or "" for part in self.content or ())

    def readable(self) -> str:
        """The readable part of an item of reasoning: its summary, or the reasoning itself if the provider shows it."""
        return "\n\n".join(part.text for part in self.summary or self.content or () if part.text)

    @property
    def goes_back(self) -> bool:
        """Whether the provider can read this item of reasoning again. It keeps nothing itself."""
        return self.type == "reasoning" and bool(self.encrypted_content or self.content)


class ResponseEvent(msgspec.Struct, gc=False):
    """One event of a stream, of any type. Fields that an event lacks have their defaults."""

    type: str = ""
    delta: str | None = None
    output_index: int | None = None
    item_id: str | None = None
    summary_index: int | None = None
    item: msgspec.Raw = msgspec.Raw(b"{}")
    response: msgspec.Raw = msgspec.Raw(b"{}")
    error: Any = None
    code: Any = None
    message: Any = None
    choices: Any = None


class InputTokenDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputTokenDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class ResponseUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: InputTokenDetails | None = None
    output_tokens_details: OutputTokenDetails | None = None
    cost: float | None = None


class IncompleteDetails(msgspec.Struct):
    reason: str | None = None


class ModelResponse(msgspec.Struct):
    """A response, with its output items as they were sent."""

    object: str = ""
    type: str = ""
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: ResponseUsage | None = None
    error: Any = None
    incomplete_details: IncompleteDetails | None = None
    choices: Any = None


class MessageOpening(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="message"):
    """Keeps the place where a message of an answer begins, and its phase, which the provider wants back."""

    phase: str | None = None


class _Kind(msgspec.Struct):
    type: str = ""


_event = msgspec.json.Decoder(ResponseEvent).decode
_item = msgspec.json.Decoder(OutputItem).decode
_response = msgspec.json.Decoder(ModelResponse).decode
_kind = msgspec.json.Decoder(_Kind).decode
_start = msgspec.json.Decoder(MessageOpening).decode


def event_in(payload: bytes) -> ResponseEvent:
    """The event. Raises `msgspec.DecodeError`, UnicodeDecodeError or RecursionError if anything in it is malformed."""
    return _event(payload)


def item_in(payload: msgspec.Raw) -> OutputItem:
    try:
        return _item(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode_leniently(bytes(payload), OutputItem)


def response_in(payload: msgspec.Raw | bytes) -> ModelResponse:
    """The response. Raises ValueError if the payload is not JSON."""
    try:
        return _response(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode_leniently(bytes(payload), ModelResponse)


def kept_item(opaque: str) -> MessageOpening | msgspec.Raw | None:
    """The content of a block's opaque part: the start of a message, or a whole item of reasoning to send back as it
    is."""
    try:
        kind = _kind(opaque).type
        if kind == "message":
            return _start(opaque)
        return msgspec.Raw(opaque.encode()) if kind == "reasoning" else None
    except (msgspec.DecodeError, UnicodeError):
        return None


def token_usage(usage: ResponseUsage) -> TokenUsage:
    read, written = usage.input_tokens_details, usage.output_tokens_details
    return TokenUsage(
        input_tokens=token_count(usage.input_tokens),
        output_tokens=token_count(usage.output_tokens),
        cache_read_tokens=token_count(read.cached_tokens if read else None),
        cache_write_tokens=token_count(read.cache_write_tokens if read else None),
        reasoning_tokens=token_count(written.reasoning_tokens if written else None),
        cost_microdollars=microdollars(usage.cost),
    )
