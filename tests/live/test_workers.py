"""`holdfast worker` runs the sessions that other processes serve; however it ends, another worker continues."""

import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.http.world import LONG, Client, Model
from tests.live.cluster import CLUSTER_SCRIPT, Cluster, send, until_the_turn_ends
from tests.valkey_server import Valkey

pytestmark = pytest.mark.anyio


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    async with Model(CLUSTER_SCRIPT) as server:
        yield server


@pytest.fixture
def cluster(tmp_path: Path, model: Model) -> Cluster:
    return Cluster(tmp_path, model)


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with cluster.serve("--no-work") as server, server.client() as one:
        yield one


async def types(client: Client, session: str) -> list[str]:
    return [str(event["type"]) for event in await client.events(session)]


async def test_server_without_a_worker_leaves_sessions_to_worker_processes(
    cluster: Cluster, valkey: Valkey, model: Model, database: str
) -> None:
    shared = ("--redis", valkey.url, "--database", database)
    async with cluster.serve("--no-work", *shared) as server, server.client() as client:
        session = await client.make()
        await send(client, session, "a long answer")
        assert (await client.get(f"/v1/sessions/{session}")).json()["session"]["status"] == "queued"
        model.hold(10)
        async with cluster.worker("--concurrency", "7", *shared) as worker, client.follow(session) as frames:
            assert "at most 7 sessions" in await worker.said("sessions at a time")
            assert "Redis" in await worker.said("Hints go")
            text = ""
            async for frame in frames:
                if frame.kind == "delta":
                    text += frame.data["text"]
                    model.release()
                if frame.kind == "event" and frame.data["type"] == "holdfast.turn_ended":
                    break
            assert text == LONG
            assert (await client.get("/readyz")).json()["redis"] == "up"
            assert await worker.end() == 0


async def test_drained_worker_finishes_its_step_and_another_continues(
    cluster: Cluster, client: Client, model: Model
) -> None:
    session = await client.make()
    model.hold(10)
    async with cluster.worker("--drain-seconds", "600") as worker:
        await send(client, session, "two steps")
        await model.until_held()
        worker.process.send_signal(signal.SIGTERM)
        await worker.said("Ending: 1 session(s)")
        model.release()
        assert await worker.ended() == 0
    before = await types(client, session)
    assert before.count("assistant.message") == 1, "the step in progress is finished"
    assert "holdfast.turn_ended" not in before
    async with cluster.worker():
        await until_the_turn_ends(client, session)
    after = await types(client, session)
    assert after[: len(before)] == before
    assert "holdfast.sealed" not in after, "no message was cut"
    assert (await client.texts(session))[1:] == [LONG, "Done."]


async def test_drain_ends_at_its_deadline(cluster: Cluster, client: Client, model: Model) -> None:
    session = await client.make()
    model.hold(10)
    async with cluster.worker("--drain-seconds", "0.1") as worker:
        await send(client, session, "two steps")
        await model.until_held()
        assert await worker.end() == 0
    assert "holdfast.turn_ended" not in await types(client, session)
    model.release()
    async with cluster.worker():
        await until_the_turn_ends(client, session)
    assert (await client.texts(session))[-1] == "Done."


async def test_second_signal_ends_a_worker_at_once(cluster: Cluster, client: Client, model: Model) -> None:
    session = await client.make()
    model.hold(10)
    async with cluster.worker("--drain-seconds", "600") as worker:
        await send(client, session, "two steps")
        await model.until_held()
        worker.process.send_signal(signal.SIGINT)
        await worker.said("Ending: 1 session(s)")
        assert await worker.end(signal.SIGTERM) == 128 + signal.SIGTERM
    model.release()
    async with cluster.worker():
        await until_the_turn_ends(client, session)


async def test_another_worker_takes_over_from_a_killed_one(cluster: Cluster, client: Client, model: Model) -> None:
    session = await client.make()
    model.hold(10)
    async with cluster.worker() as first:
        await send(client, session, "two steps")
        await model.until_held()
        async with cluster.worker():
            first.process.kill()
            await first.ended()
            model.release()
            await until_the_turn_ends(client, session)
    texts = await client.texts(session)
    assert texts[-2:] == [LONG, "Done."]
    assert all(LONG.startswith(text) for text in texts[1:-1])


async def test_worker_respects_its_concurrency(cluster: Cluster, client: Client, model: Model) -> None:
    sessions = [await client.make() for _ in range(3)]
    for session in sessions:
        await send(client, session, "a long answer")
    model.hold(10)
    async with cluster.worker("--concurrency", "1"):
        await model.until_held()
        listed = (await client.get("/v1/sessions")).json()["sessions"]
        assert sorted(found["status"] for found in listed) == ["queued", "queued", "running"]
        model.release()
        for session in sessions:
            await until_the_turn_ends(client, session)


REFUSED = [
    (("--redis", "http://:hush@there"), {}, "--redis is not the URL of a Redis"),
    ((), {"HOLDFAST_REDIS": "redis://:hush@there?colour=blue"}, "HOLDFAST_REDIS can't be used"),
]


@pytest.mark.parametrize(("options", "environ", "why"), REFUSED)
async def test_unusable_settings_are_refused_with_one_sentence(
    tmp_path: Path, options: tuple[str, ...], environ: dict[str, str], why: str
) -> None:
    done = await Cluster(tmp_path).run("worker", *options, **environ)
    assert (done.code, done.out) == (2, "")
    assert why in done.err
    assert done.err.count("\n") == 1
    assert "hush" not in done.err
    assert not (tmp_path / "data" / "holdfast.db").exists()


async def test_missing_redis_package_is_reported_with_the_install_command(tmp_path: Path) -> None:
    hides = tmp_path / "hides"
    hides.mkdir()
    (hides / "redis.py").write_text("raise ImportError('there is none')")
    path = os.pathsep.join((str(hides), str(Path(__file__).parents[2] / "src")))
    done = await Cluster(tmp_path).run("worker", "--redis", "redis://:hush@there", PYTHONPATH=path)
    assert done.code == 2
    assert "pip install 'holdfast[cluster]'" in done.err
    assert "hush" not in done.err


async def test_doctor_reports_whether_redis_is_up(tmp_path: Path, valkey: Valkey) -> None:
    assert "✓ Redis: answers" in (await Cluster(tmp_path).run("doctor", HOLDFAST_REDIS=valkey.url)).out
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    gone = await Cluster(tmp_path).run("doctor", HOLDFAST_REDIS=f"redis://:hush@127.0.0.1:{port}")
    assert gone.code == 1
    assert "✗ Redis: does not answer" in gone.out
    assert "hush" not in gone.out + gone.err
