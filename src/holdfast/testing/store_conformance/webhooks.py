"""Webhooks and their outbox: every reported event of an owner gets a delivery in its own transaction, and
deliveries are claimed in order, by one process at a time."""

import asyncio
from typing import Any

from msgspec.structs import replace

from holdfast.events.body import Body
from holdfast.events.event import Event, type_of
from holdfast.events.ids import EventId, Fence, Key, Owner, Position, RequestId, SessionId, TaskId, ToolCallId, TurnId
from holdfast.events.request import ExternalToolRequested, PermissionRequested, UserInputRequested
from holdfast.events.session import SessionError
from holdfast.events.task import TaskNotice, TaskNotified
from holdfast.events.turn import TurnEnded
from holdfast.events.webhook import REPORTED_EVENTS, TEST_EVENT, reported_types
from holdfast.store import crash_points
from holdfast.store.store import Committed, FenceMissed, Lease, NewSession, Store, Unit
from holdfast.store.webhooks import (
    DROPPED,
    FIRST_WAIT_MS,
    DeliveryEnding,
    WebhookAnswer,
    WebhookBacklog,
    WebhookChange,
    WebhookDelivery,
    WebhookRow,
    ending_of,
)
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_conformance.words import KEY, OTHER, OpenStore, info, running

FAILED = WebhookAnswer(status=500, fault="status")
TAKEN = WebhookAnswer(status=204)
ANN, BOB = KEY.owner, Owner("bob")


def webhook(webhook_id: str = "hook", *, owner: Owner = ANN, **more: Any) -> WebhookRow:
    events = more.pop("events", REPORTED_EVENTS)
    row = WebhookRow(
        webhook_id=webhook_id,
        owner=owner,
        url="https://example.org/\x1ahook",
        events=events,
        types=reported_types(events),
        created_at=1,
        secret=b"\x00secret",
    )
    return replace(row, **more)


def ended(name: str, *, time: int = 1) -> Event:
    return Event(Position(0), EventId(name), time, TurnEnded(turn_id=TurnId("t"), reason="completed"))


def trial(name: str) -> WebhookDelivery:
    """A test of the webhook."""
    return WebhookDelivery(
        webhook_id="hook",
        event_id=EventId(name),
        key=Key(ANN, SessionId("")),
        position=Position(0),
        event_type=TEST_EVENT,
        time=5,
        is_single=True,
    )


async def append(store: Store, lease: Lease, *names: str, time: int = 1) -> None:
    events = tuple(ended(name, time=time) for name in names)
    assert isinstance(await store.commit(Unit(key=lease.key, fence=lease.fence, events=events)), Committed)


async def claim(store: Store, *working: WebhookDelivery, crowded: tuple[str, ...] = ()) -> list[WebhookDelivery]:
    names = [(delivery.webhook_id, delivery.event_id) for delivery in working]
    return list(await store.claim_deliveries(keeper="", limit=100, working=names, crowded=crowded))


async def claim_one(store: Store) -> WebhookDelivery:
    (delivery,) = await claim(store)
    return delivery


def after(delivery: WebhookDelivery, answer: WebhookAnswer, clock: ManualClock) -> DeliveryEnding:
    return ending_of(delivery, answer, now=clock.now_ms(), jitter=1.0)


async def listed(store: Store, **which: Any) -> list[tuple[str, str]]:
    found = await store.deliveries(ANN, "hook", limit=100, **which)
    return [(delivery.event_id, delivery.state) for delivery in found]


class WebhookConformance:
    async def test_a_webhook_is_added_changed_and_deleted(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        assert await here.add_webhook(webhook(), limit=2)
        assert await here.add_webhook(webhook("later", created_at=2), limit=2)
        assert not await here.add_webhook(webhook("third"), limit=2)
        assert await here.add_webhook(webhook("other", owner=BOB), limit=2)
        assert await there.webhooks(ANN) == (webhook(), webhook("later", created_at=2))
        assert await there.webhooks(ANN, "other") == ()
        changed = webhook(description="mine", is_active=False, secret=b"new", old_secret=b"\x00secret", old_until=9)
        change = WebhookChange(
            description="mine", is_active=False, secret=b"new", old_secret=b"\x00secret", old_until=9
        )
        assert await there.change_webhook(BOB, "hook", change) is None
        assert await there.change_webhook(ANN, "hook", change) == changed
        assert await here.webhooks(ANN, "hook") == (changed,)
        assert await here.webhook("hook") == changed
        assert not await here.delete_webhook(BOB, "hook")
        assert await here.delete_webhook(ANN, "hook")
        assert not await there.delete_webhook(ANN, "hook")
        assert await there.webhook("hook") is None

    async def test_every_reported_event_of_the_owner_gets_a_delivery(self, store: Store) -> None:
        lease = await running(store)
        await append(store, lease, "before")
        await store.add_webhook(webhook(), limit=None)
        await store.add_webhook(webhook("turns", events=("turn.ended",)), limit=None)
        await store.add_webhook(webhook("requests", events=("request.opened",)), limit=None)
        await store.add_webhook(webhook("his", owner=BOB), limit=None)
        events = (info("nothing"), ended("one", time=7), info("nothing"), ended("two"))
        await store.commit(Unit(key=KEY, fence=lease.fence, events=events))
        assert await listed(store) == [("two", "pending"), ("one", "pending")]
        (found,) = await store.deliveries(ANN, "turns", limit=1, after=EventId("two"))
        head = await store.row(KEY)
        assert head is not None
        assert found == WebhookDelivery(
            webhook_id="turns",
            event_id=EventId("one"),
            key=KEY,
            position=Position(head.head - 2),
            event_type="holdfast.turn_ended",
            time=7,
        )
        assert await store.deliveries(ANN, "requests", limit=9) == ()
        assert await store.deliveries(BOB, "his", limit=9) == ()
        assert await store.deliveries(BOB, "hook", limit=9) == ()
        assert await store.webhook_backlog("hook") == WebhookBacklog(2)

    async def test_each_type_that_can_be_reported_is(self, store: Store) -> None:
        lease = await running(store)
        await append(store, lease, "first")
        types = reported_types(REPORTED_EVENTS)
        for name in types:
            await store.add_webhook(webhook(name, types=(name,)), limit=None)
        bodies = [_body_of(name) for name in types]
        events = tuple(Event(Position(0), EventId(f"e{index}"), 1, body) for index, body in enumerate(bodies))
        assert isinstance(await store.commit(Unit(key=KEY, fence=lease.fence, events=events)), Committed)
        for index, name in enumerate(types):
            assert [found.event_id for found in await store.deliveries(ANN, name, limit=9)] == [f"e{index}"]

    async def test_a_unit_that_is_not_written_reports_nothing(self, store: Store) -> None:
        await store.add_webhook(webhook(), limit=None)
        lease = await running(store)
        late = Unit(key=KEY, fence=Fence(lease.fence + 1), events=(ended("late"),))
        assert await store.commit(late) == FenceMissed()
        assert await listed(store) == []

    async def test_events_that_a_session_is_created_with_are_not_reported(self, store: Store) -> None:
        await store.add_webhook(webhook(), limit=None)
        for count in (3, 2_500):  # A large session is written in pieces.
            key = Key(ANN, SessionId(f"copy-{count}"))
            events = tuple(ended(f"{count}-{number}") for number in range(count))
            made = Unit(key=key, fence=None, events=events, creates=NewSession(created_at=1))
            assert isinstance(await store.commit(made), Committed)
        assert await listed(store) == []

    async def test_a_paused_webhook_gets_no_new_events_and_keeps_the_pending_ones(self, store: Store) -> None:
        await store.add_webhook(webhook(), limit=None)
        lease = await running(store)
        await append(store, lease, "one")
        await store.change_webhook(ANN, "hook", WebhookChange(is_active=False))
        await append(store, lease, "two")
        assert await claim(store) == []
        await store.change_webhook(ANN, "hook", WebhookChange(is_active=True))
        await append(store, lease, "three")
        assert await listed(store) == [("three", "pending"), ("one", "pending")]

    async def test_deleting_a_session_or_a_webhook_deletes_its_deliveries(self, store: Store) -> None:
        await store.add_webhook(webhook(), limit=None)
        lease, other = await running(store), await running(store, OTHER)
        await append(store, lease, "one")
        await append(store, other, "two")
        assert await store.delete(KEY)
        assert await listed(store) == [("two", "pending")]
        assert await store.delete_webhook(ANN, "hook")
        assert await listed(store) == []
        await append(store, other, "three")
        assert await claim(store) == []

    # Claims

    async def test_the_deliveries_of_a_session_are_attempted_one_by_one_in_order(self, store: Store) -> None:
        await store.add_webhook(webhook(), limit=None)
        lease = await running(store)
        await append(store, lease, "one", "two")
        await append(store, lease, "three")
        order = []
        for _ in range(3):
            delivery = await claim_one(store)
            assert delivery.attempts == 1
            assert await claim(store, delivery) == []
            order.append(delivery.event_id)
            assert await store.end_delivery(delivery, ending_of(delivery, TAKEN, now=9, jitter=0))
            assert not await store.end_delivery(delivery, ending_of(delivery, TAKEN, now=9, jitter=0))
        assert order == ["one", "two", "three"]
        assert await claim(store) == []
        assert await listed(store, state="delivered") == [(name, "delivered") for name in ("three", "two", "one")]
        assert await store.webhook_backlog("hook") == WebhookBacklog()

    async def test_other_sessions_and_webhooks_are_attempted_at_the_same_time(self, store: Store) -> None:
        await store.add_webhook(webhook("a"), limit=None)
        await store.add_webhook(webhook("b"), limit=None)
        lease, other = await running(store), await running(store, OTHER)
        await append(store, lease, "one", "two")
        await append(store, other, "three")
        first = await claim(store)
        assert sorted(delivery.webhook_id for delivery in first) == ["a", "b"]
        assert await claim(store, *first, crowded=("a", "b")) == []
        second = await claim(store, *first)
        assert sorted((each.webhook_id, each.event_id) for each in (*first, *second)) == [
            ("a", "one"), ("a", "three"), ("b", "one"), ("b", "three"),
        ]  # fmt: skip
        assert await claim(store, *first, *second) == []

    async def test_a_failed_delivery_waits_and_holds_up_its_session_only(self, open_store: OpenStore) -> None:
        clock = ManualClock()
        store = await open_store(clock=clock)
        await store.add_webhook(webhook(), limit=None)
        lease, other = await running(store), await running(store, OTHER)
        await append(store, lease, "one", "two")
        delivery = await claim_one(store)
        assert await store.end_delivery(delivery, after(delivery, FAILED, clock))
        assert await claim(store) == []
        (found,) = await store.deliveries(ANN, "hook", limit=1, after=EventId("two"))
        assert (found.state, found.attempts, found.status, found.fault) == ("pending", 1, 500, "status")
        assert await store.webhook_backlog("hook") == WebhookBacklog(2, found.since)
        await append(store, lease, "three")
        await append(store, other, "elsewhere")
        elsewhere = await claim_one(store)
        assert elsewhere.event_id == "elsewhere"
        assert await store.end_delivery(elsewhere, after(elsewhere, TAKEN, clock))
        assert await claim(store) == []
        await clock.advance(FIRST_WAIT_MS / 1000)
        for name in ("one", "two", "three"):
            again = await claim_one(store)
            assert (again.event_id, again.attempts) == (name, 2 if name == "one" else 1)
            assert await store.end_delivery(again, after(again, TAKEN, clock))

    async def test_a_delivery_that_failed_for_a_day_is_given_up_and_those_behind_it_get_no_day_of_their_own(
        self, open_store: OpenStore
    ) -> None:
        clock = ManualClock()
        store = await open_store(clock=clock)
        await store.add_webhook(webhook(), limit=None)
        lease = await running(store)
        await append(store, lease, "one", "two", time=clock.now_ms())
        tries = 0
        while not await listed(store, state="given_up"):
            for delivery in await claim(store):
                assert delivery.event_id == "one"
                tries += 1
                await store.end_delivery(delivery, after(delivery, FAILED, clock))
            await clock.advance(60)
        assert tries > 100
        await append(store, lease, "new", time=clock.now_ms())
        second = await claim_one(store)
        assert second.event_id == "two"
        assert await store.end_delivery(second, after(second, FAILED, clock))
        third = await claim_one(store)
        assert third.event_id == "new"
        assert await store.end_delivery(third, after(third, FAILED, clock))
        assert await listed(store) == [("new", "pending"), ("two", "given_up"), ("one", "given_up")]

    async def test_a_changed_webhook_is_tried_at_once(self, open_store: OpenStore) -> None:
        clock = ManualClock()
        store = await open_store(clock=clock)
        await store.add_webhook(webhook(), limit=None)
        await append(store, await running(store), "one")
        delivery = await claim_one(store)
        await store.end_delivery(delivery, after(delivery, FAILED, clock))
        assert await claim(store) == []
        await store.change_webhook(ANN, "hook", WebhookChange(url="https://example.org/right"))
        assert (await claim_one(store)).attempts == 2

    async def test_another_process_takes_over_the_attempts_of_one_that_ended(self, open_store: OpenStore) -> None:
        here, there = await open_store(), await open_store()
        await here.add_webhook(webhook(), limit=None)
        await append(here, await running(here), "one", "two")
        delivery = await claim_one(here)
        assert await claim(there) == []
        await here.close()
        again = await claim_one(there)
        assert (again.event_id, again.attempts) == ("one", 2)
        assert not await there.end_delivery(delivery, ending_of(delivery, TAKEN, now=9, jitter=0))
        assert await there.end_delivery(again, ending_of(again, TAKEN, now=9, jitter=0))

    async def test_two_processes_never_claim_the_same_attempt(self, open_store: OpenStore) -> None:
        stores = [await open_store() for _ in range(3)]
        for name in ("a", "b", "c"):
            await stores[0].add_webhook(webhook(name), limit=None)
        await append(stores[0], await running(stores[0]), "one", "two")
        found = await asyncio.gather(*(claim(store) for store in stores))
        names = [(each.webhook_id, each.event_id) for claims in found for each in claims]
        left = [each for store, own in zip(stores, found, strict=True) for each in await claim(store, *own)]
        assert sorted(names + [(each.webhook_id, each.event_id) for each in left]) == [
            ("a", "one"), ("b", "one"), ("c", "one"),
        ]  # fmt: skip

    async def test_a_claim_whose_outcome_was_lost_can_be_made_again(self, store: Store) -> None:
        await store.add_webhook(webhook(), limit=None)
        await append(store, await running(store), "one")
        lost = await claim_one(store)
        again = await claim_one(store)
        assert (again.event_id, again.attempts) == ("one", 2)
        assert not await store.end_delivery(lost, ending_of(lost, TAKEN, now=9, jitter=0))

    async def test_sealed_secrets_are_left_to_processes_with_their_key(self, store: Store) -> None:
        await store.add_webhook(webhook(keeper="key:1"), limit=None)
        await append(store, await running(store), "one")
        assert await claim(store) == []
        assert await store.claim_deliveries(keeper="key:2", limit=9, working=(), crowded=()) == ()
        assert len(await store.claim_deliveries(keeper="key:1", limit=9, working=(), crowded=())) == 1

    async def test_a_dropped_delivery_leaves_no_row(self, store: Store) -> None:
        await store.add_webhook(webhook(), limit=None)
        await append(store, await running(store), "one", "two")
        assert await store.end_delivery(await claim_one(store), DROPPED)
        assert await listed(store) == [("two", "pending")]
        assert (await claim_one(store)).event_id == "two"

    # Tests, and sending again

    async def test_a_test_is_in_no_line_and_attempted_once(self, store: Store) -> None:
        await store.add_webhook(webhook(), limit=None)
        tests = [trial(f"test-{number}") for number in range(3)]
        assert not await store.test_webhook(replace(tests[0], webhook_id="no"), limit=2)
        assert not await store.test_webhook(replace(tests[0], key=Key(BOB, SessionId(""))), limit=2)
        assert await store.test_webhook(tests[0], limit=2)
        assert await store.test_webhook(tests[1], limit=2)
        assert not await store.test_webhook(tests[2], limit=2)
        assert await store.delivery(ANN, "hook", EventId("test-0")) == tests[0]
        assert await store.delivery(BOB, "hook", EventId("test-0")) is None
        first = await claim_one(store)
        (second,) = await claim(store, first)
        for test in (first, second):
            assert await store.end_delivery(test, ending_of(test, FAILED, now=9, jitter=0))
        assert await claim(store) == []
        assert await listed(store) == [("test-1", "given_up"), ("test-0", "given_up")]

    async def test_a_delivery_that_ended_is_sent_again_outside_its_line(self, store: Store) -> None:
        await store.add_webhook(webhook(), limit=None)
        lease = await running(store)
        await append(store, lease, "one")
        delivery = await claim_one(store)
        await store.end_delivery(delivery, ending_of(delivery, TAKEN, now=9, jitter=0))
        await append(store, lease, "two")
        assert await store.send_again(BOB, "hook", EventId("one")) is None
        assert await store.send_again(ANN, "hook", EventId("none")) is None
        sent = await store.send_again(ANN, "hook", EventId("one"))
        assert sent is not None
        assert (sent.state, sent.is_single, sent.ended_at, sent.due_at) == ("pending", True, None, 0)
        first = await claim_one(store)
        (second,) = await claim(store, first)
        assert {first.event_id, second.event_id} == {"one", "two"}
        again = first if first.event_id == "one" else second
        assert again.attempts == 2
        await store.end_delivery(again, ending_of(again, FAILED, now=9, jitter=0))
        assert await listed(store) == [("two", "pending"), ("one", "given_up")]

    async def test_a_pending_delivery_that_is_sent_again_is_due_now_and_keeps_its_place(
        self, open_store: OpenStore
    ) -> None:
        clock = ManualClock()
        store = await open_store(clock=clock)
        await store.add_webhook(webhook(), limit=None)
        await append(store, await running(store), "one", "two")
        delivery = await claim_one(store)
        await store.end_delivery(delivery, after(delivery, FAILED, clock))
        sent = await store.send_again(ANN, "hook", EventId("one"))
        assert sent is not None
        assert (sent.is_single, sent.since) == (False, delivery.since)
        again = await claim_one(store)
        assert (again.event_id, again.attempts) == ("one", 2)
        assert await claim(store, again) == []

    async def test_old_deliveries_are_dropped_once_they_have_ended(self, store: Store) -> None:
        await store.add_webhook(webhook(), limit=None)
        await append(store, await running(store), "one", "two", "three")
        for ended_at in (100, 200):
            delivery = await claim_one(store)
            await store.end_delivery(delivery, ending_of(delivery, TAKEN, now=ended_at, jitter=0))
        assert await store.drop_old_deliveries(100) == 1
        assert await store.drop_old_deliveries(100) == 0
        assert await listed(store) == [("three", "pending"), ("two", "delivered")]

    async def test_webhooks_pass_their_crash_points(self, store: Store) -> None:
        reached: list[str] = []
        crash_points.install(reached.append)
        try:
            await write_of_webhooks(store)
        finally:
            crash_points.install(None)
        assert [point for point in reached if point.endswith(":after")] == [
            "add_webhook:webhook:after",
            "change_webhook:webhook:after",
            "test_webhook:test:after",
            "send_again:delivery:after",
            "claim_deliveries:deliveries:after",
            "end_delivery:delivered:after",
            "drop_old_deliveries:deliveries:after",
            "delete_webhook:webhook:after",
        ]


async def write_of_webhooks(store: Store) -> None:
    """Call every writing verb of webhooks, so that it writes."""
    await store.add_webhook(webhook(), limit=None)
    await store.change_webhook(ANN, "hook", WebhookChange(description="x"))
    await store.test_webhook(trial("test"), limit=1)
    await store.send_again(ANN, "hook", EventId("test"))
    delivery = await claim_one(store)
    await store.end_delivery(delivery, ending_of(delivery, TAKEN, now=1, jitter=0))
    await store.drop_old_deliveries(1)
    await store.delete_webhook(ANN, "hook")


def _body_of(event_type: str) -> Body:
    """An event of this type."""
    request, call = RequestId("r"), ToolCallId("c")
    bodies = (
        TurnEnded(turn_id=TurnId("t"), reason="completed"),
        TaskNotified(notice=TaskNotice(task_id=TaskId("t"), kind="completed", command="make")),
        PermissionRequested(
            request_id=request, tool_call_id=call, tool_name="bash", kind="shell", subject="ls", rule="shell"
        ),
        ExternalToolRequested(request_id=request, tool_call_id=call, tool_name="bash", arguments="{}"),
        UserInputRequested(request_id=request, tool_call_id=call, question="Why?"),
        SessionError(error_type="over_budget", message="Nothing is left."),
    )
    return next(body for body in bodies if type_of(body) == event_type)
