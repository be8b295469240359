"""Webhooks and their outbox, as the store keeps them, and the rules of deliveries: pure, and shared by all stores.

The database writes the row of a delivery in the transaction of the event that it reports, so no event is missed and
none is reported that was not committed. The deliveries of one webhook for one session are a line: only the first that
is pending may be attempted. A process holds a delivery while it attempts it, for as long as the process is alive.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.events.ids import EventId, Key, Owner, Position, SessionId

DeliveryState = Literal["pending", "delivered", "given_up"]

AnswerFault = Literal["timeout", "unreachable", "no_such_host", "address_refused", "tls_failed", "status", "unreadable"]
"""Why an attempt failed. `unreadable`: this process can't read the event or the webhook's secret; the receiver was not
asked."""

FIRST_WAIT_MS: Final = 5_000
LONGEST_WAIT_MS: Final = 600_000
"""The wait after a failed attempt, doubled by each further one. A receiver that is back gets all within this time."""

GIVE_UP_MS: Final = 86_400_000
"""A delivery that has failed for a day is given up, so that the later events of its session go on."""

RETENTION_MS: Final = 3 * 86_400_000
"""How long an ended delivery can be seen and sent again."""

MAX_SWEPT: Final = 1_000
"""How many ended deliveries one transaction drops: other writes wait for it."""


class WebhookRow(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a webhook."""

    webhook_id: str
    owner: Owner
    url: str
    events: tuple[str, ...]
    """Names of `events.webhook.REPORTED_EVENTS`."""
    types: tuple[str, ...]
    """The types of the log that these names stand for: the outbox goes by them."""
    description: str = ""
    is_active: bool = True
    created_at: int
    keeper: str = ""
    """The name of the key that the secrets are sealed with; empty: they are not sealed."""
    secret: bytes
    old_secret: bytes = b""
    """The secret before the last rotation: until `old_until`, deliveries are signed with it too."""
    old_until: int = 0

    def __repr__(self) -> str:
        return f"WebhookRow({self.webhook_id!r})"


class WebhookDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """The row of one event on its way to one webhook."""

    webhook_id: str
    event_id: EventId
    key: Key
    """The session; its id is empty for a test."""
    position: Position
    event_type: str
    """The type in the log."""
    time: int
    """When the event was written."""
    state: DeliveryState = "pending"
    is_single: bool = False
    """It is attempted once, and outside its line: a test, or a delivery that was sent again."""
    attempts: int = 0
    """How many attempts began. A write about an attempt names its number."""
    due_at: int = 0
    since: int | None = None
    """Since when it has failed. It is set by the first attempt or, behind a delivery that was given up, to the time of
    the event: a receiver that is down for long must not get a day for each event."""
    tried_at: int | None = None
    status: int | None = None
    """The HTTP status of the last answer; None: there was none."""
    fault: AnswerFault | None = None
    ended_at: int | None = None

    @property
    def is_test(self) -> bool:
        return not self.key.session


class WebhookAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one attempt."""

    status: int | None = None
    fault: AnswerFault | None = None
    """None: the receiver accepted the event."""


class DeliveryEnding(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a delivery after an attempt."""

    state: DeliveryState | Literal["dropped"]
    """`dropped`: the event turned out not to be one that is reported, and the row is deleted."""
    answer: WebhookAnswer
    due_at: int = 0
    ended_at: int | None = None


DROPPED: Final = DeliveryEnding(state="dropped", answer=WebhookAnswer())


def ending_of(delivery: WebhookDelivery, answer: WebhookAnswer, *, now: int, jitter: float) -> DeliveryEnding:
    """What becomes of a delivery after this answer. `jitter`, from 0 to 1, spreads the attempts of many."""
    if answer.fault is None:
        return DeliveryEnding(state="delivered", answer=answer, ended_at=now)
    since = delivery.since if delivery.since is not None else now
    if delivery.is_single or now - since >= GIVE_UP_MS:
        return DeliveryEnding(state="given_up", answer=answer, ended_at=now)
    wait = min(FIRST_WAIT_MS << min(delivery.attempts - 1, 20), LONGEST_WAIT_MS)
    due_at = now + round(wait * (0.8 + 0.2 * jitter))
    return DeliveryEnding(state="pending", answer=answer, due_at=min(due_at, since + GIVE_UP_MS))


class WebhookChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a webhook. None leaves a field as it is."""

    url: str | None = None
    events: tuple[str, ...] | None = None
    types: tuple[str, ...] | None = None
    description: str | None = None
    is_active: bool | None = None
    keeper: str | None = None
    secret: bytes | None = None
    old_secret: bytes | None = None
    old_until: int | None = None

    def __repr__(self) -> str:
        return "WebhookChange(...)"


class WebhookBacklog(msgspec.Struct, frozen=True):
    """How far a webhook is behind."""

    pending: int = 0
    failing_since: int | None = None
    """Since when the delivery fails that has failed longest; None: none fails."""


def changed(row: WebhookRow, change: WebhookChange) -> WebhookRow:
    """The row after a change."""
    given = {name: value for name in change.__struct_fields__ if (value := getattr(change, name)) is not None}
    return msgspec.structs.replace(row, **given)


def held(delivery: WebhookDelivery, *, now: int) -> WebhookDelivery:
    """A delivery whose next attempt begins."""
    since = delivery.since if delivery.since is not None else now
    return msgspec.structs.replace(delivery, attempts=delivery.attempts + 1, tried_at=now, since=since)


def delivery_of(columns: Sequence[Any]) -> WebhookDelivery:
    """A delivery from the columns of its row, which are the same in all databases."""
    webhook_id, event_id, owner, session, position, event_type, time, state, single, *rest = columns
    attempts, due_at, since, tried_at, status, fault, ended_at = rest
    return WebhookDelivery(
        webhook_id=webhook_id,
        event_id=event_id,
        key=Key(Owner(owner), SessionId(session)),
        position=Position(position),
        event_type=event_type,
        time=time,
        state=state,
        is_single=bool(single),
        attempts=attempts,
        due_at=due_at,
        since=since,
        tried_at=tried_at,
        status=status,
        fault=fault,
        ended_at=ended_at,
    )
