"""The scripted model as a real chat completions server, for tests and benchmarks over HTTP.

Its failures are real: HTTP statuses with their headers, a chunk that is not JSON, a dropped connection.
"""

import asyncio
import base64
import hmac
import signal
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image
from holdfast.models.chat_request import TOOL_IMAGES
from holdfast.models.model import (
    AssistantTurn,
    Chunk,
    ContextMessage,
    Finished,
    ReasoningDelta,
    ReasoningEnd,
    SystemText,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolOutcome,
    ToolUse,
    UserText,
)
from holdfast.models.scripted import Failure, Gate, Script, ScriptedAnswer, ScriptedModel, to_error

MAX_REQUEST_BYTES = 64 * 1024 * 1024
"""The largest request: more than the longest context of any model."""

MAX_KEPT_REQUESTS = 1000
"""The number of request bodies that are kept for inspection."""

_STOP_SECONDS = 0.1
_MALFORMED = b'{"id":"chatcmpl-scripted","choices":[{"delta":{"content":'
_DONE = b"data: [DONE]\n\n"


class _Function(msgspec.Struct):
    name: str = ""
    arguments: str = ""


class _ToolCall(msgspec.Struct):
    id: str = ""
    function: _Function = msgspec.field(default_factory=_Function)


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str = ""


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Call(msgspec.Struct):
    messages: list[_Message]
    model: str = "scripted"
    stream: bool = False
    stream_options: _StreamOptions | None = None


class ModelServer:
    """Serves a script while it is open. Port 0 takes a free port; `url` is the base URL to call. `models` are the
    models that it lists, by default only the scripted model; each of them answers from the same script."""

    def __init__(
        self,
        script: Script,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        api_key: str | None = None,
        gate: Gate | None = None,
        models: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.requests: deque[bytes] = deque(maxlen=MAX_KEPT_REQUESTS)
        self.headers: deque[dict[str, str]] = deque(maxlen=MAX_KEPT_REQUESTS)
        """The headers of each request in `requests`, by their names in lower case."""
        self._model = ScriptedModel(script, gate=gate)
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
            app.router.add_post(f"{prefix}/chat/completions", self._complete)
            app.router.add_get(f"{prefix}/models", self._models)
        return app

    async def _models(self, request: web.Request) -> web.StreamResponse:
        if not self._allows(request):
            return _error(401, "invalid_api_key", "The key is not accepted.")
        return _json({"object": "list", "data": self._listed})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        if not self._allows(request):
            return _error(401, "invalid_api_key", "The key is not accepted.")
        body = await request.read()
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        try:
            call = msgspec.json.decode(body, type=_Call)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _error(400, "invalid_request_error", f"The body is not a chat completion call: {error}")
        answer = self._model.answer(_conversation(call.messages))
        if answer.delay_seconds > 0:
            await asyncio.sleep(answer.delay_seconds)
        if answer.failure is not None and answer.refused:
            return _scripted_error(answer.failure)
        return await (self._stream(request, call, answer) if call.stream else self._whole(request, call, answer))

    def _allows(self, request: web.Request) -> bool:
        if self._api_key is None:
            return True
        authorization = request.headers.get("Authorization", "")
        return hmac.compare_digest(authorization.encode(), f"Bearer {self._api_key}".encode())

    async def _whole(self, request: web.Request, call: _Call, answer: ScriptedAnswer) -> web.StreamResponse:
        if answer.failure is None:
            return _json(_completion(call.model, (*answer.pieces, *answer.closing)))
        if answer.failure.kind == "malformed":
            return web.Response(body=_MALFORMED, content_type="application/json")
        return await _break_off(request, answer.failure)

    async def _stream(self, request: web.Request, call: _Call, answer: ScriptedAnswer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        for index, frame in enumerate((*_frames(answer.pieces, call.model), None)):
            await self._model.pace(answer, index)
            if answer.failure is not None and index == answer.fails_at:
                if answer.failure.kind != "malformed":
                    return await _break_off(request, answer.failure)
                await response.write(b"data: %b\n\n" % _MALFORMED)
            if frame is not None:
                await response.write(frame)
        await response.write(_closing(call, answer))
        await response.write_eof()
        return response


def run(
    script: Script,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    api_key: str | None = None,
    on_ready: Callable[[str], None] = lambda url: print(f"The scripted model answers at {url}", flush=True),
) -> None:
    """Serve a script until SIGINT or SIGTERM. Calls `on_ready` with the base URL once the server accepts calls."""

    async def serve() -> None:
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        async with ModelServer(script, host, port, api_key=api_key) as server:
            on_ready(server.url)
            await stopped.wait()

    asyncio.run(serve())


async def _break_off(request: web.Request, failure: Failure) -> web.StreamResponse:
    """Hang until the client disconnects, or drop the connection."""
    if failure.kind == "hang":
        await asyncio.Event().wait()
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _conversation(messages: Iterable[_Message]) -> tuple[ContextMessage, ...]:
    """The conversation as the model in process gets it: the images of tools are part of their results."""
    conversation: list[ContextMessage] = []
    for message in map(_context_message, messages):
        last = conversation[-1] if conversation else None
        if isinstance(message, UserText) and message.text == TOOL_IMAGES and isinstance(last, ToolOutcome):
            conversation[-1] = msgspec.structs.replace(last, images=message.images)
        else:
            conversation.append(message)
    return tuple(conversation)


def _context_message(message: _Message) -> ContextMessage:
    content = message.content
    images: tuple[Image, ...] = ()
    if isinstance(content, list):
        images = tuple(_image(part) for part in content if part.get("type") == "image_url")
        content = "".join(part["text"] for part in content if isinstance(part.get("text"), str))
    text = content or ""
    match message.role:
        case "system" | "developer":
            return SystemText(text)
        case "assistant":
            calls = message.tool_calls or ()
            uses = (ToolUse(ToolCallId(call.id), call.function.name, call.function.arguments) for call in calls)
            return AssistantTurn(text, tuple(uses))
        case "tool":
            return ToolOutcome(ToolCallId(message.tool_call_id), text)
        case _:
            return UserText(text, images)


def _image(part: dict[str, Any]) -> Image:
    """The image of a data URL. Other URLs are not fetched: they give an image without bytes."""
    match part.get("image_url"):
        case {"url": str(url)} | str(url) if url.startswith("data:"):
            media_type, _, data = url.removeprefix("data:").partition(";base64,")
            return Image(media_type=media_type, data=_bytes(data))
        case _:
            return Image(media_type="", data=b"")


def _bytes(data: str) -> bytes:
    try:
        return base64.b64decode(data)
    except ValueError:
        return b""


@lru_cache(maxsize=256)
def _frames(pieces: tuple[Chunk, ...], model: str) -> tuple[bytes, ...]:
    return tuple(_frame(model, [{"index": 0, "delta": _delta(piece), "finish_reason": None}]) for piece in pieces)


def _closing(call: _Call, answer: ScriptedAnswer) -> bytes:
    frames = []
    for chunk in reversed(answer.closing):
        if isinstance(chunk, Finished):
            frames.append(_frame(call.model, [{"index": 0, "delta": {}, "finish_reason": chunk.reason}]))
        elif isinstance(chunk, TokenUsage) and call.stream_options is not None and call.stream_options.include_usage:
            frames.append(_frame(call.model, [], usage=_usage(chunk)))
    return b"".join((*frames, _DONE))


def _frame(model: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
    chunk = {"id": "chatcmpl-scripted", "object": "chat.completion.chunk", "created": 0, "model": model}
    return b"data: %b\n\n" % msgspec.json.encode({**chunk, "choices": choices, **more})


def _delta(piece: Chunk) -> dict[str, Any]:
    match piece:
        case TextDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case ToolCallDelta(index, arguments, "", ""):
            return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
        case ToolCallDelta(index, arguments, tool_call_id, name):
            function = {"name": name, "arguments": arguments}
            return {"tool_calls": [{"index": index, "id": tool_call_id, "type": "function", "function": function}]}
        case ReasoningEnd() | TokenUsage() | Finished():
            return {}


def _completion(model: str, chunks: Iterable[Chunk]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    whole: dict[str, Any] = {"id": "chatcmpl-scripted", "object": "chat.completion", "created": 0, "model": model}
    choice: dict[str, Any] = {"index": 0, "message": message}
    for chunk in chunks:
        match chunk:
            case TextDelta(text):
                message["content"] += text
            case ReasoningDelta(text):
                message["reasoning_content"] = message.get("reasoning_content", "") + text
            case ToolCallDelta():
                _add_tool_call(message.setdefault("tool_calls", []), chunk)
            case ReasoningEnd():
                pass
            case TokenUsage():
                whole["usage"] = _usage(chunk)
            case Finished(reason):
                choice["finish_reason"] = reason
    message["content"] = message["content"] or (None if "tool_calls" in message else "")
    return {**whole, "choices": [choice]}


def _add_tool_call(calls: list[dict[str, Any]], piece: ToolCallDelta) -> None:
    if piece.index == len(calls):
        function = {"name": piece.name, "arguments": ""}
        calls.append({"id": piece.tool_call_id, "type": "function", "function": function})
    calls[piece.index]["function"]["arguments"] += piece.arguments


def _usage(usage: TokenUsage) -> dict[str, Any]:
    fields: dict[str, Any] = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
    if usage.cache_read_tokens is not None:
        fields["prompt_tokens_details"] = {"cached_tokens": usage.cache_read_tokens}
    if usage.reasoning_tokens is not None:
        fields["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    if usage.cost_microdollars is not None:
        fields["cost"] = usage.cost_microdollars / 1_000_000
    return fields


def _scripted_error(failure: Failure) -> web.Response:
    error = to_error(failure)
    response = _error(error.status or 500, error.code, error.message)
    if error.retry_after_seconds is not None:
        response.headers["Retry-After"] = f"{error.retry_after_seconds:g}"
    return response


def _error(status: int, code: str, message: str) -> web.Response:
    return _json({"error": {"message": message, "type": code, "code": code}}, status=status)


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
