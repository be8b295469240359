"""Clients that arrive and leave concurrently, on a real store. No worker runs unless a test starts one, so that
accepted items stay in the inbox."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Runtime
from holdfast.events.ids import Key, SessionId, TurnId
from holdfast.events.inbox import Stop
from holdfast.events.request import ExternalToolRequested
from holdfast.events.session import ClientTool, SettingsChanged
from holdfast.events.turn import TurnEnded, TurnStarted
from holdfast.models.scripted import Reply
from holdfast.server.errors import Conflict, Invalid
from holdfast.server.operations import SessionOptions
from holdfast.server.presence import Arrival, Presence, Resumed
from holdfast.session.actions import Append
from holdfast.session.bounds import Bounds
from holdfast.session.fold import FOLD_VERSION
from holdfast.session.permissions import ANSWERS_PERMISSIONS
from holdfast.session.state import OpenRequest, State
from tests.faults.world import call, runtime_on, scripted, until
from tests.turns.recording import KEY, recording

pytestmark = pytest.mark.anyio

SESSION = SessionId("s")
PLAIN = {"type": "object", "properties": {}}


def tool(name: str, **more: Any) -> ClientTool:
    return ClientTool(name=name, description="Does it", parameters=PLAIN, asks_permission=False, **more)


def arrival(name: str, *tools: str) -> Arrival:
    return Arrival(attachment_id=name, tools=tuple(map(tool, tools)), capabilities=(ANSWERS_PERMISSIONS,))


class Door:
    """A session, and the clients that arrive at it and leave it."""

    def __init__(self, runtime: Runtime) -> None:
        self.store = runtime.store
        self.operations = runtime.operations
        self.presence = Presence(runtime.operations, runtime.store, runtime.clock)
        self.key = Key(runtime.owner, SESSION)

    async def resume(self, who: Arrival, *, goes_on: bool | None = None, **settings: Any) -> Resumed:
        async def changed(state: State) -> SettingsChanged:
            return SettingsChanged(**settings)

        return await self.presence.resume(self.key, who, continue_pending_work=goes_on, settings=changed)

    async def present(self) -> set[str]:
        return {found.attachment_id for found in await self.store.attachments(self.key)}

    async def tools(self) -> list[str]:
        return [found.name for found in (await self.operations.state(self.key)).client_tools]

    async def pending(self) -> OpenRequest:
        (request,) = (await self.operations.state(self.key)).requests.values()
        return request

    async def is_stopping(self) -> bool:
        return any(isinstance(found.item, Stop) for found in await self.store.waiting_items(self.key))


@asynccontextmanager
async def cold(folder: Path) -> AsyncIterator[Door]:
    """A session whose call of the tool `ta` waits for a client; its process has ended, and no worker runs."""
    model = scripted(call("ta"), Reply(text="Done."))
    async with runtime_on(folder / "test.db", model) as before:
        session = await before.create(SessionOptions(conventions="copilot", client_tools=(tool("ta"),)), SESSION)
        await session.send("Use it")
        await until(session, lambda body: isinstance(body, ExternalToolRequested))
    async with runtime_on(folder / "test.db", model, work=False) as here:
        yield Door(here)


@asynccontextmanager
async def idle(folder: Path, **options: Any) -> AsyncIterator[Door]:
    async with runtime_on(folder / "test.db", work=False) as here:
        await here.create(SessionOptions(conventions="copilot", **options), SESSION)
        yield Door(here)


# Arrival


async def test_a_client_that_resumes_alone_without_continuing_stops_the_pending_turn(tmp_path: Path) -> None:
    async with cold(tmp_path) as door:
        assert (await door.resume(arrival("one"))).interrupted is True
        assert await door.is_stopping()


async def test_a_client_that_resumes_beside_a_continuing_one_does_not_stop_its_work(tmp_path: Path) -> None:
    async with cold(tmp_path) as door:
        await door.resume(arrival("goes-on", "ta"), goes_on=True)
        assert (await door.resume(arrival("one"))).interrupted is False
        assert not await door.is_stopping()
        await door.operations.answer_tool(door.key, (await door.pending()).request_id, "it")


async def test_an_attached_client_that_has_not_resumed_yet_keeps_its_work_when_another_resumes(tmp_path: Path) -> None:
    """The continuing client is attached, and the rest of its resume is not yet written."""
    async with cold(tmp_path) as door:
        await door.presence.arrive(door.key, arrival("goes-on", "ta"))
        assert (await door.resume(arrival("one"))).interrupted is False
        assert not await door.is_stopping()


async def test_of_two_clients_that_resume_concurrently_the_continuing_one_keeps_its_work(tmp_path: Path) -> None:
    """The store works in order of arrival, so the continuing client is attached first."""
    async with cold(tmp_path) as door:
        _, other = await asyncio.gather(
            door.resume(arrival("goes-on", "ta"), goes_on=True), door.resume(arrival("one"))
        )
        assert other.interrupted is False
        assert not await door.is_stopping()
        assert await door.tools() == ["ta"]


async def test_of_two_clients_that_resume_concurrently_without_continuing_one_stops_the_pending_turn(
    tmp_path: Path,
) -> None:
    async with cold(tmp_path) as door:
        both = await asyncio.gather(door.resume(arrival("one")), door.resume(arrival("two")))
        assert any(found.interrupted for found in both)
        assert await door.is_stopping()


async def test_a_tool_call_is_delivered_again_until_a_client_has_answered_it(tmp_path: Path) -> None:
    async with cold(tmp_path) as door:
        request = await door.pending()
        await door.resume(arrival("one", "ta"), goes_on=True)
        again = await door.presence.deliverable(door.key, (tool("ta"),))
        assert [found.request_id for found, _ in again] == [request.request_id]
        assert await door.presence.deliverable(door.key, (tool("tb"),)) == ()
        # No worker runs: the answer is accepted, but not yet in the log.
        await door.operations.answer_tool(door.key, request.request_id, "it")
        assert (await door.pending()).request_id == request.request_id
        assert await door.presence.deliverable(door.key, (tool("ta"),)) == ()


@pytest.mark.parametrize(
    ("brings", "wrong"),
    [
        ("ta", {"system_message": "x" * 300_000}),
        ("ta", {"client_name": "x" * 100_000}),
        ("tb", {}),
        ("a b", {}),
    ],
    ids=["system message", "client name", "tool of another", "name of a tool"],
)
async def test_a_refused_resume_writes_nothing(tmp_path: Path, brings: str, wrong: dict[str, Any]) -> None:
    async with idle(tmp_path) as door:
        await door.resume(arrival("other", "tb"))
        before = await door.operations.session(door.key)
        with pytest.raises((Conflict, Invalid)):
            await door.resume(arrival("refused", brings), **wrong)
        assert (await door.operations.session(door.key)).head == before.head
        assert await door.tools() == ["tb"]


# Departure


async def test_of_two_clients_that_leave_concurrently_exactly_one_is_the_last_and_its_tools_stay(
    tmp_path: Path,
) -> None:
    async with idle(tmp_path) as door:
        for _ in range(10):
            await door.resume(arrival("one", "ta"))
            await door.resume(arrival("two", "tb"))
            assert await door.tools() == ["ta", "tb"]
            leaving = await asyncio.gather(*(door.presence.leave(door.key, name) for name in ("one", "two")))
            assert sorted(leaving) == [False, True]
            assert await door.present() == set()
            assert await door.tools() == (["ta"] if leaving[0] else ["tb"])


async def test_a_client_that_leaves_twice_is_the_last_only_once(tmp_path: Path) -> None:
    async with idle(tmp_path) as door:
        await door.resume(arrival("one", "ta"))
        leaving = await asyncio.gather(*(door.presence.leave(door.key, "one") for _ in range(2)))
        assert sorted(leaving) == [False, True]
        assert await door.tools() == ["ta"]


async def test_the_tool_of_an_unfinished_call_stays_when_its_client_leaves(tmp_path: Path) -> None:
    async with cold(tmp_path) as door:
        await door.resume(arrival("one", "ta", "tc"), goes_on=True)
        await door.resume(arrival("two", "tb"))
        assert await door.presence.leave(door.key, "one") is False
        assert await door.tools() == ["ta", "tb"]


# A state that fits no snapshot


async def test_a_session_whose_state_fits_no_snapshot_continues(tmp_path: Path) -> None:
    """Such numbers are refused on input, but a log of an earlier release may contain one."""
    async with recording(tmp_path) as found:
        found.held.bounds = Bounds(snapshot_every_events=1)
        number = {"type": "integer", "maximum": 10**30}
        huge = ClientTool(name="counter", description="Counts", parameters={"properties": {"n": number}})
        await found.held.commit(Append(events=[SettingsChanged(client_tools=(huge,))]))
        for turn in ("first", "second"):
            written = [TurnStarted(turn_id=TurnId(turn)), TurnEnded(turn_id=TurnId(turn), reason="completed")]
            assert await found.held.commit(Append(events=[*written]))
        loaded = await found.store.load(KEY, fold_version=FOLD_VERSION)
        assert loaded is not None
        assert (await found.operations.state(KEY)).client_tools == (huge,)
        assert loaded.events[-1].position == (await found.operations.session(KEY)).head
