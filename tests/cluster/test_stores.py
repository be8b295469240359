"""PostgreSQL restarted in the middle of everything, read-only, and out of connections, under real nodes: nothing that
was acknowledged is lost, nothing is done twice, and everything goes on by itself afterwards."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import connect
from holdfast.client.session import Session
from holdfast.store.postgres.connections import DatabaseAddress
from holdfast.store.postgres.migrations import migrate
from proof.chaos import audit
from proof.chaos.processes import Fleet
from proof.postgres_server import PostgresServer
from tests.cluster.world import (
    QUICK,
    SHORT_LEASE,
    Cluster,
    HeldModel,
    begin,
    bodies,
    endings,
    patience,
    rest,
    until,
)
from tests.http.world import LONG, Client, code_of

pytestmark = pytest.mark.anyio

CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
ROLE = "ordinary"


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        server.run("createuser", ROLE)
        yield server


def as_superuser(url: str) -> str:
    return url.replace(f"//{ROLE}@", "//postgres@")


@pytest.fixture
async def fragile(own_server: PostgresServer, tmp_path: Path, model: HeldModel) -> Cluster:
    """A cluster whose database a test may break."""
    name = f"d_{uuid.uuid4().hex}"
    await audit.run(own_server.url(), f"CREATE DATABASE {name} OWNER {ROLE}")
    url = own_server.url(name).replace("//postgres@", f"//{ROLE}@")
    await migrate(DatabaseAddress(url))
    await audit.run(url, audit.TRIGGERS)
    return Cluster(Fleet(tmp_path, database=url, model_url=model.url, settings={**QUICK, **SHORT_LEASE}), model)


async def test_fault_51_a_server_that_crashes_again_and_again_under_turns_tools_and_puts_loses_nothing(
    fragile: Cluster, own_server: PostgresServer
) -> None:
    names = [f"s{number}" for number in range(12)]
    acknowledged: dict[str, list[str]] = {name: [] for name in names}
    async with fragile.server("front") as (front, client), fragile.worker("one"), fragile.worker("two"):
        async with connect(front.url, front.token) as server, asyncio.TaskGroup() as tasks:
            sessions = [await server.session(name) for name in names]
            sending = [tasks.create_task(converse(session, acknowledged[session.id])) for session in sessions]
            for count in (10, 30, 50):
                await until(lambda count=count: sum(map(len, acknowledged.values())) >= count)  # type: ignore[misc]
                await asyncio.to_thread(own_server.restart, "immediate")
            async with patience():
                await asyncio.wait(sending)
        await rest(client, names)
        for name in names:
            await check_conversation(client, name, acknowledged[name])
        await fragile.check()


TEXTS = ("long", "append", "put", "hello", "long and append", "put")


async def converse(session: Session, acknowledged: list[str]) -> None:
    """Send without waiting for answers; under the same id again while the server is away."""
    for number, text in enumerate(TEXTS):
        message_id = f"{session.id}-{number}"
        await session.send(text, message_id=message_id, delivery="enqueue")
        acknowledged.append(message_id)
        await asyncio.sleep(0.05)  # To be under way while others are.


async def check_conversation(client: Client, name: str, acknowledged: list[str]) -> None:
    events = await client.events(name)
    said = [body["messageId"] for body in bodies(events, "user.message")]
    assert said == acknowledged
    assert len(acknowledged) == len(TEXTS)
    assert await endings(client, name) == ["completed"] * len(TEXTS)
    calls = [body["toolCallId"] for body in bodies(events, "tool.execution_complete")]
    assert len(calls) == len(set(calls)) == sum("append" in text or "put" in text for text in TEXTS)


async def test_fault_51_a_database_that_became_read_only_refuses_clearly_and_works_again_afterwards(
    fragile: Cluster,
) -> None:
    async with fragile.server("front") as (front, client), fragile.worker("worker") as worker:
        fragile.model.hold(10)
        await begin(client, ["one"], "long")
        await until(lambda: fragile.model.held == 1)
        await read_only(fragile.url, "on")
        fragile.model.release()
        await until(lambda: "takes no writes" in worker.log)
        refused = await client.post("/v1/sessions/one/messages", json={"text": "hello", "message_id": "m2"})
        assert (refused.status_code, code_of(refused)) == (503, "store_read_only")
        assert (await client.get("/v1/sessions/one")).status_code == 200, "what is there can be read"
        assert (await client.get("/readyz")).status_code in (200, 503)
        await read_only(fragile.url, "off")
        await until(lambda: accepts(client, "one", "m2"))
        await rest(client, ["one"])
        assert set(await endings(client, "one")) == {"completed"}
        events = await client.events("one")
        assert [body["messageId"] for body in bodies(events, "user.message")] == ["m-one", "m2"]
        assert front.process.returncode is worker.process.returncode is None
        await fragile.check()


async def read_only(url: str, value: str) -> None:
    """As when a standby takes the server's place: connections break, and the new ones can only read."""
    name = url.partition("?")[0].rpartition("/")[2]
    change = f"ALTER DATABASE {name} SET default_transaction_read_only = {value}"
    await audit.run(as_superuser(url), f"BEGIN READ WRITE; {change}; COMMIT; {CUT}")


async def accepts(client: Client, session: str, message_id: str) -> bool:
    body = {"text": "hello", "message_id": message_id}
    return (await client.post(f"/v1/sessions/{session}/messages", json=body)).status_code < 300


async def test_fault_51_a_server_without_free_connections_is_waited_for_and_nothing_is_lost(fragile: Cluster) -> None:
    async with fragile.server("front") as (front, client), fragile.worker("worker") as worker:
        fragile.model.hold(10)
        await begin(client, ["one"], "long")
        await until(lambda: fragile.model.held == 1)
        await connections(fragile.url, 0)
        fragile.model.release()
        await until(lambda: "no connection left" in worker.log)
        refused = await client.post("/v1/sessions/one/messages", json={"text": "hello", "message_id": "m2"})
        assert (refused.status_code, code_of(refused)) == (503, "store_busy")
        await connections(fragile.url, -1)
        await until(lambda: accepts(client, "one", "m2"))
        await rest(client, ["one"])
        assert set(await endings(client, "one")) == {"completed"}
        texts = await client.texts("one")
        assert LONG in texts
        assert texts[-1] == "Hello, world."
        assert front.process.returncode is worker.process.returncode is None
        await fragile.check()


async def connections(url: str, limit: int) -> None:
    """So many, from now on, and none of those that there are. It does not concern who may do anything."""
    name = url.partition("?")[0].rpartition("/")[2]
    await audit.run(as_superuser(url), f"ALTER DATABASE {name} CONNECTION LIMIT {limit}; {CUT}")
