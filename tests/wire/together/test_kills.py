"""One of two servers is killed in the middle of a turn that it runs: the other goes on with it, and neither its readers
nor those who come back see anything missing or twice. The one that is killed is there alone when the turn starts, and
so is the one that runs it."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from copilot import CopilotClient
from copilot.session_events import AssistantMessageData, AssistantMessageDeltaData, ToolExecutionCompleteData

from tests.wire.ai_sdk.harness import Model, Server, Talk, calls, says
from tests.wire.copilot.harness import Heard, Pipe, approving, history
from tests.wire.together.surfaces import CopilotSurface, EventsSurface, Said, text_of
from tests.wire.together.world import Place, copilot_surface, http_client

pytestmark = pytest.mark.anyio

WORDS, ANSWER = "Tell us both", "One two three four."


class Counted:
    """A command that counts how often it runs, says when it has begun, and ends when it may."""

    def __init__(self, folder: Path, begun: Pipe, end: Pipe) -> None:
        self._begun, self._end = begun, end
        self._count = folder / "count"
        self.command = f"echo ran >> {self._count}; echo begun > {begun.path}; read line < {end.path}; echo ended"

    async def begun(self) -> None:
        assert await self._begun.line() == "begun"

    def let_end(self) -> None:
        self._end.write("now")

    @property
    def times(self) -> int:
        return self._count.read_text().count("ran")


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Counted]:
    with contextlib.ExitStack() as stack:
        pipes = [Pipe(tmp_path / name) for name in ("begun", "end")]
        for pipe in pipes:
            stack.callback(pipe.close)
        yield Counted(tmp_path, *pipes)


@contextlib.asynccontextmanager
async def events_surface(server: Server) -> AsyncIterator[EventsSurface]:
    async with http_client(server) as http, EventsSurface(http, "killed").reading() as events:
        yield events


async def made_with_copilot(client: CopilotClient) -> CopilotSurface:
    heard = Heard()
    session = await client.create_session(**approving(session_id="killed", streaming=True, on_event=heard))
    return CopilotSurface(session, heard)


async def come_back(events: EventsSurface, server: Server, *, until: str) -> None:
    """The reader goes on at another server, from the last thing that it saw."""
    async with http_client(server) as events.http, events.reading(after=events.last_id):
        await events.until_said(until)
        await events.until_event("holdfast.turn_ended")
        check_once(events)


def check_once(events: EventsSurface) -> None:
    """The log has each thing once, and so has who read it in two parts."""
    positions = [int(frame.id) for frame in events.frames if frame.kind == "event"]
    assert positions == list(range(1, len(positions) + 1))
    assert [data["content"] for data in events.of("user.message")] == [WORDS]
    assert [data["reason"] for data in events.of("holdfast.turn_ended")] == ["completed"]


def answers(said: Said) -> list[str]:
    return [text for role, text in said if role == "assistant"]


def check_cut(texts: list[str]) -> None:
    """The text from before the kill stays, and the answer after it is complete."""
    cut, answer = texts
    assert cut
    assert ANSWER.startswith(cut)
    assert answer == ANSWER


async def test_an_answer_that_the_http_server_was_in_is_given_by_the_copilot_server(
    own_place: Place, model: Model
) -> None:
    model.on(WORDS, says(ANSWER))
    hold = model.hold(WORDS, piece=2)
    async with own_place.serve() as http, Talk(http, "killed") as talk:
        sent = await talk.send(WORDS)
        await sent.until_text("One")
        async with (
            events_surface(http) as events,
            own_place.serve_copilot() as copilot,
            copilot_surface(copilot, "killed") as beside,
        ):
            await events.until(lambda frame: frame.kind == "delta")
            await http.kill()
            await events.until_broken()
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await sent.rest()
            hold.release()
            await beside.until_said(ANSWER)
            await beside.heard.until_idle()
            check_cut(answers(await beside.said()))
            await beside.check_unbroken()
            async with own_place.serve() as again, Talk(again, "killed") as back:
                await come_back(events, again, until=ANSWER)
                check_cut(answers(await events.said()))
                assert len(events.of("holdfast.sealed")) == 1
                replayed = await (await back.send(WORDS)).message()
                assert (replayed["id"], text_of(replayed)) == (sent.turn_id, answers(await events.said()))


async def test_an_answer_that_the_copilot_server_was_in_is_given_by_the_http_server(
    own_place: Place, model: Model
) -> None:
    model.on(WORDS, says(ANSWER))
    hold = model.hold(WORDS, piece=2)
    async with own_place.serve_copilot() as copilot:
        client = copilot.client()
        first = await made_with_copilot(client)
        await first.send(WORDS)
        await first.heard.until(AssistantMessageDeltaData)
        async with own_place.serve() as http, events_surface(http) as events, Talk(http, "killed") as talk:
            told = await talk.replay()
            await told.until_text("One")
            await copilot.kill()
            await client.force_stop()
            hold.release()
            await events.until_said(ANSWER)
            await events.until_event("holdfast.turn_ended")
            check_once(events)
            check_cut(answers(await events.said()))
            message = await told.message()
            assert (told.types.count("data-interrupted"), text_of(message)) == (1, answers(await events.said()))
            assert await (await talk.replay()).message() == message
            await check_history(own_place, answers(await events.said()))


async def check_history(place: Place, expected: list[str]) -> None:
    """For a client that comes back to a new server."""
    async with place.serve_copilot() as again, copilot_surface(again, "killed") as back:
        assert [data.content for data in await history(back.session, AssistantMessageData) if data.content] == expected
        assert len(await history(back.session, ToolExecutionCompleteData)) <= 1


async def test_a_command_that_the_http_server_waited_for_is_waited_for_by_the_copilot_server(
    own_place: Place, model: Model, counted: Counted
) -> None:
    model.on(WORDS, calls("exec", command=counted.command), says("It {last_tool_result}"))
    async with own_place.serve() as http, http_client(http) as plain, Talk(http, "killed") as talk:
        await plain.make(id="killed", allow=["shell"])
        sent = await talk.send(WORDS)
        await counted.begun()
        async with (
            events_surface(http) as events,
            own_place.serve_copilot() as copilot,
            copilot_surface(copilot, "killed") as beside,
        ):
            await http.kill()
            await events.until_broken()
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await sent.rest()
            counted.let_end()
            await beside.heard.until_idle()
            (answer,) = answers(await beside.said())
            assert "ended" in answer
            assert len(beside.heard.all(ToolExecutionCompleteData)) == 1
            await beside.check_unbroken()
            async with own_place.serve() as again:
                await come_back(events, again, until=answer)
                assert len(events.of("tool.execution_complete")) == 1
    assert counted.times == 1


async def test_a_command_that_the_copilot_server_waited_for_is_waited_for_by_the_http_server(
    own_place: Place, model: Model, counted: Counted
) -> None:
    model.on(WORDS, calls("bash", command=counted.command), says("It {last_tool_result}"))
    async with own_place.serve_copilot() as copilot:
        client = copilot.client()
        await (await made_with_copilot(client)).send(WORDS)
        await counted.begun()
        async with own_place.serve() as http, events_surface(http) as events, Talk(http, "killed") as talk:
            told = await talk.replay()
            await told.until("tool-input-available")
            await copilot.kill()
            await client.force_stop()
            counted.let_end()
            message = await told.message()
            await events.until_event("holdfast.turn_ended")
            check_once(events)
            assert "ended" in text_of(message)[0]
            assert text_of(message) == answers(await events.said())
            assert len(events.of("tool.execution_complete")) == 1
            await check_history(own_place, text_of(message))
    assert counted.times == 1
