"""Accepting work: what was acknowledged runs once, and what was refused was never there."""

import asyncio
from pathlib import Path

import pytest

from holdfast.events.event import Event
from holdfast.events.ids import MessageId
from holdfast.events.message import UserMessage
from holdfast.events.turn import TurnEnded, TurnStarted
from holdfast.models.scripted import Failure, Reply
from holdfast.server.embedded.session import Session
from holdfast.server.errors import OperationError
from holdfast.session.bounds import Bounds
from tests.faults.processes import child_on
from tests.faults.world import (
    Gate,
    Whole,
    bodies_of,
    endings_of,
    log_of,
    model_said,
    patience,
    people_said,
    runtime_on,
    says,
    scripted,
    until,
    until_idle,
    whole,
)

pytestmark = pytest.mark.anyio


async def reading_until_the_end(session: Session) -> Whole:
    readings: list[object] = []
    async with patience():
        async for reading in session.events():
            readings.append(reading)
            if isinstance(reading, Event) and isinstance(reading.body, TurnEnded):
                break
    return whole(readings)


# 10


async def test_fault_10_the_same_id_sent_ten_times_at_once_is_one_message_one_run_and_one_stream(
    database: Path,
) -> None:
    gate = Gate(at=1)
    async with runtime_on(database, scripted(Reply(text="one two three"), gate=gate)) as runtime, patience():
        session = await runtime.session()

        async def send_and_watch() -> tuple[bool, Whole]:
            sent = await session.send("Hello", message_id="the-same")
            assert sent.message_id == "the-same"
            return sent.duplicate, await reading_until_the_end(session)

        watching = asyncio.gather(*(send_and_watch() for _ in range(10)))
        await gate.reached.wait()
        gate.open()
        seen = await watching
        assert sorted(duplicate for duplicate, _ in seen) == [False] + [True] * 9
        assert all(reading == seen[0][1] for _, reading in seen)
        assert len(await bodies_of(session, UserMessage)) == len(await bodies_of(session, TurnStarted)) == 1
        assert gate.visits == 1


async def test_fault_10_the_same_id_through_two_processes_is_one_message(database: Path) -> None:
    async with runtime_on(database) as runtime, child_on(database, work=False) as child, patience():
        session = await runtime.session()
        here = asyncio.gather(*(session.send("Hello", message_id="m") for _ in range(5)))
        there = [child.begin("send", session=session.id, text="Hello", message_id="m") for _ in range(5)]
        receipts = [sent.duplicate for sent in await here] + [(await child.answer(n))["duplicate"] for n in there]
        assert sorted(receipts) == [False] + [True] * 9
        assert (await session.result_of("m")).reason == "completed"
        assert await people_said(session) == ["Hello"]
        again = await session.send("Hello", message_id="m")
        assert (again.duplicate, again.state, again.delivery) == (True, "promoted", "idle")
        assert (await session.run("Hello", message_id="m")).text == "Done."
        assert await people_said(session) == ["Hello"]


async def test_fault_10_the_same_id_with_another_text_is_refused(database: Path) -> None:
    async with runtime_on(database) as runtime, patience():
        session = await runtime.session()
        await session.run("Hello", message_id="m")
        with pytest.raises(OperationError) as refused:
            await session.send("Something else", message_id="m")
        assert refused.value.code == "id_reused"
        assert await people_said(session) == ["Hello"]


# 11


async def test_fault_11_the_same_text_with_different_ids_is_two_messages(database: Path) -> None:
    async with runtime_on(database) as runtime, patience():
        session = await runtime.session()
        for message_id in ("a", "b"):
            await session.run("Yes", message_id=message_id)
        await asyncio.gather(*(session.send("Yes", message_id=f"c{n}", delivery="enqueue") for n in range(3)))
        for number in range(3):
            assert (await session.result_of(f"c{number}")).reason == "completed"
        assert await people_said(session) == ["Yes"] * 5
        assert await endings_of(session) == ["completed"] * 5


# 12


async def test_fault_12_what_was_acknowledged_runs_though_its_sender_was_killed_at_that_moment(database: Path) -> None:
    async with child_on(database, script=says(Reply(text="Done.")), work=False) as sender:
        await sender.ask("create", session="s", tools=[])
        numbers = [
            sender.begin("send", session="s", text=f"m{n}", message_id=f"m{n}", delivery="enqueue") for n in range(8)
        ]
        await sender.answer(numbers[3])
        await sender.kill()
        acknowledged = {f"m{numbers.index(n)}" for n in sender.said("reply") if n in numbers}
    assert "m3" in acknowledged
    async with runtime_on(database) as runtime, patience():
        session = runtime.open("s")
        for message_id in sorted(acknowledged):
            assert (await session.result_of(message_id)).reason == "completed"
        await until_idle(session)
        said = await people_said(session)
        assert acknowledged <= set(said), "accepted and never run"
        assert len(said) == len(set(said)) == len(await model_said(session))


# 13

LIMITS = Bounds()
REFUSED = [
    ("", "m", "message_empty"),
    (" \n\t ", "m", "message_empty"),
    ("x" * (LIMITS.max_message_characters + 1), "m", "message_too_long"),
    ("Hello", "", "id_invalid"),
    ("Hello", "x" * (LIMITS.max_id_characters + 1), "id_invalid"),
    ("Hello", "new\nline", "id_invalid"),
    ("Hello", "nul\0", "id_invalid"),
    ("Hello", "half \ud800", "id_invalid"),
]


@pytest.mark.parametrize(("text", "message_id", "code"), REFUSED)
async def test_fault_13_a_refused_message_leaves_no_trace(
    database: Path, text: str, message_id: str, code: str
) -> None:
    async with runtime_on(database) as runtime, patience():
        session = await runtime.session()
        before = await session.look()
        with pytest.raises(OperationError) as refused:
            await session.send(text, message_id=message_id)
        assert refused.value.code == code
        assert refused.value.message.endswith(".")
        assert await session.look() == before
        assert await session.queue() == ()
        assert (await session.run("Hello", message_id="good")).reason == "completed"
        assert await people_said(session) == ["Hello"]


async def test_fault_13_a_message_beyond_the_queue_is_refused_whole_and_may_be_sent_again(database: Path) -> None:
    gate = Gate()
    async with (
        runtime_on(database, scripted(Reply(text="ok"), gate=gate), max_waiting_messages=2) as runtime,
        patience(),
    ):
        session = await runtime.session()
        await session.send("first", message_id="first")
        await gate.reached.wait()
        for number in range(2):
            await session.send(f"waits {number}", message_id=f"w{number}", delivery="enqueue")
        before = await session.look()
        with pytest.raises(OperationError) as refused:
            await session.send("one too many", message_id="over", delivery="enqueue")
        assert refused.value.code == "queue_full"
        assert await session.look() == before
        with pytest.raises(OperationError) as missing:
            await runtime.operations.receipt(session.key, MessageId("over"))
        assert missing.value.code == "message_not_found"
        retried = await session.send("waits 0", message_id="w0", delivery="enqueue")
        assert retried.duplicate, "a retry of what was accepted is never refused for a full queue"
        with pytest.raises(OperationError) as busy:
            await session.send("only if idle", message_id="reject", delivery="reject")
        assert busy.value.code == "busy"
        gate.open()
        assert (await session.result_of("w1")).reason == "completed"
        assert (await session.run("one too many", message_id="over")).reason == "completed"
        assert await people_said(session) == ["first", "waits 0", "waits 1", "one too many"]


# 14


async def test_fault_14_a_failed_turn_never_blocks_sending_the_same_text_again(database: Path) -> None:
    model = scripted(Reply(text="Here.", fail=Failure(kind="refused", times=1)))
    async with runtime_on(database, model) as runtime, patience():
        session = await runtime.session()
        failed = await session.run("Please", message_id="first")
        assert (failed.reason, failed.error and failed.error.code) == ("error", "model_refused")
        assert (await session.run("Please", message_id="second")).text == "Here."
        again = await session.run("Please", message_id="first")
        assert again.reason == "error", "the first id still tells of the first run"
        assert await people_said(session) == ["Please", "Please"]
        assert await endings_of(session) == ["error", "completed"]
        await until(session, lambda body: isinstance(body, TurnEnded))
        assert (await log_of(session))[-1].position == (await session.look()).head
