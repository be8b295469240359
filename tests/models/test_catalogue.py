"""Opening a model by its name, with the keys and addresses of the settings."""

import json

import pytest

from holdfast.models.catalogue import open_model, thinking_field
from holdfast.models.errors import ModelKeyMissing, ModelNotUsable, UnknownModel
from holdfast.models.http_model import HttpModel
from holdfast.models.model import ModelRequest, UserText
from holdfast.models.scripted import Reply, Rule, Script
from holdfast.models.server import ModelServer
from tests.models.answers import answer_of, asking, text_of
from tests.models.raw_server import RawServer, http

pytestmark = pytest.mark.anyio

HI = Script((Rule((Reply(text="hi"),)),))
ANSWER = http(b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n')


def opened(
    name: str,
    *,
    configured: str | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    **environ: str,
) -> HttpModel:
    """The model of this name, which is also the configured one unless another is given."""
    model = open_model(name, configured=configured or name, base_url=base_url, api_key=api_key, environ=environ)
    assert isinstance(model, HttpModel)
    return model


def test_demo_needs_no_settings() -> None:
    assert open_model("demo", configured="demo", base_url=None, api_key=None, environ={}).name == "demo"


@pytest.mark.parametrize(
    ("name", "variable", "host"),
    [
        ("openai/gpt-x", "OPENAI_API_KEY", "api.openai.com"),
        ("openrouter/anthropic/claude-x", "OPENROUTER_API_KEY", "openrouter.ai"),
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


# Other providers than that of the configured model


CONFIGURED = {"openai/ours": "openrouter/x", "openrouter/ours": "openai/x"}
VARIABLES = {"openai": "OPENAI_API_KEY", "openrouter": "OPENROUTER_API_KEY"}


@pytest.mark.parametrize(("configured", "chosen"), CONFIGURED.items())
@pytest.mark.parametrize("given", [{"api_key": "k"}, {"base_url": "http://127.0.0.1:1/v1"}])
def test_the_configured_key_and_address_are_not_for_another_provider(
    configured: str, chosen: str, given: dict[str, str]
) -> None:
    variable = VARIABLES[chosen.partition("/")[0]]
    with pytest.raises(ModelKeyMissing, match=f"needs a key: set {variable}. HOLDFAST_MODEL_API_KEY and"):
        opened(chosen, configured=configured, **given)
    host = "openrouter.ai" if chosen.startswith("openrouter/") else "api.openai.com"
    assert host in repr(opened(chosen, configured=configured, **given, **{variable: "other"}))


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
        with pytest.raises(ModelKeyMissing, match="set OPENAI_API_KEY"):
            opened("openai/x", configured=configured, api_key="k")


@pytest.mark.parametrize("name", ["", "gpt-x", "demo/x", "mistral/x", "openai", "openai/", "/x", "anthropic"])
def test_unknown_name_error_lists_the_possible_names(name: str) -> None:
    with pytest.raises(UnknownModel, match="demo, openai/NAME and openrouter/NAME"):
        opened(name, OPENAI_API_KEY="k")


def test_anthropic_error_points_to_openrouter() -> None:
    with pytest.raises(UnknownModel, match="not supported yet: use openrouter/anthropic/claude-x"):
        opened("anthropic/claude-x")


def test_every_settings_error_is_a_model_not_usable() -> None:
    with pytest.raises(ModelNotUsable):
        opened("openai/x", base_url="localhost:11434")
