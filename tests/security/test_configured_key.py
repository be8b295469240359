"""The configured model key and URL are for one provider, whichever model a session chooses."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.app import Runtime
from holdfast.models.scripted import Reply, Rule, Script
from holdfast.models.server import ModelServer
from tests.http.world import Place, code_of, patience

pytestmark = pytest.mark.anyio

HI = Script((Rule((Reply(text="hi"),)),))


@asynccontextmanager
async def runtime_at(folder: Path, environ: Mapping[str, str]) -> AsyncIterator[Runtime]:
    async with Runtime(database=folder / "holdfast.db", environ=environ) as runtime, patience():
        yield runtime


def keys_seen(server: ModelServer) -> set[str | None]:
    return {headers.get("authorization") for headers in server.headers}


async def test_each_provider_sees_its_own_key_alone(tmp_path: Path) -> None:
    async with ModelServer(HI) as ours, ModelServer(HI) as openai:
        environ = {
            "HOME": str(tmp_path),
            "HOLDFAST_MODEL": "openrouter/a",
            "HOLDFAST_MODEL_BASE_URL": ours.url,
            "HOLDFAST_MODEL_API_KEY": "configured",
            "OPENAI_BASE_URL": openai.url,
            "OPENAI_API_KEY": "of-openai",
        }
        async with runtime_at(tmp_path, environ) as runtime:
            for model in (None, "openrouter/b", "openai/x"):
                session = await runtime.session(model=model)
                assert (await session.run("Hello.")).text == "hi"
    assert keys_seen(ours) == {"Bearer configured"}
    assert keys_seen(openai) == {"Bearer of-openai"}


async def test_the_key_is_withheld_from_another_provider_without_a_key(tmp_path: Path) -> None:
    async with ModelServer(HI) as ours, ModelServer(HI) as openai:
        environ = {
            "HOME": str(tmp_path),
            "HOLDFAST_MODEL": "openrouter/a",
            "HOLDFAST_MODEL_BASE_URL": ours.url,
            "HOLDFAST_MODEL_API_KEY": "configured",
            "OPENAI_BASE_URL": openai.url,
        }
        async with runtime_at(tmp_path, environ) as runtime:
            session = await runtime.session(model="openai/x")
            await session.run("Hello.")
    assert keys_seen(openai) == {None}
    assert keys_seen(ours) == set()


@pytest.mark.parametrize(
    ("configured", "chosen", "variable"),
    [
        ("openrouter/a", "openai/x", "OPENAI_API_KEY"),
        ("openai/local", "openrouter/x", "OPENROUTER_API_KEY"),
    ],
)
async def test_a_client_that_chooses_another_provider_is_refused_with_the_variable_to_set(
    tmp_path: Path, configured: str, chosen: str, variable: str
) -> None:
    async with ModelServer(HI) as ours:
        place = Place(tmp_path, HOLDFAST_MODEL_API_KEY="configured", HOLDFAST_MODEL_BASE_URL=ours.url)
        async with place.serve("--model", configured) as server, server.client() as client:
            refused = await client.post("/v1/sessions", json={"model": chosen})
            assert refused.status_code == 422
            assert code_of(refused) == "model_not_usable"
            assert f"set {variable}. HOLDFAST_MODEL_API_KEY and" in refused.json()["error"]["message"]
        assert keys_seen(ours) == set()
