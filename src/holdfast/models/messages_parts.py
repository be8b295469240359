"""The parts of a call in Anthropic's Messages: what stands in a message, and the mark for the provider's cache."""

import re
from base64 import b64encode
from typing import Final, Literal

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.events.message import PDF, PICTURES, Image
from holdfast.models.lenient_decoder import parse
from holdfast.models.model import Reasoning

IMAGE_TYPES: Final = PICTURES
"""The images that the provider takes."""

THINKING: Final = ("thinking", "redacted_thinking")
"""The parts that hold reasoning."""


MAX_NAME_CHARACTERS: Final = 128
_NAME: Final = re.compile(rf"[a-zA-Z0-9_-]{{1,{MAX_NAME_CHARACTERS}}}")
_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")


class Mark(msgspec.Struct, frozen=True, tag_field="type", tag="ephemeral"):
    """Asks the provider to cache up to here."""


MARK: Final = Mark()


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    text: str
    cache_control: Mark | msgspec.UnsetType = msgspec.UNSET


class ImageSource(msgspec.Struct, tag_field="type", tag="base64"):
    media_type: str
    data: str


class ImagePart(msgspec.Struct, tag_field="type", tag="image"):
    source: ImageSource
    cache_control: Mark | msgspec.UnsetType = msgspec.UNSET


class DocumentPart(msgspec.Struct, tag_field="type", tag="document"):
    source: ImageSource
    cache_control: Mark | msgspec.UnsetType = msgspec.UNSET


class ToolUsePart(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw
    cache_control: Mark | msgspec.UnsetType = msgspec.UNSET


class ToolResultPart(msgspec.Struct, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[TextPart | ImagePart | DocumentPart] | msgspec.UnsetType = msgspec.UNSET
    cache_control: Mark | msgspec.UnsetType = msgspec.UNSET


MarkablePart = TextPart | ImagePart | DocumentPart | ToolUsePart | ToolResultPart


class ReturnedPart(msgspec.Struct):
    """A part that goes back to its provider as it came. It can't be marked."""

    kind: str
    encoded: bytes


Part = MarkablePart | ReturnedPart


class SentMessage(msgspec.Struct):
    role: Literal["user", "assistant"]
    parts: list[Part]

    def encoded(self) -> bytes:
        parts = (part.encoded if isinstance(part, ReturnedPart) else msgspec.json.encode(part) for part in self.parts)
        return b'{"role":"%b","content":[%b]}' % (self.role.encode(), b",".join(parts))

    @property
    def begins_with_thinking(self) -> bool:
        first = self.parts[0]
        return isinstance(first, ReturnedPart) and first.kind in THINKING

    @property
    def has_results(self) -> bool:
        return isinstance(self.parts[0], ToolResultPart)


class _Kept(msgspec.Struct):
    type: str
    signature: str = ""


class _Thinking(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


def opaque_of_thinking(signature: str) -> str:
    """What is kept of a thinking block beside its text."""
    return to_bytes(_Kept("thinking", signature)).decode()


def returned_part(reasoning: Reasoning) -> ReturnedPart | None:
    """The part that the reasoning came as; None if it did not come from this protocol."""
    try:
        kept = msgspec.json.decode(reasoning.opaque, type=_Kept)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if kept.type == "thinking":
        return ReturnedPart(kept.type, msgspec.json.encode(_Thinking(reasoning.text, kept.signature)))
    return ReturnedPart(kept.type, reasoning.opaque.encode())


def image_part(image: Image) -> ImagePart | DocumentPart | TextPart:
    if image.media_type == PDF:
        return DocumentPart(ImageSource(PDF, b64encode(image.data).decode()))
    if image.media_type not in IMAGE_TYPES:
        kind = "".join(letter for letter in image.media_type if letter.isprintable())
        return TextPart(f"[An image of the type {kind or 'unknown'} was left out: this model does not take it.]")
    return ImagePart(ImageSource(image.media_type, b64encode(image.data).decode()))


def name_of(tool: str) -> str:
    """The name of a tool that was called. A model may have called one by a name that no tool can have; every later call
    would be refused for it."""
    return tool if _NAME.fullmatch(tool) else _NO_NAME.sub("_", tool)[:MAX_NAME_CHARACTERS] or "unnamed"


def input_of(arguments: str) -> msgspec.Raw:
    """The arguments of a call as an object: as the model wrote them if they are one."""
    try:
        if isinstance(msgspec.json.decode(arguments), dict):
            return msgspec.Raw(arguments.encode())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    return msgspec.Raw(_mended_input(arguments))


def _mended_input(arguments: str) -> bytes:
    if not arguments.strip():
        return b"{}"
    try:
        value = parse(arguments.encode("utf-8", "replace"))
        if isinstance(value, dict):
            return to_bytes(value)
    except (ValueError, OverflowError, RecursionError):
        pass
    return to_bytes({"arguments": arguments})
