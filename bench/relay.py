"""The bare relay that durable streaming is held against: `python -m bench.relay MODEL_URL SOCKET`.

It keeps nothing. A message comes in, the model is asked with aiohttp, every token is decoded with msgspec and sent on
as an event of its own by Starlette, under uvicorn with uvloop and httptools: what one writes who wants it to be fast.
"""

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class _Asked(msgspec.Struct):
    text: str


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta


class _Piece(msgspec.Struct, gc=False):
    choices: list[_Choice]


class _TextDelta(msgspec.Struct, gc=False, tag_field="type", tag="text-delta"):
    id: str
    delta: str


_asked = msgspec.json.Decoder(_Asked).decode
_piece = msgspec.json.Decoder(_Piece).decode
_encode = msgspec.json.Encoder().encode


def application(model_url: str) -> Starlette:
    http: list[aiohttp.ClientSession] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            http.append(session)
            yield

    async def relay(request: Request) -> Response:
        text = _asked(await request.body()).text
        return StreamingResponse(_relayed(http[0], model_url, text), media_type="text/event-stream")

    async def ready(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[Route("/stream", relay, methods=["POST"]), Route("/readyz", ready)],
        lifespan=lifespan,
    )


async def _relayed(http: aiohttp.ClientSession, model_url: str, text: str) -> AsyncIterator[bytes]:
    body = {
        "model": "bench",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": text}],
    }
    headers = {"content-type": "application/json"}
    async with http.post(f"{model_url}/chat/completions", data=_encode(body), headers=headers) as response:
        async for line in response.content:
            if line[:6] != b"data: " or line[6:12] == b"[DONE]":
                continue
            choices = _piece(line[6:]).choices
            if choices and choices[0].delta.content:
                yield b"data: %b\n\n" % _encode(_TextDelta("0", choices[0].delta.content))
    yield b"data: [DONE]\n\n"


if __name__ == "__main__":
    config = uvicorn.Config(
        application(sys.argv[1]), loop="uvloop", http="httptools", log_level="warning", access_log=False
    )
    uvicorn.Server(config).run([socket.socket(fileno=int(sys.argv[2]))])
