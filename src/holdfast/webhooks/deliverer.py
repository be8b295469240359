"""Delivers the events of the outbox to the receivers of webhooks.

The deliverer holds no state that matters. It claims deliveries that are due, attempts each, and records the outcome. A
crash before that record leaves a delivery that the next process attempts again, with the same id and the same body. Any
number of processes deliver from the same outbox: the store gives each attempt to one of them, in the order of sessions.
"""

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec

from holdfast.events.event import Unknown
from holdfast.events.ids import EventId, Position
from holdfast.events.webhook import EVENTS_BEFORE, Report, report_of, report_of_test
from holdfast.protocol.webhook_signature import signed_headers
from holdfast.store import crash_points
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreError
from holdfast.store.store import Store
from holdfast.store.webhooks import (
    DROPPED,
    RETENTION_MS,
    DeliveryEnding,
    WebhookAnswer,
    WebhookDelivery,
    WebhookRow,
    ending_of,
)
from holdfast.webhooks.secrets import WebhookSecrets

log = logging.getLogger(__name__)

LOOK_EVERY_SECONDS: Final = 1.0
SWEEP_EVERY_SECONDS: Final = 600.0

MAX_ATTEMPTS: Final = 32
"""Attempts of one process at a time."""
MAX_ATTEMPTS_PER_WEBHOOK: Final = 4
"""Attempts of one process at a time to one webhook: a slow receiver leaves room for the others."""

UNREADABLE: Final = WebhookAnswer(fault="unreadable")


class Receivers(Protocol):
    """Sends reports to receivers."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookAnswer: ...


class Deliverer:
    """Delivers what is due, for as long as it is entered. An async context manager. Attempts that are cancelled at its
    end are made again by other processes."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        open_receivers: Callable[[], Receivers],
        secrets: WebhookSecrets,
        *,
        agent: str,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`open_receivers` is called before the first attempt: a process without webhooks loads no HTTP client."""
        self._store = store
        self._clock = clock
        self._open_receivers = open_receivers
        self._receivers: Receivers | None = None
        self._secrets = secrets
        self._headers = {"content-type": "application/json", "user-agent": agent}
        self._jitter = jitter
        self._working: dict[tuple[str, EventId], asyncio.Task[None]] = {}
        self._woken = asyncio.Event()
        self._duty: asyncio.Task[None] | None = None
        self._swept_at = float("-inf")

    async def __aenter__(self) -> Self:
        self._duty = asyncio.create_task(self._keep(), name="webhooks: keep")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self, *, grace_seconds: float = 0) -> None:
        """Begin no further attempt, and give those under way `grace_seconds` to end."""
        if self._duty is not None:
            self._duty.cancel()
        if self._working and grace_seconds:
            await asyncio.wait(list(self._working.values()), timeout=grace_seconds)
        tasks = [task for task in (self._duty, *self._working.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self) -> None:
        while True:
            self._woken.clear()
            try:
                await self.look()
                await self._sweep()
            except StoreError as error:
                log.warning("could not look for deliveries of webhooks: %s", error.message)
            except Exception:
                log.exception("could not look for deliveries of webhooks")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_SECONDS):
                    await self._woken.wait()

    async def look(self) -> None:
        """Begin the attempts that are due."""
        while (room := MAX_ATTEMPTS - len(self._working)) > 0:
            busy = Counter(webhook_id for webhook_id, _ in self._working)
            claimed = await self._store.claim_deliveries(
                keeper=self._secrets.keeper,
                limit=room,
                working=tuple(self._working),
                crowded=[webhook_id for webhook_id, count in busy.items() if count >= MAX_ATTEMPTS_PER_WEBHOOK],
            )
            for delivery in claimed:
                self._start(delivery)
            if not claimed:
                return

    @property
    def is_working(self) -> bool:
        """Whether an attempt is under way."""
        return bool(self._working)

    async def until_idle(self) -> None:
        """Wait until no attempt is under way."""
        while self._working:
            await asyncio.wait(list(self._working.values()))

    def _start(self, delivery: WebhookDelivery) -> None:
        name = (delivery.webhook_id, delivery.event_id)
        task = asyncio.create_task(self._deliver(delivery), name=f"webhook {delivery.webhook_id}")
        self._working[name] = task
        task.add_done_callback(lambda _: self._ended(name))

    def _ended(self, name: tuple[str, EventId]) -> None:
        del self._working[name]
        self._woken.set()

    # One attempt

    async def _deliver(self, delivery: WebhookDelivery) -> None:
        """After an error of the store the delivery stays held, and a later look claims it again."""
        try:
            ending = await self._ending(delivery)
            if ending is not None:
                await self._store.end_delivery(delivery, ending)
        except StoreError as error:
            log.warning("webhook %s: an attempt could not be recorded: %s", delivery.webhook_id, error.message)
            await self._clock.sleep(LOOK_EVERY_SECONDS)

    async def _ending(self, delivery: WebhookDelivery) -> DeliveryEnding | None:
        """What becomes of a delivery after this attempt; None: its webhook was deleted, and its row with it."""
        try:
            webhook = await self._store.webhook(delivery.webhook_id)
            if webhook is None:
                return None
            report = await self._report(delivery)
            return DROPPED if report is None else self._after(delivery, await self._attempt(webhook, report))
        except StoreError:
            raise
        except msgspec.MsgspecError as error:
            log.warning("webhook %s: an event can't be read: %s", delivery.webhook_id, error)
        except Exception:  # A bug must not be met every second: it counts as a failed attempt.
            log.exception("webhook %s: an attempt failed", delivery.webhook_id)
        return self._after(delivery, UNREADABLE)

    def _after(self, delivery: WebhookDelivery, answer: WebhookAnswer) -> DeliveryEnding:
        ending = ending_of(delivery, answer, now=self._clock.now_ms(), jitter=self._jitter())
        if ending.state == "given_up":
            log.warning("webhook %s: a delivery was given up after %d attempts", delivery.webhook_id, delivery.attempts)
        return ending

    async def _report(self, delivery: WebhookDelivery) -> Report | None:
        """The report, from the log; None: the event is none that is reported, or its session is gone. Raises
        `MsgspecError` if only a newer release can read the event."""
        if delivery.is_test:
            return report_of_test(delivery.event_id, delivery.time)
        first = Position(max(0, delivery.position - 1 - EVENTS_BEFORE))
        events = await self._store.events_after(delivery.key, first, limit=delivery.position - first)
        if not events or events[-1].id != delivery.event_id:
            return None
        if isinstance(events[-1].body, Unknown):
            raise msgspec.ValidationError("it is one of a newer release")
        return report_of(delivery.key.session, events[-1], events[:-1])

    async def _attempt(self, webhook: WebhookRow, report: Report) -> WebhookAnswer:
        now = self._clock.now_ms()
        secrets = self._secrets.unseal(webhook, now=now)
        if not secrets:
            return UNREADABLE
        if self._receivers is None:
            self._receivers = self._open_receivers()
        body = msgspec.json.encode(report)
        signed = signed_headers(report.id, body, secrets, seconds=now // 1000)
        crash_points.reach("post_event:event:before")
        answer = await self._receivers.post(webhook.url, {**self._headers, **signed}, body)
        crash_points.reach("post_event:event:after")
        return answer

    async def _sweep(self) -> None:
        now = self._clock.monotonic()
        if now - self._swept_at >= SWEEP_EVERY_SECONDS:
            self._swept_at = now
            await self._store.drop_old_deliveries(self._clock.now_ms() - RETENTION_MS)
