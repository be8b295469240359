"""What is run on one node is read, stopped and answered on another, with Redis between them, and without it."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.live import redis
from holdfast.live.live import Changed
from holdfast.server.errors import NotFound
from holdfast.server.reader import Reading
from tests.http.world import LONG, Model
from tests.live.nodes import DEAF, Following, Nodes, live_of
from tests.live.waiting import patience, until
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
    """While Redis is there nobody looks at the store unasked: what arrives came by a hint."""
    monkeypatch.setattr(redis, "NET_SECONDS", 3600.0)


@pytest.mark.usefixtures("only_hints")
async def test_a_reader_sees_the_words_of_a_turn_that_runs_on_another_node(nodes: Nodes, model: Model) -> None:
    """The worker, too, looks for nothing by itself: the message reaches it by a wake-up."""
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
async def test_a_stop_given_to_any_node_reaches_the_holder_at_once(nodes: Nodes, model: Model) -> None:
    """Its own looks at the inbox are switched off."""
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
async def test_an_answer_given_to_any_node_wakes_a_worker_at_once(nodes: Nodes) -> None:
    async with nodes.pair(**DEAF, HOLDFAST_LINGER_SECONDS="0") as (reading, working):
        await until(lambda: live_of(reading).is_up and live_of(working).is_up)
        session = await reading.session("shared", working_directory=str(nodes.folder))
        async with patience():
            waiting = await session.run("write a note")
            assert waiting.reason == "waiting"
            await until(lambda: working.worker.sessions_held == 0)
            await session.approve(waiting.requests[0].request_id)
        following = Following(session)
        await following.until_the_end()
        await following.check()
    assert (nodes.folder / "note.txt").read_text() == "hi"


@pytest.mark.usefixtures("only_hints")
async def test_a_session_that_is_handed_over_is_taken_by_another_worker_at_once(nodes: Nodes, model: Model) -> None:
    """Who takes over looks for nothing by itself: it is told."""
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
async def test_a_session_that_is_deleted_on_one_node_is_over_for_its_readers_on_another(nodes: Nodes) -> None:
    async with nodes.pair() as (reading, working):
        await until(lambda: live_of(reading).is_up and live_of(working).is_up)
        session = await reading.session("shared")
        following = session.events()
        await until_only_hints_are_left(following)
        await working.open("shared").delete()
        with pytest.raises(NotFound):
            await drained(following)


async def until_only_hints_are_left(following: AsyncIterator[Reading]) -> None:
    """Past what there was, and past the second look once nothing more can be missed: each ends with a change."""
    looks = 0
    async with patience():
        while looks < 2:
            looks += isinstance(await anext(following), Changed)


async def drained(following: AsyncIterator[Reading]) -> None:
    async with patience():
        async for _ in following:
            pass


@pytest.mark.usefixtures("impatient")
async def test_readers_go_on_while_redis_is_gone_and_hear_hints_again_when_it_is_back(
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


async def test_a_flush_in_the_middle_of_an_answer_changes_nothing(
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


async def test_a_redis_that_stands_still_holds_up_no_turn(own_nodes: Nodes, own_valkey: Valkey, model: Model) -> None:
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


async def test_what_is_ready_says_how_hints_travel(tmp_path: Path, model: Model, database: str) -> None:
    async with Nodes(tmp_path, model, redis="", database=database).node(work=False) as node:
        is_shared = database.startswith("postgres")
        assert node.redis_state == ("not set, hints through the database" if is_shared else None)


async def test_without_a_redis_where_one_is_named_all_goes_on_by_polling(
    tmp_path: Path, model: Model, database: str
) -> None:
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
