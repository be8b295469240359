"""Hints may be lost, late or never there: what a reader is given is what the log holds."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.app import Runtime
from holdfast.events.event import PROGRESS, RECORDS, Event, type_of
from holdfast.events.ids import Key, RequestId, ToolCallId
from holdfast.events.session import (
    ClientTool,
    ModeChanged,
    PlanChanged,
    SessionInfo,
    SessionShutdown,
    SettingsChanged,
    ToolDelivered,
)
from holdfast.events.task import TaskNotified
from holdfast.events.turn import TurnEnded
from holdfast.live.live import Advanced, Changed, Delta, Hint, Progress
from holdfast.live.local import MAX_HINTS, LocalLive
from holdfast.models.scripted import TASK_NEWS, Failure, Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.protocol.reading import Reading
from holdfast.server.embedded.session import Session
from holdfast.tools.tool import ToolContext, tool
from tests.faults.processes import child_on
from tests.faults.world import (
    PATIENCE_SECONDS,
    Gate,
    Whole,
    call,
    comes_true,
    log_of,
    patience,
    runtime_on,
    says,
    scripted,
    settings,
    told,
    until,
    until_idle,
    whole,
)

pytestmark = pytest.mark.anyio


async def collected(readings: AsyncIterator[Reading], into: list[Reading], *, endings: int = 1) -> None:
    async for reading in readings:
        into.append(reading)
        if isinstance(reading, Event) and isinstance(reading.body, TurnEnded):
            endings -= 1
            if endings == 0:
                return


async def reloaded(session: Session) -> Whole:
    return whole([reading async for reading in session.events(follow=False)])


# 39


class LossyLive(LocalLive):
    """Loses hints, and now and then delivers one twice. Only the last of a turn is sure to arrive."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self.lost = 0

    def publish(self, key: Key, hint: Hint) -> None:
        is_last = isinstance(hint, Advanced) and any(isinstance(event.body, TurnEnded) for event in hint.events)
        if not isinstance(hint, Changed) and not is_last and self._chance.random() < 0.5:
            self.lost += 1
            return
        super().publish(key, hint)
        if self._chance.random() < 0.2:
            super().publish(key, hint)


@pytest.mark.parametrize("seed", range(5))
async def test_fault_39_lost_and_doubled_hints_are_repaired_from_the_log(
    database: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = " ".join(f"word{number} ü{number}" for number in range(40))
    model = scripted(call("look"), Reply(reasoning=words, text=words, chunk_size=3, chunk_delay_ms=1))
    live = LossyLive(seed)
    monkeypatch.setattr("holdfast.app.LocalLive", lambda: live)
    async with runtime_on(database, model, tools=[look]) as runtime, patience():
        session = await runtime.session()
        readings: list[Reading] = []
        reading = asyncio.create_task(collected(session.events(), readings))
        await session.send("Hello")
        await reading
        assert live.lost > 5
        assert whole(readings) == await reloaded(session)


async def test_fault_39_a_reader_that_fell_too_far_behind_catches_up_from_the_log(database: Path) -> None:
    text = "x" * (2 * MAX_HINTS)
    async with runtime_on(database, scripted(Reply(text=text, chunk_size=1))) as runtime, patience():
        session = await runtime.session()
        readings: list[Reading] = []
        events = session.events()
        readings.append(await anext(events))  # From here on hints are kept for this reader, who does not look.
        assert (await session.run("Hello")).text == text
        for number in range(MAX_HINTS):
            runtime.operations.live.publish(session.key, Progress(ToolCallId("none"), str(number)))
        await collected(events, readings)
        assert whole(readings) == await reloaded(session)


async def test_fault_39_a_reader_in_a_process_without_hints_sees_the_same(database: Path) -> None:
    script = says(Reply(text="one two three four five six", reasoning="hm hm"))
    async with (
        child_on(database, script=script, holds=["model:3"]) as worker,
        patience(),
        runtime_on(database, work=False) as elsewhere,
    ):
        await worker.ask("create", session="s")
        session = elsewhere.open("s")
        readings: list[Reading] = []
        reading = asyncio.create_task(collected(session.events(), readings))
        await session.send("Hello", message_id="m")
        await worker.comes_to("model:3")
        await comes_true(lambda: any(isinstance(found, Delta) for found in readings))
        await worker.ask("open", gate="model:3")
        await reading
        assert whole(readings) == await reloaded(session)


# 40


@tool(permission="allow")
async def look() -> str:
    """Look around."""
    return "seen"


@tool
async def guarded(context: ToolContext) -> str:
    """Something that a person must allow."""
    context.progress("at work")
    return "done"


LOCATE = ClientTool(name="locate", description="Where is it?", parameters={"type": "object"})
ALL_TYPES = {str(kind.__struct_config__.tag) for kind in (*RECORDS, *PROGRESS)}

OF_OTHER_FAULTS = {
    "session.resume",  # written by surfaces that know of clients
    "holdfast.truncated",  # rewinding
    "holdfast.claimed",  # needs a second process; see the ownership faults
}


def script_of_everything() -> Script:
    calls = (
        ScriptedCall("guarded"),
        ScriptedCall("ask_user", {"question": "Which?"}),
        ScriptedCall("locate", {"a": 1}),
    )
    command = {"command": "until [ -e go ]; do sleep 0.01; done", "run_in_background": True}
    news = Rule((Reply(text="It has ended."),), TASK_NEWS)
    rest = told(
        everything=(Reply(reasoning="I need much.", text="Asking. ", tool_calls=calls), Reply(text="Thanks ☺.")),
        task=(Reply(tool_calls=(ScriptedCall("exec", command),)), Reply(text="It runs.")),
        cut=(Reply(text="one two three", chunk_delay_ms=10, fail=Failure(kind="cut", after=2, times=1)),),
        fail=(Reply(fail=Failure(kind="refused")),),
        silent=(Reply(reasoning="hm"),),
        down=(Reply(fail=Failure(kind="unavailable")),),
        slow=(Reply(text="a b c"),),
    )
    return Script((news, *rest.rules))


async def live_through_everything(session: Session, gate: Gate, work: Path) -> None:
    """Five ordinary turns, one that a task starts, one that falls back, one failed, one stopped. Before the
    last one a message is pinned and the conversation is compacted."""
    result = await session.run("everything")
    for request in result.requests:
        match request.kind:
            case "permission":
                await session.approve(request.id, for_session=True)
            case "question":
                await session.answer(request.id, "Blue")
            case "client_tool":
                await session.give_result(request.id, "There")
    await until_idle(session)
    await session.run("task")
    (work / "go").touch()
    await until(session, lambda body: isinstance(body, TaskNotified))
    for text in ("cut", "fail", "silent"):
        await session.send(text, delivery="enqueue")
    sent = await session.send("down", delivery="enqueue")
    await until_idle(session)
    await session.pin(sent.message_id)
    assert (await session.compact(wait_seconds=PATIENCE_SECONDS)).outcome == "compacted"
    gate.at = 2
    sent = await session.send("slow")
    await gate.reached.wait()
    await session.stop()
    await session.result_of(sent.message_id)


RECORDED = (
    SessionInfo(info_type="note", message="hello"),
    SettingsChanged(client_name="a client"),
    ModeChanged(new_mode="plan", previous_mode="interactive"),
    PlanChanged(operation="create"),
    ToolDelivered(request_id=RequestId("none"), tool_call_id=ToolCallId("none")),
    SessionShutdown(shutdown_type="routine"),
)


async def test_fault_40_every_type_of_event_is_the_same_live_replayed_and_reloaded(
    database: Path, tmp_path: Path
) -> None:
    gate = Gate(at=-1)
    model = ScriptedModel(script_of_everything(), gate=gate)
    tools = [look, guarded]
    work = tmp_path / "work"
    work.mkdir()
    config = settings(database, model="openai/m", model_fallback="demo", max_model_attempts=2)
    async with Runtime(config=config, model=model, tools=tools) as runtime, patience():
        session = await runtime.session(client_tools=(LOCATE,), working_directory=str(work), allow=("shell",))
        readings: list[Reading] = []
        reading = asyncio.create_task(collected(session.events(), readings, endings=8))
        await runtime.operations.change_model(session.key, "scripted")
        await runtime.operations.record(session.key, *RECORDED)
        await live_through_everything(session, gate, work)
        await reading
        live = whole(readings)
        assert live == await reloaded(session)
        seen = {type_of(event.body) for event in await log_of(session)}
        assert seen >= ALL_TYPES - OF_OTHER_FAULTS, ALL_TYPES - OF_OTHER_FAULTS - seen
        for position in range(0, len(live[0]), 3):
            rest = [found async for found in session.events(str(live[0][position][0]), follow=False)]
            assert whole(rest)[0] == live[0][position + 1 :]
    async with runtime_on(database, tools=tools, work=False) as restarted:
        assert await reloaded(restarted.open(session.id)) == live
