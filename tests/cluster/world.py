"""The world of the cluster tests: nodes as processes of their own, a model that can be held, clients of any node, and
the database's own record of every write."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall
from proof.chaos import audit
from proof.chaos.effects import REPEATABLE, Effect, effects_in
from proof.chaos.processes import Fleet, Node
from tests.http.world import LONG, PATIENCE_SECONDS, Client, Model

QUICK = {
    "HOLDFAST_CLAIM_EVERY_SECONDS": "0.25",
    "HOLDFAST_TAILS_EVERY_SECONDS": "0.1",
    "HOLDFAST_LINGER_SECONDS": "0",
    "HOLDFAST_BACKOFF_SECONDS": "0",
    "HOLDFAST_MAX_BACKOFF_SECONDS": "0",
}
"""Nodes that look often; what they promise is the same."""

LEASE_SECONDS = 4.0
SHORT_LEASE = {
    "HOLDFAST_LEASE_TTL_SECONDS": f"{LEASE_SECONDS:g}",
    "HOLDFAST_RENEW_EVERY_SECONDS": "0.5",
    "HOLDFAST_LEASE_MARGIN_SECONDS": "1",
}
"""For faults that need a lease to run out."""

NEVER = "3600"


def calling(when: str, name: str, arguments: dict[str, Any], *, then: str = "Done.") -> Rule:
    return Rule((Reply(text="I will.", tool_calls=(ScriptedCall(name, arguments),)), Reply(text=then)), when)


SCRIPT = Script(
    (
        calling("hold once", "hold", {"gate": "gate"}),
        calling("hold again", "hold_again", {"gate": "gate"}),
        calling("beat", "beat", {"gate": "gate"}),
        calling("append", "append_line", {}),
        calling("put", "put_line", {}),
        calling("guarded", "guarded_line", {}),
        calling("look up", "lookup", {"name": "ada"}, then="Found: {last_tool_result}"),
        Rule((Reply(text=LONG),), "long"),
        Rule((Reply(text="Hello, world."),)),
    )
)


def patience() -> asyncio.Timeout:
    return asyncio.timeout(PATIENCE_SECONDS)


async def until(is_so: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for what nobody announces to this process."""
    async with patience():
        while True:
            found = is_so()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)


class HeldModel(Model):
    """Counts the answers that it holds."""

    def __init__(self) -> None:
        super().__init__(SCRIPT)
        self.held = 0

    async def _pass(self, piece: int) -> None:
        if piece != self._held_at:
            return
        self.held += 1
        try:
            await super()._pass(piece)
        finally:
            self.held -= 1


class Cluster:
    """A fleet of nodes at a database of their own."""

    def __init__(self, fleet: Fleet, model: HeldModel) -> None:
        self.fleet = fleet
        self.model = model
        self.url = fleet.database

    @contextlib.asynccontextmanager
    async def worker(self, name: str, *options: str, **more: Any) -> AsyncIterator[Node]:
        node = await self.fleet.worker(name, *options, **more)
        async with self.fleet.using(node):
            yield node

    @contextlib.asynccontextmanager
    async def server(self, name: str, *options: str, **more: Any) -> AsyncIterator[tuple[Node, Client]]:
        node = await self.fleet.server(name, *options, **more)
        async with self.fleet.using(node), client_of(node) as client:
            yield node, client

    @property
    def effects(self) -> tuple[Effect, ...]:
        return effects_in(self.fleet.effects)

    async def noted(self) -> list[audit.Noted]:
        return await audit.noted(self.url)

    async def check(self) -> None:
        """No write but the holder's was accepted, and no effect took place against its tool's rule."""
        assert list(audit.trespasses(await self.noted())) == []
        times = Counter((effect.tool, effect.session, effect.tool_call_id) for effect in self.effects)
        assert [found for found, count in times.items() if count > 1 and found[0] not in REPEATABLE] == []


def client_of(node: Node) -> Client:
    headers = {"authorization": f"Bearer {node.token}"}
    return Client(base_url=node.url, headers=headers, timeout=PATIENCE_SECONDS, trust_env=False)


async def send(client: Client, session: str, text: str, message_id: str | None = None, **more: str) -> None:
    """Accepted is enough."""
    named = {"message_id": message_id} if message_id is not None else {}
    response = await client.post(f"/v1/sessions/{session}/messages", json={"text": text, **named, **more})
    assert response.status_code in (200, 202), response.text


async def make(client: Client, *names: str, **options: Any) -> None:
    for name in names:
        await client.make(id=name, **options)


async def begin(client: Client, names: Sequence[str], text: str) -> None:
    await make(client, *names)
    for name in names:
        await send(client, name, text, f"m-{name}")


async def rest(client: Client, names: Sequence[str]) -> None:
    """Until each of these is idle, and nothing waits in it."""
    left = set(names)

    async def all_rest() -> bool:
        for name in sorted(left):
            found = (await client.get(f"/v1/sessions/{name}", params={"limit": 1})).json()["session"]
            if found["status"] != "idle" or found["waiting_messages"]:
                return False
            left.discard(name)
        return True

    await until(all_rest)


async def types(client: Client, session: str) -> list[str]:
    return [str(event["type"]) for event in await client.events(session)]


def bodies(events: list[dict[str, Any]], type: str) -> list[dict[str, Any]]:
    return [event["data"] for event in events if event["type"] == type]


async def endings(client: Client, session: str) -> list[str]:
    return [body["reason"] for body in bodies(await client.events(session), "holdfast.turn_ended")]
