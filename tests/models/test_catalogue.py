"""Opening a model by its name, with the keys and addresses of the settings."""

import json

import pytest

from holdfast.models.catalogue import open_model, thinking_field
from holdfast.models.errors import ModelKeyMissing, ModelNotUsable, UnknownModel
from holdfast.models.model import ModelRequest, UserText
from holdfast.models.openai_compatible import OpenAICompatible
from holdfast.models.scripted import Reply, Rule, Script
from holdfast.models.server import ModelServer
from tests.models.answers import answer_of, asking, text_of
from tests.models.raw_server import RawServer, http

pytestmark = pytest.mark.anyio

HI = Script((Rule((Reply(text="hi"),)),))
ANSWER = http(b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n')


def opened(name: str, *, base_url: str | None = None, api_key: str | None = None, **environ: str) -> OpenAICompatible:
    model = open_model(name, base_url=base_url, api_key=api_key, environ=environ)
    assert isinstance(model, OpenAICompatible)
    return model


def test_demo_needs_no_settings() -> None:
    assert open_model("demo", base_url=None, api_key=None, environ={}).name == "demo"


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
