"""Every claim that the store grants is run or released, however early its task ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Runtime, tool
from holdfast.events.tool import ToolAttempted
from holdfast.events.turn import TurnEnded
from holdfast.models.scripted import Reply, ScriptedCall, ScriptedModel
from holdfast.store.errors import StoreUnavailable
from holdfast.store.log_pages import SMALL_BYTES
from holdfast.store.store import Claim, Lease
from tests.faults.world import (
    LONG_LEASE,
    PATIENCE_SECONDS,
    Gate,
    bodies_of,
    call,
    comes_true,
    patience,
    runtime_on,
    scripted,
    told,
    until,
)
from tests.rows import row_of
from tests.workers.leaping_clock import LeapingClock
from tests.workers.troubled_store import TroubledStore, store_of

pytestmark = pytest.mark.anyio

NO_GRACE_ENDS: dict[str, Any] = {"cancelled_tool_seconds": 2 * PATIENCE_SECONDS}
"""A cancelled tool is waited for as long as the test lasts."""


@pytest.fixture(autouse=True)
def _troubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.app.SqliteStore", TroubledStore)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


async def declare_dead(runtime: Runtime) -> None:
    """End all leases of the runtime, as another process does after their expiry. The next renewal reports it, whether
    it is this one or one of the keeper's own that comes first."""
    await store_of(runtime).renew(ttl_seconds=0)
    await runtime.worker.keeper.renew()


def before_the_first_step_of_a_session(happens: Callable[[], object]) -> asyncio.Event:
    """Call this once, when the task of a claimed session is about to be made: what it schedules runs before the task's
    first step. The event says that it was called."""
    loop = asyncio.get_running_loop()
    happened = asyncio.Event()

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **given: Any) -> "asyncio.Task[Any]":
        if getattr(work, "__qualname__", "") == "SessionRunner.run":
            loop.set_task_factory(None)
            happened.set()
            happens()
        return asyncio.Task(work, loop=loop, **given)

    loop.set_task_factory(factory)
    return happened


async def test_a_session_runs_even_if_its_lease_is_lost_right_after_the_claim(database: Path) -> None:
    """The task is cancelled before its first step, so that its own code can't release the claim."""
    model_waits = Gate()
    async with patience(), runtime_on(database, scripted(Reply(text="Hi."), gate=model_waits)) as runtime:
        first, second = await runtime.session("first"), await runtime.session("second")
        await first.send("hello", message_id="m1")
        await model_waits.reached.wait()
        lose_all = runtime.worker.keeper._lose_all
        loop = asyncio.get_running_loop()
        lost = before_the_first_step_of_a_session(
            lambda: loop.call_soon(lose_all, "this process could not renew in time")
        )
        await second.send("hello", message_id="m2")
        await lost.wait()
        model_waits.open()
        assert (await second.result_of("m2")).reason == "completed"
        assert (await first.result_of("m1")).reason == "completed"


async def test_a_process_that_stops_right_after_a_claim_releases_it(database: Path) -> None:
    async with patience(), runtime_on(database, work=False) as sender, runtime_on(database) as stopping:
        session = await sender.session("s")
        stopped: list[asyncio.Task[None]] = []
        begun = before_the_first_step_of_a_session(
            lambda: stopped.append(asyncio.create_task(stopping.worker.stop(grace_seconds=0)))
        )
        await session.send("hello", message_id="m")
        await begun.wait()
        await stopped[0]
        assert (await row_of(session)).held_by is None, "while the process that stopped is still there"
        async with runtime_on(database) as other:
            assert (await other.open("s").result_of("m")).reason == "completed"


@pytest.mark.parametrize("turns", range(8))
async def test_a_worker_stops_even_if_its_own_timeout_expires_at_the_same_moment(
    database: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """A timeout ends by a cancellation, too. Stopping after each of several iterations of the event loop hits the one
    in which that cancellation has been sent and not yet delivered."""
    begun = asyncio.Event()

    async def changes(self: TroubledStore, *, wanted: Callable[[], bool]) -> AsyncIterator[None]:
        begun.set()
        while begun.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
        yield

    monkeypatch.setattr(TroubledStore, "changes", changes)
    async with patience(), runtime_on(database) as runtime:
        await begun.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        try:
            await runtime.worker.stop(grace_seconds=0)
        finally:
            begun.clear()


async def test_a_claim_whose_release_failed_for_any_reason_is_released_later(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that fails with an error that is not a store error, such as a lack of memory."""
    model_waits = Gate()
    released = TroubledStore.release
    failures: list[Exception] = [StoreUnavailable("store_busy", "The database is busy."), MemoryError()]

    async def fail_twice(self: TroubledStore, lease: Lease, **given: Any) -> bool:
        if failures:
            raise failures.pop()
        return await released(self, lease, **given)

    async with patience(), runtime_on(database, scripted(Reply(text="Hi."), gate=model_waits)) as runtime:
        session = await runtime.session("s")
        await session.send("hello", message_id="m")
        await model_waits.reached.wait()
        monkeypatch.setattr(TroubledStore, "release", fail_twice)
        runtime.worker.keeper._lose_all("this process could not renew in time")
        model_waits.open()
        assert (await session.result_of("m")).reason == "completed"
        assert not failures


@pytest.mark.parametrize("then", ["nothing more happens", "the keeper polls", "all leases are lost again"])
async def test_a_session_that_is_lost_and_claimed_again_waits_until_its_tool_has_ended(
    database: Path, then: str
) -> None:
    """The same process may hold the session again while the tool that it cancelled is still cleaning up. A poll of the
    keeper finds that the first lease is over, and ends nothing else. Another loss ends the second claim, too, and the
    third one waits as well."""
    running: list[str] = []
    most: list[int] = []
    cleaning, cleaned = asyncio.Event(), asyncio.Event()

    @tool(permission="allow", after_crash="repeat")
    async def effect() -> str:
        running.append("one")
        most.append(len(running))
        try:
            if len(most) == 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            cleaning.set()
            await cleaned.wait()
            raise
        finally:
            running.pop()
        return "did it"

    claims: list[Claim] = []

    async def note(found: list[Claim]) -> None:
        claims.extend(found)

    script = told(quick=(Reply(text="Good."),), otherwise=(call("effect"), Reply(text="Good.")))
    async with (
        patience(),
        runtime_on(
            database,
            ScriptedModel(script),
            tools=[effect],
            tails_every_seconds=3600,
            **LONG_LEASE,
            **NO_GRACE_ENDS,
        ) as runtime,
    ):
        store_of(runtime).after["claim"] = note
        session = await runtime.session("s")
        await session.send("go", message_id="m")
        await comes_true(lambda: bool(running))
        await declare_dead(runtime)
        await cleaning.wait()
        await comes_true(lambda: len(claims) == 2)
        if then == "the keeper polls":
            await runtime.worker.keeper.listen()
        elif then == "all leases are lost again":
            await declare_dead(runtime)
            await comes_true(lambda: len(claims) == 3)
        other = await runtime.session("other")
        assert (await other.run("quick")).text == "Good.", "there was time for a whole turn"
        cleaned.set()
        assert (await session.result_of("m")).reason == "completed"
        assert most == [1, 1]
        assert len(await bodies_of(session, TurnEnded)) == 1
        mine = [claim for claim in claims if claim.lease.key == session.key]
        assert len(mine) == (3 if then == "all leases are lost again" else 2)


@pytest.mark.parametrize("then", ["it is claimed once more", "all leases are lost again"])
async def test_a_claim_that_ends_before_its_first_step_is_not_released_over_an_earlier_claim_s_tool(
    database: Path, then: str
) -> None:
    """A lease without a task is released by the claim loop, which has several chances to do it too early here."""
    running: list[str] = []
    most: list[int] = []
    over: list[Lease] = []
    claims: list[Claim] = []
    looks: list[int] = []
    cleaning, cleaned = asyncio.Event(), asyncio.Event()

    @tool(permission="allow", after_crash="repeat")
    async def effect() -> str:
        running.append("one")
        most.append(len(running))
        try:
            if len(most) == 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            cleaning.set()
            await cleaned.wait()
            raise
        finally:
            running.pop()
        return "did it"

    async def note(found: list[Claim]) -> None:
        looks.append(len(found))
        claims.extend(found)

    async def check(lease: Lease) -> None:
        if running:
            over.append(lease)

    script = told(otherwise=(call("effect"), Reply(text="Good.")))
    async with (
        patience(),
        runtime_on(
            database, ScriptedModel(script), tools=[effect], tails_every_seconds=3600, **LONG_LEASE, **NO_GRACE_ENDS
        ) as runtime,
    ):
        session = await runtime.session("s")
        await session.send("go", message_id="m")
        await comes_true(lambda: bool(running))
        store = store_of(runtime)
        store.after["claim"], store.before["release"] = note, check
        loop = asyncio.get_running_loop()
        lost = before_the_first_step_of_a_session(
            lambda: loop.call_soon(runtime.worker.keeper._lose_all, "this process could not renew in time")
        )
        await declare_dead(runtime)
        await lost.wait()
        await cleaning.wait()
        if then == "all leases are lost again":
            await declare_dead(runtime)
            await comes_true(lambda: len(claims) == 2)
        begun = len(looks)
        await comes_true(lambda: len(looks) > begun + 2)
        assert over == []
        cleaned.set()
        assert (await session.result_of("m")).reason == "completed"
        assert (most, over) == ([1, 1], [])
        await comes_true(lambda: not runtime.worker.holds.tasks() and not runtime.worker.holds.owes_releases)


async def test_a_void_lease_whose_release_failed_is_forgotten_while_the_next_claim_runs(database: Path) -> None:
    runs: list[str] = []
    claims: list[Claim] = []
    cleaning, cleaned, second, end = (asyncio.Event() for _ in range(4))

    @tool(permission="allow", after_crash="repeat")
    async def effect() -> str:
        runs.append("run")
        if len(runs) == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cleaning.set()
                await cleaned.wait()
                raise
        second.set()
        await end.wait()
        return "did it"

    async def note(found: list[Claim]) -> None:
        claims.extend(found)

    async def fail(lease: Lease) -> None:
        if lease == claims[0].lease:
            raise StoreUnavailable("store_busy", "More is waiting than this process can hold.")

    script = told(otherwise=(call("effect"), Reply(text="Good.")))
    async with (
        patience(),
        runtime_on(database, ScriptedModel(script), tools=[effect], **LONG_LEASE, **NO_GRACE_ENDS) as runtime,
    ):
        store_of(runtime).after["claim"], store_of(runtime).before["release"] = note, fail
        session = await runtime.session("s")
        await session.send("go", message_id="m")
        await comes_true(lambda: bool(runs))
        await declare_dead(runtime)
        await cleaning.wait()
        await comes_true(lambda: len(claims) == 2)
        cleaned.set()
        await second.wait()
        await comes_true(lambda: not runtime.worker.holds.is_unreleased(claims[0].lease))
        assert not runtime.worker.holds.owes_releases
        end.set()
        assert (await session.result_of("m")).reason == "completed"


async def test_a_session_that_is_still_loading_when_leases_are_lost_is_dropped(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other session is held: the load itself must be cancelled, or its turn would start when another process may
    hold the session."""
    loading, loads = asyncio.Event(), []
    loaded = TroubledStore.load

    async def load(self: TroubledStore, *given: Any, **more: Any) -> Any:
        loads.append("begun")
        loading.set()
        if len(loads) == 1:
            await asyncio.Event().wait()
        return await loaded(self, *given, **more)

    model = scripted(Reply(text="x" * SMALL_BYTES), Reply(text="Hi."))
    async with patience(), runtime_on(database, model) as runtime:
        session = await runtime.session("s")
        await session.send("hello", message_id="large")
        assert (await session.result_of("large")).reason == "completed"
        await comes_true(lambda: runtime.worker.sessions_held == 0)
        monkeypatch.setattr(TroubledStore, "load", load)
        await session.send("hello", message_id="m")
        await loading.wait()
        runtime.worker.keeper._lose_all("this process could not renew in time")
        assert (await session.result_of("m")).reason == "completed"
        assert runtime.worker.lost_leases == 1


async def test_a_claim_with_an_unknown_outcome_is_released_however_long_the_earlier_claim_takes_to_end(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier claim of the session is still ending its tool when the window for unknown claims closes."""
    clock = LeapingClock()
    cleaning, cleaned = asyncio.Event(), asyncio.Event()

    @tool(permission="allow", after_crash="repeat")
    async def effect() -> str:
        if not cleaning.is_set():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cleaning.set()
                await cleaned.wait()
                raise
        return "did it"

    async def unheard(found: list[Claim]) -> None:
        if found:
            del store_of(runtime).after["claim"]
            raise StoreUnavailable("store_unreachable", "The answer was lost.")

    looks: list[float] = []
    held = TroubledStore.held

    async def look(self: TroubledStore) -> tuple[Lease, ...]:
        looks.append(clock.leapt)
        return await held(self)

    too_large_to_be_begun_early = Reply(text="x" * SMALL_BYTES, tool_calls=(ScriptedCall("effect", {}),))
    model = scripted(too_large_to_be_begun_early, Reply(text="Good."))
    async with (
        patience(),
        runtime_on(database, model, tools=[effect], clock=clock, **LONG_LEASE, **NO_GRACE_ENDS) as runtime,
    ):
        monkeypatch.setattr(TroubledStore, "held", look)
        session = await runtime.session("s")
        await session.send("go", message_id="m")
        await until(session, lambda body: isinstance(body, ToolAttempted))
        store_of(runtime).after["claim"] = unheard
        await declare_dead(runtime)
        await cleaning.wait()
        await comes_true(lambda: bool(looks))
        clock.leapt = 2 * LONG_LEASE["lease_ttl_seconds"]
        await comes_true(lambda: looks[-1] == clock.leapt)
        cleaned.set()
        assert (await session.result_of("m")).reason == "completed"
