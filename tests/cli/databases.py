"""Databases of either kind for tests of commands about them: something in them, and a way to go on with it."""

import asyncio
import os
from pathlib import Path

from typer.testing import CliRunner

from holdfast.app import Runtime
from holdfast.cli.commands import app
from holdfast.events.event import Event
from holdfast.events.turn import TurnEnded
from holdfast.models.demo import demo_model
from holdfast.server.embedded.session import Session
from proof.postgres_server import programs
from tests.cli.processes import Done, Place
from tests.rows import row_of

ASKS = "asks"
WAITS = "waits"


PROGRAMS = f"{programs()}:{os.environ.get('PATH', '')}"
"""A search path on which PostgreSQL's own programs are."""


async def typed(*words: str, **environ: str) -> Done:
    """A command from its start to its end, within this process: starting one takes much longer than most of them do."""
    done = await asyncio.to_thread(CliRunner().invoke, app, list(words), env=environ)
    return Done(done.exit_code, done.stdout, done.stderr)


def environ(folder: Path) -> dict[str, str]:
    told = {"HOME": str(folder), "HOLDFAST_DATA_DIR": str(folder), "PATH": "/usr/bin:/bin"}
    return {**told, "HOLDFAST_NODE": "one", "HOLDFAST_LINGER_SECONDS": "0"}


async def fill(database: str, place: Place) -> None:
    """One session that waits for a person, and one whose message nobody has run yet."""
    told = environ(place.data)
    async with Runtime(database=database, model=demo_model(), environ=told) as runtime:
        session = await runtime.session(ASKS, working_directory=str(place.work))
        turn = await session.run("write a note")
        assert turn.reason == "waiting", turn
        await _let_go(session)
    async with Runtime(database=database, model=demo_model(), environ=told, work=False) as runtime:
        await (await runtime.session(WAITS)).send("hello")


async def _let_go(session: Session) -> None:
    """A session that waits is released a moment later."""
    while True:
        if (await row_of(session)).held_by is None:
            return
        await asyncio.sleep(0.01)


async def go_on(database: str, place: Place) -> list[str]:
    """Answer the one and run the other; how both ended."""
    async with Runtime(database=database, model=demo_model(), environ=environ(place.data)) as runtime:
        asks = runtime.open(ASKS)
        (request,) = await asks.requests()
        await asks.approve(request.id)
        return [await _end_of(runtime, ASKS), await _end_of(runtime, WAITS)]


async def _end_of(runtime: Runtime, session_id: str) -> str:
    async for reading in runtime.open(session_id).events():
        if isinstance(reading, Event) and isinstance(reading.body, TurnEnded):
            return reading.body.reason
    raise AssertionError("a session is followed without end")
