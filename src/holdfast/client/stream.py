"""Reads a session as it happens, over a connection that may break: the cursor marks the place, so nothing is missed or
read twice."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import quote

import msgspec

from holdfast.client.errors import NotFound, NotHoldfast, TooMany, Unavailable, Unreachable
from holdfast.client.frames import Frame, Frames, FrameTooLarge
from holdfast.client.wire import Wire, pauses
from holdfast.live.live import Delta, Progress, WaitStatus
from holdfast.protocol.event import EventView
from holdfast.protocol.reading import Connection, QueueChanged, Reading

READ_BYTES: Final = 65_536


_events: msgspec.json.Decoder[EventView] = msgspec.json.Decoder(EventView)
_others: dict[str, msgspec.json.Decoder[Any]] = {
    "delta": msgspec.json.Decoder(Delta),
    "progress": msgspec.json.Decoder(Progress),
    "status": msgspec.json.Decoder(WaitStatus),
    "queue": msgspec.json.Decoder(QueueChanged),
}


class Stream:
    """A reader of one session. Its `cursor` may be stored, and any program may continue from it later."""

    def __init__(self, wire: Wire, session_id: str, cursor: str, *, patience_seconds: float) -> None:
        """`patience_seconds`: how long the server may be away at a time."""
        self._wire = wire
        self._session_id = session_id
        self._path = f"/v1/sessions/{quote(session_id, safe='')}/events"
        self._patience_seconds = patience_seconds
        self.cursor = cursor

    async def until_now(self) -> AsyncGenerator[Reading, None]:
        """Everything up to now, and then the end."""
        async with aclosing(self.follow()) as readings:
            async for reading in readings:
                if isinstance(reading, QueueChanged):
                    return  # The server sends it once everything up to now is sent.
                yield reading

    async def follow(self) -> AsyncGenerator[Reading, None]:
        """Everything up to now, and then every change, without end. Raises `NotFound` when the session is deleted, and
        `Unreachable` when the server is away for longer than the patience lasts."""
        broken: Unreachable | Unavailable | TooMany | None = None
        since, waits = 0.0, pauses()
        while True:
            try:
                async with aclosing(self._readings()) as readings:
                    async for reading in readings:
                        if broken is not None:
                            broken, waits = None, pauses()
                            yield Connection(is_back=True)
                        yield reading
                raise Unreachable("The stream ended.", was_sent=True)
            except (Unreachable, Unavailable, TooMany) as error:
                if broken is None:
                    since = time.monotonic()
                    yield Connection(is_back=False, reason=error.message)
                broken = error
            pause = next(waits)
            if time.monotonic() + pause - since > self._patience_seconds:
                raise broken
            await asyncio.sleep(pause)

    async def _readings(self) -> AsyncGenerator[Reading, None]:
        """Everything after the cursor, over one connection."""
        frames = Frames()
        async with self._wire.stream(self._path, {"last-event-id": self.cursor}) as content:
            while piece := await content.read(READ_BYTES):
                try:
                    found = frames.feed(piece)
                except FrameTooLarge:
                    raise self._not_understood() from None
                for frame in found:
                    reading = self._reading(frame)
                    self.cursor = frame.cursor or self.cursor
                    if reading is not None:
                        yield reading

    def _reading(self, frame: Frame) -> Reading | None:
        if frame.kind == "deleted":
            raise NotFound(404, "session_not_found", f"There is no session {self._session_id}.")
        try:
            if frame.kind == "event":
                return _events.decode(frame.data).event()
            decoder = _others.get(frame.kind)
            reading: Reading | None = decoder.decode(frame.data) if decoder is not None else None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise self._not_understood() from None
        return reading

    def _not_understood(self) -> NotHoldfast:
        message = (
            f"The stream of {self._wire.address.url} can't be read. "
            "Check that the server and this client are of the same release."
        )
        return NotHoldfast("version_mismatch", message)
