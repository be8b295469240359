"""The audit log over HTTP and at the command line: what keys and tokens did, and what they were refused."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.events.ids import Owner
from holdfast.server.audit_retention import DAY_MS, TRIM_EVERY_SECONDS, keep_trimmed
from holdfast.server.http.denials import PER_ACTOR, PER_PROCESS, Denials
from holdfast.server.http.rates import WINDOW_SECONDS, PerMinute
from holdfast.store.audit import Actor, audit_entry
from holdfast.store.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.http.test_identity import made_key, secret_of
from tests.http.test_requests import answered, asked
from tests.http.test_tokens import KEY, claims, settings
from tests.http.world import Client, Model, Place, Server, code_of, patience
from tests.security.issuer import key_set_server


class World:
    """A server with keys of a user and of an admin, and with an issuer."""

    def __init__(self, place: Place, server: Server, user: str, admin: str) -> None:
        self.place = place
        self.server = server
        self.user = user
        self.admin = admin

    async def entries(self, *, after: int = 0) -> list[dict[str, Any]]:
        async with self.server.client(self.admin) as root:
            answer = await root.get("/v1/audit", params={"after": after, "limit": 1_000})
            assert answer.status_code == 200, answer.text
            found: list[dict[str, Any]] = answer.json()["entries"]
            return found

    async def head(self) -> int:
        async with self.server.client(self.admin) as root:
            return int((await root.get("/v1/audit?limit=1")).json()["head"])


@pytest.fixture
async def world(tmp_path: Path, own_model: Model) -> AsyncIterator[World]:
    async with key_set_server() as served:
        served.publish(KEY.jwk())
        place = Place(tmp_path, own_model, **settings(served))
        user = await made_key(place, "laptop", "ada")
        admin = await made_key(place, "root", "root", "admin")
        async with place.serve() as server:
            yield World(place, server, user, admin)


def acts(entries: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    return [(each["action"], each["actor"]["kind"], each["target"], each["result"]) for each in entries]


async def test_what_keys_tokens_and_commands_did_is_told_in_order(world: World) -> None:
    key_id = world.user.split("_")[1]
    token = KEY.token(claims(sub="eve"))
    async with world.server.client(world.user) as ada, world.server.client(token) as eve:
        await ada.make(id="diary")
        await eve.make(id="diary")
        assert (await ada.get("/v1/sessions/diary/export")).status_code == 200
        assert (await ada.get("/v1/sessions/none/export")).status_code == 404
        assert (await ada.get("/metrics")).status_code == 403
        for _ in range(2):
            await eve.delete("/v1/sessions/diary")
    assert (await world.place.run("keys", "revoke", key_id)).code == 0
    found = await world.entries()
    assert acts(found) == [
        ("key.created", "operator", key_id, "done"),
        ("key.created", "operator", world.admin.split("_")[1], "done"),
        ("server.started", "operator", f"127.0.0.1:{world.server.port}", "done"),
        ("session.exported", "key", "diary", "done"),
        ("admin.denied", "key", "GET /metrics", "denied"),
        ("session.deleted", "token", "diary", "done"),
        ("key.revoked", "operator", key_id, "done"),
    ]
    exported, denied, deleted = found[3:6]
    assert exported["actor"] == {
        "kind": "key",
        "id": key_id,
        "owner": "ada",
        "role": "user",
        "address": "127.0.0.1",
    }
    assert denied["actor"] == exported["actor"]
    assert (deleted["actor"]["id"], deleted["owner"]) == ("eve", "jwt+eve")
    assert abs(deleted["at"] - time.time() * 1000) < 600_000
    started = msgspec.json.decode(found[2]["detail"])
    assert (started["auth"], started["jwt_audience"]) == ("keys", ["holdfast"])
    whole = msgspec.json.encode(found).decode()
    for secret in (world.user, secret_of(world.user), token, token.rpartition(".")[2]):
        assert secret not in whole


async def test_the_log_is_read_page_by_page_or_as_one_document(world: World) -> None:
    whole = await world.entries()
    async with world.server.client(world.admin) as root:
        found: list[dict[str, Any]] = []
        after, head = 0, await world.head()
        while after < head:
            page = (await root.get("/v1/audit", params={"after": after, "limit": 2})).json()
            found, after = found + page["entries"], page["next"]
        assert found == whole
        assert (await root.get("/v1/audit", params={"after": head})).json()["next"] == head
        assert (await root.get("/v1/audit?last=1")).json()["entries"] == whole[-1:]
        document = await root.get("/v1/audit?format=jsonl")
        assert document.headers["content-type"].startswith("application/jsonl")
        assert [msgspec.json.decode(line) for line in document.text.splitlines()] == whole
        assert (await root.get(f"/v1/audit?format=jsonl&after={head}")).text == ""
        for query in ("after=-1", "limit=0", "limit=1001", "format=xml", "last=0", "until=5"):
            assert (await root.get(f"/v1/audit?{query}")).status_code == 422, query
    printed = await world.place.run("audit", "--json")
    assert [msgspec.json.decode(line) for line in printed.out.splitlines()] == whole
    last = await world.place.run("audit", "--last", "1")
    assert last.out.count("\n") == 1
    assert "server.started" in last.out
    assert (await world.place.run("audit", "--after", str(head))).out == "The audit log has no such entries.\n"


async def test_only_admins_read_it_and_who_may_not_is_told_of(world: World) -> None:
    async with world.server.client(world.user) as ada:
        for _ in range(PER_ACTOR + 5):
            answer = await ada.get("/v1/audit")
            assert (answer.status_code, code_of(answer)) == (403, "admins_only")
    assert [act[2] for act in acts(await world.entries()) if act[0] == "admin.denied"] == ["GET /v1/audit"] * PER_ACTOR


async def test_permissions_are_told_when_they_are_granted_and_when_they_are_revoked(world: World) -> None:
    async def grant(root: Client, session: str, decision: str, **more: Any) -> None:
        _, request = await asked(root, "note", id=session, working_directory=str(world.place.work))
        for _ in range(2):
            answer = await answered(root, session, request, decision=decision, answer_id="a1", **more)
            assert answer.status_code == 200, answer.text

    head = await world.head()
    async with patience(), world.server.client(world.admin) as root:
        await grant(root, "one", "approve")
        await grant(root, "two", "approve_for_session")
        await grant(root, "three", "approve_always", everywhere=True)
        await root.make(id="four", allow=["read"])
        await root.patch("/v1/sessions/four", json={"title": "No grant"})
        (own,) = (await root.get("/v1/sessions/four/permissions")).json()["permissions"][:1]
        await root.delete(f"/v1/sessions/four/permissions/{own['id']}")
        (granted,) = (await root.get("/v1/permissions")).json()["permissions"]
        for _ in range(2):
            await root.delete(f"/v1/permissions/{granted['id']}")
    found = [(each["action"], each["target"], each["detail"]) for each in await world.entries(after=head)]
    assert found[:4] == [
        ("permission.granted", "two", "in the session: write"),
        ("permission.granted", "everywhere", "write, in session three"),
        ("permission.granted", "four", "in the session: read"),
        ("permission.revoked", "four", "in the session: read"),
    ]
    assert found[-1] == ("permission.revoked", "everywhere", "write")
    assert {action for action, *_ in found[4:]} == {"permission.revoked"}


async def test_exports_are_bounded_as_each_is_told(tmp_path: Path) -> None:
    clock = ManualClock()
    rate = PerMinute(clock, most=2)
    assert [rate.take("ada") for _ in range(3)] == [True, True, False]
    assert rate.take("bob")
    assert rate.wait_seconds == WINDOW_SECONDS
    await clock.advance(WINDOW_SECONDS)
    assert rate.take("ada")


# By themselves


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(tmp_path / "holdfast.db", node="here")
    yield opened
    await opened.close()


def actor(name: str) -> Actor:
    return Actor(kind="key", id=name, owner=Owner("ada"), role="user")


async def test_many_denials_fill_no_disk_and_are_counted(store: SqliteStore) -> None:
    clock = ManualClock()
    denials = Denials(store, clock)
    for _ in range(1_000):
        await denials.tell(actor("loud"), "GET /metrics")
    for number in range(1_000):
        await denials.tell(actor(f"key{number}"), "GET /metrics")
    told = (await store.audit_log(limit=1_000)).records
    assert len(told) == PER_PROCESS
    assert sum(record.entry.actor.id == "loud" for record in told) == PER_ACTOR
    await clock.advance(WINDOW_SECONDS)
    await denials.tell(actor("next"), "GET /metrics")
    (last,) = (await store.audit_log(after=told[-1].number, limit=10)).records
    left_out = 2_000 - PER_PROCESS
    already = sum(int(record.entry.detail.split()[0]) for record in told if record.entry.detail)
    assert last.entry.detail == f"{left_out - already} denials before were not recorded, because there were many"


async def test_entries_are_kept_for_so_many_days(store: SqliteStore) -> None:
    clock = ManualClock()
    for days_ago in (9, 8, 6):
        at = clock.now_ms() - days_ago * DAY_MS
        await store.audit(audit_entry(at, actor("k"), "session.exported", target=str(days_ago)))
    trimming = asyncio.create_task(keep_trimmed(store, clock, actor("operator"), days=7))
    async with patience():
        await clock.until_sleeping()
        assert [record.entry.target or record.entry.action for record in (await store.audit_log(limit=9)).records] == [
            "6",
            "audit.trimmed",
        ]
        while clock.now_ms() <= 1_700_000_000_000 + DAY_MS:
            await clock.advance(TRIM_EVERY_SECONDS)
            await clock.until_sleeping()
    assert [record.entry.action for record in (await store.audit_log(limit=9)).records] == ["audit.trimmed"] * 2
    trimming.cancel()
    await asyncio.gather(trimming, return_exceptions=True)
