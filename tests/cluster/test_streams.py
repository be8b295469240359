"""Readers, senders and people at one node, and the work at another: with Redis, without it, and while it dies."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from proof.chaos.processes import Fleet, Node
from tests.cluster.world import (
    NEVER,
    QUICK,
    SHORT_LEASE,
    Cluster,
    HeldModel,
    begin,
    bodies,
    endings,
    make,
    patience,
    rest,
    until,
)
from tests.http.world import LONG, Client, Frame
from tests.valkey_server import Valkey

pytestmark = pytest.mark.anyio

WORDS = LONG.split()


class Reading:
    """The pieces of a message that one reader got."""

    def __init__(self, frames: AsyncIterator[Frame]) -> None:
        self._frames = frames
        self.text = ""
        self.has_ended = False

    async def until_shown(self, word: str) -> None:
        await self._until(lambda: f"{word} " in self.text)

    async def until_the_end(self) -> None:
        await self._until(lambda: self.has_ended)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with patience():
            while not is_so():
                frame = await anext(self._frames)
                if frame.kind == "delta":
                    assert frame.data["offset"] == len(self.text.encode()), "a gap, or the same text twice"
                    self.text += frame.data["text"]
                self.has_ended |= frame.kind == "event" and frame.data["type"] == "holdfast.turn_ended"


async def hints_heard(client: Client) -> float:
    page = (await client.get("/metrics")).text
    found = re.search(r"^holdfast_redis_heard_total(?:{.*})? (\S+)$", page, re.MULTILINE)
    assert found is not None, page
    return float(found[1])


async def redis_state(client: Client) -> str:
    return str((await client.get("/readyz")).json()["redis"])


@pytest.fixture
def mortal(tmp_path: Path, audited_url: str, model: HeldModel, own_valkey: Valkey) -> Cluster:
    """A cluster whose Redis a test may kill."""
    settings = {**QUICK, **SHORT_LEASE}
    fleet = Fleet(tmp_path, database=audited_url, model_url=model.url, redis=own_valkey.url, settings=settings)
    return Cluster(fleet, model)


async def test_fault_52_a_reader_elsewhere_is_shown_every_word_while_redis_dies_and_comes_back(
    mortal: Cluster, own_valkey: Valkey
) -> None:
    """A client of one node sees the words of a turn on another, as they come: by hints, by the database, by hints."""
    model = mortal.model
    async with mortal.server("front") as (_, client), mortal.worker("worker"):
        await until(lambda: is_up(client))
        model.hold(10)
        await begin(client, ["one"], "long")
        async with client.follow("one") as frames:
            reading = Reading(frames)
            await reading.until_shown(WORDS[3])
            assert WORDS[-1] not in reading.text, "they come as the model says them"
            own_valkey.kill()
            await until(lambda: is_down(client))
            model.release()
            model.hold(30)
            await reading.until_shown(WORDS[20])
            own_valkey.start()
            await until(lambda: is_up(client))
            heard = await hints_heard(client)
            own_valkey.flush()
            model.release()
            await reading.until_the_end()
            assert reading.text == LONG
        assert (await client.texts("one"))[1:] == [LONG]
        # The worker may be a moment later than the reader to find that Redis is there: with the next turn it has.
        await until(lambda: hears_more(client, heard))
        await mortal.check()


async def is_up(client: Client) -> bool:
    return await redis_state(client) == "up"


async def is_down(client: Client) -> bool:
    return await redis_state(client) == "down, hints by polling"


async def hears_more(client: Client, than: float) -> bool:
    """Whether hints flow: there is something to tell, and it is heard."""
    if await hints_heard(client) > than:
        return True
    async with client.follow("one") as frames:
        await anext(frames)
        await client.say("one", "hello")
    return await hints_heard(client) > than


async def test_fault_10_the_same_id_sent_at_once_to_two_nodes_is_one_message_one_run_and_both_get_its_stream(
    cluster: Cluster,
) -> None:
    async with (
        cluster.server("left", works=True) as (_, left),
        cluster.server("right", works=True) as (_, right),
    ):
        await make(left, "one")
        body = {"text": "long and append", "message_id": "same"}
        async with patience():
            answers = await asyncio.gather(
                *(client.post("/v1/sessions/one/stream", json=body) for client in (left, right, left, right))
            )
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 1, "each was told the whole turn, in the same words"
        assert '"type":"finish"' in answers[0].text
        events = await left.events("one")
        assert len(bodies(events, "user.message")) == 1
        assert len(bodies(events, "holdfast.turn_started")) == 1
        assert len(cluster.effects) == 1
        await cluster.check()


WAYS = {
    "redis": {"HOLDFAST_CLAIM_EVERY_SECONDS": NEVER, "HOLDFAST_TAILS_EVERY_SECONDS": NEVER},
    "listening": {"HOLDFAST_REDIS": "", "HOLDFAST_TAILS_EVERY_SECONDS": NEVER},
    "polling": {"HOLDFAST_REDIS": "", "HOLDFAST_DATABASE_POOLED": "on"},
}
"""How a worker hears of what is put elsewhere. What it would notice by itself is switched off."""


@pytest.mark.parametrize("way", WAYS)
async def test_fault_39_a_stop_and_an_answer_given_to_any_node_reach_the_worker(cluster: Cluster, way: str) -> None:
    async with (
        cluster.server("front", **WAYS[way]) as (_, client),
        cluster.worker("worker", "--metrics-port", "0", **WAYS[way]) as worker,
        figures_of(worker) as figures,
        patience(),
    ):
        if way == "redis":
            await until(lambda: is_up(client))
            await until(lambda: is_up(figures))
        cluster.model.hold(10)
        await begin(client, ["stopped"], "long")
        await until(lambda: cluster.model.held == 1)
        await client.post("/v1/sessions/stopped/cancel", json={})
        await rest(client, ["stopped"])
        assert await endings(client, "stopped") == ["stopped"]
        cluster.model.release()

        await begin(client, ["asking"], "guarded")
        await until(lambda: asks(client, "asking"))
        (request,) = (await client.get("/v1/sessions/asking/requests")).json()["requests"]
        answered = await client.post(f"/v1/sessions/asking/requests/{request['id']}", json={"decision": "approve"})
        assert answered.status_code == 200, answered.text
        await rest(client, ["asking"])
        assert [effect.tool for effect in cluster.effects] == ["guarded_line"]
        await cluster.check()


@contextlib.asynccontextmanager
async def figures_of(worker: Node) -> AsyncIterator[Client]:
    port = (await worker.said("Metrics are on port")).partition("port ")[2].partition(":")[0]
    async with Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        yield client


async def asks(client: Client, session: str) -> bool:
    return bool((await client.get(f"/v1/sessions/{session}/requests")).json()["requests"])


async def test_fault_30_a_request_outlives_its_worker_and_its_server_and_is_answered_once_at_another(
    cluster: Cluster,
) -> None:
    async with cluster.server("first", works=True) as (first, client):
        await begin(client, ["one"], "guarded")
        await until(lambda: asks(client, "one"))
        await first.end(9)
    async with (
        cluster.server("left") as (_, left),
        cluster.server("right") as (_, right),
        cluster.worker("worker"),
    ):
        (request,) = (await left.get("/v1/sessions/one/requests")).json()["requests"]
        path = f"/v1/sessions/one/requests/{request['id']}"
        async with patience():
            answers = await asyncio.gather(
                *(
                    client.post(path, json={"decision": "approve", "answer_id": f"answer-{number}"})
                    for number, client in enumerate((left, right, left, right))
                )
            )
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
        await rest(left, ["one"])
        assert await endings(right, "one") == ["completed"]
        assert len(cluster.effects) == 1
        await cluster.check()
