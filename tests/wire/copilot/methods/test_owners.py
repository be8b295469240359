"""A session of another owner on the same database is answered exactly like one that there is not, by every method."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from holdfast.events.ids import Owner
from holdfast.models.scripted import ScriptedCall
from holdfast.server.copilot.model_names import ModelNames
from holdfast.server.copilot.service import CopilotService
from holdfast.server.copilot.surface import METHODS
from tests.wire.copilot.methods.world import MODELS, Client, Desk, Session, desk_at

pytestmark = pytest.mark.anyio

BY_CREATION = {"session.create"}
"""Methods that make a session of one's own under the id."""


async def no_models() -> list[dict[str, Any]]:
    return []


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with desk_at(
        tmp_path_factory.mktemp("owners"), ScriptedCall("create", {"path": "note.txt", "file_text": "x"}), "Written."
    ) as found:
        yield found


@pytest.fixture(scope="module")
async def theirs(desk: Desk) -> Session:
    """A session that waits for a permission."""
    session = await desk.client().session(sessionId="theirs")
    await session.ask("plan.update", content="the plan")
    await session.ask("send", prompt="write a note")
    await session.client.until("permission.requested")
    return session


@pytest.fixture(scope="module")
async def stranger(desk: Desk) -> AsyncIterator[Client]:
    """A client of another owner, as on another process of the same database."""
    runtime = desk.runtime
    service = CopilotService(
        operations=runtime.operations,
        tasks=runtime.task_operations,
        shell=runtime.shell,
        clock=runtime.clock,
        settings=msgspec.structs.replace(desk.service.settings, owner=Owner("stranger")),
        models=ModelNames(MODELS[0], no_models),
        credentials=runtime.credentials,
        observer=runtime.observer,
    )
    client = Desk(runtime, service).client()
    yield client
    await client.hang_up()
    await service.close()


async def meant_for(session: Session) -> dict[str, Any]:
    """Parameters with which the session's own client would succeed."""
    request = session.client.data("permission.requested")[0]["requestId"]
    events = await session.events()
    return {
        "requestId": request,
        "result": {"kind": "approve-once"},
        "response": {"answer": "yes"},
        "enabled": True,
        "eventId": events[1]["id"],
        "command": "touch planted",
        "prompt": "hello",
        "mode": "conversation",
        "name": "Mine",
        "content": "mine",
        "path": "plan.md",
    }


@pytest.mark.parametrize("name", sorted(set(METHODS) - BY_CREATION))
async def test_a_foreign_session_is_answered_exactly_like_a_missing_one(
    stranger: Client, theirs: Session, name: str
) -> None:
    params = await meant_for(theirs)
    before = await theirs.events()

    async def answer(session_id: str) -> str:
        told = await stranger.answer(name, **params, sessionId=session_id, sessionIds=[session_id])
        text: str = msgspec.json.encode({**told, "id": 0}).decode()
        return text.replace(session_id, "ID")

    assert await answer(theirs.id) == await answer("absent")
    assert await theirs.events() == before
    assert len((await theirs.ask("permissions.pendingRequests"))["items"]) == 1


async def test_no_list_has_a_session_of_another_owner(stranger: Client, theirs: Session) -> None:
    assert (await theirs.client.ask("session.list"))["sessions"] != []
    assert (await stranger.ask("session.list"))["sessions"] == []
    assert await stranger.ask("session.getLastId") == {}
