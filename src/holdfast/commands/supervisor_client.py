"""The runtime's end of the supervisor's socket: any number of requests in flight, each answered when its result is
ready."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Self

import msgspec

from holdfast.commands.address import address
from holdfast.commands.protocol import (
    CancelRequest,
    MessageTooLong,
    Request,
    Response,
    Verb,
    framed,
    responses,
    take_frames,
)

CHUNK_BYTES = 65_536


class SupervisorDisconnected(Exception):
    """The supervisor ended before it answered: whether it received the request is unknown."""


class SupervisorClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self.is_open = True
        self._listening = asyncio.create_task(self._listen(), name="commands: listen to the supervisor")

    @classmethod
    async def to(cls, root: Path) -> Self:
        """Connects to the supervisor of a folder. Raises `OSError` if none listens."""
        return cls(*await asyncio.open_unix_connection(address(root)))

    async def request(self, verb: Verb) -> Response:
        if not self.is_open:
            raise SupervisorDisconnected
        number = next(self._numbers)
        response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[number] = response
        try:
            self._writer.write(framed(Request(number, verb)))
            return await response
        except asyncio.CancelledError:
            # Without this message the supervisor would keep the waiter until the command ends.
            if self.is_open:
                self._writer.write(framed(Request(next(self._numbers), CancelRequest(number))))
            raise
        finally:
            del self._waiting[number]

    async def _listen(self) -> None:
        received = bytearray()
        try:
            while data := await self._reader.read(CHUNK_BYTES):
                received += data
                for frame in take_frames(received):
                    response = responses.decode(frame)
                    waiting = self._waiting.get(response.id)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(response)
        except (OSError, MessageTooLong, msgspec.DecodeError):
            pass  # In each case the connection is unusable.
        finally:
            self.is_open = False
            self._writer.close()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(SupervisorDisconnected())

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.wait([self._listening])
        try:
            await self._writer.wait_closed()
        except OSError:
            pass  # The supervisor closed it first.
