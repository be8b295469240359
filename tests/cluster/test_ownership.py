"""Workers that die, stand still, or are told to go, with turns in their hands: who goes on, when, and that nobody else
writes. What happened is what the database noted."""

import asyncio
import contextlib
import signal
from datetime import timedelta

import pytest

from proof.chaos import audit
from proof.chaos.processes import Node
from tests.cluster.world import (
    LEASE_SECONDS,
    NEVER,
    Cluster,
    begin,
    bodies,
    endings,
    make,
    patience,
    rest,
    send,
    types,
    until,
)
from tests.http.world import LONG, Client

pytestmark = pytest.mark.anyio

STREAMING = [f"stream-{number}" for number in range(40)]
HOLDING = [f"hold-{number}" for number in range(30)]
REPEATING = [f"again-{number}" for number in range(30)]
ALL = [*STREAMING, *HOLDING, *REPEATING]


async def start_all(cluster: Cluster, client: Client) -> None:
    """A hundred turns: in the middle of an answer, or in a tool that has had its effect and no result."""
    cluster.model.hold(10)
    await asyncio.gather(
        begin(client, STREAMING, "long"), begin(client, HOLDING, "hold once"), begin(client, REPEATING, "hold again")
    )
    await until(lambda: cluster.model.held == len(STREAMING))
    await until(lambda: len(cluster.effects) == len(HOLDING) + len(REPEATING))


async def test_fault_4_a_hundred_turns_of_a_killed_worker_are_claimed_within_the_lease_and_end_as_they_may(
    cluster: Cluster,
) -> None:
    async with cluster.server("front") as (_, client), cluster.worker("doomed") as doomed:
        await start_all(cluster, client)
        async with cluster.worker("heir"):
            await doomed.end(signal.SIGKILL)
            killed = await audit.now(cluster.url)
            cluster.model.release()
            cluster.fleet.open_gate("gate")
            await rest(client, ALL)
        claimed = audit.claims(await cluster.noted(), "heir")
        late = {name: found.at - killed for name, found in claimed.items()}
        assert set(claimed) == set(ALL), "every one of them was redelivered"
        assert max(late.values()) <= timedelta(seconds=LEASE_SECONDS + 2)
        await cluster.check()
        for name in ALL:
            assert await endings(client, name) == ["completed"]
        for name in STREAMING:
            said = (await client.texts(name))[1:]
            assert said[-1] == LONG
            assert all(LONG.startswith(text) for text in said), "what was shown stays"
        await check_effects(cluster, client)


async def check_effects(cluster: Cluster, client: Client) -> None:
    """A call in doubt is reported to the model, or repeated, as its tool declares."""
    for name in HOLDING:
        (result,) = bodies(await client.events(name), "tool.execution_complete")
        assert (result["success"], result["error"]) == (False, "interrupted")
        assert sum(effect.session == name for effect in cluster.effects) == 1
    for name in REPEATING:
        (result,) = bodies(await client.events(name), "tool.execution_complete")
        assert result["success"]
        assert [effect.attempt for effect in cluster.effects if effect.session == name] == [1, 2]


async def test_fault_5_a_worker_that_stands_still_past_its_lease_can_write_nothing_when_it_goes_on(
    cluster: Cluster,
) -> None:
    names = ["stream", "hold", "again"]
    async with cluster.server("front") as (_, client), cluster.worker("sleeper") as sleeper:
        cluster.model.hold(10)
        for name, text in zip(names, ("long", "hold once", "hold again"), strict=True):
            await begin(client, [name], text)
        await until(lambda: cluster.model.held == 1 and len(cluster.effects) == 2)
        sleeper.send(signal.SIGSTOP)
        async with cluster.worker("heir"):
            await until(lambda: claimed_all(cluster, "heir", names))
            # It gets the rest of its answer and the results of its tools, together with its successor.
            cluster.model.release()
            cluster.fleet.open_gate("gate")
            sleeper.send(signal.SIGCONT)
            await rest(client, names)
            await until(lambda: "are let go of" in sleeper.log or "lost session" in sleeper.log)
            before = [await types(client, name) for name in names]
            await begin(client, ["another"], "hello")
            await rest(client, ["another"])
        noted = await cluster.noted()
        takeovers = audit.claims(noted, "heir")
        late = [
            each for each in noted if each.writer == "sleeper" and each.session in names and is_after(each, takeovers)
        ]
        assert late == [], "not one write of it was accepted after the takeover"
        await cluster.check()
        assert [await types(client, name) for name in names] == before
        assert [await endings(client, name) for name in names] == [["completed"]] * 3


async def claimed_all(cluster: Cluster, writer: str, names: list[str]) -> bool:
    return set(names) <= set(audit.claims(await cluster.noted(), writer))


def is_after(each: audit.Noted, takeovers: dict[str, audit.Noted]) -> bool:
    return each.number > takeovers[each.session].number


async def test_fault_8_a_worker_that_is_asked_to_end_hands_over_at_once(cluster: Cluster) -> None:
    """The lease lasts an hour: who goes on was told, and did not wait for it."""
    hour = {"HOLDFAST_LEASE_TTL_SECONDS": NEVER}
    async with cluster.server("front") as (_, client), cluster.worker("leaving", **hour) as leaving:
        await begin(client, ["one"], "hold once")
        await until(lambda: len(cluster.effects) == 1)
        async with cluster.worker("staying", **hour):
            leaving.send(signal.SIGTERM)
            await leaving.said("Ending: 1 session(s)")
            cluster.fleet.open_gate("gate")
            await rest(client, ["one"])
            async with patience():
                assert await leaving.process.wait() == 0
        held = [each for each in await cluster.noted() if each.position is None]
        assert [(each.writer, each.is_held) for each in held] == [
            ("leaving", True),
            ("leaving", False),
            ("staying", True),
            ("staying", False),
        ]
        (result,) = bodies(await client.events("one"), "tool.execution_complete")
        assert result["success"], "the step came to its end where it had begun"
        await cluster.check()


ROUNDS = 7
"""Messages for each session: one before, and two around each restart."""


async def test_fault_8_a_rolling_restart_of_three_nodes_under_load_loses_and_repeats_nothing(
    cluster: Cluster,
) -> None:
    names = [f"s{number}" for number in range(6)]
    async with contextlib.AsyncExitStack() as running:
        nodes = [await started(cluster, running, f"n{number}") for number in range(3)]
        await make(nodes[0][1], *names)
        await load(nodes[0][1], names, 0)
        for number in range(3):
            node, client = nodes[number]
            await load(client, names, 2 * number + 1)
            ending = asyncio.create_task(node.end(signal.SIGTERM))
            await load(nodes[(number + 1) % 3][1], names, 2 * number + 2)
            assert await ending == 0
            nodes[number] = await started(cluster, running, f"n{number}-again")
        client = nodes[0][1]
        await rest(client, names)
        for name in names:
            await check_rounds(client, name)
        assert len(cluster.effects) == len(names) * ROUNDS
        await cluster.check()


async def started(cluster: Cluster, running: contextlib.AsyncExitStack, name: str) -> tuple[Node, Client]:
    return await running.enter_async_context(cluster.server(name, works=True))


async def check_rounds(client: Client, name: str) -> None:
    events = await client.events(name)
    said = [body["messageId"] for body in bodies(events, "user.message")]
    assert said == [f"{name}-{number}" for number in range(ROUNDS)]
    assert [result["success"] for result in bodies(events, "tool.execution_complete")] == [True] * ROUNDS
    assert [attempt["attempt"] for attempt in bodies(events, "holdfast.tool_attempt")] == [1] * ROUNDS
    assert await endings(client, name) == ["completed"] * ROUNDS


async def load(client: Client, names: list[str], number: int) -> None:
    for name in names:
        await send(client, name, "append", f"{name}-{number}", delivery="enqueue")
