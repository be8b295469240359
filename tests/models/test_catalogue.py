"""Opening a model by its name, with the keys and addresses of the settings."""

import json

import pytest

from holdfast.models.address import host_of
from holdfast.models.call_wait import ModelPatience
from holdfast.models.catalogue import STANDARD, ModelSettings, open_model, thinking_field
from holdfast.models.errors import ModelKeyMissing, ModelNotUsable, UnknownModel
from holdfast.models.http_model import HttpModel
from holdfast.models.model import ModelRequest, UserText
from holdfast.models.providers import PROVIDERS, Wire
from holdfast.models.scripted import Reply, Rule, Script
from holdfast.models.server import ModelServer
from holdfast.models.stated_facts import StatedFacts
from tests.models.answers import answer_of, asking, failed_answer_of, text_of
from tests.models.raw_server import RawServer, http

pytestmark = pytest.mark.anyio

HI = Script((Rule((Reply(text="hi"),)),))
ANSWER = http(b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n')


def opened(
    name: str,
    settings: ModelSettings = STANDARD,
    /,
    *,
    configured: str | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    **environ: str,
) -> HttpModel:
    """The model of this name, which is also the configured one unless another is given."""
    model = open_model(
        name, configured=configured or name, base_url=base_url, api_key=api_key, environ=environ, settings=settings
    )
    assert isinstance(model, HttpModel)
    return model


def test_demo_needs_no_settings() -> None:
    assert open_model("demo", configured="demo", base_url=None, api_key=None, environ={}).name == "demo"


@pytest.mark.parametrize(
    ("name", "variable", "host"),
    [
        ("openai/gpt-x", "OPENAI_API_KEY", "api.openai.com"),
        ("openrouter/anthropic/claude-x", "OPENROUTER_API_KEY", "openrouter.ai"),
        ("anthropic/claude-x", "ANTHROPIC_API_KEY", "api.anthropic.com"),
    ],
)
def test_provider_uses_its_usual_key_variable(name: str, variable: str, host: str) -> None:
    model = opened(name, **{variable: "k"})
    assert model.name == name
    assert host in repr(model)
    with pytest.raises(ModelKeyMissing, match=f"set {variable}"):
        opened(name)


async def test_request_names_the_model_after_the_provider_prefix() -> None:
    name = "openrouter/anthropic/claude-x"
    async with RawServer([ANSWER]) as server, opened(name, base_url=server.url, api_key="k") as model:
        await answer_of(model, asking())
    assert json.loads(server.requests[0].partition(b"\r\n\r\n")[2])["model"] == "anthropic/claude-x"


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("openrouter/a/b", "reasoning", {"max_tokens": 900}), ("openai/b", "reasoning_effort", "low")],
)
async def test_thinking_budget_uses_the_field_of_each_provider(name: str, field: str, value: object) -> None:
    async with RawServer([ANSWER]) as server, opened(name, base_url=server.url, api_key="k") as model:
        await answer_of(model, ModelRequest(messages=(UserText("u"),), thinking=900))
    assert json.loads(server.requests[0].partition(b"\r\n\r\n")[2])[field] == value


@pytest.mark.parametrize(
    ("url", "field"),
    [("https://openrouter.ai/api/v1", "reasoning"), ("https://openrouter.ai.evil.org/v1", "reasoning_effort")],
)
def test_thinking_field_of_a_clients_own_endpoint_depends_on_its_host(url: str, field: str) -> None:
    assert thinking_field(url) == field


async def test_a_local_server_needs_no_key() -> None:
    async with RawServer([ANSWER]) as server, opened("openai/llama3", base_url=server.url) as model:
        assert text_of(await answer_of(model, asking())) == "hi"
    assert b"authorization" not in server.requests[0].lower()


async def test_base_url_and_key_come_from_the_environment() -> None:
    async with ModelServer(HI, api_key="k") as server:
        environ = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": " k\n"}
        async with opened("openai/x", **environ) as model:
            assert text_of(await answer_of(model, asking())) == "hi"


async def test_explicit_key_and_address_take_precedence() -> None:
    async with ModelServer(HI, api_key="k") as server:
        environ = {"OPENAI_BASE_URL": "http://nowhere.invalid/v1", "OPENAI_API_KEY": "other"}
        async with opened("openai/x", base_url=server.url, api_key="k", **environ) as model:
            assert text_of(await answer_of(model, asking())) == "hi"


# The protocol


KEYS = {provider.key_variable: "k" for provider in PROVIDERS.values()}


@pytest.mark.parametrize(
    ("name", "environ", "path"),
    [
        ("anthropic/claude-x", {}, "/messages"),
        ("anthropic/claude-x", {"ANTHROPIC_BASE_URL": "https://gateway.example.org"}, "/messages"),
        ("openai/gpt-x", {}, "/responses"),
        ("openai/gpt-x", {"OPENAI_BASE_URL": "https://api.openai.com/v1/"}, "/responses"),
        ("openai/gpt-x", {"OPENAI_BASE_URL": "https://llm.example.org/v1"}, "/chat/completions"),
        ("openai/gpt-x", {"OPENAI_BASE_URL": "https://api.openai.com.example.org/v1"}, "/chat/completions"),
        ("openai/gpt-x", {"OPENAI_BASE_URL": "https://me.openai.azure.com/openai/v1"}, "/chat/completions"),
        ("openrouter/anthropic/claude-x", {}, "/chat/completions"),
    ],
)
def test_the_protocol_goes_by_the_name_and_the_address(name: str, environ: dict[str, str], path: str) -> None:
    assert opened(name, **KEYS, **environ).path == path


PATHS: dict[Wire, str] = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}


@pytest.mark.parametrize("name", ["anthropic/x", "openai/x", "openrouter/x"])
@pytest.mark.parametrize("wire", PATHS)
def test_a_setting_chooses_the_protocol_of_the_configured_provider_alone(wire: Wire, name: str) -> None:
    settings = ModelSettings(wire=wire)
    assert opened(name, settings, **KEYS).path == PATHS[wire]
    assert opened(name, settings, base_url="http://127.0.0.1:1/v1").path == PATHS[wire]
    for other, provider in PROVIDERS.items():
        if not name.startswith(other):
            model = opened(f"{other}/y", settings, configured=name, **KEYS)
            assert model.path == PATHS[provider.wire]


@pytest.mark.parametrize(
    ("address", "path"),
    [("", "/v1/messages"), ("/", "/v1/messages"), ("/v1", "/v1/messages"), ("/a", "/a/v1/messages")],
)
async def test_anthropics_own_variable_has_no_version_in_its_address(address: str, path: str) -> None:
    async with RawServer([http(b"{}", status="404 Not Found")]) as server:
        environ = {
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{server.port}{address}",
            "ANTHROPIC_API_KEY": "k-of-anthropic",
        }
        async with opened("anthropic/x", **environ) as model:
            await failed_answer_of(model, asking())
        head = server.requests[0].partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")
    assert head[0] == f"post {path} http/1.1"
    assert "authorization: bearer k-of-anthropic" in head


# The facts about the model, and patience


def test_a_model_is_opened_with_the_facts_about_it() -> None:
    info = opened("anthropic/claude-sonnet-5-5", **KEYS).info
    assert (info.window, info.is_known) == (1_000_000, True)
    assert info.price is not None
    assert opened("openrouter/anthropic/claude-sonnet-5.5", **KEYS).info.takes_cache_marks


def test_the_operators_facts_are_for_the_model_of_that_name_alone() -> None:
    settings = ModelSettings(stated=(StatedFacts(model="openai/a", window=5_000),))
    assert opened("openai/a", settings, base_url="http://127.0.0.1:1/v1").info.window == 5_000
    assert opened("openai/b", settings, base_url="http://127.0.0.1:1/v1").info.window != 5_000


async def test_a_model_is_opened_with_the_patience_of_the_settings() -> None:
    settings = ModelSettings(patience=ModelPatience(first_byte_seconds=0.05))
    async with (
        RawServer([], hold=True) as server,
        opened("openai/x", settings, base_url=server.url) as model,
    ):
        _, error = await failed_answer_of(model, asking())
    assert "did not begin its answer within 0.05 s" in error.message


# Other providers than that of the configured model


PAIRS = [(f"{ours}/ours", f"{other}/x") for ours in PROVIDERS for other in PROVIDERS if ours != other]


@pytest.mark.parametrize(("configured", "chosen"), PAIRS)
@pytest.mark.parametrize("given", [{"api_key": "k"}, {"base_url": "http://127.0.0.1:1/v1"}])
def test_the_configured_key_and_address_are_not_for_another_provider(
    configured: str, chosen: str, given: dict[str, str]
) -> None:
    provider = PROVIDERS[chosen.partition("/")[0]]
    variable = provider.key_variable
    with pytest.raises(ModelKeyMissing, match=f"needs a key: set {variable}. HOLDFAST_MODEL_API_KEY and"):
        opened(chosen, configured=configured, **given)
    assert host_of(provider.base_url) in repr(opened(chosen, configured=configured, **given, **{variable: "other"}))


async def test_each_server_is_sent_the_key_of_its_own_provider() -> None:
    async with ModelServer(HI) as ours, ModelServer(HI) as openai:
        environ = {"OPENAI_BASE_URL": openai.url, "OPENAI_API_KEY": "of-openai"}
        for name in ("openrouter/ours", "openai/x"):
            async with opened(
                name, configured="openrouter/ours", base_url=ours.url, api_key="configured", **environ
            ) as model:
                await answer_of(model, asking())
    assert [sent["authorization"] for sent in ours.headers] == ["Bearer configured"]
    assert [sent["authorization"] for sent in openai.headers] == ["Bearer of-openai"]


async def test_without_a_configured_provider_the_key_goes_only_to_the_configured_address() -> None:
    for configured in ("demo", "copilot/x"):
        async with (
            ModelServer(HI) as server,
            opened("openai/x", configured=configured, base_url=server.url, api_key="k") as model,
        ):
            await answer_of(model, asking())
        assert [sent["authorization"] for sent in server.headers] == ["Bearer k"]
        for given in ({"api_key": "k"}, {"api_key": "k", "base_url": server.url}):
            with pytest.raises(ModelKeyMissing, match="set OPENROUTER_API_KEY"):
                opened("openrouter/x", configured=configured, **given)
            with pytest.raises(ModelKeyMissing, match="set ANTHROPIC_API_KEY"):
                opened("anthropic/x", configured=configured, **given)
        with pytest.raises(ModelKeyMissing, match="set OPENAI_API_KEY"):
            opened("openai/x", configured=configured, api_key="k")


@pytest.mark.parametrize("name", ["", "gpt-x", "demo/x", "mistral/x", "openai", "openai/", "/x", "anthropic"])
def test_unknown_name_error_lists_the_possible_names(name: str) -> None:
    with pytest.raises(UnknownModel, match="demo, anthropic/NAME, openai/NAME and openrouter/NAME"):
        opened(name, OPENAI_API_KEY="k")


def test_every_settings_error_is_a_model_not_usable() -> None:
    with pytest.raises(ModelNotUsable):
        opened("openai/x", base_url="localhost:11434")
