"""The scripted model as a server: its HTTP interface, and its blocking `run`."""

import asyncio
import signal
import sys
from typing import Any

import aiohttp
import pytest

from holdfast.events.ids import ToolCallId
from holdfast.events.message import Image
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel
from holdfast.models.model import AssistantTurn, ContextMessage, ModelRequest, ToolOutcome, ToolUse, UserText
from holdfast.models.scripted import Failure, FailureKind, Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.models.server import ModelServer
from tests.models.answers import answer_of, text_of

pytestmark = pytest.mark.anyio

HI = Script((Rule((Reply(text="one two"),)),))
CALL: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_routes_work_with_and_without_the_version_prefix(prefix: str) -> None:
    async with ModelServer(HI) as server, aiohttp.ClientSession(server.url.removesuffix("/v1")) as client:
        async with client.get(f"{prefix}/models") as response:
            assert (await response.json())["data"][0]["id"] == "scripted"
        async with client.post(f"{prefix}/chat/completions", json=CALL) as response:
            assert (await response.json())["choices"][0]["message"]["content"] == "one two"


async def test_each_piece_is_an_event_and_usage_is_sent_on_request() -> None:
    async with ModelServer(HI) as server, aiohttp.ClientSession() as client:
        response = await client.post(f"{server.url}/chat/completions", json={**CALL, "stream": True})
        events = (await response.text()).split("\n\n")
    assert len(events) == 5
    assert '"content":"one"' in events[0]
    assert '"finish_reason":"stop"' in events[2]
    assert events[3:] == ["data: [DONE]", ""]
    assert "usage" not in "".join(events)


async def test_every_route_requires_the_key_when_it_is_set() -> None:
    async with ModelServer(HI, api_key="k") as server, aiohttp.ClientSession() as client:
        for response in (await client.get(f"{server.url}/models"), await client.post(f"{server.url}/chat/completions")):
            assert response.status == 401
            assert "error" in await response.json()
        assert len(server.requests) == 0


async def test_body_that_is_not_a_call_is_refused() -> None:
    async with ModelServer(HI) as server, aiohttp.ClientSession() as client:
        response = await client.post(f"{server.url}/chat/completions", data=b"{")
        assert response.status == 400
        assert "error" in await response.json()


async def test_configured_models_are_listed() -> None:
    listed: list[dict[str, Any]] = [{"id": "big", "capabilities": {"limits": {}}}, {"id": "small"}]
    async with ModelServer(HI, models=listed) as server, aiohttp.ClientSession() as client:
        response = await client.get(f"{server.url}/models")
        assert (await response.json())["data"] == listed


async def test_usage_is_counted_and_the_beginning_that_was_sent_before_is_read_from_the_cache() -> None:
    body = {**CALL, "messages": [{"role": "user", "content": "x" * 400}], "prompt_cache_key": "k"}
    longer = {**body, "messages": [*body["messages"], {"role": "user", "content": "y" * 400}]}
    async with ModelServer(HI) as server, aiohttp.ClientSession() as client:
        usages = []
        for call in (body, longer):
            response = await client.post(f"{server.url}/chat/completions", json=call)
            usages.append((await response.json())["usage"])
        assert [count.total for count in server.counts] == [usage["prompt_tokens"] for usage in usages]
    assert usages[0]["prompt_tokens_details"]["cached_tokens"] == 0
    assert usages[1]["prompt_tokens_details"]["cached_tokens"] == usages[0]["prompt_tokens"]
    assert usages[0]["completion_tokens"] == 2


async def test_call_that_does_not_fit_the_window_is_refused_in_the_words_of_its_provider() -> None:
    async with ModelServer(HI, window=50) as server, aiohttp.ClientSession() as client:
        body = {**CALL, "messages": [{"role": "user", "content": "x" * 400}]}
        response = await client.post(f"{server.url}/chat/completions", json=body)
        assert response.status == 400
        error = (await response.json())["error"]
        assert error["code"] == "context_length_exceeded"
        assert "maximum context length is 50 tokens" in error["message"]
        server.window = None
        assert (await client.post(f"{server.url}/chat/completions", json=body)).status == 200


@pytest.mark.parametrize(("kind", "status"), [("overloaded", 529), ("too_large", 413), ("context_exceeded", 400)])
async def test_scripted_refusal_has_its_status(kind: FailureKind, status: int) -> None:
    script = Script((Rule((Reply(fail=Failure(kind=kind)),)),))
    async with ModelServer(script) as server, aiohttp.ClientSession() as client:
        response = await client.post(f"{server.url}/chat/completions", json=CALL)
        assert response.status == status
        assert "error" in await response.json()


async def test_error_in_mid_stream_follows_the_pieces_before_it() -> None:
    script = Script((Rule((Reply(text="one two", fail=Failure(kind="error_event", after=1)),)),))
    async with ModelServer(script) as server, aiohttp.ClientSession() as client:
        response = await client.post(f"{server.url}/chat/completions", json={**CALL, "stream": True})
        events = (await response.text()).split("\n\n")
    assert '"content":"one"' in events[0]
    assert '"error"' in events[1]
    assert events[2:] == [""]


async def test_headers_of_a_request_are_kept_for_inspection() -> None:
    async with ModelServer(HI) as server, aiohttp.ClientSession() as client:
        await client.post(f"{server.url}/chat/completions", json=CALL, headers={"X-Trace": "7"})
        assert server.headers[0]["x-trace"] == "7"


IMAGE = (Image(media_type="image/png", data=b"\x89PNG"),)
USE = AssistantTurn("", (ToolUse(ToolCallId("c"), "view", "{}"),))


@pytest.mark.parametrize(
    "messages",
    [
        [UserText("look", IMAGE)],
        [UserText("look")],
        [UserText("look"), USE, ToolOutcome(ToolCallId("c"), "seen", IMAGE)],
        [UserText("look"), USE, ToolOutcome(ToolCallId("c"), "nothing")],
        [UserText("hello"), USE, ToolOutcome(ToolCallId("c"), "seen", IMAGE), UserText("so?")],
    ],
)
async def test_image_gives_the_same_answer_over_http_and_in_process(messages: list[ContextMessage]) -> None:
    script = Script(
        (
            Rule((Reply(text="{user}: I see it"),), has_image=True),
            Rule((Reply(text="Where?", tool_calls=(ScriptedCall("view"),)), Reply(text="{user}: none")), when="look"),
        )
    )
    request = ModelRequest(messages=tuple(messages))
    in_process = text_of(await answer_of(ScriptedModel(script), request))
    async with ModelServer(script) as server, HttpModel(ChatCompletions("m"), base_url=server.url, name="m") as model:
        assert text_of(await answer_of(model, request)) == in_process


@pytest.mark.parametrize("url", ["https://example.org/a.png", "data:image/png;base64,%%%", 7])
async def test_unreadable_image_still_counts_as_an_image(url: object) -> None:
    script = Script((Rule((Reply(text="I see it"),), has_image=True), Rule((Reply(text="Where?"),))))
    content = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": url}}]
    call = {"model": "any", "messages": [{"role": "user", "content": content}]}
    async with ModelServer(script) as server, aiohttp.ClientSession() as client:
        response = await client.post(f"{server.url}/chat/completions", json=call)
        assert (await response.json())["choices"][0]["message"]["content"] == "I see it"


async def test_stopping_does_not_wait_for_a_hanging_answer() -> None:
    script = Script((Rule((Reply(text="a", fail=Failure(kind="hang")),)),))
    async with aiohttp.ClientSession() as client:
        async with ModelServer(script) as server:
            response = await client.post(f"{server.url}/chat/completions", json={**CALL, "stream": True})
        with pytest.raises(aiohttp.ClientError):
            await response.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_run_serves_until_a_signal(number: signal.Signals) -> None:
    program = (
        "from holdfast.models import server, scripted;"
        "server.run(scripted.Script((scripted.Rule((scripted.Reply(text='hi'),)),)))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().split()[-1]
    async with aiohttp.ClientSession() as client, client.get(f"{url}/models") as response:
        assert response.status == 200
    process.send_signal(number)
    assert await process.wait() == 0
