"""The parts that the streamed answers of all wires have in common: lines of an event stream, and batches of chunks.

However the bytes are split into reads, the chunks join to the same text.
"""

import abc
import logging

from holdfast.models.chat_failure import ModelEndpoint
from holdfast.models.model import Chunk, ModelError, ReasoningDelta, TextDelta, ToolCallDelta

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""The largest event of a stream: far more than any provider sends, and a bound on memory if one is broken."""

log = logging.getLogger(__name__)


class StreamedAnswer(abc.ABC):
    """One answer as it arrives. It never raises: once `over` is true, the answer is complete unless `failure` is set.

    The last chunks of a complete answer are the usage, if the provider reported it, and then `Finished`, once each.
    """

    def __init__(self, endpoint: ModelEndpoint) -> None:
        self.over = False
        self.failure: ModelError | None = None
        self._endpoint = endpoint
        self._tail = bytearray()
        self._batch = ChunkBatch()
        self._answered = False
        """Whether anything arrived that belongs to an answer."""
        self._strayed = False
        """Whether a line arrived that is no field of an event."""
        self._warned = False

    @property
    @abc.abstractmethod
    def finished(self) -> bool:
        """Whether the finish reason has arrived: no part of the answer itself is missing then."""

    @abc.abstractmethod
    def whole(self, body: bytes) -> list[Chunk]:
        """Decode the answer of a call that does not stream: one object."""

    @abc.abstractmethod
    def _take(self, payload: bytes) -> None:
        """Take the data of one event."""

    @abc.abstractmethod
    def _finish(self) -> None:
        """The answer is complete: add its usage and `Finished`."""

    def resume(self, body: bytes) -> bytes | None:
        """The body of the call that continues this answer, which the provider paused and which the call with the given
        body began; None if the answer is over. The decoder then goes on with that call's answer."""
        return None

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
        """Handle the end of the event stream. Without its end mark or a finish reason the answer was cut."""
        if self._tail and not self.over and not self.finished:
            self._take_last_line(bytes(self._tail))
        if not self.over and self.finished:
            self._finish()
        elif not self.over:
            empty = self._strayed and not self._answered
            self._fail(self._endpoint.garbage("something that is not an event stream") if empty else self._cut())
        return self._batch.drain()

    def _keep(self, data: bytes) -> list[Chunk]:
        self._tail += data
        if len(self._tail) > MAX_EVENT_BYTES:
            self._fail(self._endpoint.garbage("an event that is too long"))
        return []

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

    def _cut(self) -> ModelError:
        return self._endpoint.cut()

    def _fail(self, failure: ModelError) -> None:
        self.over = True
        self.failure = failure

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning("the model at %s sent a malformed chunk; its unreadable parts are dropped", self._endpoint.host)


class ChunkBatch:
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
