"""A provider over real HTTP: the scripted model's server for usual responses, raw bytes for broken ones."""

import asyncio
import gc
import gzip
import json
import logging
import socket
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import msgspec
import pytest

from holdfast.models.anthropic_messages import AnthropicMessages
from holdfast.models.call_wait import ModelPatience
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.cost import cost_of
from holdfast.models.errors import BadBaseUrl, ModelNotUsable
from holdfast.models.http_model import HttpModel, ModelWire
from holdfast.models.info import ModelInfo, TokenPrice, TokenRates
from holdfast.models.model import ModelError, TextDelta, TokenUsage
from holdfast.models.openai_responses import OpenAIResponses
from holdfast.models.scripted import Failure, FailureKind, Reply, Rule, Script, ScriptedCall
from holdfast.models.server import ModelServer
from tests.models.answers import (
    answer_of,
    asking,
    failed_answer_of,
    finish_of,
    reasoning_of,
    text_of,
    tool_calls_of,
    usage_of,
)
from tests.models.raw_server import RawServer, http

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret-0123456789"
USAGE = TokenUsage(
    input_tokens=12, output_tokens=7, cache_read_tokens=4, reasoning_tokens=2, cost_microdollars=1_234_567
)
CALLS = (ScriptedCall("view", {"path": "a b.txt"}), ScriptedCall("view", "not { json"))
RICH = Reply(reasoning="Let me see. ", text="Grüße an alle 🙂!", tool_calls=CALLS, usage=USAGE)
HELLO = b'data: {"choices":[{"delta":{"content":"hello"}}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def only(reply: Reply) -> Script:
    return Script((Rule((reply,)),))


def failing(kind: FailureKind, **how: Any) -> Script:
    return only(Reply(text="one two three", fail=Failure(kind=kind, **how)))


def model_at(url: str, **settings: Any) -> HttpModel:
    return HttpModel(ChatCompletions("m"), **{"base_url": url, "name": "openai/m", "api_key": KEY, **settings})


async def error_at(url: str, *, stream: bool = True, **settings: Any) -> ModelError:
    async with model_at(url, **settings) as model:
        with pytest.raises(ModelError) as raised:
            await answer_of(model, asking(stream=stream))
    assert KEY not in str(raised.value) + repr(raised.value) + repr(model)
    return raised.value


async def error_from(*writes: bytes, stream: bool = True, **settings: Any) -> ModelError:
    async with RawServer(writes) as server:
        return await error_at(server.url, stream=stream, **settings)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_arrives_with_all_its_parts(stream: bool) -> None:
    async with ModelServer(only(RICH), api_key=KEY) as server, model_at(server.url) as model:
        chunks = await answer_of(model, asking(stream=stream))
    calls = tool_calls_of(chunks)
    assert reasoning_of(chunks) == "Let me see. "
    assert text_of(chunks) == "Grüße an alle 🙂!"
    assert [call[1:] for call in calls] == [("view", '{"path":"a b.txt"}'), ("view", "not { json")]
    assert len({call[0] for call in calls}) == 2
    assert usage_of(chunks) == USAGE
    assert finish_of(chunks) == "tool_calls"


async def test_an_answer_that_does_not_stream_is_one_batch() -> None:
    async with ModelServer(only(RICH)) as server, model_at(server.url) as model:
        batches = [batch async for batch in model.stream(asking(stream=False))]
        assert len(batches) == 1
        assert "stream" not in json.loads(server.requests[0])


async def test_request_names_the_model_and_carries_key_and_headers() -> None:
    headers = {"X-Title": "test", "user-agent": "mine"}
    async with RawServer([http(HELLO + END)]) as server, model_at(server.url, headers=headers) as model:
        await answer_of(model, asking("hi"))
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert lines[0] == "post /v1/chat/completions http/1.1"
    assert f"authorization: bearer {KEY}" in lines
    assert {"x-title: test", "user-agent: mine", "accept-encoding: identity"} < set(lines)
    assert json.loads(body)["model"] == "m"


def along(**headers: str) -> Any:
    return msgspec.structs.replace(asking("hi"), headers={name.replace("_", "-"): v for name, v in headers.items()})


async def test_headers_of_a_call_override_the_models_for_that_call_only() -> None:
    async with ModelServer(only(RICH)) as server, model_at(server.url, headers={"X-Title": "ours"}) as model:
        await answer_of(model, along(x_title="theirs", X_Trace="7"))
        await answer_of(model, asking())
        first, second = server.headers
    assert (first["x-title"], first["x-trace"], first["authorization"]) == ("theirs", "7", f"Bearer {KEY}")
    assert (second["x-title"], second.get("x-trace")) == ("ours", None)


@pytest.mark.parametrize("name", ["Authorization", "api-key", "HOST", "content-length", "Content-Type"])
async def test_header_of_a_call_cannot_change_content_caller_or_target(name: str) -> None:
    async with ModelServer(only(RICH)) as server, model_at(server.url) as model:
        _, error = await failed_answer_of(model, along(**{name: "hush-hush"}))
        assert not server.requests
    assert (error.code, error.retryable) == ("model_refused", False)
    assert name in error.message
    assert "hush-hush" not in error.message


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\x00b", "a\x7fb", "é"])
async def test_header_value_cannot_inject_another_header(value: str) -> None:
    async with ModelServer(only(RICH)) as server, model_at(server.url) as model:
        _, error = await failed_answer_of(model, along(x_a=value))
        assert not server.requests
    assert error.code == "model_refused"
    assert value not in error.message


async def test_header_values_are_redacted_from_quoted_errors() -> None:
    said = 'who are you, hush "hush"?'
    refusal = http(json.dumps({"error": {"why": said}}).encode(), status="400 Bad")
    async with RawServer([refusal], keep=True) as server, model_at(server.url) as model:
        _, error = await failed_answer_of(model, along(x_session='hush "hush"'))
        assert "hush" not in error.message
        assert "who are you, [redacted]" in error.message
        _, error = await failed_answer_of(model, asking())
        assert "hush" in error.message


async def test_retired_model_closes_its_connections_after_its_calls() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def gate(index: int) -> None:
        asked.set()
        await go.wait()

    async with ModelServer(only(Reply(text="hi")), gate=gate) as server:
        model = model_at(server.url)
        call = asyncio.create_task(answer_of(model, asking()))
        await asked.wait()
        await model.retire()
        go.set()
        assert text_of(await call) == "hi"
        assert text_of(await answer_of(model, asking())) == "hi"
        # A connection left open would warn here, and warnings are errors.
        del model, call
        gc.collect()


async def test_other_paths_of_the_api_can_be_read() -> None:
    async with ModelServer(only(RICH), api_key=KEY) as server, model_at(server.url) as model:
        assert json.loads(await model.get("/models"))["data"][0]["id"] == "scripted"
        with pytest.raises(ModelError, match="status 404"):
            await model.get("/nothing")


async def test_without_a_key_no_authorization_is_sent() -> None:
    async with RawServer([http(HELLO + END)]) as server, model_at(server.url, api_key=None) as model:
        await answer_of(model, asking())
    assert b"authorization" not in server.requests[0].lower()


async def test_connection_is_reused_after_a_complete_answer() -> None:
    async with RawServer([http(HELLO + END)], keep=True) as server, model_at(server.url) as model:
        await answer_of(model, asking())
        await answer_of(model, asking())
        assert (len(server.requests), server.connections) == (2, 1)


async def test_answer_is_the_same_when_bytes_arrive_one_by_one() -> None:
    body = HELLO + 'data: {"choices":[{"delta":{"content":" 🙂é"}}]}\n\n'.encode() + END
    response = http(body)
    bytewise = [response[at : at + 1] for at in range(len(response))]
    async with RawServer(bytewise) as server, model_at(server.url) as model:
        assert text_of(await answer_of(model, asking())) == "hello 🙂é"


async def test_closing_the_iterator_closes_the_connection_at_once() -> None:
    async with RawServer([http(HELLO, length=1_000_000)], hold=True) as server, model_at(server.url) as model:
        async with aclosing(model.stream(asking())) as answer:
            assert await anext(answer) == [TextDelta("hello")]
        await asyncio.wait_for(server.left.wait(), 5)


async def test_cancelling_a_call_closes_the_connection() -> None:
    async with RawServer([], hold=True) as server, model_at(server.url) as model:
        call = asyncio.create_task(answer_of(model, asking()))
        await server.asked.wait()
        call.cancel()
        await asyncio.wait_for(server.left.wait(), 5)
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_closing_twice_is_harmless() -> None:
    async with ModelServer(only(RICH)) as server, model_at(server.url) as model:
        await answer_of(model, asking())
        await model.close()
        await model.close()


async def test_refused_connection_is_unreachable_and_says_what_to_check() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        error = await error_at(f"http://127.0.0.1:{port}/v1")
    assert (error.code, error.retryable) == ("model_unreachable", True)
    assert f"127.0.0.1:{port}" in error.message
    assert "is it running? check --model-base-url" in error.message


async def test_a_host_without_an_address_is_unreachable() -> None:
    error = await error_at("http://nowhere.invalid/v1")
    assert (error.code, error.retryable) == ("model_unreachable", True)
    assert "nowhere.invalid" in error.message


LONG = 600.0
"""Longer than any test: a wait that ends was not this one."""

SHORT = 0.05


async def test_a_pause_in_an_answer_that_has_begun_is_bounded() -> None:
    patience = ModelPatience(first_byte_seconds=LONG, silence_seconds=SHORT)
    async with ModelServer(failing("hang", after=1)) as server:
        error = await error_at(server.url, patience=patience)
    assert (error.code, error.retryable) == ("model_timeout", True)
    assert "began its answer and then sent nothing for 0.05 s" in error.message
    assert "HOLDFAST_MODEL_SILENCE_SECONDS" in error.message


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("sent", [b"", http(b"", length=100)], ids=["nothing", "only the headers"])
async def test_the_first_byte_of_an_answer_has_a_patience_of_its_own(sent: bytes, stream: bool) -> None:
    """Many servers send the headers before the model has read the conversation: they are not the first byte."""
    patience = ModelPatience(first_byte_seconds=SHORT, silence_seconds=LONG)
    async with RawServer([sent], hold=True) as server:
        error = await error_at(server.url, stream=stream, patience=patience)
        await asyncio.wait_for(server.left.wait(), 5)
    assert (error.code, error.retryable) == ("model_timeout", True)
    assert "did not begin its answer within 0.05 s" in error.message
    assert "HOLDFAST_MODEL_FIRST_BYTE_SECONDS" in error.message


async def test_a_server_that_takes_its_time_before_the_first_byte_is_awaited() -> None:
    """The first byte comes after a longer wait than any later pause may take."""
    patience = ModelPatience(first_byte_seconds=LONG, silence_seconds=SHORT)
    head, _, body = http(HELLO + END).partition(b"\r\n\r\n")
    writes = [head + b"\r\n\r\n", body]
    async with RawServer(writes, pause=4 * SHORT) as server, model_at(server.url, patience=patience) as model:
        assert text_of(await answer_of(model, asking())) == "hello"


async def test_silence_after_a_whole_answer_loses_nothing() -> None:
    patience = ModelPatience(first_byte_seconds=LONG, silence_seconds=SHORT)
    finish = END.removesuffix(b"data: [DONE]\n\n")
    async with (
        RawServer([http(HELLO + finish, length=10_000)], hold=True) as server,
        model_at(server.url, patience=patience) as model,
    ):
        chunks = await answer_of(model, asking())
    assert (text_of(chunks), finish_of(chunks)) == ("hello", "stop")


async def test_a_slow_reader_of_the_answer_does_not_count_as_silence() -> None:
    patience = ModelPatience(first_byte_seconds=LONG, silence_seconds=SHORT)
    async with (
        RawServer([http(HELLO, length=len(HELLO + END)), END], keep=True) as server,
        model_at(server.url, patience=patience) as model,
        aclosing(model.stream(asking())) as answer,
    ):
        async for _ in answer:
            await asyncio.sleep(4 * SHORT)


PRICE = TokenPrice(rates=TokenRates(input=3_000_000, output=15_000_000, cache_read=300_000, cache_write=3_750_000))


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_without_a_cost_gets_the_price_of_the_catalogue(stream: bool) -> None:
    usage = TokenUsage(input_tokens=1_000, output_tokens=100)
    async with (
        ModelServer(only(Reply(text="hi", usage=usage))) as server,
        model_at(server.url, info=ModelInfo(price=PRICE)) as model,
    ):
        chunks = await answer_of(model, asking(stream=stream))
    found = usage_of(chunks)
    assert found is not None
    assert found.cost_microdollars == 1_000 * 3 + 100 * 15


WIRES: list[ModelWire] = [ChatCompletions("m"), AnthropicMessages("m"), OpenAIResponses("m")]


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.path)
@pytest.mark.parametrize("stream", [True, False])
async def test_every_wire_has_its_answers_priced(wire: ModelWire, stream: bool) -> None:
    price = ModelInfo(price=PRICE)
    async with (
        ModelServer(only(Reply(text="hi"))) as server,
        HttpModel(wire, base_url=server.url, name="m", info=price) as model,
    ):
        found = usage_of(await answer_of(model, asking(stream=stream)))
    assert found is not None
    assert found.input_tokens
    assert found.cost_microdollars == cost_of(msgspec.structs.replace(found, cost_microdollars=None), PRICE)
    assert found.cost_microdollars


async def test_the_cost_that_the_provider_reports_beats_the_price_of_the_catalogue() -> None:
    async with ModelServer(only(RICH)) as server, model_at(server.url, info=ModelInfo(price=PRICE)) as model:
        assert usage_of(await answer_of(model, asking())) == USAGE


async def test_rate_limit_carries_retry_after() -> None:
    async with ModelServer(failing("rate_limited", retry_after=2.5)) as server:
        error = await error_at(server.url)
    assert (error.code, error.retryable, error.status) == ("model_rate_limited", True, 429)
    assert error.retry_after_seconds == 2.5


async def test_retry_after_may_be_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    error = await error_from(http(b"{}", status="429 Too Many", headers=f"Retry-After: {date}\r\n"))
    assert error.retry_after_seconds == pytest.approx(60, abs=5)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("Retry-After: soon", None), ("Retry-After: nan", None), ("Retry-After: -3", 0), ("retry-after-ms: 1500", 1.5)],
)
async def test_unusual_retry_after_is_read_or_ignored(header: str, seconds: float | None) -> None:
    error = await error_from(http(b"{}", status="503 No", headers=f"{header}\r\n"))
    assert (error.code, error.retry_after_seconds) == ("model_unavailable", seconds)


@pytest.mark.parametrize("status", [408, 425, 500, 502, 529])
async def test_transient_status_is_retryable(status: int) -> None:
    async with ModelServer(failing("unavailable", status=status)) as server:
        error = await error_at(server.url)
    assert (error.code, error.retryable, error.status) == ("model_unavailable", True, status)


async def test_gateway_error_page_is_not_quoted() -> None:
    error = await error_from(http(b"<html>nginx</html>", status="502 Bad Gateway", content_type="text/html"))
    assert error.code == "model_unavailable"
    assert "html" not in error.message


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
async def test_wrong_key_is_not_retried_and_not_shown(status: str) -> None:
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}, sk-very-***"}}).encode()
    error = await error_from(http(body, status=status))
    assert (error.code, error.retryable) == ("model_unauthorized", False)
    assert "OPENAI_API_KEY" in error.message
    assert "sk-" not in error.message


async def test_scripted_server_refuses_a_wrong_key() -> None:
    async with ModelServer(only(RICH), api_key="another") as server:
        assert (await error_at(server.url)).code == "model_unauthorized"


async def test_refusal_quotes_the_provider_redacted_and_shortened() -> None:
    said = f"bad\x1b[31m key {KEY} in\nmodel " + "x" * 2000
    error = await error_from(http(json.dumps({"error": {"message": said}}).encode(), status="404 Not Found"))
    assert (error.code, error.retryable, error.status) == ("model_refused", False, 404)
    assert "key [redacted] in model xxx" in error.message
    assert "\x1b" not in error.message
    assert len(error.message) < 600


async def test_key_in_a_custom_header_is_redacted() -> None:
    body = json.dumps({"error": "header was hush-hush"}).encode()
    error = await error_from(http(body, status="400 Bad"), headers={"api-key": "hush-hush"})
    assert "hush-hush" not in error.message


async def test_a_plain_refusal_is_quoted() -> None:
    error = await error_from(http(b"not for you", status="418 Teapot", content_type="text/plain"))
    assert error.message.endswith("(status 418): not for you")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"404 page not found",
        b"<html>Not Found</html>",
        b'{"detail": "Not Found"}',
        b'{"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}',
        b'{"error": "Unexpected endpoint or method. (POST /v1/chat/completions)"}',
    ],
)
async def test_a_server_without_the_api_is_named_with_what_to_check(body: bytes) -> None:
    error = await error_from(http(body, status="404 Not Found", content_type="text/plain"))
    assert (error.code, error.retryable, error.status) == ("model_refused", False, 404)
    assert "has nothing at /chat/completions (status 404): check that --model-base-url" in error.message
    assert error.message.endswith("is the address of an API that speaks chat completions.")


@pytest.mark.parametrize(
    "said",
    [
        "The model `m` does not exist.",
        'model "m" not found, try pulling it first',
        "No endpoints found that support tool use.",
        "The API deployment for this resource does not exist.",
    ],
)
async def test_other_reasons_for_a_404_are_quoted(said: str) -> None:
    body = json.dumps({"error": {"message": said, "code": "model_not_found"}}).encode()
    error = await error_from(http(body, status="404 Not Found"))
    assert error.message.endswith(f"(status 404): {said}")


async def test_a_redirect_is_not_followed() -> None:
    async with RawServer([http(HELLO + END)]) as other:
        moved = http(b"", status="307 Temporary Redirect", headers=f"Location: {other.url}\r\n")
        error = await error_from(moved)
        assert other.connections == 0
    assert (error.code, error.retryable, error.status) == ("model_refused", False, 307)
    assert "redirect" in error.message


@pytest.mark.parametrize("stream", [True, False])
async def test_a_web_page_is_garbage(stream: bool) -> None:
    error = await error_from(http(b"<html></html>", content_type="text/html"), stream=stream)
    assert (error.code, error.retryable) == ("model_garbage", True)
    assert "--model-base-url" in error.message


@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_that_is_not_json_is_garbage(stream: bool) -> None:
    async with ModelServer(failing("malformed", after=1)) as server:
        assert (await error_at(server.url, stream=stream)).code == "model_garbage"


async def test_a_response_that_is_not_http_is_garbage() -> None:
    assert (await error_from(b"SSH-2.0-OpenSSH_9.6\r\n")).code == "model_garbage"


async def test_text_before_a_malformed_chunk_is_delivered() -> None:
    async with ModelServer(failing("malformed", after=2)) as server, model_at(server.url) as model:
        chunks, error = await failed_answer_of(model, asking())
    assert (text_of(chunks), error.code) == ("one two", "model_garbage")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_connection_that_is_dropped_cuts_the_answer(stream: bool) -> None:
    async with ModelServer(failing("cut", after=1)) as server:
        error = await error_at(server.url, stream=stream)
    assert (error.code, error.retryable) == ("model_cut", True)


async def test_text_before_a_cut_is_delivered() -> None:
    async with ModelServer(failing("cut", after=2)) as server, model_at(server.url) as model:
        chunks, error = await failed_answer_of(model, asking())
    assert (text_of(chunks), error.code) == ("one two", "model_cut")


@pytest.mark.parametrize("at", range(0, len(HELLO), 7))
async def test_a_connection_that_ends_in_the_answer_cuts_it(at: int) -> None:
    whole = HELLO + END
    assert (await error_from(http(whole[:at], length=len(whole)))).code == "model_cut"


async def test_a_connection_that_ends_before_the_answer_cuts_it() -> None:
    assert (await error_from()).code == "model_cut"


async def test_a_stream_without_its_end_is_cut() -> None:
    assert (await error_from(http(HELLO))).code == "model_cut"


async def test_answer_that_finished_before_the_connection_broke_is_complete() -> None:
    finish = END.removesuffix(b"data: [DONE]\n\n")
    async with RawServer([http(HELLO + finish, length=10_000)]) as server, model_at(server.url) as model:
        chunks = await answer_of(model, asking())
    assert (text_of(chunks), finish_of(chunks)) == ("hello", "stop")


async def test_answer_ends_at_its_end_mark_although_the_connection_stays_open() -> None:
    async with RawServer([http(HELLO + END, length=10_000)], hold=True) as server, model_at(server.url) as model:
        assert text_of(await answer_of(model, asking())) == "hello"
        await asyncio.wait_for(server.left.wait(), 5)


async def test_server_that_ignores_stream_is_understood() -> None:
    body = b'{"choices":[{"message":{"content":"hello"},"finish_reason":"stop"}]}'
    async with RawServer([http(body, content_type="application/json")]) as server, model_at(server.url) as model:
        assert text_of(await answer_of(model, asking())) == "hello"


async def test_error_object_with_status_200_is_an_error() -> None:
    body = b'{"error":{"message":"upstream is down","code":502}}'
    error = await error_from(http(body, content_type="application/json"))
    assert (error.code, error.status) == ("model_unavailable", 502)
    assert "upstream is down" in error.message


async def test_an_error_in_the_stream_does_not_show_the_key() -> None:
    event = b"data: " + json.dumps({"error": {"message": f"key {KEY} ran out", "code": 402}}).encode() + b"\n\n"
    error = await error_from(http(HELLO + event))
    assert (error.code, error.status) == ("model_refused", 402)
    assert "key [redacted] ran out" in error.message


async def test_a_compressed_answer_is_read() -> None:
    body = http(gzip.compress(HELLO + END), headers="Content-Encoding: gzip\r\n")
    async with RawServer([body]) as server, model_at(server.url) as model:
        assert text_of(await answer_of(model, asking())) == "hello"


async def test_key_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    event = b"data: " + json.dumps({"choices": [{"delta": {"reasoning": 5, "content": KEY}}]}).encode() + b"\n\n"
    with caplog.at_level(logging.DEBUG):
        async with RawServer([http(event + END)]) as server, model_at(server.url) as model:
            await answer_of(model, asking())
    assert "malformed" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize("url", ["", "api.openai.com", "ftp://x/v1", "http://", "http://x:port/", "http://[/v1"])
def test_invalid_base_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(BadBaseUrl, match="must look like"):
        model_at(url)


def test_base_url_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(BadBaseUrl, match="no user name") as raised:
        model_at("http://me:hush@host/v1")
    assert "hush" not in str(raised.value)


def test_unsendable_key_is_refused_and_not_shown() -> None:
    with pytest.raises(ModelNotUsable) as raised:
        model_at("http://host/v1", api_key=f"{KEY}\r\nX-Evil: 1")
    assert KEY not in str(raised.value)
