"""The holder of the session denies a permission that every present client has declined, on both databases, and however
the last client that could decide disappears. No surface polls in any of these tests."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import asyncpg
import pytest

from holdfast.app import Runtime
from holdfast.events.ids import Key, RequestId, SessionId
from holdfast.events.request import PermissionCompleted, PermissionRequested
from holdfast.events.session import ClientTool, SettingsChanged
from holdfast.events.turn import TurnEnded
from holdfast.models.scripted import Reply
from holdfast.server.embedded.session import Session
from holdfast.server.operations import SessionOptions
from holdfast.server.presence import RESTORE_EVERY_SECONDS, Arrival, Presence
from holdfast.session.permissions import ANSWERS_PERMISSIONS, NOBODY_COULD
from holdfast.session.state import State
from holdfast.store.clock import Clock
from holdfast.store.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.faults.world import bodies_of, call, note_beside, runtime_on, scripted, until

pytestmark = pytest.mark.anyio

SESSION = SessionId("s")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "test.db"
    if request.param == "postgresql":
        note_beside(path).write_text(request.getfixturevalue("postgres_url"))
    return path


class Place:
    """A process without a worker, and its clients."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.store = runtime.store
        self.operations = runtime.operations
        self.presence = Presence(runtime.operations, runtime.store, runtime.clock)
        self.key = Key(runtime.owner, SESSION)

    async def arrive(self, name: str, *tools: str) -> None:
        await self.presence.arrive(self.key, arrival(name, *tools))

    async def resume(self, name: str, *tools: str) -> None:
        async def nothing_else(state: State) -> SettingsChanged:
            return SettingsChanged()

        arriving = arrival(name, *tools)
        await self.presence.resume(self.key, arriving, continue_pending_work=True, settings=nothing_else)

    async def decline(self, name: str, request_id: RequestId) -> None:
        assert await self.presence.decline(self.key, name, request_id)

    async def present(self) -> set[str]:
        return {found.attachment_id for found in await self.store.attachments(self.key)}

    async def tools(self) -> set[str]:
        return {found.name for found in (await self.operations.state(self.key)).client_tools}


def arrival(name: str, *tools: str) -> Arrival:
    brought = tuple(ClientTool(name=found, description="Does it", parameters={"type": "object"}) for found in tools)
    return Arrival(attachment_id=name, tools=brought, capabilities=(ANSWERS_PERMISSIONS,))


@asynccontextmanager
async def place(database: Path, clock: Clock | None = None) -> AsyncIterator[Place]:
    async with runtime_on(database, work=False, clock=clock) as runtime:
        found = Place(runtime)
        try:
            yield found
        finally:
            await found.presence.close()


@asynccontextmanager
async def asking(database: Path) -> AsyncIterator[tuple[Session, RequestId]]:
    """A worker and its session, which waits for a permission."""
    model = scripted(call("create", path=str(database.parent / "x"), file_text="x"), Reply(text="Over."))
    async with runtime_on(database, model) as worker:
        session = await worker.create(
            SessionOptions(working_directory=str(database.parent), conventions="copilot"), SESSION
        )
        await session.send("Write it")
        asked = await until(session, lambda body: isinstance(body, PermissionRequested))
        assert isinstance(asked.body, PermissionRequested)
        yield session, asked.body.request_id


async def is_denied(session: Session) -> None:
    """Wait until the turn has continued without the permission."""
    await until(session, lambda body: isinstance(body, TurnEnded))
    (completed,) = await bodies_of(session, PermissionCompleted)
    assert completed.decision == NOBODY_COULD


async def give_up(database: Path, given_up: Place, by: Place) -> None:
    """Have one process declare another dead although it lives: it was silent too long, or its file was removed."""
    token = given_up.store.process
    if isinstance(given_up.store, SqliteStore):
        (database.parent / "test.db.live" / token).unlink()
    else:
        await expire(database, token)
    for claim in await by.store.claim(limit=1):
        await by.store.release(claim.lease, seen_tail=0, how="handed_over")  # Only the worker may run it.
    assert not await by.store.is_alive(token)


async def expire(database: Path, token: str) -> None:
    """Make the process look as if it had missed its deadline."""
    db = await asyncpg.connect(note_beside(database).read_text())
    try:
        await db.execute(
            "UPDATE holdfast.process SET alive_until = now(), leases_until = now() WHERE token = $1", token
        )
    finally:
        await db.close()


async def lose_attachments(database: Path) -> None:
    if not note_beside(database).exists():
        with closing(sqlite3.connect(database)) as file, file:
            file.execute("DELETE FROM attachment")
        return
    db = await asyncpg.connect(note_beside(database).read_text())
    try:
        await db.execute("DELETE FROM holdfast.attachment")
    finally:
        await db.close()


async def show_life(given_up: Place) -> None:
    """Send the heartbeat that the process sends regularly."""
    await given_up.store.renew(ttl_seconds=30)


# Clients that could decide


async def test_a_permission_that_the_only_client_declines_is_denied(database: Path) -> None:
    async with asking(database) as (session, request_id), place(database) as here:
        await here.arrive("one")
        await here.decline("one", request_id)
        await is_denied(session)


async def test_a_permission_that_all_other_clients_declined_is_denied_when_the_last_one_leaves(database: Path) -> None:
    async with asking(database) as (session, request_id), place(database) as here, place(database) as there:
        await here.arrive("one")
        await there.arrive("two")
        await here.decline("one", request_id)
        await there.presence.leave(there.key, "two")
        await is_denied(session)


async def test_a_permission_that_all_other_clients_declined_is_denied_when_the_process_of_the_last_one_ends(
    database: Path,
) -> None:
    async with asking(database) as (session, request_id), place(database) as here:
        await here.arrive("one")
        async with place(database) as there:
            await there.arrive("two")
            await here.decline("one", request_id)
        await is_denied(session)


async def test_a_permission_that_all_other_clients_declined_is_denied_when_the_last_one_can_no_longer_decide(
    database: Path,
) -> None:
    async with asking(database) as (session, request_id), place(database) as here, place(database) as there:
        await here.arrive("one")
        await there.arrive("two")
        await here.decline("one", request_id)
        await there.presence.replace_tools(there.key, Arrival(attachment_id="two"))
        await is_denied(session)


async def test_the_end_of_a_process_detaches_only_its_own_client_of_a_shared_id(database: Path) -> None:
    """Two clients arrive under one id, and the process of the second ends before the first declines."""
    async with asking(database) as (session, request_id), place(database) as here:
        await here.arrive("one")
        async with place(database) as there:
            await there.arrive("one")
        await here.decline("one", request_id)
        await is_denied(session)


async def test_a_decline_counts_from_a_client_whose_process_was_declared_dead(database: Path) -> None:
    """The process lives and the client is connected, but the database has no attachment to record the decline in."""
    async with asking(database) as (session, request_id), place(database) as here, place(database) as there:
        await here.arrive("one")
        await give_up(database, here, by=there)
        await show_life(here)
        await here.decline("one", request_id)
        await is_denied(session)


async def test_a_permission_waits_while_a_present_client_can_decide_it(database: Path) -> None:
    async with asking(database) as (session, request_id), place(database) as here, place(database) as there:
        await here.arrive("one")
        await there.arrive("two")
        await here.decline("one", request_id)
        await there.operations.decide_permission(there.key, request_id, "denied-interactively-by-user")
        await until(session, lambda body: isinstance(body, TurnEnded))
        (completed,) = await bodies_of(session, PermissionCompleted)
        assert completed.decision == "denied-interactively-by-user"


# Clients of a process that was declared dead although it lives


async def test_clients_of_a_process_that_was_declared_dead_are_attached_again(database: Path) -> None:
    clock = ManualClock()
    async with place(database, clock) as here, place(database) as there:
        await here.runtime.create(SessionOptions(conventions="copilot"), SESSION)
        await here.resume("one", "ta")
        await there.resume("two", "tb")
        await give_up(database, here, by=there)
        assert await there.present() == {"two"}
        await there.resume("three")
        assert await there.tools() == {"tb"}, "a tool that no client runs is not offered"
        await show_life(here)
        await until_restored(clock, here)
        assert await there.present() == {"one", "two", "three"}
        assert await there.tools() == {"ta", "tb"}


async def test_clients_whose_rows_the_database_lost_are_attached_again(database: Path) -> None:
    """A failover may lose transactions: the database still knows the process, but not its clients."""
    async with place(database) as here, place(database) as there:
        await here.runtime.create(SessionOptions(conventions="copilot"), SESSION)
        await here.resume("one", "ta")
        await lose_attachments(database)
        assert await there.present() == set()
        await here.presence.restore()
        assert await there.present() == {"one"}


async def test_a_client_that_is_attached_again_keeps_its_declines(database: Path) -> None:
    async with asking(database) as (session, request_id), place(database) as here, place(database) as there:
        await here.arrive("one")
        await there.arrive("two")
        await here.decline("one", request_id)
        await give_up(database, here, by=there)
        await show_life(here)
        await here.presence.restore()
        (restored,) = [found for found in await there.store.attachments(there.key) if found.attachment_id == "one"]
        assert restored.declined == (request_id,)
        await there.decline("two", request_id)
        await is_denied(session)


async def test_a_client_that_is_attached_again_does_not_take_back_a_tool_that_another_client_now_runs(
    database: Path,
) -> None:
    async with place(database) as here, place(database) as there:
        await here.runtime.create(SessionOptions(conventions="copilot"), SESSION)
        await here.resume("one", "ta", "tb")
        await give_up(database, here, by=there)
        await there.resume("two", "ta")
        await show_life(here)
        await here.presence.restore()
        found = {each.attachment_id: each.tools for each in await there.store.attachments(there.key)}
        assert found == {"one": ("tb",), "two": ("ta",)}
        assert await there.tools() == {"ta", "tb"}


async def test_a_client_that_has_left_is_not_attached_again(database: Path) -> None:
    async with place(database) as here, place(database) as there:
        await here.runtime.create(SessionOptions(conventions="copilot"), SESSION)
        await here.resume("one", "ta")
        await here.resume("two")
        await here.presence.leave(here.key, "one")
        await give_up(database, here, by=there)
        await show_life(here)
        await here.presence.restore()
        assert await there.present() == {"two"}


async def until_restored(clock: ManualClock, here: Place) -> None:
    """Advance the clock until the process has checked and restored its clients."""
    async with asyncio.timeout(30):
        while "ta" not in await here.tools():
            await clock.advance(RESTORE_EVERY_SECONDS)
