"""Messages that come while a turn runs: none is lost, none is doubled, and each is where its receipt says."""

import asyncio
import random
from pathlib import Path

import pytest

from holdfast.events.ids import Key, MessageId, TurnId
from holdfast.events.inbox import InboxItem
from holdfast.events.message import Noted, UserMessage
from holdfast.events.turn import StepStarted, TurnEnded
from holdfast.models.scripted import Reply, ScriptedModel
from holdfast.models.server import ModelServer
from holdfast.server.embedded.session import Session
from holdfast.store.errors import StoreUnavailable
from holdfast.store.store import Outcome, Unit
from holdfast.tools.tool import tool
from tests.faults.processes import child_on
from tests.faults.world import (
    Gate,
    bodies_of,
    call,
    endings_of,
    log_of,
    model_said,
    patience,
    people_said,
    runtime_on,
    runtime_over_http,
    scripted,
    told,
    until_idle,
)

pytestmark = pytest.mark.anyio


async def turns_of(session: Session) -> dict[str, TurnId]:
    """The turn of each message, by what it says."""
    return {body.content: body.turn_id for body in await bodies_of(session, UserMessage)}


# 15


async def test_fault_15_follow_ups_survive_the_death_of_the_process_that_ran_the_turn(database: Path) -> None:
    script = told(otherwise=(call("hold_again", name="a"), Reply(text="Heard {user}")))
    async with child_on(database, script=script, holds=["tool:a"]) as doomed:
        await doomed.ask("create", session="s")
        await doomed.ask("send", session="s", text="first", message_id="first")
        await doomed.comes_to("tool:a")
        await doomed.ask("send", session="s", text="steers", message_id="steers", delivery="steer")
        await doomed.ask("send", session="s", text="queues", message_id="queues", delivery="enqueue")
        await doomed.kill()
    async with child_on(database, script=script) as heir, runtime_on(database, work=False) as reader:
        for message_id in ("first", "steers", "queues"):
            assert (await heir.ask("result", session="s", message_id=message_id))["reason"] == "completed"
        assert await people_said(reader.open("s")) == ["first", "steers", "queues"]
        turns = await turns_of(reader.open("s"))
        assert turns["first"] == turns["steers"] != turns["queues"]


async def test_fault_15_a_stop_gives_follow_ups_back_or_keeps_them_as_asked(database: Path) -> None:
    gate = Gate()
    async with runtime_on(database, scripted(Reply(text="ok"), gate=gate)) as runtime, patience():
        session = await runtime.session()
        await session.send("first")
        await gate.reached.wait()
        await session.send("steers", message_id="steers")
        await session.send("queues", message_id="queues", delivery="enqueue")
        stopped = await session.stop()
        assert stopped.returned == ("steers", "queues")
        receipt = await runtime.operations.receipt(session.key, MessageId("steers"))
        assert receipt.state == "removed"
        gate.reached.clear()
        await session.send("second")
        await gate.reached.wait()
        await session.send("stays", message_id="stays", delivery="enqueue")
        kept = await session.stop(keep_queued=True)
        assert kept.returned == ()
        gate.open()
        assert (await session.result_of("stays")).reason == "completed"
        assert await people_said(session) == ["first", "second", "stays"]
        assert await endings_of(session) == ["stopped", "stopped", "completed"]


async def test_fault_15_a_follow_up_at_any_moment_of_the_last_step_is_answered(database: Path) -> None:
    """Sent at random moments around the end of a turn, again and again: joined or next, but never lost."""
    model = ScriptedModel(told(otherwise=(Reply(text="Heard it."),)))
    async with runtime_on(database, model) as runtime, patience():
        session = await runtime.session()
        chance = random.Random(15)
        for number in range(40):
            await session.send(f"m{number}", message_id=f"m{number}")
            for _ in range(chance.randrange(30)):
                await asyncio.sleep(0)
            await session.send(f"f{number}", message_id=f"f{number}")
            assert (await session.result_of(f"f{number}")).reason == "completed"
        assert await people_said(session) == [f"{kind}{number}" for number in range(40) for kind in "mf"]


async def test_fault_15_a_follow_up_is_kept_when_saving_its_promotion_fails(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    async with runtime_on(database, scripted(Reply(text="ok"), gate=gate)) as runtime, patience():
        session = await runtime.session()
        await session.send("first")
        await gate.reached.wait()
        await session.send("follow-up", message_id="follow-up")
        commit, failures = runtime.store.commit, 0

        async def commit_or_fail(unit: Unit) -> Outcome:
            nonlocal failures
            if unit.promotes and failures < 2:
                failures += 1
                if failures == 2:
                    await commit(unit)  # It was written, and nobody was told.
                raise StoreUnavailable("store_failed", "The database failed: a test says so.")
            return await commit(unit)

        monkeypatch.setattr(runtime.store, "commit", commit_or_fail)
        gate.open()
        assert (await session.result_of("follow-up")).reason == "completed"
        await until_idle(session)
        assert failures == 2
        assert await people_said(session) == ["first", "follow-up"]


# 16


async def test_fault_16_follow_ups_are_taken_in_the_order_in_which_they_came(database: Path) -> None:
    gate = Gate()
    async with runtime_on(database, scripted(Reply(text="ok"), gate=gate)) as runtime, patience():
        session = await runtime.session()
        await session.send("0")
        await gate.reached.wait()
        for number in range(1, 6):
            await session.send(str(number), message_id=str(number))
        for number in range(6, 11):
            await session.send(str(number), message_id=str(number), delivery="enqueue")
        gate.open()
        assert (await session.result_of("10")).reason == "completed"
        assert await people_said(session) == [str(number) for number in range(11)]
        turns = await turns_of(session)
        assert len({turns[str(number)] for number in range(6)}) == 1, "the steering ones joined the turn, in order"
        assert len(set(turns.values())) == 6, "each of the others had a turn of its own, in order"


# 17


async def test_fault_17_a_follow_up_never_leaks_into_another_turn_or_another_session(database: Path) -> None:
    gate = Gate()
    async with (
        ModelServer(told(otherwise=(Reply(text="ok"),)), gate=gate) as server,
        patience(),
        runtime_over_http(database, server.url) as runtime,
    ):
        session, neighbour = await runtime.session(), await runtime.session()
        await session.send("this side")
        await neighbour.send("next door")
        await gate.reached.wait()
        await session.send("taken back", message_id="taken-back")
        await session.send("taken back too", delivery="enqueue")
        assert (await session.stop()).returned == ("taken back", "taken back too")
        gate.open()
        assert (await session.run("second")).reason == "completed"
        await until_idle(neighbour)
        assert await people_said(session) == ["this side", "second"]
        assert await people_said(neighbour) == ["next door"]
        assert not any(b"taken back" in request for request in server.requests)
        assert not any(b"next door" in request and b"this side" in request for request in server.requests)


async def test_fault_17_a_queued_message_is_not_seen_by_the_turn_before_its_own(database: Path) -> None:
    opened = Gate()

    @tool(permission="allow")
    async def wait() -> str:
        await opened()
        return "waited"

    script = told(work=(call("wait"), Reply(text="Worked.")))
    async with (
        ModelServer(script) as server,
        patience(),
        runtime_over_http(database, server.url, tools=[wait]) as runtime,
    ):
        session = await runtime.session()
        await session.send("work")
        await opened.reached.wait()
        await session.send("later please", message_id="later", delivery="enqueue")
        opened.open()
        assert (await session.result_of("later")).reason == "completed"
        assert [b"later please" in request for request in server.requests] == [False, False, True]
        assert await model_said(session) == ["", "Worked.", "Done."]


# 18


async def test_fault_18_steering_that_comes_too_late_starts_the_next_turn_and_says_so(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runtime_on(database) as runtime, patience():
        session = await runtime.session()
        commit = runtime.store.commit
        late: list[str] = []

        async def commit_just_too_late(unit: Unit) -> Outcome:
            """The message is accepted after the end of the turn was decided, and before it is committed."""
            if not late and any(isinstance(event.body, TurnEnded) for event in unit.events):
                late.append((await session.send("too late", message_id="late", delivery="steer")).state)
            return await commit(unit)

        monkeypatch.setattr(runtime.store, "commit", commit_just_too_late)
        assert (await session.run("first")).reason == "completed"
        assert (await session.result_of("late")).reason == "completed"
        assert late == ["accepted"]
        receipt = await runtime.operations.receipt(session.key, MessageId("late"))
        assert (receipt.state, receipt.delivery) == ("promoted", "queued")
        turns = await turns_of(session)
        assert turns["first"] != turns["too late"]
        (said,) = [body for body in await bodies_of(session, UserMessage) if body.content == "too late"]
        assert said.delivery == "queued", "and so does the log"


async def test_fault_18_steering_is_in_time_though_reading_the_inbox_is_slow_and_the_answer_ends_meanwhile(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is reading the inbox when the model call comes to its end and wants to know what is in it. All of the
    answer was committed before: a piece that came later would tell of the message by itself."""
    gate, slow, ended = Gate(at=1), Gate(), asyncio.Event()
    async with runtime_on(database, scripted(Reply(text="ok"), gate=gate)) as runtime, patience():
        session = await runtime.session()
        await session.send("first")
        await gate.reached.wait()
        read, commit = runtime.store.waiting_items, runtime.store.commit

        async def read_slowly(key: Key) -> tuple[InboxItem, ...]:
            await slow()
            return await read(key)

        async def commit_and_note(unit: Unit) -> Outcome:
            if any(isinstance(event.body, TurnEnded) for event in unit.events):
                ended.set()
            return await commit(unit)

        monkeypatch.setattr(runtime.store, "waiting_items", read_slowly)
        monkeypatch.setattr(runtime.store, "commit", commit_and_note)
        await session.send("in time", message_id="m")
        await slow.reached.wait()
        gate.open()
        with pytest.raises(TimeoutError):
            # Long enough for an answer of one word to end, if nothing held it up.
            await asyncio.wait_for(ended.wait(), 0.3)
        slow.open()
        assert (await session.result_of("m")).reason == "completed"
        assert (await runtime.operations.receipt(session.key, MessageId("m"))).delivery == "steering"


async def test_fault_18_steering_that_is_in_time_says_so_too(database: Path) -> None:
    gate = Gate()
    async with runtime_on(database, scripted(Reply(text="ok"), gate=gate)) as runtime, patience():
        session = await runtime.session()
        await session.send("first")
        await gate.reached.wait()
        await session.send("in time", message_id="m")
        gate.open()
        assert (await session.result_of("m")).reason == "completed"
        receipt = await runtime.operations.receipt(session.key, MessageId("m"))
        assert (receipt.state, receipt.delivery) == ("promoted", "steering")
        kinds = [type(event.body) for event in await log_of(session)]
        assert kinds.count(StepStarted) == 2
        assert Noted not in kinds
        assert await endings_of(session) == ["completed"]
