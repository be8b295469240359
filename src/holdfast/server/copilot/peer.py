"""One connection: requests come in and are answered, notifications and requests go out, in the order they were made.

Everything here happens on the event loop. What is written within one turn of the loop leaves in one write.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import msgspec

from holdfast.models.errors import ModelNotUsable
from holdfast.server.copilot.frames import MAX_FRAME_BYTES, BadFraming, FrameReader, NotJson, decoded, frame
from holdfast.server.errors import OperationError
from holdfast.server.json_bounds import BODY, PIECE_BYTES, TooCostly, check, counting
from holdfast.store.errors import StoreError

log = logging.getLogger(__name__)

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
FAILED: Final = -32603
TOO_MANY_REQUESTS: Final = -32000
REQUEST_CANCELLED: Final = -32800

MAX_AT_WORK: Final = 256
"""Requests of one connection that are worked on at a time. With more we stop reading until some are finished."""

MAX_WAITING: Final = 10_000
"""Requests of one connection that may wait for something to happen; one more is refused."""

STALLED_SECONDS: Final = 1.0
"""When nothing was read for this long, all that is at work is taken to wait: for what we must read to let it go on."""

MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024
"""A client that leaves this much unread is not reading."""

MAX_METHOD_CHARACTERS: Final = 256

CANCEL: Final = "$/cancelRequest"
NO_ID: Final = msgspec.UNSET
"""In place of the id of a notification. It is not null, which a request may have."""

IDS: Final = (str, int, float, type(None), msgspec.UnsetType)

FINISHING_SECONDS: Final = 1.0
"""How long requests that were read before the connection ended may go on."""

GIVING_UP_SECONDS: Final = 5.0
"""How long an ended connection may take to send what is still unsent, and cancelled requests to end."""


class RpcError(Exception):
    """An answer that is an error, to the other side or from it."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class PeerGone(Exception):
    """The connection ended before the other side answered."""


class RpcResult(msgspec.Struct):
    """A result, and what to do right after the response was queued, before anything else may be written."""

    result: Any
    then: Callable[[], None] | None = None


class Handler(Protocol):
    """What answers the requests of one connection."""

    async def handle(self, method: str, params: dict[str, Any]) -> Any:
        """The result, or an RpcResult. Raises RpcError."""

    async def closed(self) -> None:
        """The connection has ended, however. Called once, after every `handle` has returned."""


class RpcTransport(Protocol):
    """The way to the other side."""

    def write(self, data: bytes) -> None: ...

    def unsent_bytes(self) -> int: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """End it once all is sent."""

    def abort(self) -> None:
        """End it now."""


class Peer:
    """The other side of one connection, as long as it lasts."""

    def __init__(
        self, wire: RpcTransport, connected: Callable[["Peer"], Handler], *, max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        self.id = secrets.token_hex(8)
        self.is_open = True
        self._wire = wire
        self._wire_is_open = True
        self._wire_closed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader(max_frame_bytes=max_frame_bytes)
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._at_work: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self._by_id: dict[Any, asyncio.Task[None]] = {}
        self._stalled: asyncio.TimerHandle | None = None
        self._counting: asyncio.Task[None] | None = None
        self._is_all_read = False
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self._ending: asyncio.Task[None] | None = None
        self._put_away = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._handler = connected(self)

    # What the surface uses

    def notify(self, method: str, params: Any) -> None:
        """Queue a notification. Nothing happens if the connection has ended."""
        if self.is_open:
            self._queue({"jsonrpc": "2.0", "method": method, "params": params})

    async def request(self, method: str, params: Any) -> Any:
        """Ask the other side; its result. Raises RpcError or PeerGone. Cancelled, it tells the other side so."""
        if not self.is_open:
            raise PeerGone(f"The connection ended before {method} was asked.")
        self._last_id = request_id = self._last_id + 1
        answer = self._asked[request_id] = self._loop.create_future()
        try:
            self._queue({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
            return await answer
        except asyncio.CancelledError:
            self.notify(CANCEL, {"id": request_id})
            raise
        finally:
            self._asked.pop(request_id, None)

    def close(self, why: str) -> None:
        """End the connection once what is queued has been sent."""
        self._end(why)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what a request waits for without working: it does not keep others from being read meanwhile, and is
        cancelled at once when the connection ends."""
        task = asyncio.current_task()
        if task is None or task not in self._at_work:
            yield
            return
        self._at_work.discard(task)
        self._waiting.add(task)
        if self._stalled is not None:
            self._loop.call_soon(self._work_off)
        try:
            yield
        finally:
            self._waiting.discard(task)
            self._at_work.add(task)

    def allow_frames_of(self, max_bytes: int) -> None:
        """From the next message on."""
        self._frames.max_frame_bytes = max_bytes

    async def drained(self) -> None:
        """Until the other side has read most of what was sent, or the connection has ended: for what is made only as
        fast as it is read."""
        await self._drained.wait()

    async def finished(self) -> None:
        """Until the connection has ended and all that belonged to it has been put away."""
        await self._put_away.wait()

    # What the wire tells

    def filled(self) -> None:
        """What was written is not read as fast."""
        if self._ending is None:
            self._drained.clear()

    def emptied(self) -> None:
        self._drained.set()

    def received(self, data: bytes) -> None:
        if self.is_open:
            self._frames.feed(data)
            self._work_off()

    def ended(self) -> None:
        """The other side sends nothing more. It may still read the answers to what it asked before."""
        self._is_all_read = True
        if self._counting is None:
            self._end("the client closed it")

    def lost(self) -> None:
        """Nothing can be sent any more."""
        self._wire_is_open = False
        self._wire_closed.set()
        self._unwritten.clear()
        self._end("the client is gone")

    # Coming in

    def _work_off(self) -> None:
        """Take what was read, until there is no whole message left or enough is at work."""
        while self.is_open and self._counting is None and len(self._at_work) < MAX_AT_WORK:
            try:
                body = self._frames.next()
            except BadFraming as error:
                self._refuse(None, RpcError(PARSE_ERROR, str(error)))
                self._end(f"its stream can't be read: {error}")
                return
            if body is None:
                self._read_on()
                return
            if len(body) <= PIECE_BYTES:
                self._take(body, counted=False)
            else:
                self._wire.pause_reading()
                self._counting = self._loop.create_task(self._take_large(body))
        if self.is_open and self._counting is None:
            self._stop_reading()

    async def _take_large(self, body: bytes) -> None:
        """Others get turns while it is counted whether a large message can be read; what came after it waits."""
        try:
            await check(body)
            self._take(body, counted=True)
        except TooCostly as error:
            self._refuse(None, RpcError(PARSE_ERROR, str(error)))
        finally:
            self._counting = None
            if self.is_open:
                self._wire.resume_reading()
                self._work_off()
            if self._is_all_read and self._counting is None:
                self._end("the client closed it")

    def _stop_reading(self) -> None:
        if self._stalled is None:
            self._wire.pause_reading()
            self._stalled = self._loop.call_later(STALLED_SECONDS, self._let_others_in)

    def _read_on(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
            self._wire.resume_reading()

    def _let_others_in(self) -> None:
        """What has been at work all this time may wait for something that is still unread."""
        self._waiting |= self._at_work
        self._at_work.clear()
        self._read_on()
        self._work_off()

    def _take(self, body: bytes, *, counted: bool) -> None:
        try:
            for _ in () if counted else counting(body, BODY):
                pass
            message = decoded(body)
        except TooCostly as error:
            self._refuse(None, RpcError(PARSE_ERROR, str(error)))
            return
        except NotJson as error:
            self._refuse(None, RpcError(PARSE_ERROR, f"The message is not JSON: {error}"))
            return
        if isinstance(message, list):
            self._refuse(None, RpcError(INVALID_REQUEST, "Batches are not accepted. Send one message at a time."))
        elif not isinstance(message, dict):
            self._refuse(None, RpcError(INVALID_REQUEST, "A message must be an object."))
        elif "method" not in message and "id" in message:
            self._take_answer(message)
        else:
            self._take_call(message)

    def _take_call(self, message: dict[str, Any]) -> None:
        request_id, method, params = message.get("id", NO_ID), message.get("method"), message.get("params")
        if not isinstance(request_id, IDS) or isinstance(request_id, bool):
            self._refuse(None, RpcError(INVALID_REQUEST, "The id must be a string or a number."))
        elif not isinstance(method, str) or not 0 < len(method) <= MAX_METHOD_CHARACTERS:
            text = f"The method must be a string of 1 to {MAX_METHOD_CHARACTERS} characters."
            self._refuse(None if request_id is NO_ID else request_id, RpcError(INVALID_REQUEST, text))
        elif message.get("jsonrpc", "2.0") != "2.0":
            self._refuse(request_id, RpcError(INVALID_REQUEST, "Only JSON-RPC 2.0 is spoken here."))
        elif params is not None and not isinstance(params, dict):
            self._refuse(request_id, RpcError(INVALID_PARAMS, "The params must be an object."))
        elif method == CANCEL and request_id is NO_ID:
            self._cancel((params or {}).get("id"))
        else:
            self._start(request_id, method, params or {})

    def _start(self, request_id: Any, method: str, params: dict[str, Any]) -> None:
        if len(self._waiting) >= MAX_WAITING:
            text = f"{MAX_WAITING} requests of this connection wait already."
            self._refuse(request_id, RpcError(TOO_MANY_REQUESTS, text))
            return
        task = self._loop.create_task(self._serve(request_id, method, params))
        self._at_work.add(task)
        if request_id is not NO_ID:
            self._by_id[request_id] = task
            task.add_done_callback(lambda _: self._by_id.pop(request_id, None))
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._at_work.discard(task)
        self._waiting.discard(task)
        if self._stalled is not None:
            self._work_off()

    def _cancel(self, request_id: Any) -> None:
        task = self._by_id.get(request_id) if isinstance(request_id, IDS) else None
        if task is not None:
            self._loop.call_soon(task.cancel)  # not before it has begun: then nothing in it would answer

    def _take_answer(self, message: dict[str, Any]) -> None:
        request_id = message["id"]
        answer = self._asked.get(request_id) if type(request_id) is int else None
        if answer is None or answer.done():
            log.debug("Connection %s answered something that was not asked, or no longer", self.id)
            return
        error = message.get("error")
        if isinstance(error, dict) and isinstance(error.get("code"), int) and isinstance(error.get("message"), str):
            answer.set_exception(RpcError(error["code"], error["message"], error.get("data")))
        elif error is None and "result" in message:
            answer.set_result(message["result"])
        else:
            answer.set_exception(RpcError(FAILED, "The client's answer is neither a result nor an error."))

    # One request

    async def _serve(self, request_id: Any, method: str, params: dict[str, Any]) -> None:
        then = None
        try:
            result = await self._handler.handle(method, params)
            if isinstance(result, RpcResult):
                result, then = result.result, result.then
            if request_id is not NO_ID:
                self._queue({"jsonrpc": "2.0", "id": request_id, "result": result})
        except asyncio.CancelledError:
            self._refuse(request_id, RpcError(REQUEST_CANCELLED, "Request cancelled"))
        except Exception as error:
            self._refuse(request_id, _told(error, method))
        if then is not None:
            self._do(then)

    def _do(self, then: Callable[[], None]) -> None:
        try:
            then()
        except Exception:
            log.exception("Connection %s: what follows an answer failed", self.id)

    # Going out

    def _refuse(self, request_id: Any, error: RpcError) -> None:
        if request_id is NO_ID:
            log.debug("Connection %s: a notification was refused: %s", self.id, error.message)
            return
        told: dict[str, Any] = {"code": error.code, "message": error.message}
        if error.data is not None:
            told["data"] = error.data
        self._queue({"jsonrpc": "2.0", "id": request_id, "error": told})

    def _queue(self, message: dict[str, Any]) -> None:
        data = frame(message)
        if not self._wire_is_open:
            return
        if self._unwritten_bytes + self._wire.unsent_bytes() > MAX_UNSENT_BYTES:
            self._drop()
            return
        if not self._unwritten:
            self._loop.call_soon(self._flush)
        self._unwritten.append(data)
        self._unwritten_bytes += len(data)

    def _drop(self) -> None:
        log.warning("Connection %s leaves more than %d bytes unread and is dropped", self.id, MAX_UNSENT_BYTES)
        self._wire_is_open = False
        self._unwritten.clear()
        self._wire.abort()
        self._end("the client does not read")

    def _flush(self) -> None:
        if self._unwritten:
            data = b"".join(self._unwritten)
            self._unwritten.clear()
            self._unwritten_bytes = 0
            self._wire.write(data)

    # The end

    def _end(self, why: str) -> None:
        if self._ending is not None:
            return
        log.info("Connection %s ends: %s", self.id, why)
        self.is_open = False
        self._drained.set()
        if self._stalled is not None:
            self._stalled.cancel()
        self._wire.pause_reading()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(PeerGone("The connection ended before the client answered."))
                answer.exception()  # whoever asked may be on its way out, and never look
        self._ending = self._loop.create_task(self._put_all_away())

    async def _put_all_away(self) -> None:
        await self._end_requests()
        self._flush()
        self._wire.close()
        try:
            await self._handler.closed()
        except Exception:
            log.exception("Connection %s was not put away cleanly", self.id)
        try:
            async with asyncio.timeout(GIVING_UP_SECONDS):
                await self._wire_closed.wait()
        except TimeoutError:
            self._wire.abort()
        self._put_away.set()

    async def _end_requests(self) -> None:
        """What was read is still done, and what only waited is not."""
        if self._counting is not None:
            self._counting.cancel()
        at_work, waiting = set(self._at_work), set(self._waiting)
        for task in waiting:
            task.cancel()
        if at_work:
            await asyncio.wait(at_work, timeout=FINISHING_SECONDS)
        for task in at_work:
            task.cancel()
        if at_work or waiting:
            _, stuck = await asyncio.wait(at_work | waiting, timeout=GIVING_UP_SECONDS)
            if stuck:
                log.error("Connection %s: %d requests can't be cancelled", self.id, len(stuck))


def _told(error: Exception, method: str) -> RpcError:
    """What the client is told of an error. Of our own bugs it hears nothing but that there was one."""
    if isinstance(error, RpcError):
        return error
    if isinstance(error, OperationError | StoreError):
        return RpcError(FAILED, f"Request {method} failed with message: {error.message}", {"code": error.code})
    if isinstance(error, ModelNotUsable):
        return RpcError(FAILED, f"Request {method} failed with message: {error.message}")
    log.error("Request %s failed", method, exc_info=error)
    return RpcError(FAILED, f"Request {method} failed with message: Internal error. The runtime's log says more.")
