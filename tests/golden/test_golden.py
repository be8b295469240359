"""Databases of earlier releases open, and the sessions in them go on where they were killed."""

import gzip
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import asyncpg
import pytest

from holdfast import Runtime, Session, tool
from holdfast.events.event import Event
from holdfast.events.message import AssistantMessage, TextBlock, UserMessage
from holdfast.events.tool import ToolCompleted
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from holdfast.session.tool_results import UNKNOWN_OUTCOME
from tests.postgres_databases import Databases

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parent
RECORDED = sorted(FOLDER.glob("*.gz"))

SCRIPT = Script((Rule((Reply(text="I heard: {last_tool_result}"),)),))


class Effects:
    """Counts the payments and launches of one test."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.launches = 0


@pytest.fixture
def effects() -> Effects:
    return Effects()


@pytest.fixture(params=RECORDED, ids=lambda path: path.name)
def recorded(request: pytest.FixtureRequest) -> tuple[Path, Databases | None]:
    """A golden file and, for a dump, the server to restore it on. Not asynchronous: the server is started here."""
    path: Path = request.param
    return path, None if ".sqlite" in path.name else request.getfixturevalue("postgres_databases")


@pytest.fixture
async def database(recorded: tuple[Path, Databases | None], tmp_path: Path) -> str:
    """A copy of a golden database, as a URL."""
    path, databases = recorded
    content = gzip.decompress(path.read_bytes())
    if databases is None:
        copy = tmp_path / "holdfast.db"
        copy.write_bytes(content)
        return f"sqlite:///{copy}"
    name = await databases.fresh(is_empty=True)
    db = await asyncpg.connect(databases.server.url(name))
    await db.execute(content.decode())
    await db.close()
    return databases.server.url(name)


@asynccontextmanager
async def opened(database: str, effects: Effects, data: Path) -> AsyncIterator[Runtime]:
    @tool(permission="allow")
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @tool
    def pay(amount: int) -> str:
        """Pay an amount. It asks first."""
        effects.paid.append(amount)
        return f"Paid {amount}."

    @tool(permission="allow")
    async def launch() -> str:
        """Start something that can't be started twice."""
        effects.launches += 1
        return "Launched."

    environ = {"HOLDFAST_DATA_DIR": str(data)}
    tools = [add, pay, launch]
    async with Runtime(database=database, model=ScriptedModel(SCRIPT), tools=tools, environ=environ) as runtime:
        yield runtime


async def bodies(session: Session) -> list[object]:
    return [reading.body async for reading in session.events(follow=False) if isinstance(reading, Event)]


def test_both_kinds_of_database_are_kept() -> None:
    assert {path.name.split(".")[1] for path in RECORDED} == {"sqlite", "sql"}


async def test_the_bytes_of_every_inbox_are_counted(database: str, effects: Effects, tmp_path: Path) -> None:
    async with opened(database, effects, tmp_path):
        pass
    counted = """
        SELECT session.inbox_bytes, sum(length(inbox.payload) + coalesce(length(inbox.original), 0))
          FROM session JOIN inbox ON inbox.owner = session.owner AND inbox.session = session.id
         GROUP BY session.owner, session.id, session.inbox_bytes"""
    if database.startswith("sqlite:///"):
        with closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as lite:
            rows = lite.execute(counted).fetchall()
    else:
        db = await asyncpg.connect(database, server_settings={"search_path": "holdfast"})
        rows = [tuple(row) for row in await db.fetch(counted)]
        await db.close()
    assert len(rows) > 3
    assert [counted for counted, _ in rows] == [real for _, real in rows]


async def test_a_finished_session_has_its_history_and_goes_on(database: str, effects: Effects, tmp_path: Path) -> None:
    async with opened(database, effects, tmp_path) as runtime:
        session = runtime.open("finished")
        assert (await session.look()).title == "Sums"
        log = await bodies(session)
        assert [body.content for body in log if isinstance(body, UserMessage)] == ["A sum, please", "Thank you"]
        assert [body.content for body in log if isinstance(body, ToolCompleted)] == ["5"]
        assert [found.id async for found in runtime.sessions(text="thank a")] == []
        assert [found.id async for found in runtime.sessions(text="thank")] == ["finished"]
        assert (await session.run("Again", message_id="again")).reason == "completed"


async def test_an_approval_that_was_open_is_given_and_its_call_runs_once(
    database: str, effects: Effects, tmp_path: Path
) -> None:
    async with opened(database, effects, tmp_path) as runtime:
        session = runtime.open("asking")
        (request,) = await session.requests()
        await session.approve(request.id)
        assert (await session.result_of("invoice-1")).text == "I heard: Paid 7."
        assert effects.paid == [7]


async def test_a_question_that_was_open_is_answered(database: str, effects: Effects, tmp_path: Path) -> None:
    async with opened(database, effects, tmp_path) as runtime:
        session = runtime.open("question")
        (request,) = await session.requests()
        await session.answer(request.id, "Blue")
        assert (await session.result_of("paint-1")).text == "I heard: User responded: Blue"


async def test_a_client_tool_that_was_called_gives_its_result(database: str, effects: Effects, tmp_path: Path) -> None:
    async with opened(database, effects, tmp_path) as runtime:
        session = runtime.open("client-tool")
        (request,) = await session.requests()
        await session.give_result(request.id, "a root of seaweed")
        assert (await session.result_of("dictionary-1")).text == "I heard: a root of seaweed"


async def test_a_tool_in_doubt_is_reported_as_unknown_and_not_run(
    database: str, effects: Effects, tmp_path: Path
) -> None:
    async with opened(database, effects, tmp_path) as runtime:
        assert (await runtime.open("in-doubt").result_of("rocket-1")).text == f"I heard: {UNKNOWN_OUTCOME}"
        assert effects.launches == 0


async def test_a_message_in_mid_stream_keeps_what_was_shown_and_the_queue_goes_on(
    database: str, effects: Effects, tmp_path: Path
) -> None:
    async with opened(database, effects, tmp_path) as runtime:
        session = runtime.open("streaming")
        assert (await session.result_of("story-1")).reason == "completed"
        assert (await session.result_of("queued-1")).reason == "completed"
        messages = [body for body in await bodies(session) if isinstance(body, AssistantMessage)]
        assert [body.interrupted for body in messages] == [True, False, False]
        shown = messages[0].blocks[0]
        assert isinstance(shown, TextBlock)
        assert shown.text.startswith("Once")
