"""Writes batches of units. Units of many sessions are one statement, which checks every fence as it writes; units that
it did not write are found by the rows that it returned, so that no refusal goes unnoticed."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from holdfast.events import codec
from holdfast.events.event import Event
from holdfast.events.ids import Position
from holdfast.store import crash_points
from holdfast.store.budget import Granted, OverBudget, Reservation, reservation_of
from holdfast.store.postgres import annotation_rows, audit_rows, budget_rows, task_rows
from holdfast.store.postgres.connections import Link, commit
from holdfast.store.postgres.queries import DESCRIBED_PARAMETERS, LOG_PARAMETERS, PARTS, commit_units
from holdfast.store.postgres.text import to_parameter
from holdfast.store.store import (
    HEAD_MOVED,
    LARGE_UNIT_EVENTS,
    OVER_BUDGET,
    Committed,
    FenceMissed,
    Outcome,
    Rejected,
    Segment,
    Unit,
    answer_key,
    answer_waits,
)
from holdfast.store.turn_limits import NO_LIMITS, Stored, TurnLimits

TOOLS_BETWEEN: Final = "\x1f"

PIECE_BYTES: Final = 1 << 20

_DROPS: Final = 6
"""The place of this column among those of `_described`."""

ONLY_RECORDS: Final = Rejected("only records may be written without a lease")


class UnitJob:
    """A unit, encoded in its sender's call: a value that can't be stored fails there and not in the flusher."""

    __slots__ = (
        "error",
        "event_bytes",
        "events",
        "future",
        "is_settled",
        "is_simple",
        "key",
        "result",
        "segments",
        "size",
        "unit",
    )

    def __init__(self, future: asyncio.Future[Any], unit: Unit) -> None:
        self.future = future
        self.unit = unit
        self.key = (unit.key.owner, unit.key.session)
        self.events = [_event(event) for event in unit.events]
        self.segments = [_encoded(segment) for segment in unit.segments]
        self.event_bytes = sum([len(event[4]) for event in self.events])
        self.size = 512 + self.event_bytes + sum([len(each[5]) for each in self.segments])
        self.is_simple = _is_simple(unit)
        self.result: Outcome | None = None
        self.error: BaseException | None = None
        self.is_settled = False

    def settle(self) -> bool:
        """Give the sender the outcome. False: it was given before."""
        if self.is_settled:
            return False
        self.is_settled = True
        if self.future.done():  # The sender was cancelled.
            return True
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)
        return True

    @property
    def point(self) -> str:
        return f"commit:{_detail(self)}"


def _is_simple(unit: Unit) -> bool:
    """Whether the unit depends on nothing but its fence, and one statement writes all of it."""
    rows = unit.promotes or unit.opens or unit.closes or unit.opens_tasks or unit.changes_tasks
    others = unit.prompt is not None or unit.creates is not None or unit.reserves is not None
    return not (rows or unit.ends_commands or unit.releases or unit.audit or others)


class Group:
    """Units of one session that succeed or fail together: they have the same fence, and depend on nothing else."""

    __slots__ = ("granted", "granted_at", "is_simple", "jobs", "key", "unit")

    def __init__(self, job: UnitJob) -> None:
        self.key = job.key
        self.unit = job.unit
        self.is_simple = job.is_simple
        self.jobs = [job]
        self.granted: Granted | None = None
        """For a unit with `reserves`."""
        self.granted_at = 0
        """By the database's clock."""

    @property
    def is_first(self) -> bool:
        """Whether the group creates its session."""
        return self.unit.creates is not None and self.unit.fence is None

    def takes(self, job: UnitJob) -> bool:
        own = self.unit
        free = own.supposes_head is None and job.unit.supposes_head is None
        return free and own.fence == job.unit.fence and self.is_simple and job.is_simple

    def succeed(self, head: int, tail: int) -> None:
        """Give each unit the head after its own events."""
        for job in reversed(self.jobs):
            job.result = Committed(Position(head), tail, self.granted)
            head -= len(job.events)

    def refuse(self, outcome: Outcome | None) -> None:
        for job in self.jobs:
            job.result = outcome

    def forget(self) -> None:
        for job in self.jobs:
            job.result = None


def waves(jobs: Iterable[UnitJob]) -> list[list[Group]]:
    """Batches with at most one group of each session, in the order of their keys; a session's units keep their
    order."""
    by_session: dict[tuple[str, str], list[Group]] = {}
    for job in jobs:
        groups = by_session.get(job.key)
        if groups is None:
            by_session[job.key] = [Group(job)]
        elif groups[-1].takes(job):
            groups[-1].jobs.append(job)
        else:
            groups.append(Group(job))
    ordered = [by_session[key] for key in sorted(by_session)]
    return [[group for group in wave if group is not None] for wave in itertools.zip_longest(*ordered)]


class Units:
    """Writes waves of units over the flusher's connection."""

    def __init__(self, *, process: str, now_ms: Callable[[], int], limits: TurnLimits = NO_LIMITS) -> None:
        self._process = process
        self._limits = limits
        self._now_ms = now_ms

    async def run(self, link: Link, groups: Sequence[Group]) -> bool:
        """Give each job its outcome, or none if another transaction has its session locked: this waits for no lock.
        Returns whether anything was written."""
        possible = [group for group in groups if group.unit.fence is not None or not _is_always_refused(group)]
        if not possible:
            return False
        is_one = not crash_points.watched() and not link.is_pooled and all(group.is_simple for group in possible)
        if is_one:
            await self._write(link, possible)
        else:
            await self._in_transaction(link, possible)
        return any(isinstance(group.jobs[0].result, Committed) for group in possible)

    async def _in_transaction(self, link: Link, groups: list[Group]) -> None:
        await link.raw.execute(link.begin)
        holding = groups
        if not all(group.is_simple for group in groups):
            holding = await self._lock(link, holding)
            holding = await self._create(link, holding)
            holding = await self._still_waiting(link, holding)
            holding = await self._without_answers(link, holding)
            holding = await self._within_budgets(link, holding)
        written = await self._write(link, holding)
        for group in written:
            for job in group.jobs:
                if not job.is_simple:
                    await _write_rows(link, job.unit)
            await budget_rows.reserve(link, group.unit, group.granted, group.granted_at)
        entries = [entry for group in written for job in group.jobs for entry in job.unit.audit]
        if entries:
            await audit_rows.add(link, entries)
        points = [job.point for group in written for job in group.jobs] if crash_points.watched() else []
        await commit(link, tuple(points))

    async def _lock(self, link: Link, groups: list[Group]) -> list[Group]:
        """Lock the groups' sessions, without waiting for those that are locked elsewhere. Returns the groups that are
        left."""
        locked = {number - 1 for (number,) in await link.rows("lock_sessions", *_keys(groups))}
        left = [group for number, group in enumerate(groups) if number in locked or group.is_first]
        await self._explain(link, [group for group in groups if group not in left])
        return left

    async def _create(self, link: Link, groups: list[Group]) -> list[Group]:
        """Insert the sessions that are to be created. Returns the groups that are left; a group that came too late gets
        its refusal."""
        refused = await self._over_quota(link, groups)
        groups = [group for group in groups if id(group) not in refused]
        new = [group for group in groups if group.is_first]
        if not new:
            return groups
        made = await link.rows("create_sessions", *_columns(10, map(_new_row, new)), self._now_ms())
        created = set(made)
        for group in new:
            if group.key in created and group.unit.creates is not None and group.unit.creates.metadata:
                await annotation_rows.begin(link, group.unit.key, group.unit.creates.metadata)
        late = [group for group in new if group.key not in created]
        await self._explain(link, late)
        return [group for group in groups if group not in late]

    async def _over_quota(self, link: Link, groups: list[Group]) -> set[int]:
        """Refuse sessions that exceed their owner's quota. Of two processes that create the last one, the second waits
        for the owner's lock, and then counts the session of the first."""
        limited = [group for group in groups if group.is_first and self._limits.has_quota(group.unit.key.owner)]
        refused: set[int] = set()
        if not limited:
            return refused
        await link.rows("lock_owners", sorted({group.unit.key.owner for group in limited}))
        has: dict[str, Stored] = {}
        for group in limited:
            owner, size = group.unit.key.owner, group.jobs[0].event_bytes
            if owner not in has:
                ((sessions, stored),) = await link.rows("stored", owner)
                has[owner] = Stored(sessions=sessions, stored_bytes=stored)
            if await link.rows("units_sessions", *_keys([group]), self._process):
                continue  # The session exists, and that will be the refusal.
            if code := self._limits.refuses_session(has[owner], size):
                group.refuse(Rejected(code))
                refused.add(id(group))
            else:
                has[owner] = Stored(sessions=has[owner].sessions + 1, stored_bytes=has[owner].stored_bytes + size)
        return refused

    async def _still_waiting(self, link: Link, groups: list[Group]) -> list[Group]:
        """Refuse groups whose inbox items no longer wait. Their sessions are locked, and every change of an inbox locks
        its session, so this stays true until the commit."""
        items = [(*group.key, promotion.sequence) for group in groups for promotion in group.unit.promotes]
        if not items:
            return groups
        found = {items[number - 1] for (number,) in await link.rows("still_waiting", *_columns(3, items))}
        left = []
        for group in groups:
            missing = [each.sequence for each in group.unit.promotes if (*group.key, each.sequence) not in found]
            if missing:
                await self._explain(link, [group], f"inbox item {missing[0]} no longer waits")
            else:
                left.append(group)
        return left

    async def _without_answers(self, link: Link, groups: list[Group]) -> list[Group]:
        """Refuse groups that would close a request whose accepted answer they do not promote. Returns the others."""
        closed = [(group, request_id) for group in groups for request_id in group.unit.closes]
        if not closed:
            return groups
        answers = [(*group.key, answer_key(request_id)) for group, request_id in closed]
        late: dict[int, str] = {}
        for number, sequence in await link.rows("waiting_answers", *_columns(3, answers)):
            group, request_id = closed[number - 1]
            if sequence not in [promotion.sequence for promotion in group.unit.promotes]:
                late[id(group)] = answer_waits(request_id)
        for group in [each for each in groups if id(each) in late]:
            await self._explain(link, [group], late[id(group)])
        return [group for group in groups if id(group) not in late]

    async def _within_budgets(self, link: Link, groups: list[Group]) -> list[Group]:
        """Find room in their owners' budgets for the calls that groups lead to. Returns the groups that are left: those
        without room are refused, and those whose owner's budget another process has locked get no outcome yet."""
        asking = [group for group in groups if group.unit.reserves is not None]
        if not asking:
            return groups
        locked = await budget_rows.lock(link, {group.unit.key.owner for group in asking})
        now = await budget_rows.now_ms(link)
        granted: list[Reservation] = []
        without: set[int] = set()
        for group in asking:
            ask = group.unit.reserves
            if group.unit.key.owner not in locked or ask is None:
                without.add(id(group))
                continue
            found = await budget_rows.admit_unit(link, group.unit, self._limits.spend, granted, now)
            if isinstance(found, OverBudget):
                without.add(id(group))
                await self._explain(link, [group], OVER_BUDGET)
                if isinstance(group.jobs[0].result, Rejected):
                    group.refuse(Rejected(OVER_BUDGET, found))
            else:
                group.granted, group.granted_at = found, now
                if found.amount:
                    granted.append(reservation_of(group.unit.key, ask, found, now))
        return [group for group in groups if id(group) not in without]

    async def _write(self, link: Link, groups: list[Group]) -> list[Group]:
        """Run the one statement. Returns the groups that it wrote."""
        given = [group for group in groups if group.unit.creates is None or group.unit.fence is None]
        found = await self._commit_all(link, given)
        for number, head, tail in found:
            given[number - 1].succeed(head, tail)
        if len(found) == len(groups):
            return groups
        numbers = sorted([number - 1 for number, _, _ in found])
        held = [given[number] for number in numbers]
        written = set(map(id, held))
        await self._explain(link, [group for group in groups if id(group) not in written])
        return held

    async def _explain(self, link: Link, groups: list[Group], reason: str = "") -> None:
        """Find out why each group was refused. A reason that holds now also held then: fences and heads only grow. A
        group without a reason was locked elsewhere, and has no outcome yet."""
        if not groups:
            return
        found = await link.rows("units_sessions", *_keys(groups), self._process)
        known = {number - 1: row for number, *row in found}
        for number, group in enumerate(groups):
            group.refuse(_refusal(group.unit, known.get(number), reason))

    async def _commit_all(self, link: Link, groups: list[Group]) -> Sequence[Sequence[Any]]:
        if not any(group.unit.is_large for group in groups):
            return await self._commit_at_once(link, groups) if groups else []
        found: list[Sequence[Any]] = []
        for number, group in enumerate(groups, 1):
            work = self._commit_in_pieces(link, group) if group.unit.is_large else self._commit_at_once(link, [group])
            found += [(number, *row) for _, *row in await work]
        return found

    async def _commit_in_pieces(self, link: Link, group: Group) -> Sequence[Sequence[Any]]:
        """The same for a unit that creates a large session, which no other process sees before the commit: its
        parameters are encoded a piece at a time, and the event loop goes on in between."""
        (job,) = group.jobs
        events, event_bytes = job.events, job.event_bytes
        found: Sequence[Sequence[Any]] = ()
        try:
            for piece in _pieces(events):
                job.events, job.event_bytes = piece, sum([len(event[4]) for event in piece])
                found = await self._commit_at_once(link, [group])
        finally:
            job.events, job.event_bytes = events, event_bytes
        return found

    async def _commit_at_once(self, link: Link, groups: list[Group]) -> Sequence[Sequence[Any]]:
        jobs = [job for group in groups for job in group.jobs]
        logs = _columns(LOG_PARAMETERS - 2, [_log_row(group) for group in groups])
        described: list[list[Any]] = []
        if any(_is_described(job.unit) for job in jobs):
            described = _columns(DESCRIBED_PARAMETERS, [_described(group) for group in groups])
        rows = {
            "appended": _event_rows(groups),
            "streamed": _segment_rows(groups) if any(job.segments for job in jobs) else [],
            "used": _ledger_rows(groups) if any(job.unit.ledger for job in jobs) else [],
        }
        columns = {name: _columns(PARTS[name], found) for name, found in rows.items() if found}
        if described and any(described[_DROPS]):
            columns["dropped"] = []
        parts = tuple(sorted(columns))
        given = itertools.chain.from_iterable(columns[name] for name in parts)
        parameters = map(to_parameter, (self._process, self._now_ms(), *logs, *described, *given))
        statement = commit_units(parts, described=bool(described))
        return await link.raw.fetch(statement, *parameters)  # Numbers need no unescaping.


# Reasons to refuse a unit


def _is_always_refused(group: Group) -> bool:
    """Whether a group without a lease holds more than records: it is refused whatever its session is like."""
    for job in group.jobs:
        if _exceeds_records(job):
            group.refuse(ONLY_RECORDS)
            return True
    return False


def _exceeds_records(job: UnitJob) -> bool:
    unit = job.unit
    progress = unit.promotes or unit.opens or unit.closes or unit.segments or unit.makes_progress
    commands = unit.opens_tasks or unit.changes_tasks or unit.ends_commands
    if progress or commands or unit.drops_segments or unit.turn_id is not None:
        return True
    return unit.creates is None and (
        unit.status is not None or not all(codec.is_record(event[2]) for event in job.events)
    )


def _refusal(unit: Unit, session: Sequence[Any] | None, reason: str) -> Outcome | None:
    """Why the unit is refused; None: nothing speaks against it. `session` is fence, whether this process holds it,
    head, and whether it is deleted."""
    if unit.fence is None:
        if unit.creates is not None:
            return Rejected("deleted" if session is not None and session[3] else "exists")
        if session is None or session[3]:
            return Rejected("session_not_found")
    elif session is None or session[3] or not session[1] or session[0] != unit.fence:
        return FenceMissed()
    elif unit.creates is not None:
        return Rejected("exists")
    if unit.supposes_head is not None and unit.supposes_head != session[2]:
        return Rejected(HEAD_MOVED)
    return Rejected(reason) if reason else None


# A unit as columns


def _keys(groups: Sequence[Group]) -> list[list[Any]]:
    return _columns(2, [group.key for group in groups])


def _columns(width: int, rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    found = list(rows)
    return [list(column) for column in zip(*found, strict=True)] if found else [[] for _ in range(width)]


def _log_row(group: Group) -> tuple[Any, ...]:
    """The columns of a session's row that an append changes, after those by which it is found and fenced."""
    jobs, unit = group.jobs, group.unit
    job = jobs[0]
    if len(jobs) == 1:
        events, size = len(job.events), job.event_bytes
    else:
        events, size = sum([len(each.events) for each in jobs]), sum([each.event_bytes for each in jobs])
    return (*group.key, unit.fence, unit.supposes_head, events, _shown(group), size)


def _shown(group: Group) -> int:
    """The place of the last event that is news. Events that a session is created with are none."""
    if group.unit.creates is not None:
        return 0
    place = shown = 0
    for job in group.jobs:
        for event in job.events:
            place += 1
            if event[2] in codec.SHOWN_TYPES:
                shown = place
    return shown


def _is_described(unit: Unit) -> bool:
    """Whether the unit changes more of its session's row than the columns of the log."""
    says = unit.status is not None or unit.title is not None or unit.model is not None or unit.makes_progress
    return says or unit.drops_segments or unit.fence is None


def _described(group: Group) -> tuple[Any, ...]:
    """The other columns of the session's row, as its units leave them together; of two values for the same column, the
    later counts."""
    units = [job.unit for job in group.jobs]
    with_status = [unit for unit in units if unit.status is not None]
    titles = [_clean(unit.title) for unit in units if unit.title is not None]
    models = [_clean(unit.model) for unit in units if unit.model is not None]
    progress = any(unit.makes_progress for unit in units)
    return (
        with_status[-1].status if with_status else None,
        with_status[-1].turn_id if with_status else None,
        titles[-1] if titles else None,
        models[-1] if models else None,
        progress,
        bool(with_status or titles) or progress or group.unit.fence is None,
        any(unit.drops_segments for unit in units),
    )


def _event_rows(groups: Sequence[Group]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for number, group in enumerate(groups, 1):
        place = 0
        for job in group.jobs:
            for event in job.events:
                place += 1
                rows.append((number, place, *event))
    return rows


def _segment_rows(groups: Sequence[Group]) -> list[tuple[Any, ...]]:
    """The segments to write, without those that a later unit of the same group drops again."""
    rows: list[tuple[Any, ...]] = []
    for number, group in enumerate(groups, 1):
        left: list[tuple[Any, ...]] = []
        for job in group.jobs:
            if job.unit.drops_segments:
                left.clear()
            left += job.segments
        rows += [(number, *segment) for segment in left]
    return rows


def _ledger_rows(groups: Sequence[Group]) -> list[tuple[Any, ...]]:
    return [
        (
            number,
            entry.message_id,
            entry.attempt,
            entry.model,
            entry.input_tokens,
            entry.output_tokens,
            entry.cache_read_tokens,
            entry.cost_microdollars,
            entry.time,
            entry.cache_write_tokens,
            entry.refused,
        )
        for number, group in enumerate(groups, 1)
        for job in group.jobs
        for entry in job.unit.ledger
    ]


def _new_row(group: Group) -> tuple[Any, ...]:
    unit, new = group.unit, group.unit.creates
    assert new is not None
    model = _clean(new.model) if new.model is not None else None
    about = (unit.status or "idle", _clean(unit.title or ""), new.host or "", TOOLS_BETWEEN.join(sorted(new.tools)))
    return (*group.key, *about, model, new.parent, new.made_from, new.created_at)


async def _write_rows(link: Link, unit: Unit) -> None:
    of = (unit.key.owner, unit.key.session)
    if unit.promotes:
        promoted = [
            (*of, each.sequence, "refused" if each.refused else "promoted", each.outcome) for each in unit.promotes
        ]
        await link.run("promote", *_columns(5, promoted))
    if unit.opens:
        opened = [
            (*of, row.request_id, row.kind, row.turn_id, row.tool_call_id, _clean(row.title), row.opened_at)
            for row in unit.opens
        ]
        await link.run("open_requests", *_columns(8, opened))
    if unit.closes:
        await link.run("close_requests", *_columns(3, [(*of, request_id) for request_id in unit.closes]))
    for attempt in unit.releases:
        await link.run("drop_reservation", *of, *attempt)
    if unit.prompt is not None:
        await link.run("keep_prompt", unit.prompt.digest, unit.prompt.content)
    await task_rows.write_unit(link, unit)


def _pieces(events: list[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    piece: list[tuple[Any, ...]] = []
    size = 0
    for event in events:
        piece.append(event)
        size += len(event[4])
        if len(piece) >= LARGE_UNIT_EVENTS or size >= PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _event(event: Event) -> tuple[Any, ...]:
    return (event.id, event.time, *codec.encode(event.body), codec.said(event.body))


def _encoded(segment: Segment) -> tuple[Any, ...]:
    try:
        text = segment.text.encode()
    except UnicodeEncodeError:
        text = _clean(segment.text).encode()
    place = (segment.message_id, segment.attempt, segment.block, segment.offset)
    return (*place, segment.kind, text, segment.tool_call_id, segment.name)


def _clean(text: str) -> str:
    cleaned: str = codec.without_surrogates(text)
    return cleaned


def _detail(job: UnitJob) -> str:
    unit = job.unit
    types = dict.fromkeys(event[2] for event in job.events)
    if types:
        return "+".join(types)
    kinds = {
        "segments": unit.segments,
        "inbox": unit.promotes,
        "ledger": unit.ledger,
    }
    return next((name for name, parts in kinds.items() if parts), "row")
