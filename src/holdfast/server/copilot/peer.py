"""One JSON-RPC connection: answers the other side's requests, and sends notifications and requests in order.

Everything runs on the event loop. Messages queued within one iteration of the loop are sent in one write.
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
"""Requests of one connection that run at once. At this number reading pauses until some finish."""

MAX_WAITING: Final = 10_000
"""Requests of one connection that may wait for an event; one more is refused."""

STALLED_SECONDS: Final = 1.0
"""After a read pause of this length, all running requests count as waiting: they may wait for a message still
unread."""

MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024
"""A client that leaves this much unread is dropped."""

MAX_METHOD_CHARACTERS: Final = 256

CANCEL: Final = "$/cancelRequest"
NO_ID: Final = msgspec.UNSET
"""Stands for the missing id of a notification. It differs from null, which is a valid id of a request."""

IDS: Final = (str, int, float, type(None), msgspec.UnsetType)

FINISHING_SECONDS: Final = 1.0
"""Time that requests read before the connection ended have to finish."""

GIVING_UP_SECONDS: Final = 5.0
"""Time that an ended connection has to send its queued bytes, and that cancelled requests have to end."""


class RpcError(Exception):
    """A JSON-RPC error response, sent or received."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class PeerGone(Exception):
    """The connection ended before the other side answered."""


class RpcResult(msgspec.Struct):
    """A result, and a callback to run right after the response is queued, before anything else can be queued."""

    result: Any
    then: Callable[[], None] | None = None


class Handler(Protocol):
    """Answers the requests of one connection."""

    async def handle(self, method: str, params: dict[str, Any]) -> Any:
        """Return the result, or an RpcResult. Raises RpcError."""

    async def closed(self) -> None:
        """Called once when the connection has ended for any reason, after every `handle` has returned."""


class RpcTransport(Protocol):
    """The byte stream to the other side."""

    def write(self, data: bytes) -> None: ...

    def unsent_bytes(self) -> int: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Close the stream after everything is sent."""

    def abort(self) -> None:
        """Close the stream at once."""


class Peer:
    """The other side of one connection."""

    def __init__(
        self, transport: RpcTransport, connected: Callable[["Peer"], Handler], *, max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        self.id = secrets.token_hex(8)
        self.is_open = True
        self._transport = transport
        self._transport_is_open = True
        self._transport_closed = asyncio.Event()
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
        self._pending_answers: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self._ending: asyncio.Task[None] | None = None
        self._finished = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._handler = connected(self)

    # Called by the surface

    def notify(self, method: str, params: Any) -> None:
        """Queue a notification. Nothing happens if the connection has ended."""
        if self.is_open:
            self._queue({"jsonrpc": "2.0", "method": method, "params": params})

    async def request(self, method: str, params: Any) -> Any:
        """Send a request and return its result. Raises RpcError or PeerGone. Cancelling sends the other side a
        cancel."""
        if not self.is_open:
            raise PeerGone(f"The connection ended before {method} was sent.")
        self._last_id = request_id = self._last_id + 1
        answer = self._pending_answers[request_id] = self._loop.create_future()
        try:
            self._queue({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
            return await answer
        except asyncio.CancelledError:
            self.notify(CANCEL, {"id": request_id})
            raise
        finally:
            self._pending_answers.pop(request_id, None)

    def close(self, why: str) -> None:
        """Close the connection after the queued messages are sent."""
        self._end(why)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the current request as waiting inside this block: it no longer counts towards MAX_AT_WORK, and is
        cancelled at once when the connection ends."""
        task = asyncio.current_task()
        if task is None or task not in self._at_work:
            yield
            return
        self._at_work.discard(task)
        self._waiting.add(task)
        if self._stalled is not None:
            self._loop.call_soon(self._process_buffer)
        try:
            yield
        finally:
            self._waiting.discard(task)
            self._at_work.add(task)

    def allow_frames_of(self, max_bytes: int) -> None:
        """Change the frame limit, from the next message on."""
        self._frames.max_frame_bytes = max_bytes

    async def drained(self) -> None:
        """Wait until the other side has read most of what was sent, or the connection has ended. Gives producers
        backpressure."""
        await self._drained.wait()

    async def finished(self) -> None:
        """Wait until the connection has ended and its handler is closed."""
        await self._finished.wait()

    # Called by the transport

    def filled(self) -> None:
        """The write buffer is full: the other side reads more slowly than we write."""
        if self._ending is None:
            self._drained.clear()

    def emptied(self) -> None:
        self._drained.set()

    def received(self, data: bytes) -> None:
        if self.is_open:
            self._frames.feed(data)
            self._process_buffer()

    def ended(self) -> None:
        """The other side closed its sending end. It may still read the answers to its earlier requests."""
        self._is_all_read = True
        if self._counting is None:
            self._end("the client closed it")

    def lost(self) -> None:
        """The connection is broken: nothing can be sent any more."""
        self._transport_is_open = False
        self._transport_closed.set()
        self._unwritten.clear()
        self._end("the client is gone")

    # Incoming messages

    def _process_buffer(self) -> None:
        """Process buffered messages until no complete one is left or MAX_AT_WORK requests run."""
        while self.is_open and self._counting is None and len(self._at_work) < MAX_AT_WORK:
            try:
                body = self._frames.next()
            except BadFraming as error:
                self._refuse(None, RpcError(PARSE_ERROR, str(error)))
                self._end(f"its stream can't be read: {error}")
                return
            if body is None:
                self._resume_reading()
                return
            if len(body) <= PIECE_BYTES:
                self._take(body, is_checked=False)
            else:
                self._transport.pause_reading()
                self._counting = self._loop.create_task(self._take_large(body))
        if self.is_open and self._counting is None:
            self._pause_reading()

    async def _take_large(self, body: bytes) -> None:
        """Check the JSON bounds of a large message in pieces, so that other tasks run; later messages wait for it."""
        try:
            await check(body)
            self._take(body, is_checked=True)
        except TooCostly as error:
            self._refuse(None, RpcError(PARSE_ERROR, str(error)))
        finally:
            self._counting = None
            if self.is_open:
                self._transport.resume_reading()
                self._process_buffer()
            if self._is_all_read and self._counting is None:
                self._end("the client closed it")

    def _pause_reading(self) -> None:
        if self._stalled is None:
            self._transport.pause_reading()
            self._stalled = self._loop.call_later(STALLED_SECONDS, self._release_stall)

    def _resume_reading(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
            self._transport.resume_reading()

    def _release_stall(self) -> None:
        """Count all running requests as waiting and read on: they may wait for a message that is still unread."""
        self._waiting |= self._at_work
        self._at_work.clear()
        self._resume_reading()
        self._process_buffer()

    def _take(self, body: bytes, *, is_checked: bool) -> None:
        try:
            if not is_checked:
                for _ in counting(body, BODY):
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
            self._refuse(request_id, RpcError(INVALID_REQUEST, "Only JSON-RPC 2.0 is supported."))
        elif params is not None and not isinstance(params, dict):
            self._refuse(request_id, RpcError(INVALID_PARAMS, "The params must be an object."))
        elif method == CANCEL and request_id is NO_ID:
            self._cancel((params or {}).get("id"))
        else:
            self._start(request_id, method, params or {})

    def _start(self, request_id: Any, method: str, params: dict[str, Any]) -> None:
        if len(self._waiting) >= MAX_WAITING:
            text = f"{MAX_WAITING} requests of this connection wait already. Try again when one has been answered."
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
            self._process_buffer()

    def _cancel(self, request_id: Any) -> None:
        task = self._by_id.get(request_id) if isinstance(request_id, IDS) else None
        if task is not None:
            self._loop.call_soon(task.cancel)  # not before the task has begun: it could not send the answer

    def _take_answer(self, message: dict[str, Any]) -> None:
        request_id = message["id"]
        answer = self._pending_answers.get(request_id) if type(request_id) is int else None
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
            self._refuse(request_id, _rpc_error(error, method))
        if then is not None:
            self._do(then)

    def _do(self, then: Callable[[], None]) -> None:
        try:
            then()
        except Exception:
            log.exception("Connection %s: what follows an answer failed", self.id)

    # Outgoing messages

    def _refuse(self, request_id: Any, error: RpcError) -> None:
        if request_id is NO_ID:
            log.debug("Connection %s: a notification was refused: %s", self.id, error.message)
            return
        body: dict[str, Any] = {"code": error.code, "message": error.message}
        if error.data is not None:
            body["data"] = error.data
        self._queue({"jsonrpc": "2.0", "id": request_id, "error": body})

    def _queue(self, message: dict[str, Any]) -> None:
        data = frame(message)
        if not self._transport_is_open:
            return
        if self._unwritten_bytes + self._transport.unsent_bytes() > MAX_UNSENT_BYTES:
            self._drop()
            return
        if not self._unwritten:
            self._loop.call_soon(self._flush)
        self._unwritten.append(data)
        self._unwritten_bytes += len(data)

    def _drop(self) -> None:
        log.warning("Connection %s leaves more than %d bytes unread and is dropped", self.id, MAX_UNSENT_BYTES)
        self._transport_is_open = False
        self._unwritten.clear()
        self._transport.abort()
        self._end("the client does not read")

    def _flush(self) -> None:
        if self._unwritten:
            data = b"".join(self._unwritten)
            self._unwritten.clear()
            self._unwritten_bytes = 0
            self._transport.write(data)

    # The end

    def _end(self, why: str) -> None:
        if self._ending is not None:
            return
        log.info("Connection %s ends: %s", self.id, why)
        self.is_open = False
        self._drained.set()
        if self._stalled is not None:
            self._stalled.cancel()
        self._transport.pause_reading()
        for answer in self._pending_answers.values():
            if not answer.done():
                answer.set_exception(PeerGone("The connection ended before the client answered."))
                answer.exception()  # marks it as retrieved: the waiting task may be cancelled and never look
        self._ending = self._loop.create_task(self._finish())

    async def _finish(self) -> None:
        await self._end_requests()
        self._flush()
        self._transport.close()
        try:
            await self._handler.closed()
        except Exception:
            log.exception("Connection %s was not put away cleanly", self.id)
        try:
            async with asyncio.timeout(GIVING_UP_SECONDS):
                await self._transport_closed.wait()
        except TimeoutError:
            self._transport.abort()
        self._finished.set()

    async def _end_requests(self) -> None:
        """Let running requests finish within FINISHING_SECONDS; cancel waiting requests at once."""
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


def _rpc_error(error: Exception, method: str) -> RpcError:
    """The error response for an exception. The details of an unexpected one go only to the log."""
    if isinstance(error, RpcError):
        return error
    if isinstance(error, OperationError | StoreError):
        return RpcError(FAILED, f"Request {method} failed with message: {error.message}", {"code": error.code})
    if isinstance(error, ModelNotUsable):
        return RpcError(FAILED, f"Request {method} failed with message: {error.message}")
    log.error("Request %s failed", method, exc_info=error)
    return RpcError(FAILED, f"Request {method} failed with message: Internal error. See the runtime's log for details.")
