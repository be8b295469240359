"""Encodes a model request as the body of a call of Anthropic's Messages.

The messages come last and are prefix-stable: apart from the marks for the provider's cache, the messages of one step
are the beginning of the next step's.
"""

from typing import Any, Final

import msgspec

from holdfast.events.codec import to_bytes, without_surrogates
from holdfast.models.info import ModelInfo
from holdfast.models.messages_conversation import SentConversation
from holdfast.models.messages_limits import output_settings
from holdfast.models.messages_parts import (
    MARK,
    DocumentPart,
    ImagePart,
    MarkablePart,
    ReturnedPart,
    SentMessage,
    TextPart,
)
from holdfast.models.model import ContextMessage, ModelRequest, SystemText, ToolSpec

BYTES_PER_IMAGE: Final = 6_400
"""What an image counts for in the window, as if it were text: the provider scales large images down."""

MESSAGES_END: Final = b"]}"
"""The end of every body: a paused answer is continued by a further message before it."""


def encode_request(request: ModelRequest, *, model: str, info: ModelInfo, source: str) -> bytes:
    """The whole body of one call."""
    try:
        return _encode(request, model=model, info=info, source=source)
    except UnicodeEncodeError:
        messages = without_surrogates(msgspec.to_builtins(request.messages))
        clean = msgspec.convert(messages, tuple[ContextMessage, ...])
        return _encode(msgspec.structs.replace(request, messages=clean), model=model, info=info, source=source)


def _encode(request: ModelRequest, *, model: str, info: ModelInfo, source: str) -> bytes:
    opening = next((i for i, m in enumerate(request.messages) if not isinstance(m, SystemText)), len(request.messages))
    system = [TextPart(m.text) for m in request.messages[:opening] if isinstance(m, SystemText) and m.text.strip()]
    conversation = SentConversation(request.messages[opening:], source=source, takes_images=info.takes_images)
    tools = [_tool(tool) for tool in request.tools]
    if request.marks_cache:
        anchor = None if request.cache_anchor is None else request.cache_anchor - opening
        _mark(tools, system, conversation, anchor)
    messages = b",".join(message.encoded() for message in conversation.messages)
    settings = output_settings(
        request,
        model=model,
        info=info,
        sent_bytes=len(messages) - _image_bytes(conversation) + sum(map(len, map(to_bytes, (*tools, *system)))),
        may_think=not conversation.began_tools_without_thinking,
    )
    head: dict[str, Any] = {"model": model, **settings, **({"stream": True} if request.stream else {})}
    if tools:
        head["tools"] = tools
    if system:
        head["system"] = system
    return b'%b,"messages":[%b%b' % (to_bytes(head)[:-1], messages, MESSAGES_END)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    schema = {"type": "object", **tool.parameters}
    description = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **description, "input_schema": schema}


def _mark(
    tools: list[dict[str, Any]], system: list[TextPart], conversation: SentConversation, anchor: int | None
) -> None:
    """Set the marks, four at the most: the last tool, the system text, the anchor and the newest message."""
    if tools:
        tools[-1]["cache_control"] = MARK
    if system:
        system[-1].cache_control = MARK
    newest = conversation.messages[-1].parts[-1]
    for part in (newest, _part_at(conversation.places, anchor)):
        if part is not None and not isinstance(part, ReturnedPart):
            part.cache_control = MARK


def _part_at(places: list[MarkablePart | None], anchor: int | None) -> MarkablePart | None:
    """The part that ends the message at the anchor, or the last one before it that ends a message."""
    if anchor is None or anchor < 0:
        return None
    return next((part for part in reversed(places[: anchor + 1]) if part is not None), None)


def _image_bytes(conversation: SentConversation) -> int:
    """How many bytes of images count for nothing, because the provider scales images to a size of its own."""
    sizes = [len(image.source.data) for message in conversation.messages for image in _images(message)]
    return sum(sizes) - len(sizes) * BYTES_PER_IMAGE


def _images(message: SentMessage) -> list[ImagePart | DocumentPart]:
    images: list[ImagePart | DocumentPart] = []
    for part in message.parts:
        content = getattr(part, "content", None)
        images += [
            p
            for p in (part, *(content if isinstance(content, list) else ()))
            if isinstance(p, ImagePart | DocumentPart)
        ]
    return images
