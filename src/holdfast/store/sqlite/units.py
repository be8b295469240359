"""Writes the units of a batch. Every unit is checked before any part of it is written, so that a refused unit does not
affect the others; the writes of all units are collected and written in a few statements."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from holdfast.events import codec
from holdfast.events.ids import Position
from holdfast.store import crash_points
from holdfast.store.budget import OverBudget
from holdfast.store.sqlite import annotation_rows, audit_rows, budget_rows, task_rows
from holdfast.store.sqlite.queries import SQL, ManyRows
from holdfast.store.sqlite.writer import Job
from holdfast.store.store import (
    HEAD_MOVED,
    OVER_BUDGET,
    Committed,
    FenceMissed,
    Key,
    Outcome,
    Rejected,
    Segment,
    Unit,
    answer_key,
    answer_waits,
)
from holdfast.store.turn_limits import NO_LIMITS, QuotaCode, Stored, TurnLimits

_SESSIONS = ManyRows("units_sessions", "(?, ?, ?, ?)")
_ADVANCE = ManyRows("units_advance", "(?, ?, ?, ?, ?)")
_EVENTS = ManyRows("units_events", "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
_MARKS = ManyRows("units_marks", "(?, ?, ?, ?)")
_SEGMENTS = ManyRows("units_segments", "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
_FLIGHTS = ManyRows("units_flights", "(?, ?, ?, ?)")

_KEY_OF = attrgetter("key")

HAS_MOVED: Final = Rejected(HEAD_MOVED)

MARK_EVERY: Final = 64
"""One event in this many of a session is marked, so that reading can start there."""

REMEMBERED: Final = 4096
"""The most session rows that are remembered from one batch to the next."""

TOUCH_MS: Final = 1000
"""While a session only gets events, the time of its last change in its row is at most this old."""


class UnitJob(Job):
    """A unit, encoded in its sender's call: a value that can't be stored fails there and not in the writer."""

    __slots__ = ("event_bytes", "events", "key", "segments", "size", "unit")

    is_urgent = True

    def __init__(self, future: asyncio.Future[Any], unit: Unit) -> None:
        super().__init__(future)
        self.unit = unit
        self.key = (unit.key.owner, unit.key.session)
        self.events: list[tuple[Any, ...]] = []
        size = 0
        for event in unit.events:
            row = (event.id, event.time, *codec.encode(event.body))
            self.events.append(row)
            size += len(row[4])
        self.event_bytes = size
        self.segments: list[tuple[Any, ...]] = []
        for segment in unit.segments:
            piece = _encoded(segment)
            self.segments.append(piece)
            size += len(piece[5])
        self.size = 512 + size


class SessionNow:
    """A session's row after the units so far, and the changes to it that are still to be written."""

    __slots__ = (
        "added",
        "fence",
        "first_segment",
        "flew",
        "head",
        "is_deleted",
        "is_described",
        "is_mine",
        "is_progressing",
        "last_event",
        "last_segment",
        "log",
        "model",
        "moved",
        "shown",
        "status",
        "tail",
        "title",
        "turn_id",
        "updated_at",
    )

    def __init__(
        self,
        fence: int = 0,
        is_mine: bool = False,
        head: int = 0,
        last_event: int = 0,
        tail: int = 0,
        updated_at: int = 0,
        is_deleted: bool = False,
        first_segment: int = 0,
        last_segment: int = 0,
        log: int = 0,
        shown: int = 0,
    ) -> None:
        self.fence = fence
        self.is_mine = is_mine
        self.head = head
        self.last_event = last_event
        self.tail = tail
        self.updated_at = updated_at
        self.is_deleted = is_deleted
        self.first_segment = first_segment
        self.last_segment = last_segment
        self.log = log
        self.shown = shown
        self.is_written()

    def is_written(self) -> None:
        self.moved = False
        self.added = 0
        self.flew = False
        self.is_described = False
        self.is_progressing = False
        self.status: str | None = None
        self.turn_id: str | None = None
        self.title: str | None = None
        self.model: str | None = None


class Units:
    """Writes units, on the writer's thread and in its transactions.

    The rows of busy sessions are remembered from one batch to the next. That is safe because every write of this
    process passes through this thread, which calls `forget` when something else changed a row, and because SQLite's
    `data_version` changes when another process wrote: then all rows are forgotten.
    """

    def __init__(self, *, process: str, now_ms: Callable[[], int], limits: TurnLimits = NO_LIMITS) -> None:
        self._process = process
        self._limits = limits
        self._now_ms = now_ms
        self._now = 0
        self._is_watched = False
        self._data_version: int | None = None
        self._sessions: dict[tuple[str, str], SessionNow] = {}
        self._event_number = 0
        self._segment_number = 0
        self._clear()

    def run(self, db: sqlite3.Connection, jobs: Sequence[UnitJob]) -> int:
        """Give each job its outcome, in the order of their sessions. Returns the number of segments written."""
        self._db = db
        self._now = self._now_ms()
        self._clear()
        self._is_watched = crash_points.watched()
        ordered = sorted(jobs, key=_KEY_OF)
        self._look_up(list(dict.fromkeys([job.key for job in ordered])))
        for job in ordered:
            job.point = None
            job.result = self._outcome(job)
        _EVENTS.run(db, self._events)
        _MARKS.run(db, self._marks)
        _SEGMENTS.run(db, self._segments)
        self._advance()
        return len(self._segments)

    def forget(self, key: Key) -> None:
        """A write other than a unit changed this session's row."""
        self._sessions.pop((key.owner, key.session), None)

    def forget_all(self) -> None:
        """The remembered rows may be wrong: a transaction was rolled back, or another process wrote."""
        self._data_version = None

    def _clear(self) -> None:
        self._events: list[tuple[Any, ...]] = []
        self._marks: list[tuple[Any, ...]] = []
        self._segments: list[tuple[Any, ...]] = []
        self._touched: dict[tuple[str, str], SessionNow] = {}

    def _look_up(self, keys: Sequence[tuple[str, str]]) -> None:
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        if version != self._data_version or len(self._sessions) > REMEMBERED:
            self._sessions.clear()
            (numbers,) = self._db.execute(SQL["last_numbers"]).fetchone()
            self._event_number, self._segment_number = json.loads(numbers)
            self._data_version = version
        unknown = [key for key in keys if key not in self._sessions]
        lookups = [(number, *key, self._process) for number, key in enumerate(unknown)]
        for answer in _SESSIONS.answers(self._db, lookups):
            for number, *row in json.loads(answer):
                self._sessions[unknown[number]] = SessionNow(*row)

    def _outcome(self, job: UnitJob) -> Outcome:
        unit, session = job.unit, self._sessions.get(job.key)
        refusal = self._refusal(job, session) if unit.fence is not None else _record_refusal(job, session)
        if refusal is not None:
            return refusal
        if session is None:
            if code := self._exceeds_quota(job):
                return Rejected(code)
            session = self._create(unit)
        granted = budget_rows.admit_unit(self._db, unit, self._limits.spend, self._now)
        if isinstance(granted, OverBudget):
            return Rejected(OVER_BUDGET, granted)
        self._write(job, session)
        if granted is not None:
            budget_rows.reserve(self._db, unit, granted, self._now)
        if self._is_watched:
            job.point = f"commit:{_detail(job)}"
        return Committed(Position(session.head), session.tail, granted)

    def _refusal(self, job: UnitJob, session: SessionNow | None) -> Outcome | None:
        unit = job.unit
        if session is None or session.is_deleted or not session.is_mine or session.fence != unit.fence:
            return FenceMissed()
        if unit.creates is not None:
            return Rejected("exists")
        if unit.supposes_head is not None and unit.supposes_head != session.head:
            return HAS_MOVED
        for promotion in unit.promotes:
            if self._db.execute(SQL["is_waiting"], (*job.key, promotion.sequence)).fetchone() is None:
                return Rejected(f"inbox item {promotion.sequence} no longer waits")
        return self._waiting_answer(job) if unit.closes else None

    def _waiting_answer(self, job: UnitJob) -> Rejected | None:
        """A unit may not close a request whose accepted answer it does not promote."""
        unit = job.unit
        promoted = {promotion.sequence for promotion in unit.promotes}
        for request_id in unit.closes:
            found = self._db.execute(SQL["waiting_answer"], (*job.key, answer_key(request_id))).fetchone()
            if found is not None and found[0] not in promoted:
                return Rejected(answer_waits(request_id))
        return None

    def _exceeds_quota(self, job: UnitJob) -> QuotaCode | None:
        owner = job.unit.key.owner
        if not self._limits.has_quota(owner):
            return None
        sessions, size = self._db.execute(SQL["stored"], (owner,)).fetchone()
        size += sum(now.added for key, now in self._touched.items() if key[0] == owner)  # Not written yet.
        return self._limits.refuses_session(Stored(sessions=sessions, stored_bytes=size), job.event_bytes)

    def _create(self, unit: Unit) -> SessionNow:
        new = unit.creates
        assert new is not None
        tools = json.dumps(sorted(new.tools))
        model = _clean(new.model) if new.model is not None else None
        about = (unit.status or "idle", _clean(unit.title or ""), new.host, tools, model)
        (log,) = self._db.execute(SQL["create_head"]).fetchone()
        row = (*about, new.parent, new.made_from, new.created_at, self._now, log)
        self._db.execute(SQL["create_session"], (unit.key.owner, unit.key.session, *row))
        session = SessionNow(updated_at=self._now, log=log)
        self._sessions[unit.key.owner, unit.key.session] = session
        if new.metadata:
            annotation_rows.begin(self._db, unit.key, new.metadata)
        return session

    def _write(self, job: UnitJob, session: SessionNow) -> None:
        unit = job.unit
        self._touched[job.key] = session
        if job.events:
            self._append_events(job, session)
        if unit.status is not None or unit.title is not None or unit.makes_progress or unit.fence is None:
            _describe(unit, session)
        if unit.drops_segments:
            session.first_segment = session.last_segment = 0
            session.flew = True
        if job.segments:
            self._append_segments(job, session)
        if unit.promotes or unit.opens or unit.closes or unit.ledger or unit.releases or unit.prompt:
            self._write_rows(unit, job.key)
        if unit.opens_tasks or unit.changes_tasks or unit.ends_commands:
            task_rows.write_unit(self._db, unit)
        for entry in unit.audit:
            audit_rows.add(self._db, entry)

    def _append_events(self, job: UnitJob, session: SessionNow) -> None:
        session.moved = True
        session.added += job.event_bytes
        number, head, previous, shown = self._event_number, session.head, session.last_event, session.shown
        for event in job.events:
            number += 1
            head += 1
            self._events.append((number, previous, *job.key, head, *event))
            previous = number
            if event[2] in codec.SHOWN_TYPES:
                shown = head
            if head % MARK_EVERY == 0:
                self._marks.append((*job.key, head, number))
        self._event_number, session.head, session.last_event = number, head, number
        session.shown = shown if job.unit.creates is None else 0  # Events that it is created with are no news.

    def _append_segments(self, job: UnitJob, session: SessionNow) -> None:
        session.flew = True
        for segment in job.segments:
            self._segment_number += 1
            self._segments.append((self._segment_number, session.last_segment, *job.key, *segment))
            session.last_segment = self._segment_number
            session.first_segment = session.first_segment or self._segment_number

    def _write_rows(self, unit: Unit, key: tuple[str, str]) -> None:
        db = self._db
        for promotion in unit.promotes:
            state = "refused" if promotion.refused else "promoted"
            db.execute(SQL["promote"], (*key, promotion.sequence, state, promotion.outcome))
        for opened in unit.opens:
            about = (opened.request_id, opened.kind, opened.turn_id, opened.tool_call_id)
            db.execute(SQL["open_request"], (*key, *about, _clean(opened.title), opened.opened_at))
        for request_id in unit.closes:
            db.execute(SQL["close_request"], (*key, request_id))
        for entry in unit.ledger:
            cached = (entry.cache_read_tokens, entry.cache_write_tokens)
            used = (entry.input_tokens, entry.output_tokens, *cached, entry.cost_microdollars)
            db.execute(
                SQL["add_ledger"],
                (*key, entry.message_id, entry.attempt, entry.model, *used, entry.time, entry.refused),
            )
        for attempt in unit.releases:
            db.execute(SQL["drop_reservation"], (*key, *attempt))
        if unit.prompt is not None:
            db.execute(SQL["keep_prompt"], (unit.prompt.digest, unit.prompt.content))

    def _advance(self) -> None:
        moved: list[tuple[Any, ...]] = []
        flew: list[tuple[Any, ...]] = []
        for key, now in self._touched.items():
            if now.moved:
                moved.append((now.log, now.head, now.last_event, now.shown, now.added))
            if now.is_described or (now.moved and self._now - now.updated_at >= TOUCH_MS):
                now.updated_at = self._now
                about = (now.status, now.turn_id, now.title, now.is_progressing, now.model)
                self._db.execute(SQL["describe"], (*key, self._now, *about))
            if now.flew and now.last_segment:
                flew.append((*key, now.first_segment, now.last_segment))
            elif now.flew:
                self._db.execute(SQL["end_flight"], key)
            now.is_written()
        _ADVANCE.run(self._db, moved)
        _FLIGHTS.run(self._db, flew)


def _describe(unit: Unit, session: SessionNow) -> None:
    session.is_described = True
    if unit.status is not None:
        session.status, session.turn_id = unit.status, unit.turn_id
    if unit.title is not None:
        session.title = _clean(unit.title)
    if unit.model is not None:
        session.model = _clean(unit.model)
    if unit.makes_progress:
        session.is_progressing = True


def _record_refusal(job: UnitJob, session: SessionNow | None) -> Outcome | None:
    unit = job.unit
    progress = unit.promotes or unit.opens or unit.closes or unit.segments or unit.makes_progress
    commands = unit.opens_tasks or unit.changes_tasks or unit.ends_commands
    if progress or commands or unit.drops_segments or unit.turn_id is not None:
        return Rejected("only records may be written without a lease")
    if unit.creates is None:
        if unit.status is not None or not all(codec.is_record(event[2]) for event in job.events):
            return Rejected("only records may be written without a lease")
        if session is None or session.is_deleted:
            return Rejected("session_not_found")
        has_moved = unit.supposes_head is not None and unit.supposes_head != session.head
        return HAS_MOVED if has_moved else None
    if session is not None:
        return Rejected("deleted" if session.is_deleted else "exists")
    return None


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
