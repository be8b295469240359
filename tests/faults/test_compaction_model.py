"""The model that makes summaries: the configured one for sessions that use the server's models, and nobody else's for a
session that brought a provider of its own."""

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from holdfast.app import Runtime
from holdfast.events.session import Provider, SettingsChanged
from holdfast.models.scripted import Reply, Rule, Script
from holdfast.models.server import ModelServer
from holdfast.models.summary_request import INSTRUCTIONS
from holdfast.server.embedded.session import Session
from holdfast.server.operations import SessionOptions
from tests.faults.world import patience, settings

pytestmark = pytest.mark.anyio

TALK: Final = Script((Rule((Reply(text="Noted. " * 100),)),), summary=Reply(text="Goal\nTo note things."))


def summaries(server: ModelServer) -> list[dict[str, Any]]:
    """The requests for a summary that the server got."""
    found = [msgspec.json.decode(body) for body in server.requests]
    beginning = INSTRUCTIONS.partition("{")[0]
    return [request for request in found if request["messages"][0]["content"].startswith(beginning)]


async def compact(session: Session) -> None:
    for number in range(3):
        await session.run(f"Sentence {number}")
    made = await session.compact(instructions="Keep the numbers.", wait_seconds=20)
    assert made.outcome == "compacted"


@pytest.mark.parametrize("brings_provider", [False, True])
async def test_a_summary_is_asked_of_the_configured_model_and_never_of_it_for_an_own_provider(
    database: Path, brings_provider: bool
) -> None:
    async with patience(), ModelServer(TALK) as server, ModelServer(TALK) as own:
        base = {"model": "openai/m", "model_base_url": server.url, "model_compaction": "openai/cheap"}
        async with Runtime(config=settings(database, titles="words", **base)) as runtime:
            changed = SettingsChanged(provider=Provider(base_url=own.url, model="theirs"))
            options = SessionOptions(settings=changed) if brings_provider else SessionOptions()
            await compact(await runtime.create(options))
        (request,) = summaries(own if brings_provider else server)
        assert request["model"] == ("theirs" if brings_provider else "cheap")
        assert request["messages"][0]["content"].endswith("Keep the numbers.")
        assert not list(server.requests if brings_provider else own.requests)
