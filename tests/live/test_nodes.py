"""Turns on one node are read, stopped and answered on another, with Redis between them and without it."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.live import redis
from holdfast.live.live import Changed
from holdfast.server.errors import NotFound
from holdfast.server.reader import Reading
from holdfast.testing.clock import ManualClock
from tests.http.world import LONG, Model
from tests.live.nodes import DEAF, Following, Nodes, live_of
from tests.live.patience import patience, until
from tests.valkey_server import Valkey

pytestmark = pytest.mark.anyio

WORDS = LONG.split()


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    async with Model() as server:
        yield server


@pytest.fixture
def nodes(tmp_path: Path, model: Model, valkey: Valkey, database: str) -> Nodes:
    return Nodes(tmp_path, model, redis=valkey.url, database=database)


@pytest.fixture
def own_nodes(tmp_path: Path, model: Model, own_valkey: Valkey, database: str) -> Nodes:
    return Nodes(tmp_path, model, redis=own_valkey.url, database=database)


@pytest.fixture
def only_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off the periodic read of the store, so that everything that arrives came by a hint."""
    monkeypatch.setattr(redis, "NET_SECONDS", 3600.0)


@pytest.mark.usefixtures("only_hints")
async def test_reader_follows_a_turn_that_runs_on_another_node(nodes: Nodes, model: Model) -> None:
    """The worker does not poll either: the message reaches it by a wake-up."""
    async with nodes.pair(**DEAF) as (reading, working):
        await until(lambda: live_of(reading).is_up and live_of(working).is_up)
        session = await reading.session("shared")
        following = Following(session)
        model.hold(10)
        await session.send("a long answer")
        await following.until_text(WORDS[3])
        assert WORDS[-1] not in following._said()
        model.release()
        await following.until_the_end()
        await following.check()
        assert reading.redis_figures()["holdfast_redis_heard_total"][1] > 0


@pytest.mark.usefixtures("only_hints")
async def test_reader_on_another_node_sees_what_the_silent_turn_waits_for(nodes: Nodes, model: Model) -> None:
    clock = ManualClock()
    async with nodes.node(work=False) as reading, nodes.node_on(clock) as working:
        await until(lambda: live_of(reading).is_up and live_of(working).is_up)
        session = await reading.session("shared")
        following = Following(session)
        model.hold(3)
        await session.send("a long answer")
        await model.until_held()
        await following.until_text(WORDS[2])
        await clock.advance(60)
        found = [await following.next_status() for _ in range(3)]
        assert [(status.awaits, status.seconds) for status in found] == [("answer", 10), ("answer", 30), ("answer", 60)]
        model.release()
        await following.until_the_end()
        await following.check()


@pytest.mark.usefixtures("only_hints")
async def test_stop_put_on_any_node_reaches_the_holder_at_once(nodes: Nodes, model: Model) -> None:
    """The holder's polling of the inbox is switched off."""
    async with nodes.pair(**DEAF) as (reading, working):
        await until(lambda: live_of(reading).is_up and live_of(working).is_up)
        session = await reading.session("shared")
        model.hold(10)
        await session.send("a long answer")
        await model.until_held()
        async with patience():
            await session.stop()
        following = Following(session)
        await following.until_the_end()
        await following.check()
        model.release()
    assert following.read.events[-1].body.reason == "stopped"  # type: ignore[attr-defined]


@pytest.mark.usefixtures("only_hints")
async def test_answer_put_on_any_node_wakes_a_worker_at_once(nodes: Nodes) -> None:
    async with nodes.pair(**DEAF, HOLDFAST_LINGER_SECONDS="0") as (reading, working):
        await until(lambda: live_of(reading).is_up and live_of(working).is_up)
        session = await reading.session("shared", working_directory=str(nodes.folder))
        async with patience():
            waiting = await session.run("write a note")
            assert waiting.reason == "waiting"
            await until(lambda: working.worker.sessions_held == 0)
            await session.approve(waiting.requests[0].id)
        following = Following(session)
        await following.until_the_end()
        await following.check()
    assert (nodes.folder / "note.txt").read_text() == "hi"


@pytest.mark.usefixtures("only_hints")
async def test_handed_over_session_is_claimed_by_another_worker_at_once(nodes: Nodes, model: Model) -> None:
    """The worker that takes over does not poll: it gets a wake-up."""
    async with nodes.pair(**DEAF) as (reading, working):
        await until(lambda: live_of(reading).is_up and live_of(working).is_up)
        session = await reading.session("shared")
        model.hold(10)
        await session.send("a long answer")
        await model.until_held()
        async with nodes.node(work=True, **DEAF) as another:
            await until(lambda: live_of(another).is_up)
            await working.close()
            model.release()
            following = Following(session)
            await following.until_the_end()
            await following.check()


@pytest.mark.usefixtures("only_hints")
async def test_deleting_a_session_ends_its_readers_on_other_nodes(nodes: Nodes) -> None:
    async with nodes.pair() as (reading, working):
        await until(lambda: live_of(reading).is_up and live_of(working).is_up)
        session = await reading.session("shared")
        following = reading.operations.read(session.key).follow()
        await until_only_hints_are_left(following)
        await working.open("shared").delete()
        with pytest.raises(NotFound):
            await drained(following)


async def until_only_hints_are_left(following: AsyncIterator[Reading]) -> None:
    """Read past the catch-up and past the second one after the subscription: each ends with a change of the inbox."""
    looks = 0
    async with patience():
        while looks < 2:
            looks += isinstance(await anext(following), Changed)


async def drained(following: AsyncIterator[Reading]) -> None:
    async with patience():
        async for _ in following:
            pass


@pytest.mark.usefixtures("impatient")
async def test_readers_poll_while_redis_is_down_and_get_hints_when_it_is_back(
    own_nodes: Nodes, own_valkey: Valkey, model: Model
) -> None:
    async with own_nodes.pair() as (reading, working):
        await until(lambda: live_of(reading).is_up and live_of(working).is_up)
        session = await reading.session("shared")
        following = Following(session)
        model.hold(10)
        await session.send("a long answer")
        await following.until_text(WORDS[3])

        own_valkey.kill()
        await until(lambda: not live_of(reading).is_up and not live_of(working).is_up)
        assert reading.redis_state == "down, hints by polling"
        heard = live_of(reading).heard
        model.release()
        model.hold(30)
        await following.until_text(WORDS[20])
        assert live_of(reading).heard == heard

        own_valkey.start()
        await until(lambda: live_of(reading).is_up and live_of(working).is_up)
        heard = live_of(reading).heard
        model.release()
        await following.until_the_end()
        await until(lambda: live_of(reading).heard > heard)
        await following.check()


async def test_flushing_redis_during_an_answer_changes_nothing(
    own_nodes: Nodes, own_valkey: Valkey, model: Model
) -> None:
    async with own_nodes.pair() as (reading, working):
        await until(lambda: live_of(reading).is_up and live_of(working).is_up)
        session = await reading.session("shared")
        following = Following(session)
        model.hold(10)
        await session.send("a long answer")
        await following.until_text(WORDS[3])
        own_valkey.flush()
        model.release()
        await following.until_the_end()
        await following.check()


async def test_frozen_redis_delays_no_turn(own_nodes: Nodes, own_valkey: Valkey, model: Model) -> None:
    async with own_nodes.pair() as (reading, working):
        await until(lambda: live_of(reading).is_up and live_of(working).is_up)
        session = await reading.session("shared")
        following = Following(session)
        model.hold(10)
        await session.send("a long answer")
        await following.until_text(WORDS[3])
        own_valkey.pause()
        model.release()
        await following.until_the_end()
        await following.check()
        own_valkey.resume()


async def test_readiness_reports_how_hints_travel(tmp_path: Path, model: Model, database: str) -> None:
    async with Nodes(tmp_path, model, redis="", database=database).node(work=False) as node:
        is_shared = database.startswith("postgres")
        assert node.redis_state == ("not set, hints through the database" if is_shared else None)


async def test_unreachable_redis_falls_back_to_polling(tmp_path: Path, model: Model, database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    nodes = Nodes(tmp_path, model, redis=f"redis://127.0.0.1:{port}", database=database)
    async with nodes.pair() as (reading, working):
        session = await reading.session("shared")
        following = Following(session)
        await session.send("a long answer")
        await following.until_the_end()
        await following.check()
        assert reading.redis_state == working.redis_state == "down, hints by polling"
