"""A Copilot session with several providers: each key goes to the address that it was given for, or nowhere."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from copilot import CopilotClient

from tests.wire.copilot.harness import Home, Model, approving, ask, connected, last_answers_race, reply_to, says
from tests.wire.copilot.methods.world import Refused, desk_at

pytestmark = pytest.mark.anyio

KEYS = {"alpha": "key-of-alpha", "delta": "key-of-delta"}


class World:
    """A runtime, its own model, and two providers of a client."""

    def __init__(self, home: Home, client: CopilotClient, alpha: Model, delta: Model) -> None:
        self.home = home
        self.client = client
        self.servers = {"alpha": alpha, "delta": delta}

    def options(self, **more: Any) -> dict[str, Any]:
        providers = [
            {"name": name, "type": "openai", "wire_api": "completions", "base_url": server.url, "api_key": KEYS[name]}
            for name, server in self.servers.items()
        ]
        models = [
            {"id": "turbo", "provider": "alpha", "wire_model": "alpha-wire"},
            {"id": "turbo", "provider": "delta", "wire_model": "delta-wire"},
            {"id": "only", "provider": "delta"},
        ]
        return approving(providers=providers, models=models, **more)

    def keys_seen(self, words: str) -> dict[str, list[str]]:
        """The keys that each server was shown with a prompt."""
        servers = {"runtime": self.home.model, **self.servers}
        return {
            name: [headers.get("Authorization", "") for headers in server.headers_about(words)]
            for name, server in servers.items()
            if server.calls_about(words)
        }


@asynccontextmanager
async def world_at(folder: Path) -> AsyncIterator[World]:
    with last_answers_race():
        async with Model() as own, Model() as alpha, Model() as delta:
            for server in (own, alpha, delta):
                server.on("Who answers", says("Me."))
            home = Home(folder, own)
            async with home.serve() as process, connected(process.client()) as client:
                yield World(home, client, alpha, delta)


async def test_a_model_of_the_second_provider_is_asked_there_with_its_key_alone(tmp_path: Path) -> None:
    async with world_at(tmp_path) as world:
        session = await world.client.create_session(**world.options(model="delta/turbo"))
        await reply_to(session, "Who answers first")
        assert world.keys_seen("Who answers first") == {"delta": ["Bearer key-of-delta"]}
        assert world.servers["delta"].last_call_about("Who answers first")["model"] == "delta-wire"
        await ask(session, "session.model.switchTo", modelId="alpha/turbo")
        await reply_to(session, "Who answers second")
        assert world.keys_seen("Who answers second") == {"alpha": ["Bearer key-of-alpha"]}
        await ask(session, "session.model.switchTo", modelId="scripted")
        await reply_to(session, "Who answers third")
        seen = world.keys_seen("Who answers third")
        assert list(seen) == ["runtime"]
        assert not set(KEYS.values()) & {key.removeprefix("Bearer ") for key in seen["runtime"]}


async def test_a_client_that_comes_back_gives_each_key_to_its_own_provider_again(tmp_path: Path) -> None:
    async with world_at(tmp_path) as world:
        session = await world.client.create_session(**world.options(model="delta/turbo"))
        await reply_to(session, "Who answers first")
        again = await world.client.resume_session(session.session_id, **world.options())
        await reply_to(again, "Who answers after resuming")
        assert world.keys_seen("Who answers after resuming") == {"delta": ["Bearer key-of-delta"]}


PROVIDERS = [
    {"name": "alpha", "baseUrl": "https://alpha.example/v1", "apiKey": "key-of-alpha"},
    {"name": "delta", "baseUrl": "https://delta.example/v1", "apiKey": "key-of-delta"},
]
MODELS = [
    {"id": "turbo", "provider": "alpha"},
    {"id": "turbo", "provider": "delta"},
    {"id": "x/y", "provider": "delta"},
]


async def test_two_providers_at_one_address_keep_their_keys_apart(tmp_path: Path) -> None:
    async with desk_at(tmp_path) as desk:
        same = [{**found, "baseUrl": "https://same.example/v1"} for found in PROVIDERS]
        session = await desk.client().session(providers=same, models=MODELS, model="alpha/turbo")
        for name in ("delta", "alpha"):
            await session.ask("model.switchTo", modelId=f"{name}/turbo")
            state = await desk.runtime.operations.state(desk.key(session))
            assert state.provider is not None
            found = await desk.runtime.credentials.for_provider(desk.key(session), state.provider)
            assert found.api_key == f"key-of-{name}"


@pytest.mark.parametrize(
    "model",
    [
        "turbo",
        "x/y",
        "delta/x",
        "delta/Turbo",
        "delta/turbo ",
        "Delta/turbo",
        "delta/",
        "delta",
        "alpha/x/y",
        "third/x",
    ],
)
async def test_a_model_that_is_not_known_is_refused_and_asked_nowhere(tmp_path: Path, model: str) -> None:
    async with desk_at(tmp_path) as desk:
        client = desk.client()
        with pytest.raises(Refused, match=r"not available|add it to `models`|Name the model with its provider"):
            await client.session(providers=PROVIDERS, models=MODELS, model=model)
        session = await client.session(providers=PROVIDERS, models=MODELS, model="alpha/turbo")
        before = await session.events()
        for method in ("model.switchTo", "options.update"):
            with pytest.raises(Refused, match=r"not available|add it to `models`|Name the model with its provider"):
                await session.ask(method, modelId=model, model=model)
        assert await session.events() == before


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"providers": [*PROVIDERS, PROVIDERS[0]]}, "two providers called alpha"),
        ({"providers": [{**PROVIDERS[0], "name": "a/b"}]}, "without a slash"),
        ({"providers": [{"baseUrl": "https://alpha.example/v1"}]}, "needs a name"),
        ({"providers": PROVIDERS, "models": [*MODELS, MODELS[0]]}, "alpha/turbo is given twice"),
        ({"providers": PROVIDERS, "models": [{"id": "turbo", "provider": "third"}]}, "of third, which is not given"),
        ({"providers": PROVIDERS, "provider": PROVIDERS[0]}, "not both"),
    ],
)
async def test_providers_that_could_be_mistaken_for_one_another_are_refused(
    tmp_path: Path, given: dict[str, Any], why: str
) -> None:
    async with desk_at(tmp_path) as desk:
        with pytest.raises(Refused, match=why):
            await desk.client().session(**given)


async def test_a_client_without_the_provider_can_not_choose_among_its_models(tmp_path: Path) -> None:
    async with desk_at(tmp_path) as desk:
        session = await desk.client().session(providers=PROVIDERS, models=MODELS, model="delta/turbo")
        other = desk.client()
        await other.ask("session.resume", sessionId=session.id)
        with pytest.raises(Refused, match="To choose among the models of delta, resume the session with it"):
            await other.ask("session.model.switchTo", sessionId=session.id, modelId="delta/x/y")
        await other.ask("session.model.switchTo", sessionId=session.id, modelId="second")
        state = await desk.runtime.operations.state(desk.key(session))
        assert (state.model, state.provider) == ("copilot/second", None)
