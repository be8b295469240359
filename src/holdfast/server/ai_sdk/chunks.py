"""The chunks of the UI-message stream as the schemas of AI SDK clients define them, and their encoding on the wire.

Clients are strict: an unknown type ends their stream, an unknown field did so in many releases, and an optional field
is absent, never null. So no chunk has a field of our own: our data goes into `data-…` chunks and into the message's
metadata. Releases 6 and 7 know all of these chunks; release 5 knows those without tool approvals.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import msgspec

from holdfast.events import codec

FinishReason = Literal["stop", "length", "content-filter", "tool-calls", "error", "other"]
"""The reasons that every release knows; any other would end the stream with an error."""

Metadata = dict[str, Any]


class UiChunk(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", tag_field="type"):
    """One piece of a message."""


# The message and its steps


class StartChunk(UiChunk, frozen=True, tag="start"):
    message_id: str
    message_metadata: Metadata | None = None


class StartStepChunk(UiChunk, frozen=True, tag="start-step"):
    pass


class FinishStepChunk(UiChunk, frozen=True, tag="finish-step"):
    pass


class MessageMetadataChunk(UiChunk, frozen=True, tag="message-metadata"):
    """Metadata that clients merge into the message's metadata."""

    message_metadata: Metadata


class FinishChunk(UiChunk, frozen=True, tag="finish"):
    finish_reason: FinishReason
    message_metadata: Metadata | None = None


class AbortChunk(UiChunk, frozen=True, tag="abort"):
    """The turn was stopped. Clients leave open parts as they are, so every part is closed before."""


class ErrorChunk(UiChunk, frozen=True, tag="error"):
    """The turn failed. Clients keep the chunks before it and ignore the chunks after it."""

    error_text: str


# Text and reasoning


class TextStartChunk(UiChunk, frozen=True, tag="text-start"):
    id: str


class TextDeltaChunk(UiChunk, frozen=True, tag="text-delta"):
    id: str
    delta: str


class TextEndChunk(UiChunk, frozen=True, tag="text-end"):
    id: str


class ReasoningStartChunk(UiChunk, frozen=True, tag="reasoning-start"):
    id: str


class ReasoningDeltaChunk(UiChunk, frozen=True, tag="reasoning-delta"):
    id: str
    delta: str


class ReasoningEndChunk(UiChunk, frozen=True, tag="reasoning-end"):
    id: str


# Tools. `provider_executed` marks a tool that the client need not run.


class ToolInputStartChunk(UiChunk, frozen=True, tag="tool-input-start"):
    tool_call_id: str
    tool_name: str


class ToolInputDeltaChunk(UiChunk, frozen=True, tag="tool-input-delta"):
    tool_call_id: str
    input_text_delta: str


class ToolInputAvailableChunk(UiChunk, frozen=True, tag="tool-input-available"):
    tool_call_id: str
    tool_name: str
    input: Any
    provider_executed: bool = False


class ToolApprovalRequestChunk(UiChunk, frozen=True, tag="tool-approval-request"):
    approval_id: str
    tool_call_id: str


class ToolApprovalResponseChunk(UiChunk, frozen=True, tag="tool-approval-response"):
    """Only for clients that asked for release 7: it ends the stream of all others."""

    approval_id: str
    approved: bool
    reason: str = ""


class ToolOutputAvailableChunk(UiChunk, frozen=True, tag="tool-output-available"):
    tool_call_id: str
    output: Any
    provider_executed: bool = False


class ToolOutputErrorChunk(UiChunk, frozen=True, tag="tool-output-error"):
    tool_call_id: str
    error_text: str
    provider_executed: bool = False


class ToolOutputDeniedChunk(UiChunk, frozen=True, tag="tool-output-denied"):
    tool_call_id: str


# Data for which the protocol has no chunk. A part with the same type and id replaces the earlier one.


class DataInterruptedChunk(UiChunk, frozen=True, tag="data-interrupted"):
    """The text before it was cut short; the model answers again after it."""

    id: str
    data: dict[str, Any]


class DataFollowUpChunk(UiChunk, frozen=True, tag="data-follow-up"):
    """A message that was sent while the turn ran; the model read it at this place."""

    id: str
    data: dict[str, Any]


class DataTaskChunk(UiChunk, frozen=True, tag="data-task"):
    """News of a task; the model read it at this place."""

    id: str
    data: dict[str, Any]


# Data that is sent once to connected readers, and is no part of the message.


class TransientChunk(UiChunk, frozen=True, omit_defaults=False):
    data: dict[str, Any]
    transient: bool = True


class DataQueuedChunk(TransientChunk, frozen=True, tag="data-queued"):
    """The message was accepted, and waits for its turn."""


class DataReturnedChunk(TransientChunk, frozen=True, tag="data-returned"):
    """Messages that were taken out of the queue."""


class DataAnsweredElsewhereChunk(TransientChunk, frozen=True, tag="data-answered-elsewhere"):
    """Requests that were answered by another client, or closed, before these answers came."""


class DataTitleChunk(TransientChunk, frozen=True, tag="data-title"):
    """The session's new title, chosen by a person or made by a model."""


class DataCompactionChunk(TransientChunk, frozen=True, tag="data-compaction"):
    """The older part of the conversation is being summarised for the model, or that has ended."""


class DataToolProgressChunk(TransientChunk, frozen=True, tag="data-tool-progress"):
    """Progress of a running tool; not stored."""


class DataStatusChunk(TransientChunk, frozen=True, tag="data-status"):
    """What the turn waits for while nothing comes; not stored."""


DONE: Final = b"data: [DONE]\n\n"

MAX_PIECE_CHARACTERS: Final = 16_000
"""A longer text is sent in pieces: clients that read lines may bound their length."""

MAX_FRAME_BYTES: Final = 65_536
"""About this much is encoded ahead for a slow reader, to bound the memory that all readers share."""


def frames(chunks: Iterable[UiChunk]) -> Iterator[bytes]:
    """Chunks as server-sent events, several per frame."""
    ready: list[bytes] = []
    size = 0
    for chunk in chunks:
        for piece in _pieces(chunk):
            ready.append(b"data: " + codec.to_bytes(piece) + b"\n\n")
            size += len(ready[-1])
            if size >= MAX_FRAME_BYTES:
                yield b"".join(ready)
                ready, size = [], 0
    if ready:
        yield b"".join(ready)


def _pieces(chunk: UiChunk) -> Iterable[UiChunk]:
    match chunk:
        case TextDeltaChunk(id=id, delta=text) if len(text) > MAX_PIECE_CHARACTERS:
            return (TextDeltaChunk(id, piece) for piece in _cut(text))
        case ReasoningDeltaChunk(id=id, delta=text) if len(text) > MAX_PIECE_CHARACTERS:
            return (ReasoningDeltaChunk(id, piece) for piece in _cut(text))
        case ToolInputDeltaChunk(tool_call_id=id, input_text_delta=text) if len(text) > MAX_PIECE_CHARACTERS:
            return (ToolInputDeltaChunk(id, piece) for piece in _cut(text))
        case _:
            return (chunk,)


def _cut(text: str) -> Iterator[str]:
    return (text[at : at + MAX_PIECE_CHARACTERS] for at in range(0, len(text), MAX_PIECE_CHARACTERS))


def plain(chunk: UiChunk) -> dict[str, Any]:
    """The chunk as clients decode it."""
    decoded: dict[str, Any] = msgspec.json.decode(codec.to_bytes(chunk))
    return decoded
