"""So many turns of one owner run, so many wait, in order; a turn that waits for somebody is in nobody's way."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Runtime
from holdfast.events.request import PermissionRequested
from holdfast.events.turn import TurnWaiting
from holdfast.models.scripted import Reply, ScriptedModel
from holdfast.server.embedded.session import Session
from holdfast.server.errors import OperationError
from tests.faults.world import call, patience, people_said, runtime_on, told, until, until_idle

pytestmark = pytest.mark.anyio

AN_HOUR = 3600.0


class Turnstile:
    """Every model call waits here until it is let through."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Event] = []
        self._came = 0
        self._another = asyncio.Event()

    async def __call__(self, index: int) -> None:
        if index != 0:
            return
        passed = asyncio.Event()
        self._waiting.append(passed)
        self._came += 1
        self._another.set()
        await passed.wait()

    async def until_came(self, number: int) -> None:
        while self._came < number:
            self._another.clear()
            await self._another.wait()

    def let_one_through(self) -> None:
        self._waiting.pop(0).set()


def limited(database: Path, model: ScriptedModel, *, running: int, in_flight: int = 15, **more: Any) -> Runtime:
    """A runtime that looks for work only when it is told of some."""
    limits: dict[str, Any] = {"max_running_turns_per_owner": running, "max_turns_in_flight_per_owner": in_flight}
    return runtime_on(database, model, auth="keys", claim_every_seconds=AN_HOUR, **limits, **more)


def model_at(gate: Turnstile) -> ScriptedModel:
    """It answers; and it asks for a permission first, where a file is to be made."""
    asks = (call("create", path="note.txt", file_text="x"), Reply(text="Made."))
    return ScriptedModel(told(file=asks, otherwise=(Reply(text="Done."),)), gate=gate)


async def sessions_of(runtime: Runtime, number: int, folder: Path) -> list[Session]:
    return [await runtime.session(working_directory=str(folder)) for _ in range(number)]


async def statuses(sessions: Sequence[Session]) -> list[str]:
    return [(await session.look()).status for session in sessions]


async def permission_of(session: Session) -> str:
    asked = (await until(session, lambda body: isinstance(body, PermissionRequested))).body
    await until(session, lambda body: isinstance(body, TurnWaiting))
    assert isinstance(asked, PermissionRequested)
    return asked.request_id


async def test_fault_13_of_twenty_turns_five_run_the_others_in_order_and_five_were_never_there(database: Path) -> None:
    gate = Turnstile()
    async with limited(database, model_at(gate), running=5) as runtime, patience():
        sessions = await sessions_of(runtime, 20, database.parent)
        for session in sessions[:15]:
            await session.send("Hello", message_id="m")
        for session in sessions[15:]:
            before = await session.look()
            with pytest.raises(OperationError) as refused:
                await session.send("Hello", message_id="m")
            assert refused.value.code == "too_many_turns"
            assert await session.look() == before
        for ended in range(11):
            await gate.until_came(5 + ended)
            assert await statuses(sessions[5 + ended : 15]) == ["queued"] * (10 - ended)
            gate.let_one_through()
        for _ in range(4):
            gate.let_one_through()
        for session in sessions[:15]:
            await until_idle(session)
        await sessions[15].send("Hello", message_id="m")
        await gate.until_came(16)
        gate.let_one_through()
        await until_idle(sessions[15])
        assert await people_said(sessions[15]) == ["Hello"]


async def test_a_turn_that_waits_for_somebody_gives_its_slot_to_the_next_at_once(database: Path) -> None:
    gate = Turnstile()
    async with limited(database, model_at(gate), running=1, linger_seconds=AN_HOUR) as runtime, patience():
        asking, other, third = await sessions_of(runtime, 3, database.parent)
        await asking.send("Make a file")
        await other.send("Hello")
        await gate.until_came(1)
        gate.let_one_through()
        await permission_of(asking)
        await gate.until_came(2)
        assert await statuses([asking, other]) == ["waiting", "running"]
        gate.let_one_through()
        await until_idle(other)
        await third.send("Hello")
        await gate.until_came(3)
        gate.let_one_through()


@pytest.mark.parametrize("sent_elsewhere", [False, True], ids=["the same process", "another process"])
async def test_a_turn_that_lingers_lets_go_when_another_comes(database: Path, sent_elsewhere: bool) -> None:
    gate = Turnstile()
    async with (
        limited(database, model_at(gate), running=1, linger_seconds=AN_HOUR) as runtime,
        limited(database, model_at(gate), running=1, work=False) as elsewhere,
        patience(),
    ):
        asking, other = await sessions_of(runtime, 2, database.parent)
        await asking.send("Make a file")
        await gate.until_came(1)
        gate.let_one_through()
        await permission_of(asking)
        await (elsewhere.open(other.id) if sent_elsewhere else other).send("Hello")
        await gate.until_came(2)
        gate.let_one_through()
        await until_idle(other)


async def test_a_turn_that_resumes_goes_before_new_ones_and_not_beyond_the_limit(database: Path) -> None:
    gate = Turnstile()
    async with limited(database, model_at(gate), running=1) as runtime, patience():
        asking, other, third = await sessions_of(runtime, 3, database.parent)
        await asking.send("Make a file")
        await gate.until_came(1)
        gate.let_one_through()
        request = await permission_of(asking)
        await other.send("Hello")
        await third.send("Hello")
        await gate.until_came(2)
        await asking.approve(request)
        assert await statuses([asking, other, third]) == ["waiting", "running", "queued"]
        gate.let_one_through()
        await gate.until_came(3)
        assert await statuses([asking, other, third]) == ["running", "idle", "queued"]
        gate.let_one_through()
        await gate.until_came(4)
        gate.let_one_through()
        await until_idle(third)


async def test_a_message_taken_back_makes_room_for_another(database: Path) -> None:
    gate = Turnstile()
    async with limited(database, model_at(gate), running=1, in_flight=2) as runtime, patience():
        first, second, third = await sessions_of(runtime, 3, database.parent)
        await first.send("Hello")
        await second.send("Hello")
        with pytest.raises(OperationError):
            await third.send("Hello", message_id="m")
        assert (await second.stop()).returned == ("Hello",)
        assert await statuses([second]) == ["idle"]
        await third.send("Hello", message_id="m")
        await gate.until_came(1)
        gate.let_one_through()
        await gate.until_came(2)
        gate.let_one_through()
        await until_idle(third)
