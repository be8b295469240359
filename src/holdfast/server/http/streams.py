"""Streams to clients: every one that is open here, none of them silent for long, and each broken off rather than ended
when it can't be told to its end.

Who reads slowly holds up nobody: what is not taken waits in the log, not in memory. Who has gone has stopped nothing.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.server.http.errors import ApiError
from holdfast.server.http.identity import Identity
from holdfast.store.clock import Clock

log = logging.getLogger(__name__)

ABORT: Final = "holdfast.abort"
"""The scope's extension with which a connection is reset: an end that no client takes for the end of the answer."""

LOOK_SECONDS: Final = 2.0
SILENCE_SECONDS: Final = 6.0
"""Together below ten seconds, the longest that a client waits for a byte."""

STALLED_SECONDS: Final = 60.0
"""A client that took nothing for so long is gone, or as good as gone."""

COMMENT: Final = b": still here\n\n"

HEADERS: Final[Mapping[str, str]] = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class BrokenOff(Exception):
    """The stream can't be told to its end. The connection is reset, so that the client comes back."""


class Streams:
    """One per process."""

    def __init__(self, clock: Clock, *, per_owner: int) -> None:
        self._clock = clock
        self._per_owner = per_owner
        self._open: set[EventStream] = set()
        self._owners: Counter[str] = Counter()
        self._pulse: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def answer(
        self, identity: Identity, frames: AsyncGenerator[bytes, None], *, headers: Mapping[str, str] | None = None
    ) -> "EventStream":
        """A stream of `frames`, each of one or more whole events. It ends when they end, and breaks when they raise."""
        self.check(identity)
        return EventStream(self, self._clock, identity, frames, headers or {})

    def check(self, identity: Identity) -> None:
        """Whether one more may be opened: for whoever must know before it stores what the stream would tell of."""
        if self._owners[identity.owner] >= self._per_owner:
            message = f"At most {self._per_owner} streams are open at once for one owner. Close one, then try again."
            raise ApiError(429, "too_many_streams", message, retry_after=5)

    def entered(self, stream: "EventStream") -> None:
        self._open.add(stream)
        self._owners[stream.identity.owner] += 1
        if self._pulse is None or self._pulse.done():
            self._pulse = asyncio.create_task(self._beat())

    def left(self, stream: "EventStream") -> None:
        self._open.discard(stream)
        self._owners[stream.identity.owner] -= 1
        if not self._owners[stream.identity.owner]:
            del self._owners[stream.identity.owner]

    def break_all(self) -> None:
        """Reset every one of them. Those that were in the middle of an answer must not look as if they had ended."""
        for stream in tuple(self._open):
            stream.abort()

    async def _beat(self) -> None:
        """One task for all streams, while there are any."""
        while self._open:
            await self._clock.sleep(LOOK_SECONDS)
            for stream in tuple(self._open):
                if stream.is_stalled():
                    stream.abort()
                else:
                    stream.fill_silence()


class EventStream(Response):
    """The answer to one request: server-sent events, until they end or the client goes."""

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
        """Call this when it has ended, or failed before it began."""
        self._when_over = then

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        self._abort = scope.get("extensions", {}).get(ABORT)
        self._sent_at = self._clock.monotonic()
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._be_open(scope, receive, send)
        finally:
            if self._when_over is not None:
                self._when_over()
            await self._frames.aclose()

    async def _be_open(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.entered(self)
        try:
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
            else:
                await self._until_either_ends(receive, send)
        finally:
            self._streams.left(self)
            if self._filling is not None:
                self._filling.cancel()

    async def _until_either_ends(self, receive: Receive, send: Send) -> None:
        telling = asyncio.create_task(self._tell(send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((telling, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_told = telling.done()
            telling.cancel()
            leaving.cancel()
            await asyncio.gather(telling, leaving, return_exceptions=True)
        if is_told:
            telling.result()

    async def _tell(self, send: Send) -> None:
        async for frame in self._frames:
            self._is_sending = True
            await send({"type": "http.response.body", "body": frame, "more_body": True})
            self._sent_at, self._is_sending = self._clock.monotonic(), False
            frame = b""  # What was sent is not kept until more comes.
        await send({"type": "http.response.body", "body": b""})

    def is_stalled(self) -> bool:
        """Something is on its way to the client, and it has taken nothing for long."""
        return self._is_waiting() and self._clock.monotonic() - self._sent_at > STALLED_SECONDS

    def fill_silence(self) -> None:
        """Send a comment if nothing was sent for a while. While an event is on its way there is no silence."""
        if not self._is_waiting() and self._clock.monotonic() - self._sent_at > SILENCE_SECONDS:
            self._filling = asyncio.create_task(self._comment())

    def _is_waiting(self) -> bool:
        return self._is_sending or (self._filling is not None and not self._filling.done())

    async def _comment(self) -> None:
        assert self._send is not None
        with suppress(RuntimeError):  # It ended at this very moment.
            await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})
            self._sent_at = self._clock.monotonic()

    def abort(self) -> None:
        if self._abort is not None:
            self._abort()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
