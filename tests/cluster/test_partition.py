"""A worker that is cut off from PostgreSQL, and from nothing else: it stops before another may start, and what it says
when the way is open again is refused."""

import asyncio
from collections.abc import Iterator

import pytest

from proof.chaos import audit
from proof.chaos.effects import beats_in
from tests.cluster.network import Network, can_be_made, forwarded, network
from tests.cluster.world import Cluster, begin, endings, rest, types, until
from tests.http.world import Client
from tests.postgres_databases import Databases

pytestmark = pytest.mark.anyio


@pytest.fixture
def net() -> Iterator[Network]:
    if not can_be_made():
        pytest.skip("this user can't make network namespaces")
    with network() as made:
        yield made


async def test_fault_55_a_worker_cut_off_from_the_database_has_stopped_before_another_starts_and_is_refused_afterwards(
    cluster: Cluster, postgres_databases: Databases, net: Network
) -> None:
    socket = postgres_databases.server.socket
    database = cluster.url.partition("?")[0].rpartition("/")[2]
    port = int(cluster.model.url.rpartition(":")[2].partition("/")[0])
    async with (
        forwarded(net.to_database.here, lambda: asyncio.open_unix_connection(str(socket))) as to_database,
        forwarded(net.to_model.here, lambda: asyncio.open_connection("127.0.0.1", port)) as to_model,
        cluster.server("front") as (_, client),
    ):
        elsewhere = {
            "HOLDFAST_DATABASE": f"postgresql://postgres@{net.to_database.here}:{to_database}/{database}",
            "HOLDFAST_MODEL_BASE_URL": f"http://{net.to_model.here}:{to_model}/v1",
            "HOLDFAST_REDIS": "",
            # Enough for a machine that has a lot to do: what is shown here is an order, not a time.
            "HOLDFAST_LEASE_TTL_SECONDS": "6",
            "HOLDFAST_LEASE_MARGIN_SECONDS": "3",
        }
        async with cluster.worker("cut-off", before=net.before, **elsewhere) as cut_off:
            cluster.model.hold(10)
            await begin(client, ["stream"], "long")
            await begin(client, ["beat"], "beat")
            await until(lambda: cluster.model.held == 1 and bool(beats_in(cluster.fleet.effects)))
            net.to_database.cut()
            cluster.model.release()  # It has more to say, and nobody to say it to.
            async with cluster.worker("heir"):
                await until(lambda: claimed(cluster, "heir", {"stream", "beat"}))
                net.to_database.heal()
                cluster.fleet.open_gate("gate")
                await rest(client, ["stream", "beat"])
            await check_apart(cluster, client)
            await until(lambda: "could not renew in time" in cut_off.log)
            before = [await types(client, name) for name in ("stream", "beat")]
            await begin(client, ["afterwards"], "hello")
            await rest(client, ["afterwards"])
            assert [await types(client, name) for name in ("stream", "beat")] == before
            assert "afterwards" in audit.claims(await cluster.noted(), "cut-off"), "it is of use again"
            await cluster.check()


async def claimed(cluster: Cluster, writer: str, names: set[str]) -> bool:
    return names <= set(audit.claims(await cluster.noted(), writer))


async def check_apart(cluster: Cluster, client: Client) -> None:
    """By the clock of this machine, which is the database's too, they were never at work at the same time."""
    taken = audit.claims(await cluster.noted(), "heir")["beat"].at.timestamp() * 1000
    last = max(beat.at for beat in beats_in(cluster.fleet.effects) if beat.node == "cut-off")
    assert last < taken
    for name in ("stream", "beat"):
        assert await endings(client, name) == ["completed"]
