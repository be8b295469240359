"""The endpoint that Copilot's clients name in `COPILOT_API_URL`."""

import socket
from typing import Any

import pytest

from holdfast.models.catalogue import open_model
from holdfast.models.copilot_endpoint import LIST_SECONDS, MAX_LISTS, CopilotEndpoint
from holdfast.models.errors import BadBaseUrl, UnknownModel
from holdfast.models.http_model import HttpModel
from holdfast.models.info import DEFAULT_WINDOW
from holdfast.models.model import ModelError
from holdfast.models.scripted import Reply, Rule, Script
from holdfast.models.server import ModelServer
from tests.models.answers import answer_of, asking, failed_answer_of, text_of
from tests.models.raw_server import RawServer, http

pytestmark = pytest.mark.anyio

HI = Script((Rule((Reply(text="hi"),)),))
OURS = "sk-the-servers-own-key"


def endpoint(**environ: str) -> CopilotEndpoint:
    found = CopilotEndpoint.from_environ(environ)
    assert found is not None
    return found


def opened(name: str, **environ: str) -> HttpModel:
    model = open_model(name, configured="openai/ours", base_url="http://ours.invalid/v1", api_key=OURS, environ=environ)
    assert isinstance(model, HttpModel)
    return model


# Calling


@pytest.mark.parametrize(
    ("environ", "token"),
    [
        ({"COPILOT_SDK_AUTH_TOKEN": "a", "GH_TOKEN": "b", "GITHUB_TOKEN": "c"}, "Bearer a"),
        ({"COPILOT_SDK_AUTH_TOKEN": " ", "GH_TOKEN": "b", "GITHUB_TOKEN": "c"}, "Bearer b"),
        ({"GITHUB_TOKEN": "c\n"}, "Bearer c"),
        ({"OPENAI_API_KEY": OURS}, None),
    ],
)
async def test_calls_carry_the_clients_token_and_never_our_keys(environ: dict[str, str], token: str | None) -> None:
    async with ModelServer(HI) as server:
        async with opened("copilot/claude/x", COPILOT_API_URL=server.url, **environ) as model:
            assert text_of(await answer_of(model, asking())) == "hi"
            assert model.name == "copilot/claude/x"
        assert server.headers[0].get("authorization") == token
        assert b'"model":"claude/x"' in server.requests[0]


def test_copilot_models_do_not_exist_without_the_address() -> None:
    with pytest.raises(UnknownModel, match="needs COPILOT_API_URL, which is not set"):
        opened("copilot/x", GITHUB_TOKEN="c")
    with pytest.raises(UnknownModel):
        opened("copilot/", COPILOT_API_URL="http://x/v1")
    assert CopilotEndpoint.from_environ({"COPILOT_API_URL": " "}) is None


async def test_errors_name_the_endpoints_own_variables() -> None:
    async with ModelServer(HI, api_key="other") as server:
        model = opened("copilot/x", COPILOT_API_URL=server.url, GITHUB_TOKEN="hush-hush")
        _, error = await failed_answer_of(model, asking())
        await model.close()
    assert "the token that the client was given" in error.message
    assert "hush" not in error.message + repr(model)
    with pytest.raises(BadBaseUrl):
        opened("copilot/x", COPILOT_API_URL="x")


# Listing

MODELS: list[dict[str, Any]] = [
    {
        "id": "gpt-x",
        "name": "GPT X",
        "capabilities": {"family": "x", "supports": {"vision": True}, "limits": {"max_prompt_tokens": 9}},
        "policy": {"state": "enabled"},
    },
    {"id": "plain"},
]


async def test_listed_models_have_all_fields_that_clients_need_and_keep_their_order() -> None:
    async with ModelServer(HI, api_key="t", models=MODELS) as server:
        found = await endpoint(COPILOT_API_URL=server.url, GH_TOKEN="t").list_models()
    assert found == [
        MODELS[0],
        {"id": "plain", "name": "plain", "capabilities": {"supports": {}, "limits": {}}},
    ]


@pytest.mark.parametrize(
    ("limits", "window", "max_output"),
    [
        ({"max_context_window_tokens": 400_000, "max_output_tokens": 64_000}, 400_000, 64_000),
        (
            {"max_context_window_tokens": 400_000, "max_prompt_tokens": 128_000, "max_output_tokens": 64_000},
            192_000,
            64_000,
        ),
        ({"max_prompt_tokens": 100_000}, 100_000, None),
        ({}, DEFAULT_WINDOW, None),
        (
            {"max_context_window_tokens": -1, "max_prompt_tokens": "many", "max_output_tokens": True},
            DEFAULT_WINDOW,
            None,
        ),
    ],
)
async def test_the_facts_in_the_list_are_those_of_the_model(
    limits: dict[str, Any], window: int, max_output: int | None
) -> None:
    listing = [{"id": "x", "capabilities": {"supports": {"vision": False, "tool_calls": True}, "limits": limits}}]
    async with ModelServer(HI, models=listing) as server:
        found = endpoint(COPILOT_API_URL=server.url)
        assert found.open("x").info.takes_images
        await found.list_models()
        info = found.open("x").info
    assert (info.window, info.max_output, info.takes_images, info.takes_tools) == (window, max_output, False, True)


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (b'{"data": [{"id": "a"}, 7, {"name": "b"}, {"id": 3}, {"id": ""}, {"id": "a", "name": "again"}]}', ["a"]),
        (b'{"models": [{"id": "a", "name": 5, "capabilities": [1]}]}', ["a"]),
        (b'[{"id": "a"}, {"id": "b"}]', ["a", "b"]),
        (b'{"data": {"id": "a"}}', []),
        (b"7", []),
    ],
)
async def test_malformed_list_keeps_its_readable_entries(body: bytes, ids: list[str]) -> None:
    async with RawServer([http(body, content_type="application/json")]) as server:
        found = await endpoint(COPILOT_API_URL=server.url).list_models()
    assert [model["id"] for model in found] == ids
    for model in found:
        assert isinstance(model["name"], str)
        assert model["capabilities"] == {"supports": {}, "limits": {}}


async def test_list_is_cached_for_five_minutes_per_token() -> None:
    now = 100.0
    async with RawServer([http(b'[{"id": "a"}]', content_type="application/json")]) as server:
        found = CopilotEndpoint(server.url, "one", seconds=lambda: now)
        (await found.list_models()).clear()
        assert [model["id"] for model in await found.list_models()] == ["a"]
        assert server.connections == 1
        await found.list_models(token="two")
        assert server.connections == 2
        now += LIST_SECONDS
        await found.list_models(token="two")
        assert server.connections == 3
        for number in range(MAX_LISTS):
            await found.list_models(token=f"t{number}")
        await found.list_models(token="two")
        assert server.connections == 4 + MAX_LISTS, "the oldest list was dropped"


async def test_unreachable_endpoint_is_reported_and_not_cached() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(ModelError, match="is it running\\? check COPILOT_API_URL") as raised:
            await endpoint(COPILOT_API_URL=f"http://127.0.0.1:{port}").list_models()
    assert raised.value.code == "model_unreachable"


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (http(b"{", content_type="application/json"), "model_garbage"),
        (http(b"<html>", content_type="text/html"), "model_garbage"),
        (http(b"{}", status="401 No"), "model_unauthorized"),
        (http(b"{}", status="302 Found", headers="Location: http://evil.example/\r\n"), "model_refused"),
        (http(b"{}", status="503 No"), "model_unavailable"),
        (b"", "model_cut"),
    ],
)
async def test_failed_list_has_its_error_code(response: bytes, code: str) -> None:
    async with RawServer([response]) as server:
        with pytest.raises(ModelError) as raised:
            await endpoint(COPILOT_API_URL=server.url, GH_TOKEN="hush-hush").list_models()
    assert raised.value.code == code
    assert "hush" not in raised.value.message


async def test_repr_hides_the_token() -> None:
    found = endpoint(COPILOT_API_URL="http://x/v1", GH_TOKEN="hush-hush")
    assert "hush" not in repr(found)
