"""A session that kills every process that loads it: it is counted, the others go on, and its turn ends where people see
it."""

import asyncio
import signal
from pathlib import Path

import pytest

from holdfast.app import Runtime
from holdfast.events.event import Event
from holdfast.events.ids import EventId, Position
from holdfast.events.session import SessionError, SessionInfo
from holdfast.events.turn import TurnEnded
from holdfast.models.scripted import Reply
from holdfast.server.embedded.session import Session
from holdfast.store.log_pages import SMALL_BYTES
from holdfast.store.store import Committed, Unit
from tests.faults.processes import child_on
from tests.faults.world import (
    SHORT_LEASE,
    bodies_of,
    endings_of,
    model_said,
    note_beside,
    patience,
    runtime_on,
    says,
    until,
)

pytestmark = pytest.mark.anyio

PILL = "what nobody has memory for"
SCRIPT = says(Reply(text="One two."))
MOST_DEATHS = 5

BESIDE_OTHERS = {**SHORT_LEASE, "claim_every_seconds": 0.4}
"""A suspect is loaded so much later than the others, and twice as late each time."""


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "holdfast.db"
    if request.param == "postgres":
        note_beside(path).write_text(request.getfixturevalue("postgres_url"))
    return path


async def swallow(session: Session, runtime: Runtime) -> None:
    """The session gets a record that kills its readers, and is too large to be read along with a claim."""
    body = SessionInfo(info_type="note", message=PILL + "x" * SMALL_BYTES)
    event = Event(Position(0), EventId("pill"), 1, body)
    assert isinstance(await runtime.store.commit(Unit(key=session.key, fence=None, events=(event,))), Committed)


async def deaths_until_it_ends(database: Path, session: Session, *, max_claims: int) -> int:
    deaths = 0
    while not await bodies_of(session, TurnEnded):
        async with child_on(
            database,
            script=SCRIPT,
            deadly=PILL,
            ready=False,
            max_claims_without_progress=max_claims,
            **BESIDE_OTHERS,
        ) as child:
            ended = asyncio.create_task(until(session, lambda body: isinstance(body, TurnEnded)))
            died = asyncio.create_task(child.gone())
            await asyncio.wait((ended, died), return_when=asyncio.FIRST_COMPLETED)
            deaths += died.done() and died.result() == -signal.SIGKILL
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
        assert deaths <= MOST_DEATHS, "it is never given up"
    return deaths


async def ended_as_poison(session: Session) -> None:
    assert await endings_of(session) == ["error"]
    (error,) = await bodies_of(session, SessionError)
    assert error.code == "poisoned"


async def test_a_session_that_kills_its_holders_is_given_up_and_the_others_run(database: Path) -> None:
    async with runtime_on(database, work=False) as sender, patience():
        bad, good = await sender.session("bad"), await sender.session("good")
        await swallow(bad, sender)
        await bad.send("Hello")
        await good.send("Hello")
        deaths = await deaths_until_it_ends(database, bad, max_claims=3)
        await ended_as_poison(bad)
        assert deaths == 3
        assert await endings_of(good) == ["completed"]
        async with child_on(database, script=SCRIPT, **SHORT_LEASE):
            await bad.send("And now?", message_id="n")
            assert (await bad.result_of("n")).text == "One two."


async def test_a_turn_that_cant_be_loaded_is_ended_by_what_the_row_of_its_session_says(database: Path) -> None:
    """The unfinished turn itself kills its reader: not even that can be read."""
    async with runtime_on(database, work=False) as sender, patience():
        session = sender.open("bad")
        async with child_on(database, script=SCRIPT, holds=["model:1"], **SHORT_LEASE) as first:
            await first.ask("create", session="bad")
            await session.send("Hello")
            await first.comes_to("model:1")
            await swallow(session, sender)
        deaths = await deaths_until_it_ends(database, session, max_claims=2)
        await ended_as_poison(session)
        assert deaths == 2, "it is loaded whole, then without its history, then not at all"
        assert await model_said(session) == ["One"], "what was shown is kept"
        async with child_on(database, script=SCRIPT, **SHORT_LEASE):
            await session.send("And now?", message_id="n")
            assert (await session.result_of("n")).text == "One two."
