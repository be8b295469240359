"""Titles from models: in the log, in the ledger, and in races."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Runtime
from holdfast.events.ids import Position
from holdfast.events.session import TitleChanged
from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Failure, Reply, Rule, Script, ScriptedModel
from holdfast.models.title_request import title_in
from holdfast.server.embedded.session import Session
from holdfast.server.operations import SessionOptions
from holdfast.store.store import Committed, LedgerEntry, Unit

pytestmark = pytest.mark.anyio

USAGE = TokenUsage(input_tokens=9, output_tokens=4, cache_read_tokens=2, cost_microdollars=21)


class World:
    """A runtime whose model makes titles, and can be paused while it answers."""

    def __init__(self, folder: Path, title: Reply | None) -> None:
        self.open = asyncio.Event()
        script = Script(rules=(Rule(replies=(Reply(text="One two three."),)),), title=title)
        self.runtime = Runtime(
            database=folder / "holdfast.db", model=ScriptedModel(script, gate=self._gate), environ={}
        )

    async def _gate(self, piece: int) -> None:
        if piece == 2:
            await self.open.wait()

    async def session(self, **options: Any) -> Session:
        return await self.runtime.create(SessionOptions(**{"wants_title": True, **options}))

    async def titles(self, session: Session) -> list[TitleChanged]:
        events = await self.runtime.store.events_after(session.key, Position(0), limit=1_000)
        return [event.body for event in events if isinstance(event.body, TitleChanged)]

    async def booked(self, session: Session) -> list[LedgerEntry]:
        """The ledger entries of calls for a title; waits for the first one."""
        async with asyncio.timeout(60):
            while True:
                entries = await self.runtime.store.ledger(session.key.owner, session.key.session)
                if found := [entry for entry in entries if entry.message_id.startswith("title:")]:
                    return found


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    made = World(tmp_path, getattr(request, "param", Reply(text="Counting to three", usage=USAGE)))
    async with made.runtime:
        yield made


async def test_a_title_and_its_ledger_entry_are_one_unit(world: World) -> None:
    session = await world.session()
    await session.send("count, please")
    (entry,) = await world.booked(session)
    assert (entry.input_tokens, entry.output_tokens, entry.cache_read_tokens) == (9, 4, 2)
    assert (entry.cost_microdollars, entry.model) == (21, "scripted")
    words, made = await world.titles(session)
    assert (words.title, words.by_model) == ("count, please", False)
    assert (made.title, made.by_model, made.chosen) == ("Counting to three", True, False)
    assert (await world.runtime.operations.session(session.key)).title == "Counting to three"


async def test_only_a_session_created_with_wants_title_asks_for_a_title(world: World) -> None:
    world.open.set()
    named, child = await world.session(title="Mine"), await world.session(parent="another")
    plain, renamed = await world.runtime.session(), await world.session()
    await world.runtime.operations.rename(renamed.key, "Before it began")
    for session in (named, child, plain, renamed):
        await session.run("count, please")
    asks = await world.session()
    await asks.run("count, please")
    await world.booked(asks)
    for session in (named, child, plain, renamed):
        assert not any(found.by_model for found in await world.titles(session))


@pytest.mark.parametrize("world", [Reply(fail=Failure(kind="hang"))], indirect=True)
async def test_closing_the_runtime_cancels_pending_titles_at_once(world: World) -> None:
    world.open.set()
    session = await world.session()
    await session.run("count, please")
    asking = [task for task in asyncio.all_tasks() if task.get_name() == f"title {session.id}"]
    assert len(asking) == 1
    await world.runtime.close()
    assert asking[0].cancelled()


@pytest.mark.parametrize(
    "world",
    [
        Reply(text="Half", fail=Failure(kind="refused")),
        Reply(text="Half a title", fail=Failure(kind="cut", after=1)),
        Reply(text=' "" \n'),
        Reply(text=""),
    ],
    indirect=True,
)
async def test_a_call_that_yields_no_title_is_in_the_ledger_and_keeps_the_first_words(world: World) -> None:
    session = await world.session()
    await session.send("count, please")
    (entry,) = await world.booked(session)
    assert entry.cost_microdollars is None
    assert [found.title for found in await world.titles(session)] == ["count, please"]
    world.open.set()
    assert (await session.run("again")).error is None


async def test_a_title_that_was_chosen_meanwhile_stays_and_the_call_is_in_the_ledger(world: World) -> None:
    session = await world.session()
    commit = world.runtime.store.commit

    async def rename_first(unit: Unit) -> object:
        """A person renames the session right before the title is written."""
        if any(isinstance(event.body, TitleChanged) and event.body.by_model for event in unit.events):
            await world.runtime.operations.rename(session.key, "count, please")
        return await commit(unit)

    world.runtime.store.commit = rename_first  # type: ignore[method-assign,assignment]
    await session.send("count, please")
    await world.booked(session)
    found = await world.titles(session)
    assert [(name.title, name.chosen, name.by_model) for name in found] == [
        ("count, please", False, False),
        ("count, please", True, False),
    ]


async def test_a_title_adds_no_commit_to_its_turn(world: World) -> None:
    world.open.set()
    commit = world.runtime.store.commit
    units: list[Unit] = []

    async def counted(unit: Unit) -> object:
        outcome = await commit(unit)
        if isinstance(outcome, Committed):
            units.append(unit)
        return outcome

    world.runtime.store.commit = counted  # type: ignore[method-assign,assignment]
    with_title, without = await world.session(), await world.session(wants_title=False)
    for session in (with_title, without):
        await session.run("count, please")
    await world.booked(with_title)
    fenced = [(unit.key, len(unit.events)) for unit in units if unit.fence is not None and unit.events]
    turns = [[size for key, size in fenced if key == session.key] for session in (with_title, without)]
    assert turns[0] == turns[1]
    beside = [unit for unit in units if unit.fence is None and unit.creates is None]
    assert [(unit.key, len(unit.events), len(unit.ledger)) for unit in beside] == [(with_title.key, 1, 1)]


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("A title", "A title"),
        ('"A title."\nBecause it says so.', "A title"),
        ("\n\n**Title: A title**\n", "A title"),
        ("# A\ttitle", "A title"),
        ("\u201cEin Titel\u201d", "Ein Titel"),
        ("a\x00b\x1b[0m", "ab[0m"),
        ("word " * 40, "word word word word word word word word word word word word…"),
        ("x" * 100, "x" * 59 + "…"),
        ("", ""),
        (' "" \n ... \n', ""),
    ],
)
def test_a_title_is_one_short_line_without_markup(answer: str, title: str) -> None:
    assert title_in(answer) == title
