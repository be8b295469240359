"""The models that are measured against, as servers in processes of their own: `python -m bench.models KIND CORE`.

`instant` is the scripted model without any pause. `paced` writes a token every few milliseconds, and each token is the
time at which it was written, so that whoever reads it knows how long it took. Told to, it thinks for a while first.
"""

import asyncio
import contextlib
import os
import sys
import time

import msgspec
from aiohttp import web

from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall
from holdfast.models.server import run

TOKENS = 200
ONE_TOKEN = "say one"
"""A message that has this in it is answered with one token, any other with 200."""

MANY_CALLS = "light all lamps"
"""A message that has this in it is answered with as many calls of a client's tool as one answer may have."""

LAMP_NAME = "l" + "a" * 63

TOKENS_PER_SECOND = 200

HELD = "hold"
"""A message that the paced model answers with one token, and then with nothing more."""

SLOW = "slow "
"""A message that begins so is answered with one token, after as many seconds as it goes on to say."""

_PIECE = b'data: {"id":"paced","choices":[{"index":0,"delta":{"content":"%d "},"finish_reason":null}]}\n\n'
_CLOSING = (
    b'data: {"id":"paced","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"paced","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":200}}\n\ndata: [DONE]\n\n'
)


_CALLS = tuple(ScriptedCall(LAMP_NAME, {"lamp": number}) for number in range(64))


def script() -> Script:
    words = " ".join(f"word{number % 10}" for number in range(TOKENS))
    return Script(
        (
            Rule((_reply("Hello", 1),), when=ONE_TOKEN),
            Rule((Reply(tool_calls=_CALLS), _reply("Hello", 1)), when=MANY_CALLS),
            Rule((_reply(words, TOKENS),)),
        )
    )


def _reply(text: str, tokens: int) -> Reply:
    return Reply(text=text, usage=TokenUsage(input_tokens=5, output_tokens=tokens))


async def _paced(request: web.Request) -> web.StreamResponse:
    """As many tokens as the last message says (`100`, or `100 at 60` for so many in a second), and then the end, unless
    it is to be held."""
    asked = msgspec.json.decode(await request.read())["messages"][-1]["content"]
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    # Whoever asked may have been ended meanwhile.
    with contextlib.suppress(ConnectionResetError):
        if asked.startswith(SLOW):
            await asyncio.sleep(float(asked.removeprefix(SLOW)))
        await response.prepare(request)
        await _write(response, asked)
    return response


async def _write(response: web.StreamResponse, asked: str) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    number, _, pace = asked.partition(" at ")
    for _ in range(1 if asked == HELD or asked.startswith(SLOW) else int(number)):
        await asyncio.sleep(due - loop.time())
        await response.write(_PIECE % time.monotonic_ns())
        due += 1 / int(pace or TOKENS_PER_SECOND)
    if asked == HELD:
        await asyncio.Event().wait()
    await response.write(_CLOSING)
    await response.write_eof()


async def _serve_paced() -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", _paced)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _ready(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
    await asyncio.Event().wait()


def _ready(url: str) -> None:
    print(url, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        os.sched_setaffinity(0, {int(sys.argv[2])})
    if sys.argv[1] == "instant":
        run(script(), on_ready=_ready)
    else:
        asyncio.run(_serve_paced())
