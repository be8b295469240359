"""The chunks of the UI-message stream, as the clients' schemas have them, and how they stand on the wire.

Clients are strict: a type that they don't know ends their stream, a field that they don't know did so in many releases,
and what is optional is absent, never null. So nothing is added to a chunk: what is ours goes into `data-…` chunks and
into the message's metadata. All of these are known to releases 6 and 7; to release 5, those that no tool asks leave.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import msgspec

from holdfast.events import codec

FinishReason = Literal["stop", "length", "content-filter", "tool-calls", "error", "other"]
"""Those that every release knows; any other would end the stream with an error."""

Metadata = dict[str, Any]


class Chunk(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", tag_field="type"):
    """One piece of a message."""


# The message and its steps


class Start(Chunk, frozen=True, tag="start"):
    message_id: str
    message_metadata: Metadata | None = None


class StartStep(Chunk, frozen=True, tag="start-step"):
    pass


class FinishStep(Chunk, frozen=True, tag="finish-step"):
    pass


class MessageMetadata(Chunk, frozen=True, tag="message-metadata"):
    """Merged into what the message has."""

    message_metadata: Metadata


class Finish(Chunk, frozen=True, tag="finish"):
    finish_reason: FinishReason
    message_metadata: Metadata | None = None


class Abort(Chunk, frozen=True, tag="abort"):
    """Somebody stopped the turn. Clients leave as it is whatever is still open, so everything is closed before."""


class Error(Chunk, frozen=True, tag="error"):
    """Clients keep what came before, and heed nothing that comes after."""

    error_text: str


# Text and reasoning


class TextStart(Chunk, frozen=True, tag="text-start"):
    id: str


class TextDelta(Chunk, frozen=True, tag="text-delta"):
    id: str
    delta: str


class TextEnd(Chunk, frozen=True, tag="text-end"):
    id: str


class ReasoningStart(Chunk, frozen=True, tag="reasoning-start"):
    id: str


class ReasoningDelta(Chunk, frozen=True, tag="reasoning-delta"):
    id: str
    delta: str


class ReasoningEnd(Chunk, frozen=True, tag="reasoning-end"):
    id: str


# Tools. `provider_executed` is what clients call a tool that they need not run.


class ToolInputStart(Chunk, frozen=True, tag="tool-input-start"):
    tool_call_id: str
    tool_name: str


class ToolInputDelta(Chunk, frozen=True, tag="tool-input-delta"):
    tool_call_id: str
    input_text_delta: str


class ToolInputAvailable(Chunk, frozen=True, tag="tool-input-available"):
    tool_call_id: str
    tool_name: str
    input: Any
    provider_executed: bool = False


class ToolApprovalRequest(Chunk, frozen=True, tag="tool-approval-request"):
    approval_id: str
    tool_call_id: str


class ToolApprovalResponse(Chunk, frozen=True, tag="tool-approval-response"):
    """Only for clients that said that they are of release 7: to the others it is fatal."""

    approval_id: str
    approved: bool
    reason: str = ""


class ToolOutputAvailable(Chunk, frozen=True, tag="tool-output-available"):
    tool_call_id: str
    output: Any
    provider_executed: bool = False


class ToolOutputError(Chunk, frozen=True, tag="tool-output-error"):
    tool_call_id: str
    error_text: str
    provider_executed: bool = False


class ToolOutputDenied(Chunk, frozen=True, tag="tool-output-denied"):
    tool_call_id: str


# What the protocol has no word for. A part with the same type and id replaces the earlier one.


class DataInterrupted(Chunk, frozen=True, tag="data-interrupted"):
    """What stands before it was cut short; the model answers again after it."""

    id: str
    data: dict[str, Any]


class DataFollowUp(Chunk, frozen=True, tag="data-follow-up"):
    """Somebody wrote while the turn ran, and the model read it at this place."""

    id: str
    data: dict[str, Any]


class DataTask(Chunk, frozen=True, tag="data-task"):
    """What became of a command in the background, as the model was told at this place."""

    id: str
    data: dict[str, Any]


# What is said once, to whoever listens, and is no part of the message.


class Transient(Chunk, frozen=True, omit_defaults=False):
    data: dict[str, Any]
    transient: bool = True


class DataQueued(Transient, frozen=True, tag="data-queued"):
    """The message was accepted, and its turn is not now."""


class DataReturned(Transient, frozen=True, tag="data-returned"):
    """Messages that waited, and were taken out of the queue."""


class DataAnsweredElsewhere(Transient, frozen=True, tag="data-answered-elsewhere"):
    """Requests that somebody else had answered, or that were closed, before these answers came."""


class DataTitle(Transient, frozen=True, tag="data-title"):
    """The session has another title, which somebody gave it or a model made."""


class DataToolProgress(Transient, frozen=True, tag="data-tool-progress"):
    """What a running tool says; not kept."""


DONE: Final = b"data: [DONE]\n\n"

MAX_PIECE_CHARACTERS: Final = 16_000
"""A longer text is told in pieces: whoever reads lines may have a bound for them."""

MAX_FRAME_BYTES: Final = 65_536
"""About so much is made ready for a slow reader, and no more before that was taken: its text is everybody's."""


def frames(chunks: Iterable[Chunk]) -> Iterator[bytes]:
    """Chunks as server-sent events, as many at once as are worth a packet."""
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


def _pieces(chunk: Chunk) -> Iterable[Chunk]:
    match chunk:
        case TextDelta(id=id, delta=text) if len(text) > MAX_PIECE_CHARACTERS:
            return (TextDelta(id, piece) for piece in _cut(text))
        case ReasoningDelta(id=id, delta=text) if len(text) > MAX_PIECE_CHARACTERS:
            return (ReasoningDelta(id, piece) for piece in _cut(text))
        case ToolInputDelta(tool_call_id=id, input_text_delta=text) if len(text) > MAX_PIECE_CHARACTERS:
            return (ToolInputDelta(id, piece) for piece in _cut(text))
        case _:
            return (chunk,)


def _cut(text: str) -> Iterator[str]:
    return (text[at : at + MAX_PIECE_CHARACTERS] for at in range(0, len(text), MAX_PIECE_CHARACTERS))


def plain(chunk: Chunk) -> dict[str, Any]:
    """A chunk as clients decode it."""
    decoded: dict[str, Any] = msgspec.json.decode(codec.to_bytes(chunk))
    return decoded
