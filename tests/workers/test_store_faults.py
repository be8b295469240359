"""A store that fails once, answers late or holds unreadable data affects as little as possible, and work continues."""

import asyncio
import errno
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import tool
from holdfast.events.event import Event
from holdfast.events.ids import EventId, Key, Position, SessionId
from holdfast.events.session import SessionInfo, SessionStarted, TitleChanged
from holdfast.events.tool import ToolCompleted
from holdfast.events.turn import TurnEnded
from holdfast.models.scripted import Reply
from holdfast.server.operations import Operations
from holdfast.store.clock import SystemClock
from holdfast.store.errors import StoreUnavailable
from holdfast.store.store import Claim, Committed, Lease, NewSession, Unit
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
    until,
    until_idle,
)
from tests.rows import row_of
from tests.workers.leaping_clock import LeapingClock
from tests.workers.troubled_store import TroubledStore, store_of

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _troubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.app.SqliteStore", TroubledStore)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


async def test_a_session_that_is_claimed_during_a_poll_of_the_keeper_is_not_reported_lost(database: Path) -> None:
    runs: list[asyncio.Event] = []
    started, finish, late = asyncio.Event(), asyncio.Event(), Gate()

    @tool(permission="allow")
    async def effect() -> str:
        runs.append(finish)
        started.set()
        await finish.wait()
        return "did it"

    async def answer_late(keys: list[Key]) -> None:
        if not keys:  # Only the keeper polls without keys: it held no session when the poll began.
            await late()

    async with (
        patience(),
        runtime_on(database, scripted(call("effect"), Reply(text="Good.")), tools=[effect]) as runtime,
    ):
        store_of(runtime).after["tails"] = answer_late
        listening = asyncio.create_task(runtime.worker.keeper.listen())
        await late.reached.wait()
        session = await runtime.session("s")
        await session.send("go")
        await started.wait()
        late.open()
        await listening
        finish.set()
        await until_idle(session)
        assert len(runs) == 1
        assert [done.content for done in await bodies_of(session, ToolCompleted)] == ["did it"]


async def test_an_unreadable_message_affects_only_its_own_session(database: Path) -> None:
    async with runtime_on(database, work=False) as sender:
        await (await sender.session("bad")).send("hello")
    with closing(sqlite3.connect(database)) as db:
        db.execute("UPDATE inbox SET payload = ?", (b'{"kind":"from a newer release"}',))
        db.commit()
    async with patience(), runtime_on(database) as runtime:
        good = await runtime.session("good")
        assert (await good.run("hello")).reason == "completed"
        bad = await runtime.open("bad").look()
        assert (bad.head, bad.waiting_messages) == (1, 1), "it waits for somebody who can read it"


async def test_claiming_continues_after_an_unexpected_error(database: Path) -> None:
    failed = asyncio.Event()

    async def fail_once(_: int) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EMFILE, "Too many open files")

    async with patience(), runtime_on(database) as runtime:
        store_of(runtime).before["claim"] = fail_once
        await failed.wait()
        assert (await (await runtime.session("s")).run("hello")).reason == "completed"


async def test_a_reader_sees_the_end_even_if_one_poll_for_changes_failed(database: Path) -> None:
    failed, model_waits = asyncio.Event(), Gate()

    async def fail_once(_: None) -> None:
        if not failed.is_set():
            failed.set()
            raise StoreUnavailable("store_busy", "The database is busy.")

    async with (
        patience(),
        runtime_on(database, scripted(Reply(text="Hello."), gate=model_waits)) as worker,
        runtime_on(database, work=False) as reader,
    ):
        await worker.session("s")
        result = asyncio.create_task(reader.open("s").run("hello"))
        await model_waits.reached.wait()
        store_of(reader).before["data_version"] = fail_once
        await failed.wait()
        model_waits.open()
        assert (await result).text == "Hello."


async def test_a_caller_sees_the_end_of_a_turn_even_if_the_outcome_of_its_commit_was_lost(database: Path) -> None:
    lost: list[Unit] = []

    async def lose_the_answer(unit: Unit) -> None:
        if not lost and any(isinstance(event.body, TurnEnded) for event in unit.events):
            lost.append(unit)
            raise StoreUnavailable("store_failed", "disk I/O error")

    async with patience(), runtime_on(database, scripted(Reply(text="Hello."))) as runtime:
        store_of(runtime).after["commit"] = lose_the_answer
        turn = await (await runtime.session("s")).run("hello")
        assert (turn.reason, turn.text) == ("completed", "Hello.")
        assert len(lost) == 1


async def test_a_caller_sees_the_end_of_a_turn_even_if_its_session_is_claimed_again_before_the_release_is_heard_of(
    database: Path,
) -> None:
    """The outcome of the last commit was lost, and the session is released to be claimed again. The new claim ends the
    task of the old one, which still waits for the answer to its release, and finds nothing to do."""
    lost: list[Unit] = []

    async def lose_the_answer(unit: Unit) -> None:
        if not lost and any(isinstance(event.body, TurnEnded) for event in unit.events):
            lost.append(unit)
            raise StoreUnavailable("store_failed", "disk I/O error")

    async def never_heard_of(lease: Lease) -> None:
        store_of(runtime).after.pop("release")
        await asyncio.Event().wait()

    async with patience(), runtime_on(database, scripted(Reply(text="Hello."))) as runtime:
        store_of(runtime).after |= {"commit": lose_the_answer, "release": never_heard_of}
        turn = await (await runtime.session("s")).run("hello")
        assert (turn.reason, turn.text) == ("completed", "Hello.")
        assert "release" not in store_of(runtime).after


async def test_a_caller_sees_the_end_of_a_turn_that_is_written_after_the_failed_release_of_its_run(
    database: Path,
) -> None:
    """The release is tried again later, when the write has come through."""
    lost: list[Unit] = []
    store: TroubledStore

    async def hold_back(unit: Unit) -> None:
        if not lost and any(isinstance(event.body, TurnEnded) for event in unit.events):
            lost.append(unit)
            raise StoreUnavailable("store_failed", "the connection was lost")

    async def fail(lease: Lease) -> None:
        del store.before["release"]
        store.before["release"] = write_first
        raise StoreUnavailable("store_failed", "the connection was lost")

    async def write_first(lease: Lease) -> None:
        del store.before["release"], store.before["commit"]
        assert isinstance(await store.commit(lost[0]), Committed)

    async with patience(), runtime_on(database, scripted(Reply(text="Hello."))) as runtime:
        store = store_of(runtime)
        store.before |= {"commit": hold_back, "release": fail}
        turn = await (await runtime.session("s")).run("hello")
        assert (turn.reason, turn.text) == ("completed", "Hello.")
        assert store.before == {}


async def test_an_acknowledged_rename_is_not_undone_by_the_automatic_title(database: Path) -> None:
    """Each session is renamed at the worst moment: after its automatic title was decided, right before it is
    written."""
    renamed: set[Key] = set()

    async with patience(), runtime_on(database) as runtime:

        async def rename_first(unit: Unit) -> None:
            if unit.fence is not None and any(isinstance(event.body, TitleChanged) for event in unit.events):
                await runtime.operations.rename(unit.key, "Mine")
                renamed.add(unit.key)

        store_of(runtime).before["commit"] = rename_first
        sessions = [await runtime.session(f"s{number}") for number in range(20)]
        await asyncio.gather(*(session.run("words for a title") for session in sessions))
        assert renamed == {session.key for session in sessions}
        assert {(await session.look()).title for session in sessions} == {"Mine"}
        titles = [change.title for session in sessions for change in await bodies_of(session, TitleChanged)]
        assert titles == ["Mine"] * len(sessions)


async def test_a_session_with_a_model_that_no_process_can_use_is_not_claimed_in_a_busy_loop(
    database: Path,
) -> None:
    """SQLite's JSON ends at a NUL; the claim must still exclude this model. New sessions can't have such a name."""
    looks: list[int] = []

    async def count(found: list[Claim]) -> None:
        looks.append(len(found))

    async with patience(), runtime_on(database) as runtime:
        store_of(runtime).after["claim"] = count
        key = await add_session(runtime.operations, Key(runtime.owner, SessionId("s")), "nobody/has\0it")
        await runtime.operations.send(key, "hello")
        await comes_true(lambda: sum(looks) > 0 and len(looks) > looks.index(1) + 3)
        assert sum(looks) == 1, "once, to find that out"
        assert (await runtime.operations.session(key)).held_by is None


async def add_session(operations: Operations, key: Key, model: str) -> Key:
    """Insert a session as an earlier release may have created it."""
    body = SessionStarted(session_id=key.session, producer="a test", start_time=0, model=model)
    started = Event(Position(0), EventId("e"), 0, body)
    new = NewSession(model=model, created_at=0)
    await operations.store.commit(Unit(key=key, fence=None, events=(started,), creates=new))
    return key


class AdvancedClock(SystemClock):
    """The real time plus an offset."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


async def test_readers_learn_once_that_no_process_can_run_the_session(database: Path) -> None:
    clock = AdvancedClock()
    looks: list[int] = []

    async def count(claims: list[Claim]) -> None:
        looks.append(len(claims))

    async with patience(), runtime_on(database, clock=clock) as runtime:
        store_of(runtime).after["claim"] = count
        session = await runtime.session("s", model="nobody/has-it")
        await session.send("hello")
        for _ in range(2):
            clock.ahead_ms += 61_000
            await until(session, lambda body: isinstance(body, SessionInfo))
            looks.clear()
            await comes_true(lambda: len(looks) >= 3)
        (note,) = await bodies_of(session, SessionInfo)
        assert note.info_type == "no_eligible_worker"
        row = await row_of(session)
        assert (row.status, row.waiting_messages, row.held_by) == ("queued", 1, None)


async def test_a_drain_that_begins_during_a_claim_hands_the_claimed_sessions_over_at_once(database: Path) -> None:
    claimed = Gate()

    async def hold(claims: list[Claim]) -> None:
        if claims:
            await claimed()

    async with patience(), runtime_on(database, work=False) as sender, runtime_on(database) as draining:
        store_of(draining).after["claim"] = hold
        session = await sender.session("s")
        await session.send("hello", message_id="m")
        await claimed.reached.wait()
        stopping = asyncio.create_task(draining.worker.stop(grace_seconds=0))
        await asyncio.sleep(0)  # The drain has begun: the claim loop is cancelled.
        claimed.open()
        await stopping
        assert (await row_of(session)).held_by is None, "while the process that drained is still there"
        async with runtime_on(database) as other:
            assert (await other.open("s").result_of("m")).reason == "completed"


async def test_a_release_that_is_refused_without_a_new_item_is_not_tried_again(database: Path) -> None:
    """The lease is over although the fence is unchanged: the session is claimed again.

    No claim is in flight from then on until the refusal was taken in, and no release when the runtime stops: a claim
    or a stop that cancels the session's task during a release makes it release once more."""
    asked: list[Lease] = []
    claiming = asyncio.Lock()

    async def begin(_: int) -> None:
        await claiming.acquire()

    async def end(_: list[Claim]) -> None:
        claiming.release()

    async def free(lease: Lease) -> None:
        if not asked:
            await claiming.acquire()
            with closing(sqlite3.connect(database, timeout=PATIENCE_SECONDS)) as db, db:
                db.execute("UPDATE session SET lease_holder = NULL")
        asked.append(lease)

    async with patience(), runtime_on(database, **LONG_LEASE) as runtime:
        store_of(runtime).before.update(claim=begin, release=free)
        store_of(runtime).after["claim"] = end
        session = await runtime.session("s")
        assert (await session.run("hello")).reason == "completed"
        await comes_true(lambda: bool(asked) and runtime.worker.sessions_held == 0)
        claiming.release()
        await comes_true(lambda: len(set(asked)) == 2 and runtime.worker.sessions_held == 0)
    assert len(asked) == 2, "once for each claim"


async def test_a_session_that_is_lost_because_renewal_failed_counts_as_a_failed_claim(database: Path) -> None:
    """A session that keeps its holder from renewing must be counted, however often it is claimed."""
    claims: list[Claim] = []
    model_waits = Gate()
    clock = LeapingClock()

    async def count(found: list[Claim]) -> None:
        claims.extend(found)

    async def fail(_: float) -> None:
        raise StoreUnavailable("store_busy", "The database is busy.")

    async with (
        patience(),
        runtime_on(database, scripted(Reply(text="Hi."), gate=model_waits), clock=clock, **LONG_LEASE) as runtime,
    ):
        store = store_of(runtime)
        store.after["claim"] = count
        session = await runtime.session("s")
        await session.send("hello", message_id="m")
        await model_waits.reached.wait()
        store.before["renew"] = fail
        clock.leapt = 2 * LONG_LEASE["lease_ttl_seconds"]
        await model_waits.left.wait()
        del store.before["renew"]
        model_waits.open()
        assert (await session.result_of("m")).reason == "completed"
        assert [claim.claims_without_progress for claim in claims] == [1, 2]
