"""The deliverer against real receivers that are down, slow or wrong, and processes that die.

Every event arrives, in the order of its session, signed, and under an id that is always the same.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.events.event import Event
from holdfast.events.ids import EventId, Key, Position, SessionId, TaskId, TurnId
from holdfast.events.session import SessionError
from holdfast.events.task import TaskNotice, TaskNotified
from holdfast.events.turn import TurnEnded
from holdfast.events.webhook import REPORTED_EVENTS
from holdfast.protocol.webhook import WebhookWithSecret
from holdfast.server.operations.webhooks import WebhookOperations
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Committed, Lease, Store, Unit
from holdfast.store.webhooks import GIVE_UP_MS, LONGEST_WAIT_MS
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_conformance.words import KEY, OTHER, event, running
from holdfast.webhooks.addresses import ReceiverRules
from holdfast.webhooks.deliverer import MAX_ATTEMPTS_PER_WEBHOOK, Deliverer
from holdfast.webhooks.receivers import HttpReceivers
from holdfast.webhooks.secrets import OLD_SECRET_MS, WebhookSecrets
from tests.webhooks.receiver import Received, Receiver

pytestmark = pytest.mark.anyio

HOUR = 3600
LOCAL = ReceiverRules(["127.0.0.1"])


class World:
    """A database with a manual clock, and processes that deliver from it."""

    def __init__(self, folder: Path, url: str = "") -> None:
        """`url`: of a database on PostgreSQL; without it, the database is a file."""
        self._url = url
        self.clock = ManualClock()
        self._database = folder / "holdfast.db"
        self._stores: list[Store] = []
        self._deliverers: list[Deliverer] = []
        self._number = 0

    async def open(self) -> Store:
        """Another process. Nothing renews its leases, so they last for the whole test."""
        self._stores.append(await self._open())
        await self._stores[-1].renew(ttl_seconds=HOUR)
        return self._stores[-1]

    async def _open(self) -> Store:
        if self._url:
            return await PostgresStore.open(self._url, node="here", clock=self.clock)
        return await SqliteStore.open(self._database, node="here", clock=self.clock)

    @property
    def store(self) -> Store:
        return self._stores[0]

    def deliverer(self, store: Store | None = None, *, attempt_seconds: float = 10.0) -> Deliverer:
        receivers = HttpReceivers(LOCAL, attempt_seconds=attempt_seconds)
        chance = random.Random(7).random
        made = Deliverer(
            store or self.store, self.clock, lambda: receivers, WebhookSecrets(), agent="test", jitter=chance
        )
        self._deliverers.append(made)
        return made

    @property
    def operations(self) -> WebhookOperations:
        return WebhookOperations(self.store, self.clock, secrets=WebhookSecrets(), rules=LOCAL, limit=10)

    async def webhook(self, receiver: Receiver, **more: Any) -> WebhookWithSecret:
        return await self.operations.create(KEY.owner, receiver.url, **more)

    async def end_turns(self, lease: Lease, count: int = 1) -> list[str]:
        """Turns that end, each in a unit of its own; the ids of the events."""
        names = []
        for _ in range(count):
            self._number += 1
            names.append(f"{lease.key.session}-{self._number}")
            body = TurnEnded(turn_id=TurnId("t"), reason="completed")
            ended = Event(Position(0), EventId(names[-1]), self.clock.now_ms(), body)
            outcome = await self.store.commit(Unit(key=lease.key, fence=lease.fence, events=(ended,)))
            assert isinstance(outcome, Committed)
        return names

    async def deliver(self, deliverer: Deliverer) -> None:
        """Attempt what is due now, and what becomes due by that."""
        while True:
            await deliverer.look()
            if not deliverer.is_working:
                return
            await deliverer.until_idle()

    async def states(self, webhook: WebhookWithSecret) -> list[str]:
        """Of all deliveries, the oldest first."""
        page = await self.operations.deliveries(KEY.owner, webhook.webhook.id, limit=200)
        return [delivery.state for delivery in reversed(page.deliveries)]

    async def close(self) -> None:
        for deliverer in self._deliverers:
            await deliverer.stop()
        for store in self._stores:
            await store.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    await world.open()
    yield world
    await world.close()


@pytest.fixture
async def postgres_world(tmp_path: Path, postgres_url: str) -> AsyncIterator[World]:
    world = World(tmp_path, postgres_url)
    await world.open()
    yield world
    await world.close()


def firsts(received: list[Received]) -> list[str]:
    """The ids in the order in which each came first: what a receiver acts on that drops repeats."""
    return list(dict.fromkeys(request.id for request in received))


async def test_an_event_arrives_signed_with_its_facts(world: World) -> None:
    async with Receiver() as receiver:
        webhook = await world.webhook(receiver)
        lease = await running(world.store)
        (name,) = await world.end_turns(lease)
        await world.deliver(world.deliverer())
        (request,) = receiver.received
        report = request.verified(webhook.secret, now=world.clock.now_ms() / 1000)
        row = await world.store.row(KEY)
        assert row is not None
        assert msgspec.to_builtins(report) == {
            "type": "turn.ended",
            "version": 1,
            "id": name,
            "time": world.clock.now_ms(),
            "session_id": KEY.session,
            "position": row.head,
            "data": {"turn_id": "t", "reason": "completed", "duration_ms": 0, "error": None},
        }
        assert request.target == "/hook?a=b"
        assert (request.headers["content-type"], request.headers["user-agent"]) == ("application/json", "test")
        assert request.headers["webhook-id"] == name
        view = await world.operations.delivery(KEY.owner, webhook.webhook.id, name)
        assert (view.state, view.attempts, view.status, view.fault) == ("delivered", 1, 204, None)


async def test_the_error_of_a_turn_is_reported_with_its_end(world: World) -> None:
    async with Receiver() as receiver:
        webhook = await world.webhook(receiver)
        lease = await running(world.store)
        failed = (
            event(SessionError(error_type="over_budget", message="x" * 5_000)),
            event(TurnEnded(turn_id=TurnId("t"), reason="error")),
        )
        await world.store.commit(Unit(key=KEY, fence=lease.fence, events=failed))
        await world.deliver(world.deliverer())
        now = world.clock.now_ms() / 1000
        limit, end = (request.verified(webhook.secret, now=now) for request in receiver.received)
        assert (limit.type, end.type) == ("limit.reached", "turn.ended")
        assert limit.data == end.data["error"] == {"code": "over_budget", "message": "x" * 499 + "…"}


async def test_an_error_that_is_no_limit_is_not_reported_as_one(world: World) -> None:
    async with Receiver() as receiver:
        webhook = await world.webhook(receiver, events=["limit.reached"])
        lease = await running(world.store)
        for code in ("model_unreachable", "over_budget"):
            failed = (event(SessionError(error_type=code, message=code)),)
            await world.store.commit(Unit(key=KEY, fence=lease.fence, events=failed))
        await world.deliver(world.deliverer())
        (request,) = receiver.received
        report = request.verified(webhook.secret, now=world.clock.now_ms() / 1000)
        assert (report.type, report.data["code"]) == ("limit.reached", "over_budget")
        assert await world.states(webhook) == ["delivered"]


async def test_a_stalled_task_is_not_reported_as_ended(world: World) -> None:
    async with Receiver() as receiver:
        webhook = await world.webhook(receiver, events=["task.ended"])
        lease = await running(world.store)
        await world.end_turns(lease)
        notices = [TaskNotice(task_id=TaskId("t"), kind=kind, command="make") for kind in ("stalled", "failed")]
        for notice in notices:
            told = event(TaskNotified(notice=msgspec.structs.replace(notice, exit_code=3)))
            await world.store.commit(Unit(key=KEY, fence=lease.fence, events=(told,)))
        await world.deliver(world.deliverer())
        (request,) = receiver.received
        report = request.verified(webhook.secret, now=world.clock.now_ms() / 1000)
        assert (report.type, report.data["status"], report.data["exit_code"]) == ("task.ended", "failed", 3)
        assert await world.states(webhook) == ["delivered"]


async def test_a_receiver_that_is_down_for_an_hour_gets_every_event_in_order(world: World) -> None:
    async with Receiver() as down:
        url = down.url
    webhook = await world.operations.create(KEY.owner, url)
    one, two = await running(world.store), await running(world.store, OTHER)
    deliverer = world.deliverer()
    names: dict[Key, list[str]] = {KEY: [], OTHER: []}
    for _ in range(6):
        for lease in (one, two):
            names[lease.key] += await world.end_turns(lease)
        await world.deliver(deliverer)
        await world.clock.advance(HOUR / 6)
    view = await world.operations.get(KEY.owner, webhook.webhook.id)
    assert (view.pending, view.failing_since) == (12, world.clock.now_ms() - HOUR * 1000)
    async with Receiver(port=down.port) as receiver:
        await world.clock.advance(LONGEST_WAIT_MS / 1000)
        await world.deliver(deliverer)
        for lease in (one, two):
            assert [id for id in firsts(receiver.received) if id in names[lease.key]] == names[lease.key]
        assert len(receiver.received) == 12
    assert (await world.operations.get(KEY.owner, webhook.webhook.id)).pending == 0


async def test_a_receiver_that_answers_500_gets_the_same_request_again_until_it_accepts(world: World) -> None:
    failures = 20
    async with Receiver(lambda request: 500 if len(receiver.received) <= failures else 200) as receiver:
        webhook = await world.webhook(receiver)
        names = await world.end_turns(await running(world.store), 3)
        deliverer = world.deliverer()
        while "pending" in await world.states(webhook):
            await world.deliver(deliverer)
            await world.clock.advance(LONGEST_WAIT_MS / 1000)
        assert [request.id for request in receiver.received] == [names[0]] * failures + names
        assert len({request.body for request in receiver.received}) == 3
        stamps = [int(request.headers["webhook-timestamp"]) for request in receiver.received]
        assert stamps == sorted(stamps)
        assert len(set(stamps[:failures])) == failures


async def test_a_day_of_failures_gives_an_event_up_and_the_next_ones_go_on(world: World) -> None:
    async with Receiver(lambda request: 500 if request.id == poison else 204) as receiver:
        webhook = await world.webhook(receiver)
        lease = await running(world.store)
        poison, later = await world.end_turns(lease, 2)
        deliverer = world.deliverer()
        waited = 0
        while await world.states(webhook) == ["pending", "pending"]:
            await world.deliver(deliverer)
            await world.clock.advance(60)
            waited += 60_000
        assert await world.states(webhook) == ["given_up", "delivered"]
        assert waited > GIVE_UP_MS
        assert firsts(receiver.received) == [poison, later]
        assert 140 < len(receiver.received) < 200
        given_up = await world.operations.delivery(KEY.owner, webhook.webhook.id, poison)
        assert (given_up.state, given_up.status, given_up.fault) == ("given_up", 500, "status")
        assert given_up.attempts == len(receiver.received) - 1
        receiver.answers = lambda request: 204
        await world.operations.send_again(KEY.owner, webhook.webhook.id, poison)
        await world.deliver(deliverer)
        assert await world.states(webhook) == ["delivered", "delivered"]
        assert receiver.received[-1].id == poison


async def test_a_slow_receiver_holds_up_no_other(world: World) -> None:
    async with Receiver() as slow, Receiver() as quick:
        slow.is_open.clear()
        behind, ahead = await world.webhook(slow), await world.webhook(quick)
        sessions = [Key(KEY.owner, SessionId(f"s{number}")) for number in range(MAX_ATTEMPTS_PER_WEBHOOK + 2)]
        leases = [await running(world.store, key) for key in sessions]
        names = [name for lease in leases for name in await world.end_turns(lease, 2)]
        async with world.deliverer(attempt_seconds=600):
            await quick.until(len(names))
            assert len(slow.received) == MAX_ATTEMPTS_PER_WEBHOOK
            slow.is_open.set()
            await slow.until(len(names))
        for received in (quick.received, slow.received):
            assert sorted(request.id for request in received) == sorted(names)
            for lease in leases:
                own = [name for name in names if name.startswith(f"{lease.key.session}-")]
                assert [request.id for request in received if request.id in own] == own
        assert {*await world.states(behind), *await world.states(ahead)} <= {"pending", "delivered"}


async def test_a_receiver_that_does_not_answer_is_cut_off(world: World) -> None:
    async with Receiver() as receiver:
        receiver.is_open.clear()
        webhook = await world.webhook(receiver)
        (name,) = await world.end_turns(await running(world.store))
        await world.deliver(world.deliverer(attempt_seconds=0.1))
        view = await world.operations.delivery(KEY.owner, webhook.webhook.id, name)
        assert (view.state, view.status, view.fault) == ("pending", None, "timeout")
        receiver.is_open.set()
        await world.clock.advance(LONGEST_WAIT_MS / 1000)
        await world.deliver(world.deliverer())
        assert await world.states(webhook) == ["delivered"]
        assert {request.id for request in receiver.received} == {name}


async def test_redirects_are_not_followed(world: World) -> None:
    async with Receiver() as target:
        async with Receiver(lambda request: 302, more=f"location: {target.url}\r\n") as receiver:
            webhook = await world.webhook(receiver)
            (name,) = await world.end_turns(await running(world.store))
            await world.deliver(world.deliverer())
            view = await world.operations.delivery(KEY.owner, webhook.webhook.id, name)
            assert (view.state, view.status, view.fault) == ("pending", 302, "status")
        assert target.connections == 0


async def test_a_process_that_dies_in_an_attempt_is_followed_by_another_that_makes_it_again(world: World) -> None:
    await die_in_an_attempt(world)


async def test_another_process_follows_a_dead_one_on_postgresql_too(postgres_world: World) -> None:
    await die_in_an_attempt(postgres_world)


async def die_in_an_attempt(world: World) -> None:
    async with Receiver() as receiver:
        receiver.is_open.clear()
        webhook = await world.webhook(receiver)
        names = await world.end_turns(await running(world.store), 2)
        other = await world.open()
        first, second = world.deliverer(other), world.deliverer()
        await first.look()
        await receiver.until(1)
        await second.look()
        assert not second.is_working
        await first.stop()
        await second.look()
        assert not second.is_working, "its process still lives"
        await other.close()
        receiver.is_open.set()
        await world.deliver(second)
        assert [request.id for request in receiver.received] == [names[0], *names]
        assert await world.states(webhook) == ["delivered", "delivered"]


async def test_many_processes_deliver_each_event_once_and_in_order(world: World) -> None:
    await deliver_by_many(world)


async def test_many_processes_deliver_each_event_once_and_in_order_on_postgresql(postgres_world: World) -> None:
    await deliver_by_many(postgres_world)


async def deliver_by_many(world: World) -> None:
    async with Receiver() as receiver:
        webhook = await world.webhook(receiver)
        sessions = [Key(KEY.owner, SessionId(f"s{number}")) for number in range(4)]
        leases = [await running(world.store, key) for key in sessions]
        names = [name for _ in range(5) for lease in leases for name in await world.end_turns(lease)]
        deliverers = [world.deliverer(await world.open()) for _ in range(3)]
        async with asyncio.timeout(30):
            while "pending" in await world.states(webhook):
                await asyncio.gather(*(world.deliver(deliverer) for deliverer in deliverers))
        assert sorted(request.id for request in receiver.received) == sorted(names)
        for lease in leases:
            own = [name for name in names if name.startswith(f"{lease.key.session}-")]
            assert [request.id for request in receiver.received if request.id in own] == own


async def test_the_loop_delivers_by_itself(world: World) -> None:
    async with Receiver() as receiver, world.deliverer():
        await world.webhook(receiver)
        lease = await running(world.store)
        names = await world.end_turns(lease, 3)
        assert [request.id for request in await receiver.until(3)] == names


async def test_for_a_day_after_a_rotation_the_old_secret_verifies_too(world: World) -> None:
    async with Receiver() as receiver:
        before = await world.webhook(receiver)
        after = await world.operations.rotate(KEY.owner, before.webhook.id)
        lease, deliverer = await running(world.store), world.deliverer()
        await world.end_turns(lease)
        await world.deliver(deliverer)
        now = world.clock.now_ms() / 1000
        assert receiver.received[0].verified(before.secret, now=now) == receiver.received[0].verified(
            after.secret, now=now
        )
        await world.clock.advance(OLD_SECRET_MS / 1000)
        await world.end_turns(lease)
        await world.deliver(deliverer)
        signatures = receiver.received[1].headers["webhook-signature"].split(" ")
        assert len(signatures) == 1
        receiver.received[1].verified(after.secret, now=world.clock.now_ms() / 1000)


async def test_an_event_that_can_not_be_read_holds_up_its_session_for_a_day_only(world: World) -> None:
    async with Receiver() as receiver:
        webhook = await world.webhook(receiver)
        names = await world.end_turns(await running(world.store), 2)
        assert isinstance(world.store, SqliteStore)
        await damage(world.store, names[0])
        deliverer = world.deliverer()
        await world.deliver(deliverer)
        view = await world.operations.delivery(KEY.owner, webhook.webhook.id, names[0])
        assert (view.state, view.fault, view.status) == ("pending", "unreadable", None)
        while await world.states(webhook) == ["pending", "pending"]:
            await world.clock.advance(HOUR)
            await world.deliver(deliverer)
        assert await world.states(webhook) == ["given_up", "delivered"]
        assert [request.id for request in receiver.received] == names[1:]


async def damage(store: SqliteStore, event_id: str) -> None:
    """As a newer release would write an event of a type that this one knows."""
    write: Callable[..., Any] = store._write

    def change(db: Any) -> tuple[None, str]:
        db.execute("UPDATE event SET version = 99 WHERE id = ?", (event_id,))
        return None, "event"

    await write("", change)


async def test_every_event_that_can_be_reported_has_a_name_of_its_own() -> None:
    assert REPORTED_EVENTS == ("turn.ended", "request.opened", "task.ended", "limit.reached")
