"""Server-sent event streams: all that are open in this process, kept alive with comments, and reset rather than ended
when they can't be finished.

A slow reader delays no other: events that it has not taken wait in the log, not in memory. A reader that disconnects
stops nothing.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.events.ids import Owner
from holdfast.protocol.identity import Quota
from holdfast.server.http.errors import ApiError
from holdfast.server.http.identity import Identity
from holdfast.store.clock import Clock

log = logging.getLogger(__name__)

ABORT: Final = "holdfast.abort"
"""The extension of the ASGI scope that resets the connection: no client takes a reset for the end of a response."""

LOOK_SECONDS: Final = 2.0
SILENCE_SECONDS: Final = 6.0
"""Together below ten seconds, the longest that clients wait for a byte."""

STALLED_SECONDS: Final = 60.0
"""A client that has taken nothing for this long is treated as gone."""

COMMENT: Final = b": still here\n\n"

HEADERS: Final[Mapping[str, str]] = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class BrokenOff(Exception):
    """The stream can't be finished. The connection is reset, so that the client reconnects."""


class Streams:
    """One per process."""

    def __init__(self, clock: Clock, *, per_owner: int) -> None:
        self._clock = clock
        self._per_owner = per_owner
        self._open: set[EventStream] = set()
        self._owners: Counter[str] = Counter()
        self._heartbeat: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def respond(
        self, identity: Identity, frames: AsyncGenerator[bytes, None], *, headers: Mapping[str, str] | None = None
    ) -> "EventStream":
        """A response that streams `frames`, each of one or more whole events. It ends when the frames end, and is reset
        when they raise."""
        self.check(identity)
        return EventStream(self, self._clock, identity, frames, headers or {})

    def check(self, identity: Identity) -> None:
        """Raise `ApiError` if the owner may open no further stream: for a handler that stores something before it opens
        the stream."""
        if self._owners[identity.owner] >= self._per_owner:
            message = f"At most {self._per_owner} streams are open at once for one owner. Close one, then try again."
            raise ApiError(429, "too_many_streams", message, retry_after=5)

    def usage(self, owner: Owner) -> Quota:
        """How many streams the owner has open in this process."""
        return Quota(used=self._owners[owner], limit=self._per_owner)

    def opened(self, stream: "EventStream") -> None:
        self._open.add(stream)
        self._owners[stream.identity.owner] += 1
        if self._heartbeat is None or self._heartbeat.done():
            self._heartbeat = asyncio.create_task(self._beat())

    def closed(self, stream: "EventStream") -> None:
        self._open.discard(stream)
        self._owners[stream.identity.owner] -= 1
        if not self._owners[stream.identity.owner]:
            del self._owners[stream.identity.owner]

    def break_all(self) -> None:
        """Reset all streams. A stream in the middle of an answer must not look as if it had ended."""
        for stream in tuple(self._open):
            stream.abort()

    async def _beat(self) -> None:
        """One task for all streams, as long as there are any."""
        while self._open:
            await self._clock.sleep(LOOK_SECONDS)
            for stream in tuple(self._open):
                if stream.is_stalled():
                    stream.abort()
                else:
                    stream.fill_silence()


class EventStream(Response):
    """The response to one request: server-sent events, until they end or the client disconnects."""

    media_type = "text/event-stream"

    def __init__(
        self,
        streams: Streams,
        clock: Clock,
        identity: Identity,
        frames: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({**HEADERS, **headers})
        del self.headers["content-length"]
        self.identity = identity
        self._streams = streams
        self._clock = clock
        self._frames = frames
        self._send: Send | None = None
        self._abort: Callable[[], None] | None = None
        self._sent_at = 0.0
        self._is_sending = False
        self._filling: asyncio.Task[None] | None = None
        self._when_over: Callable[[], None] | None = None

    def when_over(self, then: Callable[[], None]) -> None:
        """Call this when the stream has ended, or failed before it began."""
        self._when_over = then

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        self._abort = scope.get("extensions", {}).get(ABORT)
        self._sent_at = self._clock.monotonic()
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._run(scope, receive, send)
        finally:
            if self._when_over is not None:
                self._when_over()
            await self._frames.aclose()

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.opened(self)
        try:
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
            else:
                await self._until_sent_or_disconnected(receive, send)
        finally:
            self._streams.closed(self)
            if self._filling is not None:
                self._filling.cancel()

    async def _until_sent_or_disconnected(self, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_frames(send))
        disconnect = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((sending, disconnect), return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_sent = sending.done()
            sending.cancel()
            disconnect.cancel()
            await asyncio.gather(sending, disconnect, return_exceptions=True)
        if is_sent:
            sending.result()

    async def _send_frames(self, send: Send) -> None:
        async for frame in self._frames:
            self._is_sending = True
            await send({"type": "http.response.body", "body": frame, "more_body": True})
            self._sent_at, self._is_sending = self._clock.monotonic(), False
            frame = b""  # Frees the frame while the stream waits for the next one.
        await send({"type": "http.response.body", "body": b""})

    def is_stalled(self) -> bool:
        """Whether the client has taken nothing for long, although something is being sent."""
        return self._is_waiting() and self._clock.monotonic() - self._sent_at > STALLED_SECONDS

    def fill_silence(self) -> None:
        """Send a comment if nothing was sent for a while and nothing is being sent."""
        if not self._is_waiting() and self._clock.monotonic() - self._sent_at > SILENCE_SECONDS:
            self._filling = asyncio.create_task(self._comment())

    def _is_waiting(self) -> bool:
        return self._is_sending or (self._filling is not None and not self._filling.done())

    async def _comment(self) -> None:
        assert self._send is not None
        with suppress(RuntimeError):  # The stream ended at this moment.
            await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})
            self._sent_at = self._clock.monotonic()

    def abort(self) -> None:
        if self._abort is not None:
            self._abort()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
