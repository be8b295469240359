"""The work survives: it is read from anywhere, gone on with by anyone, and waiting costs nothing."""

import asyncio
from pathlib import Path

import pytest

from holdfast import Runtime, tool
from holdfast.events.event import Event
from holdfast.live.live import Delta
from holdfast.protocol.reading import Reading
from tests.rows import row_of
from tests.story.scripts import calls, says, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "story.db"


async def test_you_come_back_later_and_answer_what_was_asked(database: Path, tmp_path: Path) -> None:
    model = says(calls("create", path="notes.txt", file_text="Hi"), "Written.")
    async with Runtime(database=database, model=model) as runtime:
        session = await runtime.session("notes", working_directory=str(tmp_path))
        turn = await session.run("Write my notes", message_id="m-1")
        assert turn.reason == "waiting"
    async with Runtime(database=database, model=model) as another:
        session = another.open("notes")
        (request,) = await session.requests()
        await session.approve(request.id)
        assert (await session.result_of("m-1")).text == "Written."
        assert (tmp_path / "notes.txt").read_text() == "Hi"


async def test_a_turn_that_was_cut_off_goes_on_in_the_next_process(database: Path) -> None:
    speaking, never = asyncio.Event(), asyncio.Event()

    async def dies_in_the_middle(piece: int) -> None:
        if piece == 2:
            speaking.set()
            await never.wait()

    async with Runtime(database=database, model=says("One two three", gate=dies_in_the_middle)) as runtime:
        session = await runtime.session("count")
        await session.send("Count", message_id="m-1")
        await speaking.wait()
    async with Runtime(database=database, model=says("One two three")) as another:
        turn = await another.open("count").result_of("m-1")
        assert (turn.reason, turn.text) == ("completed", "One two three")


async def test_a_message_is_accepted_by_one_process_and_run_by_another(database: Path) -> None:
    model = says("Hello, {user}!")
    async with Runtime(database=database, model=model, work=False) as sends:
        session = await sends.session("shared")
        sent = await session.send("world")
        assert sent.state == "accepted"
        assert (await session.look()).status == "queued"
        async with Runtime(database=database, model=model):
            assert (await session.result_of(sent.message_id)).text == "Hello, world!"


async def test_two_runtimes_on_one_file_share_the_work_and_nothing_is_done_twice(database: Path) -> None:
    done: list[str] = []

    @tool(permission="allow")
    def note(what: str) -> None:
        done.append(what)

    rules = {f"job{number}": (calls("note", what=f"job{number}"), "Noted.") for number in range(8)}
    model = says("?", rules=rules)
    async with (
        Runtime(database=database, model=model, tools=[note]) as one,
        Runtime(database=database, model=model, tools=[note]) as two,
    ):
        sessions = [await (one, two)[number % 2].session() for number in range(8)]
        turns = await asyncio.gather(*(found.run(f"Do job{number}") for number, found in enumerate(sessions)))
        assert {turn.text for turn in turns} == {"Noted."}
        assert sorted(done) == sorted(rules)


async def test_you_read_on_from_where_you_stopped(database: Path) -> None:
    async with Runtime(database=database, model=says("Hello there, {user}!")) as runtime:
        session = await runtime.session()
        await session.run("world")
        reader = session.stream()
        readings, cursors = list[Reading](), [reader.cursor]
        async for reading in reader.until_now():
            readings.append(reading)
            cursors.append(reader.cursor)
        for seen, cursor in enumerate(cursors):
            later = [reading async for reading in session.events(cursor, follow=False)]
            assert told(readings[:seen] + later) == told(readings)
        assert [reading async for reading in session.events(cursors[-1], follow=False)] == []


async def test_you_see_the_answer_as_it_comes(database: Path) -> None:
    gates = [asyncio.Event() for _ in range(4)]

    async def one_by_one(piece: int) -> None:
        await gates[piece].wait()

    async with Runtime(database=database, model=says("One two three", gate=one_by_one)) as runtime:
        session = await runtime.session()
        await session.send("Count")
        seen: list[str] = []
        gates[0].set()
        async for reading in session.events():
            if isinstance(reading, Delta):
                seen.append(reading.text)
                gates[min(len(seen), 3)].set()
            if len(seen) == 3:
                break
        assert seen == ["One", " two", " three"]


async def test_waiting_costs_nothing(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LINGER_SECONDS", "0")
    async with Runtime(database=database, model=says(calls("ask_user", question="Well?"), "Good.")) as runtime:
        sessions = [await runtime.session() for _ in range(20)]
        turns = [await session.run("Ask me") for session in sessions]
        assert {turn.reason for turn in turns} == {"waiting"}

        async def nothing_is_held() -> bool:
            return runtime.worker.sessions_held == 0

        await until(nothing_is_held)
        assert {(await session.look()).status for session in sessions} == {"waiting"}
        assert {(await row_of(session)).held_by for session in sessions} == {None}
        await sessions[7].answer(turns[7].requests[0].id, "yes")

        async def is_idle() -> bool:
            return (await sessions[7].look()).status == "idle"

        await until(is_idle)


def told(readings: list[Reading]) -> tuple[list[Event], str]:
    """The events, and all the text that was streamed."""
    events = [reading for reading in readings if isinstance(reading, Event)]
    return events, "".join(reading.text for reading in readings if isinstance(reading, Delta))
