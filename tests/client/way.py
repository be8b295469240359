"""A way to a server that breaks where a test says: a relay on a port of its own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Way:
    """Passes bytes on. Of the first request that begins with `loses` the answer never arrives: the server has done what
    was asked, and nobody is told."""

    def __init__(self, port: int, loses: bytes) -> None:
        self._port = port
        self._loses = loses
        self._passing: set[asyncio.Task[None]] = set()
        self.lost = 0
        self.url = ""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["Way"]:
        server = await asyncio.start_server(self._come, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for one in self._passing:
                one.cancel()
            await asyncio.gather(*self._passing, return_exceptions=True)

    def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._passing.add(asyncio.create_task(self._pass(reader, writer)))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self._port)
        asking = asyncio.create_task(self._ask(reader, there[1]))
        try:
            while data := await there[0].read(65_536):
                if asking.done() and asking.result():
                    return  # The answer has come, and goes nowhere.
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            for one in (writer, there[1]):
                one.close()
                with contextlib.suppress(ConnectionError):
                    await one.wait_closed()

    async def _ask(self, reader: asyncio.StreamReader, there: asyncio.StreamWriter) -> bool:
        """Whether it ended with the request whose answer is to be lost."""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                there.write(data)
                await there.drain()
                if not self.lost and data.startswith(self._loses):
                    self.lost += 1
                    return True
        return False


@contextlib.asynccontextmanager
async def somebody_else(answer: bytes, heard: list[bytes] | None = None) -> AsyncIterator[str]:
    """A server of another kind, which answers everything with the same; its URL. What it is sent is in `heard`."""

    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if heard is not None:
            heard.append(head)
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(tell, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def http(status: str, body: bytes, *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body
