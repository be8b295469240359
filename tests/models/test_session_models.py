"""The models that sessions chose: their own provider with its own secrets, and never with our keys."""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.events.ids import Key
from holdfast.events.session import Provider
from holdfast.models.choice import OWN_MODEL, ModelChoice, row_model
from holdfast.models.credentials import Credentials, ProviderSecrets, Secrets
from holdfast.models.errors import BadBaseUrl, ModelNotUsable, SecretsUnknown, UnknownModel
from holdfast.models.model import Model
from holdfast.models.own_provider import check_provider
from holdfast.models.scripted import Reply, Rule, Script
from holdfast.models.server import ModelServer
from holdfast.models.session_models import SessionModels
from holdfast.store.sqlite.store import SqliteStore
from holdfast.testing.store_conformance.words import KEY, OTHER, create
from tests.models.answers import answer_of, asking, failed_answer_of, text_of
from tests.models.raw_server import RawServer, http

pytestmark = pytest.mark.anyio

HI = Script((Rule((Reply(text="hi"),)),))
ANSWER = http(b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n')
OURS = "sk-the-servers-own-key"
VARIABLES = ("OPENAI_API_KEY", "OPENROUTER_API_KEY", "COPILOT_SDK_AUTH_TOKEN", "GH_TOKEN", "GITHUB_TOKEN")
ENVIRON = dict.fromkeys(VARIABLES, OURS)


@pytest.fixture
async def credentials(tmp_path: Path) -> AsyncIterator[Credentials]:
    store = await SqliteStore.open(tmp_path / "holdfast.db", node="here")
    await create(store)
    await create(store, OTHER)
    yield Credentials(store)
    await store.close()


@pytest.fixture
async def models(credentials: Credentials) -> AsyncIterator[SessionModels]:
    """Models with our own keys in every place that could hold one."""
    found = SessionModels(default="openai/ours", base_url="http://ours.invalid/v1", api_key=OURS, environ=ENVIRON)
    yield found
    await found.close()


def chose(url: str, *, name: str | None = "gpt-x", key: Key = KEY, **provider: Any) -> ModelChoice:
    return ModelChoice(key=key, name=name, provider=Provider(base_url=url, **provider))


async def say_hi(model: Model) -> None:
    assert text_of(await answer_of(model, asking())) == "hi"


# Own providers


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (ProviderSecrets(api_key="theirs"), {"authorization": "Bearer theirs"}),
        (ProviderSecrets(bearer_token="theirs"), {"authorization": "Bearer theirs"}),
        (ProviderSecrets(api_key="a", bearer_token="b"), {"authorization": "Bearer b"}),
        (ProviderSecrets(headers={"X-Org": "o"}), {"x-org": "o", "authorization": None}),
        (ProviderSecrets(headers={"Authorization": "Basic abcd"}), {"authorization": "Basic abcd"}),
    ],
)
async def test_own_provider_is_called_with_its_own_secrets(
    models: SessionModels, credentials: Credentials, given: ProviderSecrets, sent: dict[str, str | None]
) -> None:
    async with ModelServer(HI) as server:
        await credentials.put(KEY, Secrets(providers={server.url: given}))
        model = await models.model(chose(server.url, has_secrets=True), credentials)
        assert model.name == "gpt-x"
        await say_hi(model)
        assert {name: server.headers[0].get(name) for name in sent} == sent


@pytest.mark.parametrize("provider_type", ["openai", "azure"])
@pytest.mark.parametrize("has_secrets", [True, False])
async def test_our_keys_never_go_to_a_clients_address(
    models: SessionModels, credentials: Credentials, provider_type: str, has_secrets: bool
) -> None:
    async with RawServer([ANSWER]) as server:
        await credentials.put(KEY, Secrets(providers={server.url: ProviderSecrets()}, github_token=OURS))
        await say_hi(await models.model(chose(server.url, type=provider_type, has_secrets=has_secrets), credentials))
    assert OURS.encode() not in server.requests[0]
    assert b"authorization" not in server.requests[0].lower()
    assert b"api-key" not in server.requests[0].lower()


async def test_secrets_for_one_address_do_not_go_to_another(models: SessionModels, credentials: Credentials) -> None:
    async with RawServer([ANSWER]) as server:
        await credentials.put(KEY, Secrets(providers={"http://first.example/v1": ProviderSecrets(api_key="first")}))
        with pytest.raises(SecretsUnknown):
            await models.model(chose(server.url, has_secrets=True), credentials)
        await say_hi(await models.model(chose(server.url), credentials))
    assert b"first" not in server.requests[0]


@pytest.mark.parametrize(
    ("provider", "given", "line", "headers"),
    [
        (
            {"type": "azure", "api_version": "2024-10-21"},
            ProviderSecrets(api_key="az"),
            "POST /openai/deployments/gpt%2Fx%20y/chat/completions?api-version=2024-10-21 HTTP/1.1",
            ["api-key: az"],
        ),
        (
            {"type": "azure"},
            ProviderSecrets(api_key="az"),
            "POST /openai/v1/chat/completions HTTP/1.1",
            ["api-key: az"],
        ),
        (
            {"type": "azure"},
            ProviderSecrets(bearer_token="tok", api_key="az"),
            "POST /openai/v1/chat/completions HTTP/1.1",
            ["authorization: bearer tok"],
        ),
        ({}, ProviderSecrets(api_key="k"), "POST /chat/completions HTTP/1.1", ["authorization: bearer k"]),
    ],
)
async def test_azure_calls_have_azures_url_and_headers(
    models: SessionModels,
    credentials: Credentials,
    provider: dict[str, Any],
    given: ProviderSecrets,
    line: str,
    headers: list[str],
) -> None:
    async with RawServer([ANSWER]) as server:
        url = server.url.removesuffix("/v1")
        await credentials.put(KEY, Secrets(providers={url: given}))
        choice = chose(url, name="gpt/x y", has_secrets=True, **provider)
        await say_hi(await models.model(choice, credentials))
    head = server.requests[0].partition(b"\r\n\r\n")[0].decode().split("\r\n")
    assert head[0] == line
    keys = [found.lower() for found in head if found.lower().startswith(("authorization:", "api-key:"))]
    assert keys == headers


@pytest.mark.parametrize(
    ("provider", "given", "line", "headers"),
    [
        (
            {"type": "anthropic"},
            ProviderSecrets(api_key="k"),
            "POST /v1/messages HTTP/1.1",
            ["authorization: bearer k"],
        ),
        (
            {"type": "anthropic"},
            ProviderSecrets(api_key="k", bearer_token="tok"),
            "POST /v1/messages HTTP/1.1",
            ["authorization: bearer tok"],
        ),
        (
            {"wire_api": "responses"},
            ProviderSecrets(api_key="k"),
            "POST /responses HTTP/1.1",
            ["authorization: bearer k"],
        ),
        (
            {"type": "azure", "wire_api": "responses", "api_version": "v"},
            ProviderSecrets(api_key="az"),
            "POST /openai/responses?api-version=v HTTP/1.1",
            ["api-key: az"],
        ),
    ],
)
async def test_own_provider_is_called_in_the_protocol_that_its_client_chose(
    models: SessionModels,
    credentials: Credentials,
    provider: dict[str, Any],
    given: ProviderSecrets,
    line: str,
    headers: list[str],
) -> None:
    async with RawServer([http(b"{}", status="400 Bad", content_type="application/json")]) as server:
        url = server.url.removesuffix("/v1")
        await credentials.put(KEY, Secrets(providers={url: given}))
        model = await models.model(chose(url, has_secrets=True, **provider), credentials)
        await failed_answer_of(model, asking())
    head = server.requests[0].partition(b"\r\n\r\n")[0].decode().split("\r\n")
    assert head[0] == line
    keys = [found.lower() for found in head if found.lower().startswith(("authorization:", "api-key:", "x-api-key:"))]
    assert keys == headers


async def test_the_limits_that_a_client_states_are_facts_about_the_model(
    models: SessionModels, credentials: Credentials
) -> None:
    url = "http://127.0.0.1:1/v1"
    stated = (await models.model(chose(url, max_window=50_000, max_output=5_000), credentials)).info
    assert (stated.window, stated.max_output, stated.is_known) == (50_000, 5_000, True)
    assert not (await models.model(chose(url), credentials)).info.is_known


async def test_a_fallback_that_can_not_be_used_is_refused_at_start() -> None:
    def check(fallback: str, environ: dict[str, str]) -> None:
        SessionModels(default="openai/ours", environ=ENVIRON | environ, fallback=fallback).check_default()

    check("openai/other", {})
    check("anthropic/other", {"ANTHROPIC_API_KEY": OURS})
    with pytest.raises(ModelNotUsable, match=r"HOLDFAST_MODEL_FALLBACK can't be used\. The model anthropic/other"):
        check("anthropic/other", {})
    with pytest.raises(ModelNotUsable, match=r"HOLDFAST_MODEL_FALLBACK can't be used\. There is no model 'x/y'"):
        check("x/y", {})


async def test_complete_azure_url_is_used_as_it_is(models: SessionModels, credentials: Credentials) -> None:
    async with RawServer([ANSWER]) as server:
        url = f"{server.url.removesuffix('/v1')}/openai/deployments/d/"
        await say_hi(await models.model(chose(url, type="azure", api_version="v"), credentials))
    assert server.requests[0].startswith(b"POST /openai/deployments/d/chat/completions?api-version=v HTTP/1.1")


async def test_provider_may_have_its_own_name_for_the_model(models: SessionModels, credentials: Credentials) -> None:
    async with ModelServer(HI) as server:
        model = await models.model(chose(server.url, name="fancy", model="plain"), credentials)
        await say_hi(model)
        assert b'"model":"plain"' in server.requests[0]
        assert model.name == "fancy"
        assert (await models.model(chose(server.url, name=None, model="plain"), credentials)).name == "plain"


@pytest.mark.parametrize(
    ("provider", "why", "error"),
    [
        (Provider(base_url="x/v1"), "must look like", BadBaseUrl),
        (Provider(base_url="http://ho st/v1"), "must look like", BadBaseUrl),
        (Provider(base_url="http://me:hush@x/v1"), "no user name", BadBaseUrl),
        (Provider(base_url="http://x/v1?key=hush"), "no user name", BadBaseUrl),
        (Provider(base_url=f"http://{'x' * 3000}/v1"), "2,000 characters", BadBaseUrl),
    ],
)
async def test_unusable_provider_is_refused_at_once_or_fails_its_turns_with_the_reason(
    models: SessionModels, credentials: Credentials, provider: Provider, why: str, error: type[ModelNotUsable]
) -> None:
    with pytest.raises(error, match=why) as raised:
        check_provider(provider)
    assert "hush" not in str(raised.value)
    model = await models.model(ModelChoice(key=KEY, name="gpt-x", provider=provider), credentials)
    _, failure = await failed_answer_of(model, asking())
    assert (failure.code, failure.retryable, failure.message) == ("model_refused", False, raised.value.message)


def test_a_provider_of_azure_needs_no_path() -> None:
    check_provider(Provider(base_url="https://x.openai.azure.com", type="azure"))


async def test_provider_without_a_model_name_says_so(models: SessionModels, credentials: Credentials) -> None:
    model = await models.model(chose("http://x/v1", name=None), credentials)
    _, failure = await failed_answer_of(model, asking())
    assert "needs a model" in failure.message


async def test_failure_names_the_provider_and_shows_no_secrets(models: SessionModels, credentials: Credentials) -> None:
    refusal = http(b'{"error":"no hush-org, no hush-key"}', status="400 Bad", content_type="application/json")
    async with RawServer([refusal]) as server:
        given = ProviderSecrets(api_key="hush-key", headers={"X-Org": "hush-org"})
        await credentials.put(KEY, Secrets(providers={server.url: given}))
        model = await models.model(chose(server.url, has_secrets=True), credentials)
        _, failure = await failed_answer_of(model, asking())
        assert (failure.status, "hush" in failure.message) == (400, False)
    assert "hush" not in repr(model)
    async with ModelServer(HI, api_key="other") as server:
        _, failure = await failed_answer_of(await models.model(chose(server.url), credentials), asking())
    assert "check the key that the session's client gave" in failure.message
    assert failure.status == 401


# Sharing and eviction


async def test_sessions_with_the_same_key_share_a_model_and_others_do_not(
    models: SessionModels, credentials: Credentials
) -> None:
    async def opened(key: Key, secret: str) -> Model:
        await credentials.put(key, Secrets(providers={"http://x/v1": ProviderSecrets(api_key=secret)}))
        return await models.model(chose("http://x/v1", key=key, has_secrets=True), credentials)

    first = await opened(KEY, "one")
    assert await opened(OTHER, "one") is first
    assert await opened(OTHER, "two") is not first
    assert await opened(KEY, "one") is first


async def test_evicted_model_finishes_its_calls_first(
    models: SessionModels, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.models.session_models.MAX_OPEN", 2)
    asked, go = asyncio.Event(), asyncio.Event()

    async def gate(index: int) -> None:
        asked.set()
        await go.wait()

    async with ModelServer(HI, gate=gate) as server:
        first = await models.model(chose(server.url, name="m0"), credentials)
        call = asyncio.create_task(answer_of(first, asking()))
        await asked.wait()
        for number in (1, 2):
            await models.model(chose(server.url, name=f"m{number}"), credentials)
        go.set()
        assert text_of(await call) == "hi"
        assert await models.model(chose(server.url, name="m0"), credentials) is not first
        # A connection left open would warn here, and warnings are errors.
        del first, call
        gc.collect()


# Models by name


async def test_session_without_a_provider_uses_a_model_by_name(credentials: Credentials) -> None:
    async with ModelServer(HI, api_key=OURS) as server:
        models = SessionModels(default="openai/ours", base_url=server.url, api_key=OURS, environ={})
        models.check_default()
        await say_hi(await models.model(ModelChoice(key=KEY), credentials))
        await say_hi(await models.model(ModelChoice(key=KEY, name="openai/other"), credentials))
        await models.close()
        assert [b'"model":"ours"' in body for body in server.requests] == [True, False]


async def test_unknown_model_name_is_not_usable(models: SessionModels, credentials: Credentials) -> None:
    with pytest.raises(UnknownModel):
        await models.model(ModelChoice(key=KEY, name="mistral/x"), credentials)
    with pytest.raises(UnknownModel):
        SessionModels(default="nothing", environ={}).check_default()


def test_row_model_is_the_name_unless_the_client_gave_a_provider_or_token() -> None:
    assert row_model("openai/x", None) == "openai/x"
    assert row_model(None, None) is None
    assert row_model("openai/x", Provider(base_url="http://x/v1")) == OWN_MODEL
    assert row_model("copilot/x", None, own_token=True) == OWN_MODEL


# Copilot's endpoint


async def test_own_token_takes_precedence_over_the_process_token(credentials: Credentials) -> None:
    async with ModelServer(HI) as server:
        environ = {"COPILOT_API_URL": server.url, "GITHUB_TOKEN": "of-the-process"}
        models = SessionModels(default="demo", base_url="http://ours.invalid/v1", api_key=OURS, environ=environ)
        await say_hi(await models.model(ModelChoice(key=KEY, name="copilot/gpt-x"), credentials))
        await credentials.put(KEY, Secrets(github_token="of-the-session"))
        await say_hi(await models.model(ModelChoice(key=KEY, name="copilot/gpt-x"), credentials))
        await say_hi(await models.model(ModelChoice(key=OTHER, name="copilot/gpt-x"), credentials))
        assert [sent["authorization"] for sent in server.headers] == [
            "Bearer of-the-process",
            "Bearer of-the-session",
            "Bearer of-the-process",
        ]
        assert b'"model":"gpt-x"' in server.requests[0]
        await models.close()


async def test_session_with_an_unknown_token_does_not_run_with_another(credentials: Credentials) -> None:
    models = SessionModels(default="demo", environ={"COPILOT_API_URL": "http://x/v1", "GITHUB_TOKEN": "ours"})
    await credentials.put(KEY, Secrets(github_token="theirs"))
    elsewhere = Credentials(credentials._vault)
    with pytest.raises(SecretsUnknown):
        await models.model(ModelChoice(key=KEY, name="copilot/gpt-x"), elsewhere)


async def test_no_models_are_listed_without_an_endpoint(models: SessionModels) -> None:
    assert await models.list_models() == []
