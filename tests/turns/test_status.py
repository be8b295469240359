"""While nothing comes, readers get the status of the wait; on a clock that only the test moves."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Runtime
from holdfast.events import codec
from holdfast.events.compaction import CompactionEnded
from holdfast.live.live import Hint, WaitStatus
from holdfast.models.model import Chunk, Model, ModelRequest
from holdfast.models.scripted import Failure, Reply, Rule, Script, ScriptedModel
from holdfast.models.summary_request import asks_for_summary
from holdfast.server.embedded.session import Session
from holdfast.testing.clock import ManualClock
from holdfast.tools.tool import Tool, ToolContext, tool
from holdfast.turns.status import next_status
from tests.faults.world import Gate, bodies_of, call, comes_true, log_of, patience, runtime_on, scripted, until_idle

pytestmark = pytest.mark.anyio

STILL: dict[str, Any] = {
    "claim_every_seconds": 3600,
    "tails_every_seconds": 3600,
    "lease_ttl_seconds": 86_400,
    "renew_every_seconds": 3600,
    "replay_seconds": 3600,
}
"""Settings under which nothing but the wait itself is due in the hours that these tests let pass."""


class World:
    """A runtime on a clock that stands still, and the statuses that it publishes."""

    def __init__(self, runtime: Runtime, clock: ManualClock, session: Session) -> None:
        self.clock = clock
        self.session = session
        self.live = runtime.operations.live
        self.hints: list[Hint] = []
        self.live.watch(lambda _, hint: self.hints.append(hint))

    def statuses(self) -> list[WaitStatus]:
        """Those that came since the last look."""
        found = [hint for hint in self.hints if isinstance(hint, WaitStatus)]
        self.hints.clear()
        return found

    async def until_waits(self, awaits: str) -> None:
        """Wait until this wait has begun, and its timer runs."""
        await comes_true(lambda: any(task.get_name() == f"status of {awaits}" for task in asyncio.all_tasks()))
        await asyncio.sleep(0)
        self.hints.clear()

    async def passes(self, seconds: float) -> list[WaitStatus]:
        await self.clock.advance(seconds)
        return self.statuses()


@asynccontextmanager
async def world(path: Path, model: Model, *tools: Tool, **more: Any) -> AsyncIterator[World]:
    clock = ManualClock()
    runtime = runtime_on(path / "test.db", model, tools=tools, clock=clock, **STILL, **more)
    async with patience(), runtime:
        yield World(runtime, clock, await runtime.session("s"))


def told(found: list[WaitStatus]) -> list[tuple[str, int]]:
    return [(status.awaits, status.seconds) for status in found]


def test_statuses_are_due_at_10_30_and_60_seconds_and_every_minute_after() -> None:
    due, found = 0, []
    while due < 300:
        due = next_status(due)
        found.append(due)
    assert found == [10, 30, 60, 120, 180, 240, 300]
    assert next_status(3599.5) == 3600
    assert next_status(3600) == 3660


async def test_a_model_that_says_nothing_for_minutes_is_told_of_and_then_answers(tmp_path: Path) -> None:
    gate = Gate()
    async with world(tmp_path, scripted(Reply(text="At last."), gate=gate)) as found:
        began = found.clock.now_ms()
        await found.session.send("Hello")
        await gate.reached.wait()
        statuses = await found.passes(185)
        assert told(statuses) == [("model", seconds) for seconds in (10, 30, 60, 120, 180)]
        assert {(status.since, status.attempt, status.reason) for status in statuses} == {(began, 1, "")}
        gate.open()
        await until_idle(found.session)
        found.statuses()
        assert await found.passes(3_000) == [], "nothing is awaited any more"
        assert "WaitStatus" not in str([type(event.body) for event in await log_of(found.session)])


async def test_a_clock_that_leaps_gives_one_status_and_not_all_that_it_leapt_over(tmp_path: Path) -> None:
    """As on a machine that slept."""

    class Leaping(ManualClock):
        leapt = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.leapt

        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            if seconds == 20:
                self.leapt = 1_000.0

    gate, clock = Gate(), Leaping()
    runtime = runtime_on(tmp_path / "test.db", scripted(Reply(text="Yes."), gate=gate), clock=clock, **STILL)
    async with patience(), runtime:
        found = World(runtime, clock, await runtime.session("s"))
        await found.session.send("Hello")
        await gate.reached.wait()
        assert told(await found.passes(30)) == [("model", 10), ("model", 1_030)]
        assert told(await found.passes(120)) == [("model", 1_080), ("model", 1_140)]


async def test_what_comes_ends_the_silence_and_the_next_one_is_for_the_rest_of_the_answer(tmp_path: Path) -> None:
    gate = Gate(at=1)
    async with world(tmp_path, scripted(Reply(text="One two three."), gate=gate)) as found:
        await found.session.send("Hello")
        await gate.reached.wait()
        await comes_true(lambda: bool(found.hints) and "Grown" in str(found.hints))
        assert told(await found.passes(65)) == [("answer", 10), ("answer", 30), ("answer", 60)]
        gate.open()
        await until_idle(found.session)
        assert await found.passes(600) == []


async def test_each_piece_of_an_answer_begins_the_silence_again(tmp_path: Path) -> None:
    gates = [Gate(at=number) for number in range(4)]

    async def gate(index: int) -> None:
        if index < len(gates):
            await gates[index](index)

    async with world(tmp_path, ScriptedModel(says_pieces(), gate=gate)) as found:
        await found.session.send("Hello")
        for number in range(4):
            await gates[number].reached.wait()
            assert told(await found.passes(9)) == []
            gates[number].open()
        await until_idle(found.session)
        assert found.statuses() == [], "36 seconds in all, and never ten of silence"


def says_pieces() -> Script:
    return Script((Rule((Reply(text="one two three four five"),)),))


async def test_a_retry_is_told_with_its_reason_and_its_time_and_the_attempt_after_it_begins_anew(
    tmp_path: Path,
) -> None:
    gate = Gate()
    failure = Failure(kind="rate_limited", times=1, retry_after=45)
    model = scripted(Reply(text="Done.", fail=failure), gate=gate)
    gate.at = 99  # The first call fails before anything else.
    async with world(tmp_path, model) as found:
        await found.session.send("Hello")
        await found.until_waits("retry")
        gate.at = 0
        began = found.clock.now_ms()
        statuses = await found.passes(44)
        assert told(statuses) == [("retry", 10), ("retry", 30)]
        due = statuses[0].until
        assert due is not None
        assert 45_000 <= due - began <= 1.25 * 45_000
        assert {(status.attempt, status.reason, status.since, status.until) for status in statuses} == {
            (2, "model_rate_limited", began, due)
        }
        await found.clock.advance((due - found.clock.now_ms()) / 1000 + 0.01)
        await gate.reached.wait()
        found.statuses()
        again = await found.passes(40)
        assert told(again) == [("model", 10), ("model", 30)]
        assert {(status.attempt, status.reason, status.until) for status in again} == {(2, "model_rate_limited", None)}
        gate.open()
        await until_idle(found.session)


async def test_a_tool_that_is_silent_is_told_of_and_its_progress_ends_the_silence(tmp_path: Path) -> None:
    runs, report, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool(permission="allow")
    async def slow(context: ToolContext) -> str:
        """Takes its time."""
        runs.set()
        await report.wait()
        context.progress("the secret half")
        await over.wait()
        return "done"

    model = scripted(call("slow"), Reply(text="Done."))
    async with world(tmp_path, model, slow) as found:
        await found.session.send("Hello")
        await runs.wait()
        statuses = await found.passes(59)
        assert told(statuses) == [("tool", 10), ("tool", 30)]
        assert {(status.attempt, bool(status.tool_call_id)) for status in statuses} == {(1, True)}
        report.set()
        await comes_true(lambda: "Progress" in str(found.hints))
        found.statuses()
        statuses = await found.passes(31)
        assert told(statuses) == [("tool", 10), ("tool", 30)]
        assert b"secret" not in codec.to_bytes(statuses)
        over.set()
        await until_idle(found.session)
        found.statuses()
        assert await found.passes(600) == []


class SlowSummary(ScriptedModel):
    """A model whose summaries wait for a gate."""

    def __init__(self, script: Script, gate: Gate) -> None:
        super().__init__(script)
        self._summary_gate = gate

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        if asks_for_summary(request.messages):
            await self._summary_gate()
        async for chunks in super().stream(request):
            yield chunks


async def test_a_turn_that_waits_for_its_compaction_says_so_and_one_that_does_not_is_silent(tmp_path: Path) -> None:
    gate = Gate()
    model = SlowSummary(Script((Rule((Reply(text="So be it. " * 80),)),), window=6_000), gate)
    async with world(tmp_path, model) as found:
        turns = 0
        while not gate.reached.is_set():
            await found.session.run(f"Number {turns}. " + "Please note it. " * 40)
            turns += 1
        assert await found.passes(300) == [], "no turn waits for the summary that is made in the background"
        await found.session.send("And this. " + "A long one. " * 900)
        await found.until_waits("compaction")
        assert told(await found.passes(61)) == [("compaction", seconds) for seconds in (10, 30, 60)]
        gate.open()
        await until_idle(found.session)
        found.statuses()
        assert await found.passes(600) == []
        assert (await bodies_of(found.session, CompactionEnded))[0].success


async def test_a_stop_ends_the_statuses(tmp_path: Path) -> None:
    gate = Gate()
    async with world(tmp_path, scripted(Reply(text="Never."), gate=gate)) as found:
        await found.session.send("Hello")
        await gate.reached.wait()
        assert len(await found.passes(30)) == 2
        await found.session.stop()
        await until_idle(found.session)
        assert await found.passes(600) == []


async def test_readers_get_a_status_as_a_typed_value_and_the_log_keeps_none(tmp_path: Path) -> None:
    gate = Gate()
    async with world(tmp_path, scripted(Reply(text="Yes."), gate=gate)) as found:
        await found.session.send("Hello")
        await gate.reached.wait()
        await found.clock.advance(15)
        late = asyncio.create_task(first_status(found.session))
        await comes_true(found.live.listening)
        await asyncio.sleep(0)
        await found.clock.advance(15)
        assert (await late).seconds == 30, "a reader that comes in the middle of a silence gets the next one"
        assert not [each async for each in found.session.events(follow=False) if isinstance(each, WaitStatus)]
        gate.open()


async def first_status(session: Session) -> WaitStatus:
    async for reading in session.events():
        if isinstance(reading, WaitStatus):
            return reading
    raise AssertionError("it never ends")


async def test_no_wait_outlives_its_turn(tmp_path: Path) -> None:
    async with world(tmp_path, scripted(*[Reply(text="Yes.")] * 3)) as found:
        for _ in range(3):
            await found.session.run("Hello")
        await asyncio.sleep(0)
        left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("status of")]
        assert left == []
