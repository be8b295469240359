"""A session runs in a process that can use its model; other processes leave it alone."""

from pathlib import Path

import pytest

from holdfast import Runtime
from holdfast.events.event import Event
from holdfast.events.session import SessionStarted
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel

pytestmark = pytest.mark.anyio


def model(name: str) -> ScriptedModel:
    return ScriptedModel(Script((Rule((Reply(text=f"{name} says so"),)),)), name=name)


async def test_a_session_is_left_to_a_process_that_can_use_its_model(tmp_path: Path) -> None:
    """A process with one model must not end the turns of sessions with another model in the same database."""
    database = tmp_path / "holdfast.db"
    async with Runtime(database=database, model=model("theirs"), work=False) as sender:
        session = await sender.session("of-theirs")
        await session.send("hello", message_id="m")
    async with Runtime(database=database, model=model("ours")) as ours:
        turn = await (await ours.session("of-ours")).run("hello")
        assert turn.text == "ours says so"
        events = [reading async for reading in ours.open("of-theirs").events(follow=False)]
        assert len(events) == 1, "the message still waits, nothing was tried"
        assert (await ours.open("of-theirs").look()).waiting_messages == 1
    async with Runtime(database=database, model=model("theirs")) as theirs:
        assert (await theirs.open("of-theirs").result_of("m")).text == "theirs says so"


async def test_a_session_keeps_the_model_that_it_was_created_with(tmp_path: Path) -> None:
    async with Runtime(database=tmp_path / "holdfast.db", model=model("first")) as runtime:
        session = await runtime.session("s")
        (started,) = [reading async for reading in session.events(follow=False)]
        assert isinstance(started, Event)
        assert isinstance(started.body, SessionStarted)
        assert started.body.model == "first"
