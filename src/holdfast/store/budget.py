"""Budgets: whether a model call may be made, and how long its answer may be. Pure; integers of microdollars.

The most that an attempt at a call may cost is reserved before the call, in the unit that leads to it, and settled in
the unit that records how the attempt ended. What is reserved counts as spent, so calls that run at the same time, in
any process, never spend the same money. Days and weeks are those of UTC and of ISO 8601, by the store's clock; the
charge of an attempt belongs to the day of its reservation, whenever it ends.
"""

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, Protocol

import msgspec

from holdfast.events.budget import OverBudget as OverBudget
from holdfast.events.budget import Scope
from holdfast.events.ids import Key, MessageId, Owner, SessionId, TurnId

DAY_MS: Final = 86_400_000
EPOCH: Final = datetime.date(1970, 1, 1).toordinal()
MILLION: Final = 1_000_000

LEAST_ANSWER_TOKENS: Final = 256
"""A call is not made if its answer could only be shorter."""

MAX_CHANGES: Final = 16
"""How many changes of one owner's limits may be planned."""

BILLED_MS: Final = 600_000
"""How long the id of a message of a billing system is kept: for twice as long as its signature is valid."""

MAX_BILLED: Final = 64
"""How many of these ids are kept for one owner. The version numbers keep the order when there are more."""


class Caps(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of one owner. None: no limit; 0: nothing."""

    day: int | None = None
    week: int | None = None

    @property
    def are_none(self) -> bool:
        return self.day is None and self.week is None


class OwnerLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of an owner, as they were set: a named tier, and what holds in place of the tier's limits."""

    tier: str = ""
    day: int | msgspec.UnsetType | None = msgspec.UNSET
    week: int | msgspec.UnsetType | None = msgspec.UNSET


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change that takes effect at a time."""

    at: int
    to: OwnerLimits


class Credit(msgspec.Struct, frozen=True, kw_only=True):
    """A reset that an outside system was asked for, or is about to be: it may have taken something in return."""

    id: str
    at: int
    is_refunded: bool = False
    """There was no reset for it: the outside system is told until it has confirmed that."""


class Billed(msgspec.Struct, frozen=True):
    """A message of a billing system that was applied."""

    id: str
    at: int


class OwnerBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that the store keeps about one owner's limits."""

    now: OwnerLimits = OwnerLimits()
    planned: tuple[Change, ...] = ()
    """From the earliest to the latest."""
    version: int = 0
    """The number of the last change that a billing system made; older ones come too late."""
    forgiven: Mapping[str, int] = {}
    """What resets gave back: microdollars by window, such as `day:20410` and `week:2916`."""
    resets: int = 0
    credit: Credit | None = None
    """One at a time, so that resets are serialised."""
    billed: tuple[Billed, ...] = ()

    def at(self, time: int) -> OwnerLimits:
        """The limits that hold at a time."""
        reached = [change.to for change in self.planned if change.at <= time]
        return reached[-1] if reached else self.now


NOTHING_SET: Final = OwnerBudget()


class SpendLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that this installation gives to every owner. Tiers multiply them."""

    day: int | None = None
    week: int | None = None
    session: int | None = None
    turn: int | None = None
    tree: int | None = None
    tiers: Mapping[str, float] = {}

    @property
    def are_none(self) -> bool:
        return all(limit is None for limit in (self.day, self.week, self.session, self.turn, self.tree))

    def caps(self, own: OwnerLimits) -> Caps:
        factor = self.tiers.get(own.tier, 1.0)
        return Caps(day=_cap(self.day, factor, own.day), week=_cap(self.week, factor, own.week))


UNLIMITED: Final = SpendLimits()


def _cap(base: int | None, factor: float, own: int | msgspec.UnsetType | None) -> int | None:
    if own is not msgspec.UNSET:
        return own
    return None if base is None else round(base * factor)


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A model call that is about to be made."""

    message_id: MessageId
    attempt: int
    turn_id: TurnId | None
    model: str
    root: SessionId
    """The session at the root of the tree of sessions that the call belongs to."""
    input_cost: int
    """The most that its input costs."""
    output_rate: int
    """The price of a million tokens of its answer."""
    most_tokens: int
    """The longest answer that it needs to be able to give."""
    is_priced: bool = True
    """Whether the price of the model is known."""
    session_cap: int | None = None
    turn_cap: int | None = None
    tree_cap: int | None = None

    @property
    def has_caps(self) -> bool:
        return not (self.session_cap is None and self.turn_cap is None and self.tree_cap is None)


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent and is reserved, in each scope of a call."""

    day: int = 0
    week: int = 0
    session: int = 0
    turn: int = 0
    tree: int = 0


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """What is reserved for an attempt that is under way."""

    owner: Owner
    session: SessionId
    message_id: MessageId
    attempt: int
    day: int
    root: SessionId
    turn_id: TurnId | None
    amount: int


class Settles(Protocol):
    """An entry of the ledger. Those that the unit with the call writes settle their reservations before the call is
    admitted."""

    @property
    def message_id(self) -> MessageId: ...
    @property
    def attempt(self) -> int: ...
    @property
    def cost_microdollars(self) -> int | None: ...
    @property
    def refused(self) -> bool: ...


class Spending(msgspec.Struct, frozen=True):
    """What one session spent on one model in one UTC day."""

    owner: Owner
    day: int
    session: SessionId
    model: str
    calls: int = 0
    unknown: int = 0
    """How many of the calls did not report what they cost."""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: int = 0
    """The known costs together."""
    charged: int = 0
    """The same, with what was charged for attempts of unknown cost."""


SpendingGroup = Literal["owner", "session", "model", "day"]
"""What spending is summed up by."""

MAX_GROUPS: Final = 10_000
"""The most groups that one reading sums up: those that were charged the most."""


class Granted(msgspec.Struct, frozen=True):
    """The call may be made."""

    amount: int
    """To be reserved; 0 where no limit holds."""
    tokens: int | None = None
    """The longest answer that it may give; None: as long as it likes."""


class BudgetNow(msgspec.Struct, frozen=True, kw_only=True):
    """An owner's limits, and what they have spent, with what is reserved, read in one snapshot."""

    budget: OwnerBudget
    spent: Spent
    """In the windows of `time`; resets are not taken off."""
    time: int
    """By the store's clock, in milliseconds."""


EditBudget = Callable[[BudgetNow], OwnerBudget | None]
"""The limits that take the place of those there; None: they stay."""


def day_of(time: int) -> int:
    """The number of the UTC day, from 1970-01-01."""
    return time // DAY_MS


def week_of(day: int) -> int:
    """The number of the ISO week of a day. 1970-01-01 was a Thursday."""
    return (day + 3) // 7


def number_of(date: datetime.date) -> int:
    """The number of a UTC day, as `day_of` counts them."""
    return date.toordinal() - EPOCH


def date_of(day: int) -> datetime.date:
    return datetime.date.fromordinal(day + EPOCH)


def first_day(week: int) -> int:
    """The Monday of a week."""
    return week * 7 - 3


def admit_call(ask: Ask, caps: Caps, spent: Spent, *, now: int) -> Granted | OverBudget:
    """Grant as long an answer as the smallest room allows."""
    rooms: dict[Scope, tuple[int | None, int]] = {
        "day": (caps.day, spent.day),
        "week": (caps.week, spent.week),
        "tree": (ask.tree_cap, spent.tree),
        "session": (ask.session_cap, spent.session),
        "turn": (ask.turn_cap, spent.turn),
    }
    held = {scope: cap - used for scope, (cap, used) in rooms.items() if cap is not None}
    if not held:
        return Granted(0)
    if not ask.is_priced:
        return OverBudget(scope="price")
    scope = min(held, key=lambda each: held[each])
    left = held[scope] - ask.input_cost
    tokens = ask.most_tokens if ask.output_rate == 0 else min(ask.most_tokens, left * MILLION // ask.output_rate)
    blocked = held[scope] <= 0 and rooms[scope][0] == 0
    if left < 0 or tokens < min(LEAST_ANSWER_TOKENS, ask.most_tokens) or blocked:
        return OverBudget(scope=scope, resets_at=_resets_at(scope, now) if rooms[scope][0] else None)
    return Granted(ask.input_cost + -(-tokens * ask.output_rate // MILLION), tokens)


def _resets_at(scope: Scope, now: int) -> int | None:
    match scope:
        case "day":
            return (day_of(now) + 1) * DAY_MS
        case "week":
            return first_day(week_of(day_of(now)) + 1) * DAY_MS
        case _:
            return None


def admit(
    ask: Ask,
    budget: OwnerBudget,
    limits: SpendLimits,
    *,
    charged: Spent,
    reserved: Iterable[Reservation],
    settles: Iterable[Settles],
    session: SessionId,
    now: int,
) -> Granted | OverBudget:
    """Decide on a call, given all that was charged and is reserved."""
    spent = add_reserved(charged, reserved, settles, ask, session, now)
    return admit_call(ask, limits.caps(budget.at(now)), forgiven(budget, spent, now), now=now)


def reservation_of(key: Key, ask: Ask, granted: Granted, now: int) -> Reservation:
    return Reservation(
        owner=key.owner,
        session=key.session,
        message_id=ask.message_id,
        attempt=ask.attempt,
        day=day_of(now),
        root=ask.root,
        turn_id=ask.turn_id,
        amount=granted.amount,
    )


def add_reserved(
    spent: Spent, reserved: Iterable[Reservation], settles: Iterable[Settles], ask: Ask, session: SessionId, now: int
) -> Spent:
    """What was charged, with what is reserved for attempts that are under way. Those that the unit itself settles count
    with their charge."""
    settled = {(each.message_id, each.attempt): each for each in settles}
    today, week = day_of(now), week_of(day_of(now))
    total = msgspec.structs.asdict(spent)
    for each in reserved:
        if (each.session, each.message_id, each.attempt) == (session, ask.message_id, ask.attempt):
            continue  # What is asked for takes its place.
        own = settled.get((each.message_id, each.attempt)) if each.session == session else None
        amount = each.amount if own is None else charge(own.cost_microdollars, each.amount, is_refused=own.refused)
        total["day"] += amount * (each.day == today)
        total["week"] += amount * (week_of(each.day) == week)
        total["session"] += amount * (each.session == session)
        total["turn"] += amount * (each.session == session and each.turn_id == ask.turn_id)
        total["tree"] += amount * (each.root == ask.root)
    return Spent(**total)


def add_windows(charged: Spent, reserved: Iterable[Reservation], now: int) -> Spent:
    """What was charged in the windows of a time, with what is reserved in them."""
    today, week = day_of(now), week_of(day_of(now))
    kept = list(reserved)
    return msgspec.structs.replace(
        charged,
        day=charged.day + sum(each.amount for each in kept if each.day == today),
        week=charged.week + sum(each.amount for each in kept if week_of(each.day) == week),
    )


def windows(now: int) -> tuple[str, str]:
    """The names of the windows of a time, as `OwnerBudget.forgiven` has them."""
    day = day_of(now)
    return f"day:{day}", f"week:{week_of(day)}"


def forgiven(budget: OwnerBudget, spent: Spent, now: int) -> Spent:
    """What counts after the resets of the day and of the week."""
    day, week = windows(now)
    return msgspec.structs.replace(
        spent,
        day=max(0, spent.day - budget.forgiven.get(day, 0)),
        week=max(0, spent.week - budget.forgiven.get(week, 0)),
    )


class Gauge(msgspec.Struct, frozen=True, kw_only=True):
    """How much of one window is used."""

    cap: int | None
    spent: int
    """What counts after resets, with what is reserved."""
    ends_at: int
    """When the window ends, in milliseconds."""

    @property
    def percent(self) -> float | None:
        """With one decimal; exactly 100 at the limit or over it, and only then. None: no limit."""
        if self.cap is None:
            return None
        return 100.0 if self.spent >= self.cap else max(0, self.spent) * 1_000 // self.cap / 10

    @property
    def is_blocked(self) -> bool:
        return self.cap is not None and self.spent >= self.cap

    @property
    def resets_at(self) -> int | None:
        """When there is room again; None without a limit, and where the limit is 0."""
        return self.ends_at if self.cap else None


def gauges(found: BudgetNow, limits: SpendLimits) -> tuple[Gauge, Gauge]:
    """The day and the week of an owner."""
    now = found.time
    caps, spent, day = limits.caps(found.budget.at(now)), forgiven(found.budget, found.spent, now), day_of(now)
    return (
        Gauge(cap=caps.day, spent=spent.day, ends_at=(day + 1) * DAY_MS),
        Gauge(cap=caps.week, spent=spent.week, ends_at=first_day(week_of(day) + 1) * DAY_MS),
    )


def charge(cost: int | None, reserved: int | None, *, is_refused: bool) -> int:
    """What an attempt is charged: its cost, whatever was reserved; or else what was reserved, unless the provider
    answered with a refusal, which costs nothing."""
    if cost is not None:
        return cost
    return 0 if is_refused or reserved is None else reserved


def plan(budget: OwnerBudget, change: Change, now: int) -> OwnerBudget:
    """Set limits now or from a time on. A change takes the place of those planned for its time or later."""
    current = budget.at(now)
    left = tuple(each for each in budget.planned if now < each.at < change.at)
    if change.at <= now:
        return msgspec.structs.replace(budget, now=change.to, planned=())
    planned = left if (left[-1].to if left else current) == change.to else (*left, change)
    return msgspec.structs.replace(budget, now=current, planned=planned[:MAX_CHANGES])


def bill(budget: OwnerBudget, change: Change, *, message_id: str, version: int, now: int) -> OwnerBudget | None:
    """Set limits as a billing system says; None if it has said something newer, or this very thing, before."""
    kept = tuple(each for each in budget.billed if each.at > now - BILLED_MS)
    if version <= budget.version or message_id in [each.id for each in kept]:
        return None
    billed = (*kept, Billed(message_id, now))[-MAX_BILLED:]
    return msgspec.structs.replace(plan(budget, change, now), version=version, billed=billed)


def reset(budget: OwnerBudget, caps: Caps, spent: Spent, now: int) -> OwnerBudget | None:
    """Give the day back, and one day's allowance to the week; None if the owner is not over the day's limit."""
    day, week = windows(now)
    if caps.day is None or forgiven(budget, spent, now).day < caps.day:
        return None
    given = dict(_of_windows(budget.forgiven, (day, week)))
    given[day] = spent.day
    given[week] = given.get(week, 0) + caps.day
    return msgspec.structs.replace(budget, forgiven=given, resets=budget.resets + 1)


def _of_windows(given: Mapping[str, int], names: Iterable[str]) -> Mapping[str, int]:
    return {name: given[name] for name in names if name in given}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(OwnerBudget)


def encode_budget(budget: OwnerBudget) -> bytes:
    return _encoder.encode(budget)


def decode_budget(content: bytes | None) -> OwnerBudget:
    return NOTHING_SET if content is None else _decoder.decode(content)
