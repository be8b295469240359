"""The runtime is killed with SIGKILL at many bad moments: nothing is lost, and nothing is done twice."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from copilot import CopilotClient, CopilotSession
from copilot._jsonrpc import ProcessExitedError
from copilot.rpc import PermissionDecisionApproveOnce, PermissionDecisionRequest
from copilot.session_events import (
    AssistantMessageData,
    AssistantMessageDeltaData,
    SessionErrorData,
    SessionEvent,
    ToolExecutionCompleteData,
    ToolExecutionStartData,
    UserMessageData,
)

from tests.wire.copilot.harness import (
    Heard,
    Home,
    Model,
    Pipe,
    Server,
    approving,
    calls,
    calls_all,
    connected,
    final_answer,
    history,
    reply_to,
    running,
    says,
    tool_results,
)

pytestmark = pytest.mark.anyio


MakePipe = Callable[[str], Pipe]


class Counted:
    """A command that counts its runs, reports its start, and ends when the test allows it."""

    def __init__(self, home: Home, pipe: MakePipe) -> None:
        self._begun, self._end = pipe("begun"), pipe("end")
        self._count = home.folder / "count"
        self.command = (
            f"echo ran >> {self._count}; echo begun > {self._begun.path}; read line < {self._end.path}; echo ended"
        )

    async def begun(self) -> None:
        assert await self._begun.line() == "begun"

    def let_end(self) -> None:
        self._end.write("now")

    @property
    def times(self) -> int:
        return len(self._count.read_text(encoding="utf-8").splitlines())


@asynccontextmanager
async def resumed(home: Home, session_id: str, *, continue_pending_work: bool = True) -> AsyncIterator[CopilotSession]:
    """A new runtime on the same home, and the session in it."""
    async with home.serve() as server, connected(server.client()) as client:
        yield await client.resume_session(session_id, **approving(continue_pending_work=continue_pending_work))


async def killed_in(server: Server, client: CopilotClient) -> None:
    await server.kill()
    await client.force_stop()


# A built-in command


@pytest.mark.parametrize("ends_first", [True, False], ids=["it ends before the restart", "it still runs"])
async def test_running_command_runs_exactly_once_across_a_crash(
    own_home: Home, pipe: MakePipe, ends_first: bool
) -> None:
    model, counted = own_home.model, Counted(own_home, pipe)
    model.on("Run it once", calls("bash", command=counted.command), says("{last_tool_result}"))
    async with own_home.serve() as server:
        client = server.client()
        session = await client.create_session(**approving())
        await session.send("Run it once")
        await counted.begun()
        await killed_in(server, client)
    if ends_first:
        counted.let_end()
    async with resumed(own_home, session.session_id) as again:
        if not ends_first:
            counted.let_end()
        assert await final_answer(again)
        assert len(await history(again, ToolExecutionCompleteData)) <= 1
    assert counted.times == 1
    (told,) = tool_results(model.last_call_about("Run it once"))
    assert "ended" in told or "interrupted" in told


async def test_running_command_is_not_repeated_by_a_plain_resume(own_home: Home, pipe: MakePipe) -> None:
    model, counted = own_home.model, Counted(own_home, pipe)
    model.on("Run it, then leave", calls("bash", command=counted.command), says("Over."))
    model.on("And now, in peace?", says("In peace."))
    async with own_home.serve() as server:
        client = server.client()
        session = await client.create_session(**approving())
        await session.send("Run it, then leave")
        await counted.begun()
        await killed_in(server, client)
    counted.let_end()
    async with resumed(own_home, session.session_id, continue_pending_work=False) as again:
        assert await reply_to(again, "And now, in peace?") == "In peace."
    assert counted.times == 1


# A model call


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
@pytest.mark.parametrize("asked", [True, False], ids=["continue", "plain"])
async def test_cut_model_call_is_repeated_and_the_turn_completes(own_home: Home, streaming: bool, asked: bool) -> None:
    model = own_home.model
    prompt = f"Think, {streaming}, {asked}"
    model.on(prompt, says("Thought through."))
    hold = model.hold(prompt)
    async with own_home.serve() as server:
        client = server.client()
        session = await client.create_session(**approving(streaming=streaming))
        await session.send(prompt)
        await hold.until_reached()
        await killed_in(server, client)
    await hold.until_left()
    hold.release()
    async with resumed(own_home, session.session_id, continue_pending_work=asked) as again:
        assert await final_answer(again) == "Thought through."
        assert len(await history(again, UserMessageData)) == 1


async def test_text_shown_to_a_client_is_in_the_history(own_home: Home) -> None:
    model = own_home.model
    model.on("Speak and be cut", says("one two three four five six"))
    hold = model.hold("Speak and be cut", piece=4)
    before = Heard()
    async with own_home.serve() as server:
        client = server.client()
        session = await client.create_session(**approving(streaming=True, on_event=before))
        await session.send("Speak and be cut")
        await before.until(AssistantMessageDeltaData, lambda data: "four" in data.delta_content)
        await killed_in(server, client)
    shown = "".join(data.delta_content for data in before.all(AssistantMessageDeltaData))
    assert shown == "one two three four"
    hold.release()
    async with resumed(own_home, session.session_id) as again:
        await final_answer(again)
        said = await history(again, AssistantMessageData)
    assert [data.content for data in said] == [shown, "one two three four five six"]
    assert said[0].message_id == before.all(AssistantMessageDeltaData)[0].message_id


# Messages


async def test_messages_accepted_while_busy_run_after_a_crash(own_home: Home) -> None:
    model = own_home.model
    model.on("Busy when it dies", says("Was busy."))
    for number in (1, 2, 3):
        model.on(f"Accepted {number}", says(f"Done {number}"))
    hold = model.hold("Busy when it dies")
    async with own_home.serve() as server:
        client = server.client()
        session = await client.create_session(**approving())
        await session.send("Busy when it dies")
        await hold.until_reached()
        for number in (1, 2, 3):
            assert await session.send(f"Accepted {number}")
        await killed_in(server, client)
    hold.release()
    async with resumed(own_home, session.session_id) as again:
        assert await final_answer(again) == "Done 3"
        said = [data.content for data in await history(again, UserMessageData)]
        answers = [data.content for data in await history(again, AssistantMessageData)]
    assert said == ["Busy when it dies", "Accepted 1", "Accepted 2", "Accepted 3"]
    assert answers == ["Was busy.", "Done 1", "Done 2", "Done 3"]


async def test_acknowledged_message_survives_a_crash_before_its_turn(own_home: Home) -> None:
    own_home.model.on("Acknowledged", says("Answered."))
    async with own_home.serve() as server:
        client = server.client()
        session = await client.create_session(**approving())
        await session.send("Acknowledged")
        await killed_in(server, client)
    async with resumed(own_home, session.session_id) as again:
        assert await final_answer(again) == "Answered."
        assert [data.content for data in await history(again, UserMessageData)] == ["Acknowledged"]


async def test_a_turn_over_stdio_goes_on_when_the_next_client_opens_the_same_home(own_home: Home) -> None:
    model = own_home.model
    model.on("Begin over stdio", says("Ended elsewhere."))
    hold = model.hold("Begin over stdio")
    async with running(own_home.stdio()) as client:
        session = await client.create_session(**approving())
        await session.send("Begin over stdio")
        await hold.until_reached()
        await client.force_stop()
    hold.release()
    async with running(own_home.stdio()) as client:
        again = await client.resume_session(session.session_id, **approving(continue_pending_work=True))
        assert await final_answer(again) == "Ended elsewhere."


async def test_calls_to_a_dead_server_fail_clearly_in_the_client(own_home: Home) -> None:
    own_home.model.on("Wait for the end", says("Never said."))
    hold = own_home.model.hold("Wait for the end")
    async with own_home.serve() as server:
        client = server.client()
        session = await client.create_session(**approving())
        waiting = asyncio.create_task(reply_to(session, "Wait for the end"))
        await hold.until_reached()
        await server.kill()
        with pytest.raises((ProcessExitedError, RuntimeError)):
            await waiting
        await client.force_stop()
    hold.release()


# Two runtimes


def chain_of(events: list[SessionEvent]) -> list[str]:
    """The ids of a history, after checking that they form one chain."""
    assert events[0].parent_id is None
    assert [event.parent_id for event in events[1:]] == [event.id for event in events[:-1]]
    return [str(event.id) for event in events]


async def test_two_servers_on_one_session_write_one_history(own_home: Home) -> None:
    model = own_home.model
    for number in range(6):
        model.on(f"To one of two {number}", calls("bash", command=f"echo {number} >> two.txt"), says(f"Did {number}"))
    async with (
        own_home.serve() as first,
        own_home.serve() as second,
        connected(first.client()) as one,
        connected(second.client()) as two,
    ):
        here = await one.create_session(**approving())
        there = await two.resume_session(here.session_id, **approving())
        heard = [Heard(here), Heard(there)]
        for number in range(6):
            await (here, there)[number % 2].send(f"To one of two {number}")
        for each in heard:
            await each.until(AssistantMessageData, lambda data: data.content == "Did 5")
            await each.until_idle()
        histories = [await each.get_events() for each in (here, there)]
        assert chain_of(histories[0]) == chain_of(histories[1])
        said = [data.content for data in await history(here, UserMessageData)]
        assert said == [f"To one of two {number}" for number in range(6)]
    assert (own_home.work / "two.txt").read_text(encoding="utf-8").split() == [str(number) for number in range(6)]


async def test_the_second_server_goes_on_when_the_first_is_killed(own_home: Home) -> None:
    model = own_home.model
    model.on("Outlive the first", says("Outlived."))
    hold = model.hold("Outlive the first")
    async with own_home.serve() as second, connected(second.client()) as two:
        async with own_home.serve() as first:
            one = first.client()
            session = await one.create_session(**approving())
            heard = Heard()
            there = await two.resume_session(session.session_id, **approving(on_event=heard))
            await session.send("Outlive the first")
            await hold.until_reached()
            await killed_in(first, one)
        hold.release()
        await heard.until(AssistantMessageData, lambda data: data.content == "Outlived.")
        await heard.until_idle()
        chain_of(await there.get_events())


# Many times

KILLS = 15


@pytest.mark.slow
@pytest.mark.parametrize("seed", [20261115])
async def test_repeatedly_killed_turn_ends_and_does_everything_once(own_home: Home, seed: int) -> None:
    chance = random.Random(seed)
    model = own_home.model
    kills = turns = 0
    session_id = await _an_empty_session(own_home)
    while kills < KILLS:
        turns += 1
        prompt = f"Three effects of turn {turns}."
        effects = [("bash", {"command": f"echo {turns}-{effect} >> effects.txt"}) for effect in range(3)]
        steps = [calls_all(*effects)] if turns % 2 == 0 else [calls_all(effect) for effect in effects]
        model.on(prompt, *steps, says(f"Ended {turns}"))
        kills += await _play_to_the_end(own_home, session_id, prompt, chance, most=KILLS - kills)
    async with resumed(own_home, session_id) as session:
        events = await session.get_events()
        said = [data.content for data in await history(session, UserMessageData)]
    chain_of(events)
    assert said == [f"Three effects of turn {number}." for number in range(1, turns + 1)]
    done = Counter((own_home.work / "effects.txt").read_text(encoding="utf-8").split())
    for effect, is_known in _effects_in(events).items():
        assert done[effect] == 1 if is_known else done[effect] <= 1, f"{effect} happened {done[effect]} times"
    assert done.keys() <= _effects_in(events).keys()


async def _an_empty_session(home: Home) -> str:
    async with home.serve() as server, connected(server.client()) as client:
        return (await client.create_session(**approving())).session_id


async def _play_to_the_end(home: Home, session_id: str, prompt: str, chance: random.Random, most: int) -> int:
    """Run one turn, killed at random moments until it ends, and return the number of kills."""
    kills = 0
    is_sent = False
    while True:
        async with home.serve() as server:
            client = server.client()
            heard = Heard()
            session = await client.resume_session(session_id, **approving(continue_pending_work=True, on_event=heard))
            await _approve_what_is_pending(session)
            if not is_sent:
                await session.send(prompt)
                is_sent = True
            if kills == most or await _is_over_before(session, prompt, heard, chance):
                await heard.until_so(partial(_is_over, session, prompt))
                return kills
            await asyncio.sleep(chance.uniform(0, 0.02))  # Any moment will do.
            await killed_in(server, client)
            kills += 1


async def _approve_what_is_pending(session: CopilotSession) -> None:
    """Approve requests from before the crash, which the runtime does not send again."""
    for pending in (await session.rpc.permissions.pending_requests()).items:
        given = PermissionDecisionRequest(request_id=pending.request_id, result=PermissionDecisionApproveOnce())
        await session.rpc.permissions.handle_pending_permission_request(given)


async def _is_over_before(session: CopilotSession, prompt: str, heard: Heard, chance: random.Random) -> bool:
    """Wait for some more events, and return whether the turn ended before them."""
    wanted = len(heard.events) + chance.randint(1, 8)

    async def found() -> bool | None:
        if await _is_over(session, prompt):
            return True
        return False if len(heard.events) >= wanted else None

    return await heard.until_so(found)


async def _is_over(session: CopilotSession, prompt: str) -> bool | None:
    """True if the turn is over, otherwise None."""
    events = await session.get_events()
    asked = [at for at, event in enumerate(events) if getattr(event.data, "content", None) == prompt]
    after = [event.data for event in events[asked[-1] :]] if asked else []
    answered = any(isinstance(data, AssistantMessageData) and data.content.startswith("Ended") for data in after)
    return answered or any(isinstance(data, SessionErrorData) for data in after) or None


def _effects_in(events: list[SessionEvent]) -> dict[str, bool]:
    """The effects of all calls, and whether the history reports their success: the outcome of a command that was killed
    with its runtime is unknown."""
    completed = [event.data for event in events if isinstance(event.data, ToolExecutionCompleteData)]
    succeeded = {data.tool_call_id for data in completed if data.success}
    made = [event.data for event in events if isinstance(event.data, ToolExecutionStartData)]
    return {str(data.arguments["command"]).split()[1]: data.tool_call_id in succeeded for data in made}


async def test_model_gets_each_result_exactly_once_after_a_crash(own_home: Home) -> None:
    model = own_home.model
    model.on("Two results", calls("bash", command="echo first"), calls("bash", command="echo second"), says("Two."))
    hold = model.hold("Two results", round=1)
    async with own_home.serve() as server:
        client = server.client()
        session = await client.create_session(**approving())
        await session.send("Two results")
        await hold.until_reached()
        await killed_in(server, client)
    hold.release()
    async with resumed(own_home, session.session_id) as again:
        assert await final_answer(again) == "Two."
    results = tool_results(model.last_call_about("Two results"))
    assert results == ["first\n<exited with exit code 0>", "second\n<exited with exit code 0>"]


async def test_a_home_is_usable_at_once_after_a_kill(own_home: Home, model: Model) -> None:
    model.on("At once", says("At once."))
    for _ in range(3):
        async with own_home.serve() as server:
            client = server.client()
            session = await client.create_session(**approving())
            assert await reply_to(session, "At once") == "At once."
            await killed_in(server, client)
