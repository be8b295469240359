"""The scripted model as a real HTTP server, for tests and benchmarks: it speaks each of `PROTOCOLS`.

Its failures are real: HTTP statuses with their headers, a chunk that is not JSON, a dropped connection. Its usage is
counted from what it was sent, and so are the tokens that a prefix cache would have read, unless the script says them.
"""

import asyncio
import hmac
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from aiohttp import web

from holdfast.events.codec import to_bytes
from holdfast.large_work import beside_if_large
from holdfast.models.model import Finished, ReasoningDelta, TextDelta, TokenUsage, ToolCallDelta
from holdfast.models.prefix_cache import MeasuredRequest, PrefixCache, PrefixCount, estimated_tokens, measured
from holdfast.models.scripted import Failure, FailureKind, Gate, Script, ScriptedAnswer, ScriptedModel, to_error
from holdfast.models.served_chat import ServedChat
from holdfast.models.served_messages import ServedMessages
from holdfast.models.served_protocol import CallRefused, RefusalKind, ServedAnswer, ServedCall, ServedProtocol
from holdfast.models.served_responses import ServedResponses

PROTOCOLS: Final[tuple[ServedProtocol, ...]] = (ServedChat(), ServedMessages(), ServedResponses())
"""Every protocol that the server speaks, each at its own path."""

MAX_REQUEST_BYTES = 64 * 1024 * 1024
"""The largest request: more than the longest context of any model."""

MAX_KEPT_REQUESTS = 1000
"""The number of request bodies that are kept for inspection."""

_STOP_SECONDS = 0.1

_REFUSALS: Final[dict[FailureKind, RefusalKind]] = {
    "rate_limited": "rate_limited",
    "unavailable": "unavailable",
    "overloaded": "overloaded",
    "error_event": "overloaded",
    "unauthorized": "unauthorized",
    "refused": "invalid",
    "too_large": "too_large",
    "context_exceeded": "context_exceeded",
}


class ModelServer:
    """Serves a script while it is open. Port 0 takes a free port; `url` is the base URL to call. `models` are the
    models that it lists, by default only the scripted model; each of them answers from the same script. A call that
    needs more tokens than `window`, as the server estimates them, is refused as its provider would."""

    def __init__(
        self,
        script: Script,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        api_key: str | None = None,
        gate: Gate | None = None,
        models: Sequence[dict[str, Any]] = (),
        window: int | None = None,
    ) -> None:
        self.requests: deque[bytes] = deque(maxlen=MAX_KEPT_REQUESTS)
        self.headers: deque[dict[str, str]] = deque(maxlen=MAX_KEPT_REQUESTS)
        """The headers of each request in `requests`, by their names in lower case."""
        self.counts: deque[PrefixCount] = deque(maxlen=MAX_KEPT_REQUESTS)
        """What the prefix cache did for each call that was answered."""
        self.window = window
        self._model = ScriptedModel(script, gate=gate)
        self._cache = PrefixCache()
        self._host = host
        self._port = port
        self._api_key = api_key
        self._listed = list(models) or [{"id": "scripted", "object": "model", "owned_by": "holdfast"}]
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/v1"

    async def __aenter__(self) -> Self:
        # A client that disconnects cancels its answer.
        self._runner = web.AppRunner(
            self._app(), handler_cancellation=True, access_log=None, shutdown_timeout=_STOP_SECONDS
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except BaseException:
            await self._stop()
            raise
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        for prefix in ("", "/v1"):
            app.router.add_get(f"{prefix}/models", self._models)
            for protocol in PROTOCOLS:
                app.router.add_post(f"{prefix}{protocol.path}", partial(self._complete, protocol))
        return app

    async def _models(self, request: web.Request) -> web.StreamResponse:
        refused = [self._key_refusal(protocol, _lower(request.headers)) for protocol in PROTOCOLS]
        if all(refused):
            return _refusal(PROTOCOLS[0], CallRefused("unauthorized", "The key is not accepted.", status=401))
        return _json({"object": "list", "data": self._listed})

    async def _complete(self, protocol: ServedProtocol, request: web.Request) -> web.StreamResponse:
        headers = _lower(request.headers)
        if (unauthorized := self._key_refusal(protocol, headers)) is not None:
            return _refusal(protocol, unauthorized)
        body = await request.read()
        self.requests.append(body)
        self.headers.append(headers)
        try:
            call, measure = await beside_if_large(len(body), lambda: _read(protocol, body, headers))
            self._check_window(protocol, call)
        except CallRefused as refusal:
            return _refusal(protocol, refusal)
        scripted = self._scripted(call)
        if scripted is None:
            return _refusal(protocol, CallRefused("invalid", "The call continues an answer that did not pause there."))
        if scripted.delay_seconds > 0:
            await asyncio.sleep(scripted.delay_seconds)
        if scripted.failure is not None and scripted.refused:
            return _refusal(protocol, self._scripted_refusal(protocol, call, scripted.failure))
        answer = self._answer(call, scripted, measure)
        if call.streams:
            return await self._stream(protocol, request, call, scripted, answer)
        return await self._whole(protocol, request, call, scripted, answer)

    def _key_refusal(self, protocol: ServedProtocol, headers: Mapping[str, str]) -> CallRefused | None:
        sent = protocol.key(headers)
        if self._api_key is None or hmac.compare_digest(sent.encode(), self._api_key.encode()):
            return None
        return CallRefused("unauthorized", "The key is not accepted.", status=401)

    def _check_window(self, protocol: ServedProtocol, call: ServedCall) -> None:
        if self.window is not None and call.tokens + (call.max_tokens or 0) > self.window:
            raise CallRefused("context_exceeded", protocol.too_long(call, self.window))

    def _scripted_refusal(self, protocol: ServedProtocol, call: ServedCall, failure: Failure) -> CallRefused:
        error = to_error(failure)
        message = error.message
        if failure.kind == "context_exceeded":
            message = protocol.too_long(call, failure.window)
        return CallRefused(
            _REFUSALS[failure.kind],
            message,
            status=error.status or 500,
            retry_after_seconds=error.retry_after_seconds,
        )

    def _scripted(self, call: ServedCall) -> ScriptedAnswer | None:
        """The answer of the script, or the part of it up to a pause; None if the call continues no part of it."""
        answer = self._model.answer(call.conversation, resumes=call.resumed is not None)
        return answer.leg(call.resumed) if call.may_pause else answer

    def _answer(self, call: ServedCall, scripted: ScriptedAnswer, measure: MeasuredRequest) -> ServedAnswer:
        count = self._cache.count(measure, needs_marks=call.needs_marks)
        self.counts.append(count)
        usage = next((chunk for chunk in scripted.closing if isinstance(chunk, TokenUsage)), None)
        reason: str = next(chunk.reason for chunk in scripted.closing if isinstance(chunk, Finished))
        return ServedAnswer(
            pieces=scripted.pieces,
            reason="pause" if call.may_pause and scripted.pauses else reason,
            usage=usage or _counted(count, scripted, writes_cache=call.needs_marks),
        )

    async def _whole(
        self,
        protocol: ServedProtocol,
        request: web.Request,
        call: ServedCall,
        scripted: ScriptedAnswer,
        answer: ServedAnswer,
    ) -> web.StreamResponse:
        failure = scripted.failure
        if failure is None:
            return _json(protocol.whole(call, answer))
        if failure.kind == "malformed":
            return web.Response(body=protocol.malformed, content_type="application/json")
        if failure.kind == "error_event":
            return _refusal(protocol, self._scripted_refusal(protocol, call, failure))
        return await _break_off(request, failure)

    async def _stream(
        self,
        protocol: ServedProtocol,
        request: web.Request,
        call: ServedCall,
        scripted: ScriptedAnswer,
        answer: ServedAnswer,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        frames = protocol.frames(call, answer)
        if frames.opening:
            await response.write(frames.opening)
        for index, frame in enumerate((*frames.pieces, frames.closing)):
            await self._model.pace(scripted, index)
            if scripted.failure is not None and index == scripted.fails_at:
                if scripted.failure.kind == "error_event":
                    await response.write(protocol.error_frame(self._scripted_refusal(protocol, call, scripted.failure)))
                    break
                if scripted.failure.kind != "malformed":
                    return await _break_off(request, scripted.failure)
                await response.write(protocol.malformed_frame)
            await response.write(frame)
        await response.write_eof()
        return response


def run(
    script: Script,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    api_key: str | None = None,
    window: int | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a script until SIGINT or SIGTERM. Calls `on_ready` with the base URL once the server accepts calls;
    without it, prints where each protocol is served."""

    async def serve() -> None:
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        async with ModelServer(script, host, port, api_key=api_key, window=window) as server:
            (on_ready or _print_addresses)(server.url)
            await stopped.wait()

    asyncio.run(serve())


def _print_addresses(url: str) -> None:
    width = max(len(protocol.name) for protocol in PROTOCOLS)
    lines = (f"  {protocol.name:{width}}  POST {url}{protocol.path}" for protocol in PROTOCOLS)
    print("\n".join((f"The scripted model answers at {url}", *lines)), flush=True)


def _read(protocol: ServedProtocol, body: bytes, headers: Mapping[str, str]) -> tuple[ServedCall, MeasuredRequest]:
    call = protocol.read(body, headers)
    return call, measured(call.parts, key=f"{call.model}\0{call.cache_key}")


async def _break_off(request: web.Request, failure: Failure) -> web.StreamResponse:
    """Hang until the client disconnects, or drop the connection."""
    if failure.kind == "hang":
        await asyncio.Event().wait()
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _counted(count: PrefixCount, answer: ScriptedAnswer, *, writes_cache: bool) -> TokenUsage:
    """The usage of an answer for which the script gives none."""
    written = [piece.text for piece in answer.pieces if isinstance(piece, TextDelta)]
    written += [piece.name + piece.arguments for piece in answer.pieces if isinstance(piece, ToolCallDelta)]
    reasoned = [piece.text for piece in answer.pieces if isinstance(piece, ReasoningDelta)]
    reasoning = estimated_tokens(len("".join(reasoned).encode()))
    return TokenUsage(
        input_tokens=count.total,
        output_tokens=estimated_tokens(len("".join(written).encode())) + reasoning,
        cache_read_tokens=count.read,
        cache_write_tokens=count.written if writes_cache else None,
        reasoning_tokens=reasoning or None,
    )


def _refusal(protocol: ServedProtocol, refusal: CallRefused) -> web.Response:
    response = _json(protocol.error(refusal), status=refusal.status)
    if refusal.retry_after_seconds is not None:
        response.headers["Retry-After"] = f"{refusal.retry_after_seconds:g}"
    return response


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=to_bytes(value), status=status, content_type="application/json")
