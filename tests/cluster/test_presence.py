"""Clients that are present at one node, and a turn that runs at another: their tools are asked for, and what nobody can
answer any more is not waited for, even if their node dies without a word. The clients are real ones."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from copilot.rpc import PermissionDecisionUserNotAvailable
from copilot.session import PermissionNoResult, PermissionRequestResult
from copilot.session_events import PermissionCompletedData, PermissionRequest, PermissionRequestedData

from proof.chaos import audit
from tests.cluster.world import until
from tests.wire.copilot.harness import (
    Heard,
    Home,
    Model,
    Server,
    approving,
    calls,
    client_tool,
    connected,
    last_answers_race,
    reply_to,
    says,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def talker() -> AsyncIterator[Model]:
    with last_answers_race():
        async with Model() as server:
            yield server


class Place:
    """Nodes for these clients, at one database."""

    def __init__(self, folder: Path, url: str, model: Model) -> None:
        self._folder = folder
        self._url = url
        self._model = model

    @contextlib.asynccontextmanager
    async def node(self, name: str, **settings: str) -> AsyncIterator[Server]:
        (self._folder / name).mkdir()
        told = {
            "HOLDFAST_DATABASE": audit.named(self._url, name),
            "HOLDFAST_MODEL": "openai/scripted",
            "HOLDFAST_MODEL_BASE_URL": self._model.url,
            "HOLDFAST_NODE": name,
            "HOLDFAST_SHARED_DIRECTORIES": str(self._folder),
            "COPILOT_API_URL": "",
        }
        async with Home(self._folder / name, self._model).serve(**told, **settings) as server:
            yield server


@pytest.fixture
def place(tmp_path: Path, audited_url: str, talker: Model) -> Place:
    return Place(tmp_path, audited_url, talker)


def leaves_it(request: PermissionRequest, invocation: Any) -> PermissionRequestResult:
    return PermissionNoResult()


def not_available(request: PermissionRequest, invocation: Any) -> PermissionRequestResult:
    return PermissionDecisionUserNotAvailable()


async def test_fault_30_a_tool_of_a_client_at_one_node_is_asked_for_by_a_turn_at_another(
    place: Place, audited_url: str, talker: Model
) -> None:
    talker.on("Keep it busy", says("Busy no more."))
    talker.on("Use magic_number", calls("magic_number", value="hello"), says("{last_tool_result}"))
    hold = talker.hold("Keep it busy")
    async with (
        place.node("here", HOLDFAST_MAX_SESSIONS_PER_PROCESS="1") as here,
        connected(here.client()) as client,
    ):
        busy = await client.create_session(**approving())
        await busy.send("Keep it busy")
        await hold.until_reached()
        async with place.node("there"):
            tool = client_tool("magic_number", lambda arguments: f"MAGIC_{arguments['value']}_42")
            session = await client.create_session(**approving(tools=[tool]))
            assert await reply_to(session, "Use magic_number") == "MAGIC_hello_42"
            noted = await audit.noted(audited_url)
            assert session.session_id in audit.claims(noted, "there")
            assert session.session_id not in audit.claims(noted, "here"), "its client's node was busy all the time"
            assert list(audit.trespasses(noted)) == []
            hold.release()


async def test_fault_30_when_the_node_of_the_only_one_who_could_decide_dies_the_request_is_denied(
    place: Place, audited_url: str, talker: Model
) -> None:
    talker.on("Ask us both", calls("create", path="x.txt", file_text="x"), says("Over."))
    heard = Heard()
    async with place.node("here") as here, connected(here.client()) as somebody:
        session = await somebody.create_session(on_permission_request=leaves_it)
        async with place.node("there") as there, connected(there.client()) as nobody:
            resumed = await nobody.resume_session(
                session.session_id, on_permission_request=not_available, on_event=heard
            )
            await resumed.send("Ask us both")
            asked = await heard.until(PermissionRequestedData)
            await until(lambda: has_declined(audited_url))
            assert heard.all(PermissionCompletedData) == [], "somebody else could still decide"
            await somebody.force_stop()
            await here.kill()
            # As if so much time had passed: nobody is told of a death.
            await audit.run(audited_url, GONE)
            completed = await heard.until(PermissionCompletedData)
            assert completed.request_id == asked.request_id
            assert str(completed.result.kind).startswith("denied"), completed
            await heard.until_idle()


GONE = """
UPDATE holdfast.process SET alive_until = now(), leases_until = now() WHERE node = 'here'
"""


async def has_declined(url: str) -> bool:
    return bool(await audit.ask(url, "SELECT 1 FROM holdfast.attachment WHERE declined <> '{}'"))
