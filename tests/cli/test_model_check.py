"""`holdfast doctor` makes one tiny call to the model, and says in words what is wrong. The servers are real."""

import json
import socket
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.doctor import CHECKS
from holdfast.cli.doctor_finding import Finding
from holdfast.cli.model_check import ANSWER_TOKENS, PATHS
from holdfast.config import Secret, load
from holdfast.models.errors import ModelKeyMissing, ModelNotUsable
from holdfast.models.providers import Wire
from holdfast.models.scripted import Failure, Reply, Rule, Script
from holdfast.models.server import ModelServer
from tests.models.raw_server import RawServer, RoutedServer, http

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret-0123456789"
HELLO = Script((Rule((Reply(text="hello"),)),))
CHAT = http(b'data: {"choices":[{"delta":{"content":"hello"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
CHAT_ALONE = {"/v1/chat/completions": CHAT}
NO_MODEL = http(
    b'{"error":{"message":"The model `m` does not exist","code":"model_not_found"}}', status="404 Not Found"
)


async def check(folder: Path, url: str, model: str = "openai/m", **settings: Any) -> Finding:
    config = load({"data_dir": folder, "model": model, "model_base_url": url, **settings}, {})
    return await CHECKS["Model"](config)


async def test_a_model_that_answers_is_well_and_its_facts_are_shown(tmp_path: Path) -> None:
    stated = tmp_path / "models.toml"
    stated.write_text('["openai/m"]\nwindow = 65536\nprice = { input = 1, output = 2 }\n')
    async with ModelServer(HELLO, api_key=KEY) as server:
        well = await check(tmp_path, server.url, model_api_key=Secret(KEY), models=str(stated))
        unknown = await check(tmp_path, server.url, model_api_key=Secret(KEY))
        (sent, _) = (json.loads(body) for body in server.requests)
    assert (well.ok, well.found) == (True, "openai/m answers (window: 65,536 tokens; price: known)")
    assert unknown.found.endswith("(window: 128,000 tokens, as is assumed of unknown models; price: unknown)")
    assert sent["max_tokens"] == ANSWER_TOKENS


async def test_a_wrong_key_is_named_by_its_setting_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(HELLO, api_key="another") as server:
        none = await check(tmp_path, server.url)
        given = await check(tmp_path, server.url, model_api_key=Secret(KEY))
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        usual = await check(tmp_path, server.url)
    host = server.url.removeprefix("http://").removesuffix("/v1")
    assert not any(finding.ok for finding in (none, given, usual))
    assert (none.found, none.advice) == (f"openai/m: {host} asks for a key, and none is set.", "Set OPENAI_API_KEY.")
    assert "does not accept the key (status 401): check HOLDFAST_MODEL_API_KEY." in given.found
    assert "does not accept the key (status 401): check OPENAI_API_KEY." in usual.found
    assert KEY not in f"{none} {given} {usual}"


@pytest.mark.parametrize(
    ("listed", "advice"),
    [
        (["gpt-large", "gpt-small", "other"], "Did you mean gpt-small or gpt-large?"),
        (["a", "b", "c", "d", "e"], "It has a, b, c and 2 more."),
        (["a"], "It has a."),
    ],
)
async def test_a_model_that_does_not_exist_is_said_with_near_names(
    tmp_path: Path, listed: list[str], advice: str
) -> None:
    models = http(json.dumps({"data": [{"id": name} for name in listed]}).encode(), content_type="application/json")
    async with RoutedServer({"/v1/chat/completions": NO_MODEL, "/v1/models": models}) as server:
        finding = await check(tmp_path, server.url, "openai/gpt-smal")
    assert (finding.ok, finding.found) == (False, f"openai/gpt-smal: 127.0.0.1:{server.port} has no model gpt-smal.")
    assert finding.advice == advice


@pytest.mark.parametrize("listing", [b"", b"[]", b'{"data": 5}', b'{"data": [{"id": "m"}]}', b"not json", b"[" * 5_000])
async def test_without_a_useful_list_of_models_the_providers_own_words_are_shown(
    tmp_path: Path, listing: bytes
) -> None:
    routes = {"/v1/chat/completions": NO_MODEL, "/v1/models": http(listing, content_type="application/json")}
    async with RoutedServer(routes) as server:
        finding = await check(tmp_path, server.url)
    assert not finding.ok
    assert "The model `m` does not exist" in finding.found
    assert finding.advice


@pytest.mark.parametrize(
    ("model", "wire", "name"),
    [
        ("anthropic/m", "auto", "Anthropic's Messages"),
        ("openai/m", "responses", "OpenAI's Responses"),
        ("openai/m", "messages", "Anthropic's Messages"),
    ],
)
async def test_a_server_that_speaks_another_protocol_is_said_with_the_setting(
    tmp_path: Path, model: str, wire: str, name: str
) -> None:
    async with RoutedServer(CHAT_ALONE) as server:
        finding = await check(tmp_path, server.url, model, model_wire=wire)
        assert not finding.ok
        assert finding.found == f"{model}: 127.0.0.1:{server.port} speaks chat completions, and not {name}."
        assert finding.advice == "Set HOLDFAST_MODEL_WIRE=chat."
        assert (await check(tmp_path, server.url, model, model_wire="chat")).ok


async def test_a_server_that_refuses_a_key_in_another_protocols_header_is_understood(tmp_path: Path) -> None:
    """The gate of the server sees no key where it looks for one, and refuses before it looks at the path."""
    async with ModelServer(HELLO, api_key=KEY) as chat:
        refused = http(b"{}", status="401 Unauthorized", content_type="application/json")
        async with RoutedServer({"/v1/messages": refused, **CHAT_ALONE}) as server:
            finding = await check(tmp_path, server.url, "anthropic/m", model_api_key=Secret(KEY))
        assert not chat.requests
    assert finding.advice == "Set HOLDFAST_MODEL_WIRE=chat."


@pytest.mark.parametrize("wire", PATHS)
async def test_each_protocol_of_the_scripted_server_is_checked_in_its_own_words(tmp_path: Path, wire: Wire) -> None:
    """A real server of the protocol answers, refuses the key, is busy, and names the length of the call."""

    def at(server: ModelServer, **more: Any) -> Awaitable[Finding]:
        return check(tmp_path, server.url, model_wire=wire, model_api_key=Secret(KEY), **more)

    async with ModelServer(HELLO, api_key=KEY) as server:
        well = await at(server)
    assert (well.ok, len(server.requests)) == (True, 1), well
    async with ModelServer(HELLO, api_key="another") as server:
        refused = await at(server)
    assert "does not accept the key (status 401): check HOLDFAST_MODEL_API_KEY." in refused.found
    async with ModelServer(Script((Rule((Reply(fail=Failure(kind="overloaded")),)),))) as server:
        busy = await at(server)
    assert (busy.ok, busy.advice) == (False, "Try again later.")
    async with ModelServer(HELLO, window=4) as server:
        small = await at(server)
    assert not small.ok
    assert "too long" in small.found


async def test_a_web_page_in_place_of_an_api_is_said(tmp_path: Path) -> None:
    async with RawServer([http(b"<html></html>", content_type="text/html")]) as server:
        finding = await check(tmp_path, server.url)
    assert not finding.ok
    assert "a web page: check that --model-base-url is the API's address" in finding.found


async def test_an_unreachable_host_is_said(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        finding = await check(tmp_path, f"http://127.0.0.1:{port}/v1")
    assert not finding.ok
    assert f"Can't reach the model at 127.0.0.1:{port}" in finding.found
    nowhere = await check(tmp_path, "http://nowhere.invalid/v1")
    assert "nowhere.invalid" in nowhere.found
    assert nowhere.advice == "Check the address and the network."


async def test_a_refusal_for_another_reason_is_not_taken_for_a_missing_model(tmp_path: Path) -> None:
    models = http(b'{"data": [{"id": "other"}]}', content_type="application/json")
    poor = http(b'{"error": {"message": "Out of credit."}}', status="402 Payment Required")
    async with RoutedServer({"/v1/chat/completions": poor, "/v1/models": models}) as server:
        finding = await check(tmp_path, server.url)
    assert not finding.ok
    assert finding.found.endswith("refused the call (status 402): Out of credit.")


@pytest.mark.parametrize("kind", ["rate_limited", "unavailable"])
async def test_a_busy_provider_is_no_fault_of_the_settings(tmp_path: Path, kind: Any) -> None:
    async with ModelServer(Script((Rule((Reply(text="x", fail=Failure(kind=kind)),)),))) as server:
        finding = await check(tmp_path, server.url)
    assert (finding.ok, finding.advice) == (False, "Try again later.")


async def test_a_model_without_a_key_is_refused_before_any_call(tmp_path: Path) -> None:
    with pytest.raises(ModelKeyMissing, match="set ANTHROPIC_API_KEY"):
        await CHECKS["Model"](load({"data_dir": tmp_path, "model": "anthropic/claude-x"}, {}))


async def test_thinking_with_a_model_that_has_none_is_refused_before_any_call(tmp_path: Path) -> None:
    async with ModelServer(HELLO) as server:
        with pytest.raises(
            ModelNotUsable, match="HOLDFAST_THINKING is 4000, but the model openai/gpt-4o does not think"
        ):
            await check(tmp_path, server.url, "openai/gpt-4o", thinking="4000")
        assert not server.requests
        assert (await check(tmp_path, server.url, "openai/gpt-4o", thinking="off")).ok
        assert (await check(tmp_path, server.url, "openai/gpt-5", thinking="4000")).ok


async def test_the_fallback_is_called_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ModelServer(HELLO) as server, RoutedServer(CHAT_ALONE) as other:
        both = await check(tmp_path, server.url, model_fallback="openai/n")
        assert both.ok
        assert "; fall-back openai/n answers" in both.found
        with pytest.raises(ModelKeyMissing, match="The model anthropic/n needs a key"):
            await check(tmp_path, server.url, model_fallback="anthropic/n")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{other.port}")
        wrong = await check(tmp_path, server.url, model_fallback="anthropic/n")
    assert not wrong.ok
    assert "check that ANTHROPIC_BASE_URL is the address of an API that speaks Anthropic's Messages" in wrong.found
