"""Sending messages: an answer comes, follow-ups join or wait, and a stop is a stop."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import Runtime, Session, tool
from holdfast.events.event import Event
from holdfast.events.message import UserMessage
from holdfast.models.scripted import Failure, Reply, Rule, Script, ScriptedModel
from holdfast.protocol.reading import Reading
from holdfast.server.errors import Conflict, NotFound
from tests.story.scripts import calls, says, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "story.db"


async def test_you_send_a_message_and_get_an_answer(database: Path) -> None:
    async with Runtime(database=database, model=says("Hello, {user}!")) as runtime:
        session = await runtime.session()
        turn = await session.run("world")
        assert (turn.reason, turn.text) == ("completed", "Hello, world!")


async def test_a_session_remembers_what_was_said(database: Path) -> None:
    async with Runtime(database=database, model=says("Yes.")) as runtime:
        session = await runtime.session(system_message="Be brief.")
        await session.run("First")
        await session.run("Second")
        assert await messages(session.events(follow=False)) == ["First", "Second"]
        assert (await session.look()).title == "First"


async def test_the_same_message_id_twice_is_one_message_and_one_run(database: Path) -> None:
    async with Runtime(database=database, model=says("Done.")) as runtime:
        session = await runtime.session()
        first = await session.run("Do it", message_id="m-1")
        again = await session.run("Do it", message_id="m-1")
        assert again == first
        assert (await session.send("Do it", message_id="m-1")).duplicate
        assert await messages(session.events(follow=False)) == ["Do it"]


async def test_waiting_for_a_message_ends_when_it_is_removed_from_the_queue(database: Path) -> None:
    held = asyncio.Event()

    async def gate(_: int) -> None:
        await held.wait()

    async with Runtime(database=database, model=says("Done.", gate=gate)) as runtime:
        session = await runtime.session()
        first = asyncio.create_task(session.run("First"))
        await until(lambda: is_running(session))
        second = asyncio.create_task(session.run("Second", message_id="second"))
        await until(lambda: has_waiting(session))
        stopped = await session.stop()
        assert stopped.returned == ("Second",)
        assert (await second).reason == "removed"
        assert (await first).reason == "stopped"


async def is_running(session: Session) -> bool:
    return (await session.look()).status == "running"


async def has_waiting(session: Session) -> bool:
    return (await session.look()).waiting_messages > 0


async def test_the_same_text_under_another_id_is_another_message(database: Path) -> None:
    async with Runtime(database=database, model=says("Done.")) as runtime:
        session = await runtime.session()
        await session.run("Do it", message_id="m-1")
        await session.run("Do it", message_id="m-2")
        assert await messages(session.events(follow=False)) == ["Do it", "Do it"]


async def test_a_follow_up_joins_the_running_turn_at_its_next_step(database: Path) -> None:
    working, go_on = asyncio.Event(), asyncio.Event()

    @tool(permission="allow")
    async def work() -> str:
        working.set()
        await go_on.wait()
        return "worked"

    model = says(calls("work"), "Done.", rules={"hurry": ("Hurrying.",)})
    async with Runtime(database=database, model=model, tools=[work]) as runtime:
        session = await runtime.session()
        first = await session.send("Start")
        await working.wait()
        second = await session.send("Please hurry")
        assert second.state == "accepted"
        go_on.set()
        turn = await session.result_of(first.message_id)
        assert turn.text == "Hurrying."
        assert await session.result_of(second.message_id) == turn
        assert (await runtime.operations.receipt(session.key, second.message_id)).delivery == "steering"


async def test_a_follow_up_may_wait_for_a_turn_of_its_own(database: Path) -> None:
    working, go_on = asyncio.Event(), asyncio.Event()

    @tool(permission="allow")
    async def work() -> str:
        working.set()
        await go_on.wait()
        return "worked"

    model = says(calls("work"), "Done.", rules={"later": ("That too.",)})
    async with Runtime(database=database, model=model, tools=[work]) as runtime:
        session = await runtime.session()
        first = await session.send("Start")
        await working.wait()
        second = await session.send("This later", delivery="enqueue")
        assert [message.text for message in await session.queue()] == ["This later"]
        go_on.set()
        assert (await session.result_of(first.message_id)).text == "Done."
        turn = await session.result_of(second.message_id)
        assert turn.text == "That too."
        assert await session.queue() == ()


async def test_a_stop_ends_the_turn_and_gives_back_what_waited(database: Path) -> None:
    speaking, never = asyncio.Event(), asyncio.Event()

    async def holds_its_breath(piece: int) -> None:
        if piece == 1:
            speaking.set()
            await never.wait()

    async with Runtime(database=database, model=says("One two three", gate=holds_its_breath)) as runtime:
        session = await runtime.session()
        sent = await session.send("Go")
        await speaking.wait()
        await session.send("And this")
        stopped = await session.stop()
        assert (stopped.outcome, stopped.returned) == ("stopping", ("And this",))
        turn = await session.result_of(sent.message_id)
        assert (turn.reason, turn.text) == ("stopped", "One")
        assert (await session.stop()).outcome == "nothing_running"


async def test_a_failure_is_visible_and_says_what_went_wrong(database: Path) -> None:
    refuses = ScriptedModel(Script((Rule((Reply(fail=Failure(kind="unauthorized")),)),)))
    async with Runtime(database=database, model=refuses) as runtime:
        session = await runtime.session()
        turn = await session.run("Hi")
        assert turn.reason == "error"
        assert turn.error
        assert (turn.error.code, turn.error.retryable) == ("model_unauthorized", False)
        assert (await session.look()).status == "idle"


async def test_a_deleted_session_is_gone_and_its_id_is_not_used_again(database: Path) -> None:
    async with Runtime(database=database, model=says("Hello.")) as runtime:
        session = await runtime.session("notes")
        await session.run("Hi")
        await session.delete()
        with pytest.raises(NotFound):
            await session.send("Are you there?")
        with pytest.raises(Conflict):
            await runtime.session("notes")
        assert [found async for found in runtime.sessions()] == []


async def test_deleting_a_session_stops_what_it_does(database: Path) -> None:
    working, ended = asyncio.Event(), asyncio.Event()

    @tool(permission="allow")
    async def work() -> None:
        working.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with Runtime(database=database, model=says(calls("work")), tools=[work]) as runtime:
        session = await runtime.session()
        await session.send("Start")
        await working.wait()
        await session.delete()
        await asyncio.wait_for(ended.wait(), 10)

        async def nothing_is_held() -> bool:
            return runtime.worker.sessions_held == 0

        await until(nothing_is_held)


async def messages(readings: AsyncIterator[Reading]) -> list[str]:
    """The messages of people, in order."""
    found = [reading.body async for reading in readings if isinstance(reading, Event)]
    return [body.content for body in found if isinstance(body, UserMessage)]
