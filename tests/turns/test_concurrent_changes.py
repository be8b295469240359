"""Concurrent changes through two processes, made from the session's state: the second one is decided again, so that
neither is lost. On both databases, and both processes have read the state before either writes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.app import Runtime
from holdfast.events.body import Body
from holdfast.events.ids import Key, SessionId
from holdfast.events.session import ClientTool, SettingsChanged
from holdfast.server.errors import Conflict
from holdfast.server.operations import CHANGE_TRIES, SessionOptions
from holdfast.server.presence import Arrival, Presence
from holdfast.session.state import State
from holdfast.store.grants import GRANTED_SOMEWHERE
from holdfast.store.store import Outcome, Store, Unit
from tests.faults.world import comes_true, note_beside, patience, runtime_on

pytestmark = pytest.mark.anyio

SESSION = SessionId("s")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "test.db"
    if request.param == "postgresql":
        note_beside(path).write_text(request.getfixturevalue("postgres_url"))
    return path


class Gated:
    """A store whose next commit waits until the other stores commit too, so that all have read the state by then."""

    def __init__(self, store: Store, barrier: asyncio.Barrier) -> None:
        self._store = store
        self._barrier: asyncio.Barrier | None = barrier

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, unit: Unit) -> Outcome:
        barrier, self._barrier = self._barrier, None
        if barrier is not None:
            async with patience():
                await barrier.wait()
        return await self._store.commit(unit)


class Door:
    """Access to the session through one process."""

    def __init__(self, runtime: Runtime, barrier: asyncio.Barrier) -> None:
        self.store = runtime.store
        self.key = Key(runtime.owner, SESSION)
        self.operations = runtime.operations
        self.operations.store = cast(Store, Gated(runtime.store, barrier))
        self.presence = Presence(runtime.operations, runtime.store, runtime.clock)

    async def resume(self, name: str, *tools: str) -> None:
        async def nothing_else(state: State) -> SettingsChanged:
            return SettingsChanged()

        arrival = Arrival(attachment_id=name, tools=tuple(map(tool, tools)))
        await self.presence.resume(self.key, arrival, continue_pending_work=True, settings=nothing_else)

    async def state(self) -> State:
        return await self.operations.state(self.key)


def tool(name: str) -> ClientTool:
    return ClientTool(name=name, description="Does it", parameters={"type": "object"}, asks_permission=False)


@asynccontextmanager
async def two_doors(database: Path) -> AsyncIterator[tuple[Door, Door]]:
    barrier = asyncio.Barrier(2)
    async with runtime_on(database, work=False) as one, runtime_on(database, work=False) as two:
        await one.create(SessionOptions(conventions="copilot", working_directory=str(database.parent)), SESSION)
        yield Door(one, barrier), Door(two, barrier)


async def both(*work: Awaitable[object]) -> None:
    async with patience():
        await asyncio.gather(*work)


async def test_two_clients_that_resume_concurrently_through_two_processes_both_keep_their_tools(database: Path) -> None:
    async with two_doors(database) as (one, two):
        await both(one.resume("one", "ta"), two.resume("two", "tb"))
        assert {found.name for found in (await one.state()).client_tools} == {"ta", "tb"}


async def test_a_leaving_client_does_not_remove_the_tools_of_a_concurrently_arriving_one(database: Path) -> None:
    async with two_doors(database) as (one, two):
        await both(one.resume("stays", "ta"), two.resume("leaves", "tb"))
        barrier = asyncio.Barrier(2)
        one.operations.store = cast(Store, Gated(one.store, barrier))
        two.operations.store = cast(Store, Gated(two.store, barrier))
        await both(one.resume("comes", "tc"), two.presence.leave(two.key, "leaves"))
        assert {found.name for found in (await one.state()).client_tools} == {"ta", "tc"}


async def test_a_grant_for_the_folder_that_the_session_concurrently_moves_to_applies_there(
    database: Path, tmp_path: Path
) -> None:
    """The move has read the grants of the new folder and not yet written; the grant still sees the old folder."""
    async with two_doors(database) as (one, two):
        barrier = asyncio.Barrier(2)
        one.operations.store = cast(Store, Gated(one.store, barrier))
        two.operations.store = two.store
        there = str(tmp_path / "there")

        async def moved(state: State) -> list[Body]:
            return [SettingsChanged(working_directory=there)]

        moving = asyncio.create_task(one.operations.change(one.key, moved))
        await comes_true(lambda: barrier.n_waiting == 1)
        await two.operations.grant(two.key.owner, there, ("read(c)",), GRANTED_SOMEWHERE)
        await both(barrier.wait(), moving)
        assert (await one.state()).place_rules == ("read(c)",)


async def test_allow_all_keeps_a_rule_that_was_allowed_concurrently(database: Path) -> None:
    async with two_doors(database) as (one, two):

        async def allowed(state: State) -> list[Body]:
            return [SettingsChanged(allow=(*state.allow, "shell(git *)"))]

        await both(one.operations.allow_all(one.key, enabled=True), two.operations.change(two.key, allowed))
        assert set((await one.state()).allow) == {"*", "shell(git *)"}


async def test_of_two_concurrent_changes_of_an_expected_mode_only_one_is_applied(database: Path) -> None:
    async with two_doors(database) as (one, two):
        applied = await asyncio.gather(
            one.operations.change_mode(one.key, "plan", expected="interactive"),
            two.operations.change_mode(two.key, "autopilot", expected="interactive"),
        )
        assert sorted(applied) == [False, True]


async def test_a_suggested_title_does_not_replace_one_that_is_chosen_concurrently(database: Path) -> None:
    async with two_doors(database) as (one, two):
        barrier = asyncio.Barrier(2)
        one.operations.store = cast(Store, Gated(one.store, barrier))
        two.operations.store = two.store
        suggesting = asyncio.create_task(one.operations.suggest_title(one.key, "Made up"))
        await comes_true(lambda: barrier.n_waiting == 1)
        await two.operations.rename(two.key, "Mine")
        await both(barrier.wait(), suggesting)
        assert not suggesting.result()
        assert (await one.state()).title == "Mine"


async def test_a_change_that_loses_every_race_is_refused_and_writes_nothing(database: Path) -> None:
    async with two_doors(database) as (one, two):
        two.operations.store = two.store
        one.operations.store = one.store
        asked: list[int] = []

        async def overtaken(state: State) -> list[Body]:
            asked.append(state.head)
            await two.operations.rename(two.key, f"Title {len(asked)}")
            return [SettingsChanged(client_name="never")]

        with pytest.raises(Conflict) as refused:
            await one.operations.change(one.key, overtaken)
        assert refused.value.code == "changed_meanwhile"
        assert asked == sorted(set(asked))
        assert len(asked) == CHANGE_TRIES
        assert (await one.state()).client_name != "never"
