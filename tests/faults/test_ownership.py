"""The holder of a session, and the session's fate when that process stops, sleeps, dies or can't send its heartbeat."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Runtime
from holdfast.events.session import SessionError
from holdfast.events.tool import ToolAttempted, ToolCompleted
from holdfast.events.turn import Claimed, TurnEnded, TurnStarted
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel
from holdfast.models.scripted import Reply
from holdfast.models.server import ModelServer
from holdfast.server.embedded.session import Session
from holdfast.store.clock import SystemClock
from holdfast.store.store import Committed, FenceMissed, Unit
from holdfast.tools.tool import ToolContext, tool
from tests.faults.processes import Child, child_on, journal_of
from tests.faults.world import (
    SHORT_LEASE,
    Gate,
    bodies_of,
    call,
    comes_true,
    endings_of,
    log_of,
    model_said,
    patience,
    people_said,
    runtime_on,
    says,
    scripted,
    told,
    until,
)
from tests.rows import row_of

pytestmark = pytest.mark.anyio


# 1


async def test_fault_01_after_a_stop_nothing_stays_locked_and_the_next_turn_starts_within_a_second(
    database: Path,
) -> None:
    gate = Gate(at=1)
    async with runtime_on(database, scripted(Reply(text="one two three"), gate=gate)) as runtime, patience():
        session = await runtime.session()
        for _ in range(3):
            gate.reached.clear()
            await session.send("Go on for ever.")
            await gate.reached.wait()
            assert (await session.stop()).outcome == "stopping"
        gate.open()
        asked = time.monotonic()
        head = (await session.look()).head
        sent = await session.send("And now?")
        await until(session, lambda body: isinstance(body, TurnStarted), after=head)
        assert time.monotonic() - asked < 1
        assert (await session.result_of(sent.message_id)).reason == "completed"
        assert (await endings_of(session))[-1] == "completed"
        await comes_true(lambda: runtime.worker.sessions_held == 0)
        assert (await row_of(session)).held_by is None


# 2


async def test_fault_02_a_late_release_by_an_old_owner_never_frees_the_new_lease(database: Path) -> None:
    gate = Gate()
    async with runtime_on(database, scripted(Reply(text="hi"), gate=gate)) as old, patience():
        session = await old.session()
        await session.send("Hello")
        await gate.reached.wait()
        row = await row_of(session)
        assert row.held_by == old.store.process
        (first,) = await old.store.held()
        assert await old.store.release(first, seen_tail=-1, how="handed_over")
        async with runtime_on(database, scripted(Reply(text="hi"), gate=gate)) as new:
            await until(new.open(session.id), lambda body: isinstance(body, Claimed))
            holder = (await new.store.row(session.key) or row).held_by
            for how in ("done", "handed_over", "failed", "for_another"):
                tail = (await row_of(session)).inbox_tail
                assert not await old.store.release(first, seen_tail=tail, how=how)
                assert not await new.store.release(first, seen_tail=tail, how=how)
            assert (await row_of(session)).held_by == holder
            gate.open()
            await until(session, lambda body: isinstance(body, TurnEnded))
        assert await endings_of(session) == ["completed"]


# 3

Exit = Callable[[Runtime, Session], Awaitable[None]]


async def stopping(runtime: Runtime, session: Session) -> None:
    await session.stop()


async def deleting(runtime: Runtime, session: Session) -> None:
    await session.delete()


async def closing(runtime: Runtime, session: Session) -> None:
    await runtime.close()


async def losing(runtime: Runtime, session: Session) -> None:
    """Another claim raises the fence behind the holder's back."""
    (lease,) = await runtime.store.held()
    await runtime.store.release(lease, seen_tail=-1, how="for_another")
    await runtime.store.claim(limit=1)
    # By this claim, or by one of the runtime's own worker, which may have been quicker.
    assert (await runtime.store.tails([session.key]))[session.key][0] > lease.fence


EARLY_EXITS = [stopping, deleting, closing, losing]

ONLY_WHEN_WOKEN: dict[str, Any] = {"claim_every_seconds": 3600}
"""A worker that does not take back by itself what was taken from it."""


@pytest.mark.parametrize("leave", EARLY_EXITS)
async def test_fault_03_every_early_exit_closes_the_model_stream(database: Path, leave: Exit) -> None:
    gate = Gate(at=1)
    async with ModelServer(says(Reply(text="one two three")), gate=gate) as server, patience():
        model = HttpModel(ChatCompletions("m"), base_url=server.url, name="openai/m")
        async with model, runtime_on(database, model, **ONLY_WHEN_WOKEN) as runtime:
            session = await runtime.session()
            await session.send("Hello")
            await gate.reached.wait()
            await leave(runtime, session)
            await gate.left.wait()


@pytest.mark.parametrize("leave", EARLY_EXITS)
async def test_fault_03_every_early_exit_ends_the_tools(database: Path, leave: Exit) -> None:
    gate = Gate()
    in_a_thread, told_to_end = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool(permission="allow")
    async def wait() -> None:
        await gate()

    @tool(permission="allow")
    def wait_in_a_thread(context: ToolContext) -> None:
        loop.call_soon_threadsafe(in_a_thread.set)
        deadline = time.monotonic() + 20
        while not context.cancelled and time.monotonic() < deadline:
            time.sleep(0.005)
        if context.cancelled:
            loop.call_soon_threadsafe(told_to_end.set)

    both = Reply(tool_calls=(*call("wait").tool_calls, *call("wait_in_a_thread").tool_calls))
    tools = [wait, wait_in_a_thread]
    async with runtime_on(database, scripted(both), tools=tools, **ONLY_WHEN_WOKEN) as runtime, patience():
        session = await runtime.session()
        await session.send("Hello")
        await gate.reached.wait()
        await in_a_thread.wait()
        await leave(runtime, session)
        await gate.left.wait()
        await told_to_end.wait()


# 4


async def test_fault_04_the_turns_of_a_killed_process_go_on_in_another_and_no_work_is_dropped(database: Path) -> None:
    script = told(
        long=(Reply(text="one two three four"),),
        tool=(call("note", line="x"), call("hold", name="a"), Reply(text="After: {last_tool_result}")),
        repeat=(call("hold_again", name="b"), Reply(text="After: {last_tool_result}")),
    )
    holds = ["model:3", "tool:a", "tool:b"]
    async with child_on(database, script=script, holds=holds) as doomed:
        for word in ("long", "tool", "repeat"):
            await doomed.ask("create", session=word)
            await doomed.ask("send", session=word, text=word, message_id=word)
        for gate in holds:
            await doomed.comes_to(gate)
        await doomed.ask("send", session="tool", text="a follow-up", message_id="follow-up")
        await doomed.kill()
    async with child_on(database, script=script) as heir, runtime_on(database, work=False) as reader:
        for word in ("long", "tool", "repeat"):
            result = await heir.ask("result", session=word, message_id=word)
            assert result["reason"] == "completed"
        await heir.ask("result", session="tool", message_id="follow-up")
        assert await model_said(reader.open("long")) == ["one two three", "one two three four"]
        unsure = (await bodies_of(reader.open("tool"), ToolCompleted))[-1]
        assert (unsure.error, unsure.success) == ("interrupted", False)
        assert await model_said(reader.open("repeat")) == ["", "After: held b"]
        assert await people_said(reader.open("tool")) == ["tool", "a follow-up"]
    effects = [line.split()[1] for line in journal_of(database)]
    assert sorted(effects) == ["a", "b", "b", "x"], "only the repeatable call ran twice"
    keys = [line.split()[0] for line in journal_of(database) if line.endswith(" b")]
    assert len(set(keys)) == 1, "both attempts had the same key"


async def test_fault_04_a_killed_process_is_noticed_without_waiting_for_its_lease(database: Path) -> None:
    script = says(Reply(text="one two"))
    async with child_on(database, script=script, holds=["model:1"]) as doomed:
        await doomed.ask("create", session="s")
        await doomed.ask("send", session="s", text="Hello", message_id="m")
        await doomed.comes_to("model:1")
        async with child_on(database, script=script) as heir:
            killed = time.monotonic()
            await doomed.kill()
            assert (await heir.ask("result", session="s", message_id="m"))["reason"] == "completed"
            assert time.monotonic() - killed < 10, "the lease lasts 15 s; the lock told of the death at once"


# 5


async def test_fault_05_a_process_that_sleeps_past_its_lease_is_replaced_and_can_write_nothing_when_it_wakes(
    database: Path,
) -> None:
    script = told(
        long=(Reply(text="one two three four"),),
        tool=(call("hold", name="a"), Reply(text="After: {last_tool_result}")),
    )
    holds = ["model:3", "tool:a"]
    async with child_on(database, script=script, holds=holds, **SHORT_LEASE) as sleeper:
        for word in ("long", "tool"):
            await sleeper.ask("create", session=word)
            await sleeper.ask("send", session=word, text=word, message_id=word)
        for gate in holds:
            await sleeper.comes_to(gate)
        sleeper.signal(signal.SIGSTOP)
        async with child_on(database, script=script, **SHORT_LEASE) as heir:
            for word in ("long", "tool"):
                assert (await heir.ask("result", session=word, message_id=word))["reason"] == "completed"
            before = {word: await heir.ask("log", session=word) for word in ("long", "tool")}
            sleeper.signal(signal.SIGCONT)
            for gate in holds:
                sleeper.begin("open", gate=gate)
            await sleeper.logged("could not renew in time")
            # It is alive and well, and may hold sessions again; what it was doing is gone.
            await sleeper.ask("create", session="new")
            await sleeper.ask("send", session="new", text="Hello", message_id="m")
            assert (await heir.ask("result", session="new", message_id="m"))["reason"] == "completed"
            assert {word: await heir.ask("log", session=word) for word in ("long", "tool")} == before
    async with runtime_on(database, work=False) as reader:
        for word in ("long", "tool"):
            assert await endings_of(reader.open(word)) == ["completed"]
            assert len(await bodies_of(reader.open(word), Claimed)) == 1
    assert [line.split()[1] for line in journal_of(database)] == ["a"]


async def test_fault_05_every_kind_of_write_under_an_old_fence_is_refused(database: Path) -> None:
    gate = Gate()
    model = scripted(Reply(text="hi"), gate=gate)
    async with runtime_on(database, model, **ONLY_WHEN_WOKEN) as runtime, patience():
        session = await runtime.session()
        await session.send("Hello")
        await gate.reached.wait()
        (old,) = await runtime.store.held()
        await losing(runtime, session)
        (new,) = await runtime.store.held()
        head = (await session.look()).head
        late = await runtime.store.commit(
            Unit(key=session.key, fence=old.fence, status="idle", makes_progress=True, drops_segments=True)
        )
        assert late == FenceMissed()
        assert (await session.look()).head == head
        now = await runtime.store.commit(Unit(key=session.key, fence=new.fence, makes_progress=True))
        assert isinstance(now, Committed)


# 6


async def test_fault_06_a_worker_whose_renewal_hangs_has_let_go_before_its_lease_ends(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, tool_gate = Gate(at=1), Gate()

    @tool(permission="allow", after_crash="repeat")
    async def wait() -> str:
        await tool_gate()
        return "waited"

    script = scripted(Reply(text="one two"), gate=stream)
    stuck = runtime_on(database, script, tools=[wait], **SHORT_LEASE)
    async with stuck, patience():
        session = await stuck.session()
        await session.send("Hello")
        await stream.reached.wait()
        renewed, hanging = stuck.store.renew, asyncio.Event()
        sent: list[float] = []

        async def hang(*, ttl_seconds: float) -> bool:
            hanging.set()
            await asyncio.Event().wait()
            return await renewed(ttl_seconds=ttl_seconds)

        async def renew_and_note(*, ttl_seconds: float) -> bool:
            sent.append(time.monotonic())
            return await renewed(ttl_seconds=ttl_seconds)

        monkeypatch.setattr(stuck.store, "renew", renew_and_note)
        await comes_true(lambda: bool(sent))
        monkeypatch.setattr(stuck.store, "renew", hang)
        await hanging.wait()
        await stream.left.wait()
        assert time.monotonic() < sent[-1] + 1.2, "its lease had not ended yet"
        assert not stuck.worker.keeper.trusted()
        stream.open()
        async with runtime_on(database, script, tools=[wait], **SHORT_LEASE) as other:
            await until(other.open(session.id), lambda body: isinstance(body, TurnEnded))
            claimed = await bodies_of(other.open(session.id), Claimed)
            assert len(claimed) == 1
            assert await endings_of(other.open(session.id)) == ["completed"]


# 7


class JumpingClock(SystemClock):
    """A wall clock that somebody sets, again and again."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.offset_ms


DAY_MS = 24 * 3600 * 1000


@pytest.mark.parametrize("jump_ms", [-3650 * DAY_MS, -DAY_MS, DAY_MS, 3650 * DAY_MS])
async def test_fault_07_a_jump_of_the_clock_moves_no_lease_and_no_event(database: Path, jump_ms: int) -> None:
    gate, clock = Gate(at=1), JumpingClock()
    async with (
        runtime_on(database, scripted(Reply(text="one two"), gate=gate), clock=clock) as holder,
        patience(),
    ):
        session = await holder.session()
        sent = await session.send("Hello")
        await gate.reached.wait()
        async with runtime_on(database, clock=clock) as other:
            clock.offset_ms = jump_ms
            assert await other.store.claim(limit=10) == []
            assert (await row_of(session)).held_by == holder.store.process
            gate.open()
            assert (await session.result_of(sent.message_id)).text == "one two"
            assert (await session.run("And again?")).reason == "completed"
        assert [event.position for event in await log_of(session)][-1] == (await session.look()).head
        assert all(body.duration_ms >= 0 for body in await bodies_of(session, TurnEnded))
        assert await bodies_of(session, Claimed) == []


async def test_fault_07_processes_of_one_name_differ_by_a_token_that_never_comes_again(database: Path) -> None:
    tokens = set()
    for _ in range(3):
        async with (
            runtime_on(database, work=False) as first,
            runtime_on(database, work=False) as second,
            child_on(database, script=says(Reply(text="hi")), work=False) as third,
        ):
            tokens |= {first.store.process, second.store.process, *third.said("ready")}
    assert len(tokens) == 9, "one process, the same pid and name each time, and yet nine different holders"


async def test_fault_07_a_file_left_behind_by_a_dead_process_means_nothing_to_a_new_one_of_the_same_pid(
    database: Path,
) -> None:
    script = says(Reply(text="one two"))
    async with child_on(database, script=script, holds=["model:1"]) as doomed:
        await doomed.ask("create", session="s")
        await doomed.ask("send", session="s", text="Hello", message_id="m")
        await doomed.comes_to("model:1")
        await doomed.kill()
        (dead,) = doomed.said("ready")
    lock = database.with_name("holdfast.db.live") / dead
    assert lock.exists(), "the process had no chance to tidy up"
    async with child_on(database, script=script) as heir:
        assert (await heir.ask("result", session="s", message_id="m"))["reason"] == "completed"
        assert not lock.exists()


# 8


async def test_fault_08_a_rolling_restart_with_overlap_loses_and_repeats_nothing(database: Path) -> None:
    script = told(otherwise=(call("note", line="x"), Reply(text="Answer to {user}")))
    sessions = [f"s{number}" for number in range(4)]
    sent: list[tuple[str, str]] = []

    async def send_to_all(child: Child, round_number: int) -> None:
        for session in sessions:
            message_id = f"{session}-{round_number}"
            await child.ask("send", session=session, text=message_id, message_id=message_id, delivery="enqueue")
            sent.append((session, message_id))

    async with child_on(database, script=script) as first:
        for session in sessions:
            await first.ask("create", session=session)
        await send_to_all(first, 0)
        async with child_on(database, script=script) as second:
            await send_to_all(first, 1)
            ending = first.begin("close", grace_seconds=20)
            await send_to_all(second, 2)
            await first.answer(ending)
            async with child_on(database, script=script) as third:
                await second.ask("close", grace_seconds=20)
                await send_to_all(third, 3)
                for session, message_id in sent:
                    assert (await third.ask("result", session=session, message_id=message_id))["reason"] == "completed"
    async with runtime_on(database, work=False) as reader:
        for session in sessions:
            assert await people_said(reader.open(session)) == [f"{session}-{number}" for number in range(4)]
            assert await endings_of(reader.open(session)) == ["completed"] * 4
            attempts = await bodies_of(reader.open(session), ToolAttempted)
            results = await bodies_of(reader.open(session), ToolCompleted)
            assert [body.attempt for body in attempts] == [1] * 4
            assert [body.success for body in results] == [True] * 4, "every step was finished where it had begun"
    effects = [line.split()[0] for line in journal_of(database)]
    assert len(effects) == len(set(effects)) == 16


async def test_fault_08_a_clean_stop_hands_over_at_once_and_at_the_end_of_a_step(database: Path) -> None:
    script = says(call("hold", name="a"), Reply(text="After: {last_tool_result}"))
    async with child_on(database, script=script, holds=["tool:a"]) as leaving:
        await leaving.ask("create", session="s")
        await leaving.ask("send", session="s", text="Hello", message_id="m")
        await leaving.comes_to("tool:a")
        async with child_on(database, script=script) as staying:
            closing_down = leaving.begin("close", grace_seconds=20)
            leaving.begin("open", gate="tool:a")
            await leaving.answer(closing_down)
            left = time.monotonic()
            result = await staying.ask("result", session="s", message_id="m")
            assert time.monotonic() - left < 5, "the lease lasts 15 s"
            assert result["text"] == "After: held a", "the step was finished where it had begun"
    assert [line.split()[1] for line in journal_of(database)] == ["a"]


# 9


async def test_fault_09_a_turn_that_kills_every_process_that_runs_it_is_given_up_with_a_visible_error(
    database: Path,
) -> None:
    script = told(die=(call("die"), Reply(text="Survived.")), now=(Reply(text="Done."),))
    deaths = 0
    async with runtime_on(database, work=False) as sender, child_on(database, script=script) as first:
        await first.ask("create", session="s")
        await first.end()
        session = sender.open("s")
        await session.send("die", message_id="m")
        while not await bodies_of(session, TurnEnded):
            async with child_on(database, script=script, max_claims_without_progress=2, ready=False) as next_one:
                ended = asyncio.create_task(until(session, lambda body: isinstance(body, TurnEnded)))
                died = asyncio.create_task(next_one.gone())
                await asyncio.wait((ended, died), return_when=asyncio.FIRST_COMPLETED)
                deaths += died.done() and died.result() == -signal.SIGKILL
                ended.cancel()
                await asyncio.gather(ended, return_exceptions=True)
            assert deaths <= 5, "it is never given up"
        assert deaths == 2
        assert await endings_of(session) == ["error"]
        (error,) = await bodies_of(session, SessionError)
        assert error.code == "poisoned"
        assert error.retryable
        assert "given up" in error.message
        async with child_on(database, script=script) as last:
            await last.ask("send", session="s", text="And now?", message_id="n")
            assert (await last.ask("result", session="s", message_id="n"))["text"] == "Done."
    assert len(journal_of(database)) == 2
