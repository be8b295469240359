"""The store on one SQLite file. All writes go through one thread and are committed in groups; reads have threads of
their own; nothing blocks the event loop."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import EventId, Fence, FileId, Owner, Position, RequestId, SessionId, TaskId, ToolCallId
from holdfast.events.inbox import INBOX_VERSION, InboxItem, Item
from holdfast.events.role import RoleBounds
from holdfast.events.task import TaskNotice
from holdfast.store import crash_points
from holdfast.store.admission import encode_put
from holdfast.store.audit import AuditEntry, AuditPage
from holdfast.store.backlog import Backlog
from holdfast.store.budget import MAX_GROUPS, BudgetNow, EditBudget, OwnerBudget, Spending, SpendingGroup
from holdfast.store.clock import Clock, SystemClock
from holdfast.store.errors import StoreUnavailable, StoreUnusable
from holdfast.store.file_admission import NewFile
from holdfast.store.files import ContentId, FilePage, FileRow, Reserved
from holdfast.store.grants import GRANTED_SOMEWHERE, Grant, GrantOrigin, NewGrants, TooManyGrants
from holdfast.store.keys import KeyRow
from holdfast.store.log_pages import PAGE_BYTES, PAGE_EVENTS
from holdfast.store.sqlite import (
    annotation_rows,
    audit_rows,
    budget_rows,
    file_rows,
    grant_rows,
    index_rows,
    key_rows,
    puts,
    rows,
    secret_rows,
    task_rows,
    webhook_rows,
)
from holdfast.store.sqlite.backup import back_up
from holdfast.store.sqlite.checkpoints import Checkpoints
from holdfast.store.sqlite.connections import connect, create_if_missing, refuse_folder, unavailable, unusable
from holdfast.store.sqlite.files import DatabaseFiles
from holdfast.store.sqlite.filesystem import refuse_network
from holdfast.store.sqlite.leases import FIRST_TTL_SECONDS, Leases
from holdfast.store.sqlite.liveness import Liveness
from holdfast.store.sqlite.migrations import migrate
from holdfast.store.sqlite.queries import SQL
from holdfast.store.sqlite.readers import Readers
from holdfast.store.sqlite.sweeper import Sweeper
from holdfast.store.sqlite.turnstile import Turnstile
from holdfast.store.sqlite.units import UnitJob, Units
from holdfast.store.sqlite.writer import Job, Writer, WriterCall, closed
from holdfast.store.store import (
    Accepted,
    Attachment,
    CaughtUp,
    Claim,
    Clash,
    Cursor,
    Early,
    Glance,
    Key,
    Lease,
    LedgerEntry,
    Loaded,
    Outcome,
    Page,
    Refused,
    ReleaseKind,
    RequestRow,
    Row,
    Snapshot,
    Unit,
)
from holdfast.store.survey import NO_DESCRIPTION, ProcessDescription
from holdfast.store.tasks import Killer, TaskEnding, TaskRow
from holdfast.store.text_index import MAX_SESSIONS, Hit, bring_up_to_date, index_within_bounds, query_tokens
from holdfast.store.turn_limits import NO_LIMITS, Stored, TurnLimits, Turns
from holdfast.store.webhooks import (
    DeliveryEnding,
    DeliveryState,
    WebhookBacklog,
    WebhookChange,
    WebhookDelivery,
    WebhookRow,
)
from holdfast.store.writer_failure import OnWriterFailure, stop_leased_work, writer_died

CHANGES_SECONDS: Final = 0.05
"""How often `changes` looks for commits of other processes."""

OLDEST_SQLITE: Final = (3, 35, 0)
"""The first with RETURNING and UPDATE FROM."""

T = TypeVar("T")

_DELETE_STATEMENTS: Final = (
    "delete_events",
    "delete_head",
    "delete_marks",
    "delete_segments",
    "end_flight",
    "delete_inbox",
    "delete_requests",
    "delete_snapshot",
    "delete_attachments",
    "delete_annotation",
    "drop_secret",
    "delete_tasks",
)


class SqliteStore:
    """Created by `open`. Many processes of one machine may have the same file open."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        liveness: Liveness,
        own: Leases,
        on_writer_failure: OnWriterFailure | None = None,
    ) -> None:
        self._path = path
        self._clock = clock
        self._liveness = liveness
        self._leases = own
        self._loop = asyncio.get_running_loop()
        self._sweeper = Sweeper()
        self._backlog = Backlog()
        self._units = Units(process=liveness.token, now_ms=clock.now_ms, limits=own.limits)
        self._files = DatabaseFiles(path)
        self._checkpoints = Checkpoints(self._files)
        self._writer = Writer(
            self._files,
            Turnstile(liveness.folder),
            self._loop,
            self._checkpoints,
            self._run_jobs,
            self._units.forget_all,
            self._settled,
            self._died,
        )
        self._readers = Readers(self._files, self._loop)
        self._on_writer_failure = on_writer_failure
        self._death: StoreUnavailable | None = None
        self._dying: asyncio.Task[None] | None = None
        self._is_closed = False
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        node: str,
        tools: frozenset[str] = frozenset(),
        secret_key: str = "",
        clock: Clock | None = None,
        limits: TurnLimits = NO_LIMITS,
        about: ProcessDescription = NO_DESCRIPTION,
        inbox_version: int = INBOX_VERSION,
        on_writer_failure: OnWriterFailure | None = None,
    ) -> Self:
        """Open the database, after creating or migrating it. Raises `StoreUnusable`, which says what to do.

        `node`, `tools` and `secret_key` (a name, not the key) decide which sessions this process may run; `about`
        describes this process to operators who survey the database; `on_writer_failure` stops the work under this
        process's leases if the store can no longer write."""
        clock = clock or SystemClock()
        path = await asyncio.to_thread(path.resolve)
        liveness = Liveness(path)
        own = Leases(
            liveness,
            node=node,
            tools=tools,
            secret_key=secret_key,
            limits=limits,
            now_ms=clock.now_ms,
            about=about,
            inbox_version=inbox_version,
        )
        await asyncio.to_thread(_prepare, path, liveness, own)
        try:
            store = cls(path, clock, liveness, own, on_writer_failure)
        except (sqlite3.Error, StoreUnavailable) as error:
            liveness.end()
            raise (unusable(error, path) if isinstance(error, sqlite3.Error) else error) from error
        store._checkpoints.start()
        store._writer.start()
        store._readers.start()
        return store

    async def close(self) -> None:
        """Write all jobs that were handed in, free this process's leases and end its threads. Safe to repeat."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    def _settled(self, jobs: int, size: int) -> None:
        self._backlog.remove(jobs, size)

    def _died(self, death: StoreUnavailable) -> None:
        """The writer failed: refuse every call from now on, and give up the leases."""
        self._death = death
        self._dying = asyncio.ensure_future(self._give_up(death))

    async def _give_up(self, death: StoreUnavailable) -> None:
        try:
            await stop_leased_work(self._on_writer_failure, death)
        finally:
            self._liveness.end()  # Other processes now see this one as dead.

    async def _close(self) -> None:
        if self._dying is not None:
            await self._dying
        try:
            await self._write("release", self._leases.leave, needs_sync=False)
        except StoreUnavailable:
            pass  # Other processes will find its liveness lock free instead.
        finally:
            self._is_closed = True
            for thread in (self._writer, self._readers, self._checkpoints):
                await asyncio.to_thread(thread.stop)
            self._liveness.end()

    # Log, inbox and leases

    def commit(self, unit: Unit) -> Awaitable[Outcome]:
        if unit.is_large or not self._backlog.has_room:
            return asyncio.ensure_future(self._commit_later(unit))
        return self._submit(UnitJob(self._future(), unit))

    async def _commit_later(self, unit: Unit) -> Outcome:
        """Commit once there is room and, for a large unit, once a thread has encoded it: the event loop goes on
        meanwhile."""
        if not self._backlog.has_room:
            await self._backlog.room()
        future = self._future()
        job = await asyncio.to_thread(UnitJob, future, unit) if unit.is_large else UnitJob(future, unit)
        self._refuse_if_ended()
        outcome: Outcome = await self._submit(job)
        return outcome

    def put(
        self,
        key: Key,
        item: Item,
        *,
        item_key: str,
        queue_limit: int,
        only_if_idle: bool = False,
        stop_first: str | None = None,
        grants: NewGrants | None = None,
        audit: AuditEntry | None = None,
        max_file_bytes: int = 0,
    ) -> Awaitable[Accepted | Refused]:
        call = encode_put(
            key,
            item,
            item_key=item_key,
            queue_limit=queue_limit,
            only_if_idle=only_if_idle,
            stop_first=stop_first,
            grants=grants,
            max_file_bytes=max_file_bytes,
            limits=self.limits,
            now=self._clock.now_ms(),
        )
        size = Job.size + len(call.payload)
        return self._write("put", lambda db: puts.put(db, call), changes=key, size=size, audit=audit)

    def claim(
        self,
        *,
        limit: int,
        without_models: Collection[str] = (),
        fold_version: int | None = None,
        early: Early | None = None,
    ) -> Awaitable[list[Claim]]:
        without = json.dumps(sorted(without_models))
        return self._write(
            "claim",
            lambda db: self._claim(db, limit, without, fold_version),
            needs_sync=False,
            looks=lambda db: self._leases.has_nothing_to_claim(db, without),
            early=early,
        )

    async def release(self, lease: Lease, *, seen_tail: int, how: ReleaseKind) -> bool:
        return await self._write(
            "release",
            lambda db: self._leases.release(db, lease, seen_tail, how),
            needs_sync=False,
            changes=lease.key,
        )

    async def catch_up(self, key: Key, cursor: Cursor, *, limit: int) -> CaughtUp | None:
        return await self._read(lambda db: rows.catch_up(db, key, cursor, limit))

    # Reading a session's log and inbox

    async def load(self, key: Key, *, fold_version: int) -> Loaded | None:
        return await self._read(lambda db: rows.load(db, key, fold_version, limit=PAGE_EVENTS, max_bytes=PAGE_BYTES))

    async def keep_snapshot(self, lease: Lease, snapshot: Snapshot) -> bool:
        return await self._write(
            "keep_snapshot",
            lambda db: self._leases.keep_snapshot(db, lease, snapshot),
            needs_sync=False,
            is_background=True,
            size=len(snapshot.state),
        )

    async def events_after(
        self, key: Key, position: Position, *, limit: int, max_bytes: int | None = None
    ) -> tuple[Event, ...]:
        return await self._read(lambda db: rows.events_after(db, key, position, limit, max_bytes))

    async def turn_start(self, key: Key) -> Position | None:
        return await self._read(lambda db: rows.turn_start(db, key))

    async def waiting_items(self, key: Key) -> tuple[InboxItem, ...]:
        return await self._read(lambda db: rows.waiting_items(db, key))

    async def tails(self, keys: Sequence[Key]) -> dict[Key, tuple[Fence, int]]:
        return await self._read(lambda db: rows.tails(db, keys))

    # Reading about sessions

    async def row(self, key: Key) -> Row | None:
        return await self._read(lambda db: rows.row(db, key))

    async def rows(
        self, owner: Owner, *, limit: int, after: str | None = None, text: str = "", pinned: bool | None = None
    ) -> Page:
        unsearched = await self._index_owner(owner) if text else 0
        matching = index_rows.matching(query_tokens(owner, text))
        page = await self._read(
            lambda db: rows.rows(db, owner, limit, after, text=text, matching=matching, pinned=pinned)
        )
        return page if not unsearched else msgspec.structs.replace(page, unsearched=unsearched)

    async def glance(self, owner: Owner, *, since: int, limit: int) -> Glance:
        return await self._read(lambda db: rows.glance(db, owner, since, limit))

    async def has_next(self, *, without_models: Collection[str] = ()) -> bool:
        without = json.dumps(sorted(without_models))
        return await self._read(lambda db: self._leases.has_next(db, without))

    async def oldest_unclaimed(self) -> int | None:
        return await self._read(self._leases.oldest_unclaimed)

    async def turns(self, owner: Owner) -> Turns:
        return await self._read(lambda db: rows.turns(db, owner))

    async def stored(self, owner: Owner) -> Stored:
        return await self._read(lambda db: rows.usage(db, owner))

    async def receipt(self, key: Key, item_key: str) -> InboxItem | None:
        return await self._read(lambda db: rows.receipt(db, key, item_key))

    async def requests(self, key: Key, *, answered: bool = False) -> tuple[RequestRow, ...]:
        return await self._read(lambda db: rows.requests(db, key, answered=answered))

    async def prompt(self, digest: str) -> bytes | None:
        return await self._read(lambda db: rows.prompt(db, digest))

    async def ledger(self, owner: Owner, session: SessionId | None = None) -> tuple[LedgerEntry, ...]:
        return await self._read(lambda db: rows.ledger(db, owner, session))

    # The text index

    async def index_logs(self, keys: Sequence[Key]) -> tuple[Key, ...]:
        steps, left = await self._read(lambda db: index_rows.next_steps(db, keys))
        if not steps:
            return tuple(left)
        size = Job.size + 2 * sum(step.size for step in steps)
        moved = await self._write(
            "index_logs",
            lambda db: index_rows.write(db, steps),
            needs_sync=False,
            is_background=True,
            size=size,
        )
        return tuple(dict.fromkeys((*left, *moved)))

    async def search_log(self, key: Key, query: str, *, limit: int, before: Position | None = None) -> tuple[Hit, ...]:
        await bring_up_to_date(self, key)
        return await self._read(lambda db: index_rows.search_log(db, key, query, limit, before))

    async def passages(self, key: Key, first: Position, last: Position, *, limit: int) -> tuple[Event, ...]:
        await bring_up_to_date(self, key)
        return await self._read(lambda db: index_rows.passages(db, key, first, last, limit))

    async def tool_result(self, key: Key, tool_call_id: ToolCallId) -> Event | None:
        await bring_up_to_date(self, key)
        return await self._read(lambda db: index_rows.tool_result(db, key, tool_call_id))

    async def _index_owner(self, owner: Owner) -> int:
        keys = await self._read(lambda db: index_rows.behind(db, owner, MAX_SESSIONS))
        return await index_within_bounds(self, keys)

    # Changing the queue

    async def edit_item(
        self, key: Key, item_key: str, *, text: str, bounds: RoleBounds | None = None
    ) -> Refused | None:
        return await self._write(
            "edit_item", lambda db: puts.edit_item(db, key, item_key, text, self.limits, bounds), changes=key
        )

    async def remove_item(self, key: Key, item_key: str) -> bool:
        return await self._write("remove_item", lambda db: puts.remove_item(db, key, item_key))

    async def reorder_items(self, key: Key, item_keys: Sequence[str]) -> bool:
        return await self._write("reorder_items", lambda db: puts.reorder_items(db, key, item_keys), changes=key)

    # Annotations

    async def see(self, key: Key, position: Position) -> Position | None:
        return await self._write(
            "see",
            lambda db: annotation_rows.see(db, key, position),
            looks=lambda db: annotation_rows.has_seen(db, key, position),
        )

    async def annotate(
        self,
        key: Key,
        *,
        pinned: bool | None = None,
        metadata: Mapping[str, str | None] | None = None,
        max_entries: int,
        max_characters: int,
    ) -> Refused | None:
        return await self._write(
            "annotate",
            lambda db: annotation_rows.annotate(
                db, key, pinned=pinned, metadata=metadata, max_entries=max_entries, max_characters=max_characters
            ),
        )

    # Presence

    async def attach(self, attachment: Attachment, *, ttl_seconds: float) -> tuple[Attachment, ...] | Clash:
        return await self._write(
            "attach",
            lambda db: self._leases.attachments.attach(db, attachment, ttl_seconds),
            needs_sync=False,
            changes=attachment.key,
        )

    async def detach(self, key: Key, attachment_id: str) -> tuple[Attachment, ...] | None:
        return await self._write(
            "detach",
            lambda db: self._leases.attachments.detach(db, key, attachment_id),
            needs_sync=False,
            changes=key,
        )

    async def decline(self, key: Key, attachment_id: str, request_id: RequestId) -> bool:
        return await self._write(
            "decline",
            lambda db: self._leases.attachments.decline(db, key, attachment_id, request_id),
            needs_sync=False,
            changes=key,
        )

    async def attachments(self, key: Key) -> tuple[Attachment, ...]:
        return await self._read(lambda db: self._leases.attachments.attachments(db, key))

    async def attached(self) -> frozenset[tuple[Key, str]]:
        return await self._read(self._leases.attachments.attached)

    # Grants

    async def grant(
        self,
        owner: Owner,
        place: str,
        rules: Sequence[str],
        *,
        origin: GrantOrigin = GRANTED_SOMEWHERE,
        audit: AuditEntry | None = None,
    ) -> TooManyGrants | None:
        return await self._write("grant", lambda db: grant_rows.grant(db, owner, place, rules, origin), audit=audit)

    async def granted(self, owner: Owner, place: str) -> tuple[str, ...]:
        return await self._read(lambda db: grant_rows.granted(db, owner, place))

    async def grants(self, owner: Owner) -> tuple[Grant, ...]:
        return await self._read(lambda db: grant_rows.grants(db, owner))

    async def revoke_grant(self, owner: Owner, place: str, rule: str, *, audit: AuditEntry | None = None) -> bool:
        return await self._write("revoke_grant", lambda db: grant_rows.revoke(db, owner, place, rule), audit=audit)

    # Budgets

    async def budget(self, owner: Owner) -> BudgetNow:
        now = self._clock.now_ms()
        return await self._read(lambda db: budget_rows.budget_now(db, owner, now))

    async def edit_budget(self, owner: Owner, edit: EditBudget, *, audit: AuditEntry | None = None) -> bool:
        now = self._clock.now_ms()
        return await self._write("edit_budget", lambda db: budget_rows.edit(db, owner, edit, now), audit=audit)

    async def budgets(self) -> Mapping[Owner, OwnerBudget]:
        return await self._read(budget_rows.budgets)

    async def spending(
        self, first_day: int, last_day: int, *, owner: Owner | None = None, session: SessionId | None = None
    ) -> tuple[Spending, ...]:
        return await self._read(lambda db: budget_rows.spending(db, owner, first_day, last_day, session))

    async def spending_by(
        self,
        group: SpendingGroup,
        first_day: int,
        last_day: int,
        *,
        owner: Owner | None = None,
        session: SessionId | None = None,
        limit: int = MAX_GROUPS,
    ) -> tuple[Spending, ...]:
        days = (first_day, last_day)
        return await self._read(lambda db: budget_rows.spending_by(db, group, owner, days, session, limit))

    async def settle_left(self, *, limit: int = 1_000) -> int:
        now = self._clock.now_ms()
        return await self._write(
            "settle_left",
            lambda db: budget_rows.settle_left(db, now, limit),
            looks=budget_rows.has_nothing_left,
        )

    # Secrets

    async def keep_secret(self, key: Key, *, keeper: str, sealed: bytes = b"") -> bool:
        return await self._write("keep_secret", lambda db: secret_rows.keep(db, key, keeper, sealed))

    async def lose_secret(self, key: Key, *, keeper: str, sealed: bytes = b"") -> None:
        await self._write("lose_secret", lambda db: secret_rows.lose(db, key, keeper, sealed))

    async def drop_secret(self, key: Key) -> None:
        await self._write("drop_secret", lambda db: secret_rows.drop(db, key))

    async def secret(self, key: Key) -> tuple[str, bytes] | None:
        return await self._read(lambda db: secret_rows.read(db, key))

    # API keys

    async def add_key(self, row: KeyRow, *, audit: AuditEntry | None = None) -> None:
        await self._write("add_key", lambda db: key_rows.add(db, row), audit=audit)

    async def revoke_key(self, key_id: str, *, audit: AuditEntry | None = None) -> bool:
        now = self._clock.now_ms()
        return await self._write("revoke_key", lambda db: key_rows.revoke(db, key_id, now), audit=audit)

    async def valid_key(self, key_id: str, digest: bytes) -> KeyRow | None:
        return await self._read(lambda db: key_rows.valid(db, key_id, digest))

    async def keys(self, key_id: str | None = None) -> tuple[KeyRow, ...]:
        return await self._read(lambda db: key_rows.read(db, key_id))

    # The audit log

    async def audit(self, entry: AuditEntry) -> None:
        await self._write("audit", lambda db: (None, "entry"), audit=entry)

    async def audit_log(self, *, after: int = 0, limit: int) -> AuditPage:
        return await self._read(lambda db: audit_rows.read(db, after, limit))

    async def trim_audit(self, before: int, *, audit: AuditEntry | None = None) -> int:
        return await self._write("trim_audit", lambda db: audit_rows.trim(db, before), audit=audit)

    # Files

    async def add_file(
        self, row: FileRow, *, session: SessionId | None = None, is_stored: bool = False
    ) -> FileRow | Reserved | Refused:
        new = NewFile(row=row, session=session, is_stored=is_stored, limits=self.limits)
        return await self._write("add_file", lambda db: file_rows.add(db, new))

    async def file(self, owner: Owner, file_id: FileId) -> FileRow | None:
        return await self._read(lambda db: file_rows.find(db, owner, file_id))

    async def files(
        self, owner: Owner, *, limit: int, after: str | None = None, session: SessionId | None = None
    ) -> FilePage:
        return await self._read(lambda db: file_rows.page(db, owner, limit, after, session))

    async def keep_file(self, owner: Owner, file_id: FileId, *, is_kept: bool) -> FileRow | None:
        return await self._write("keep_file", lambda db: file_rows.keep(db, owner, file_id, is_kept=is_kept))

    async def delete_file(self, owner: Owner, file_id: FileId) -> bool:
        now = self._clock.now_ms()
        return await self._write("delete_file", lambda db: file_rows.delete(db, owner, file_id, now))

    async def use_files(self, key: Key, file_ids: Sequence[FileId]) -> None:
        await self._write("use_files", lambda db: file_rows.use_of_session(db, key, file_ids))

    async def doom_contents(self, *, unused_ms: int, storing_ms: int) -> tuple[ContentId, ...]:
        now = self._clock.now_ms()
        return await self._write("doom_contents", lambda db: file_rows.doom(db, now, unused_ms, storing_ms))

    async def drop_content(self, content_id: ContentId) -> None:
        await self._write("drop_content", lambda db: file_rows.drop_content(db, content_id))

    async def file_home(self, name: str) -> str:
        return await self._write("file_home", lambda db: file_rows.home(db, name))

    # Tasks

    async def tasks(self, key: Key) -> tuple[TaskRow, ...]:
        return await self._read(lambda db: task_rows.of_session(db, key))

    async def running_tasks(self, key: Key) -> tuple[TaskRow, ...]:
        return await self._read(lambda db: task_rows.running_of_session(db, key))

    async def task(self, key: Key, task_id: TaskId) -> TaskRow | None:
        found = await self._read(lambda db: task_rows.of_session(db, key, task_id))
        return found[0] if found else None

    async def owner_tasks(self, owner: Owner) -> tuple[TaskRow, ...]:
        return await self._read(lambda db: task_rows.of_owner(db, owner))

    async def host_tasks(self, host: str) -> tuple[TaskRow, ...]:
        return await self._read(lambda db: task_rows.of_host(db, host))

    async def stray_tasks(self, host: str, *, silent_seconds: float) -> tuple[TaskRow, ...]:
        return await self._read(lambda db: task_rows.strays(db, host, silent_seconds))

    async def end_task(self, row: TaskRow, ending: TaskEnding, notice: TaskNotice | None, *, host: str) -> bool:
        now = self._clock.now_ms()
        return await self._write(
            "end_task", lambda db: task_rows.end(db, row, ending, notice, host=host, now=now), changes=row.key
        )

    async def stall_task(self, row: TaskRow, notice: TaskNotice | None) -> bool:
        now = self._clock.now_ms()
        return await self._write("stall_task", lambda db: task_rows.stall(db, row, notice, now=now), changes=row.key)

    async def ask_kill(self, key: Key, task_id: TaskId, by: Killer) -> bool:
        return await self._write("ask_kill", lambda db: task_rows.ask_kill(db, key, task_id, by))

    async def drop_task(self, key: Key, task_id: TaskId) -> bool:
        return await self._write("drop_task", lambda db: task_rows.drop(db, key, task_id))

    async def drop_old_tasks(self, *, ended_seconds: float) -> int:
        return await self._write("drop_old_tasks", lambda db: task_rows.drop_old(db, ended_seconds))

    async def see_host(self, host: str) -> None:
        await self._write("see_host", lambda db: task_rows.see_host(db, host), needs_sync=False)

    # Webhooks

    async def add_webhook(self, row: WebhookRow, *, limit: int | None) -> bool:
        return await self._write("add_webhook", lambda db: webhook_rows.add(db, row, limit))

    async def change_webhook(self, owner: Owner, webhook_id: str, change: WebhookChange) -> WebhookRow | None:
        return await self._write("change_webhook", lambda db: webhook_rows.change(db, owner, webhook_id, change))

    async def delete_webhook(self, owner: Owner, webhook_id: str) -> bool:
        return await self._write("delete_webhook", lambda db: webhook_rows.delete(db, owner, webhook_id))

    async def webhooks(self, owner: Owner, webhook_id: str | None = None) -> tuple[WebhookRow, ...]:
        return await self._read(lambda db: webhook_rows.read(db, owner, webhook_id))

    async def webhook(self, webhook_id: str) -> WebhookRow | None:
        return await self._read(lambda db: webhook_rows.one(db, webhook_id))

    async def webhook_backlog(self, webhook_id: str) -> WebhookBacklog:
        return await self._read(lambda db: webhook_rows.backlog(db, webhook_id))

    async def deliveries(
        self,
        owner: Owner,
        webhook_id: str,
        *,
        limit: int,
        after: EventId | None = None,
        state: DeliveryState | None = None,
    ) -> tuple[WebhookDelivery, ...]:
        return await self._read(
            lambda db: webhook_rows.deliveries(db, owner, webhook_id, limit=limit, after=after, state=state)
        )

    async def delivery(self, owner: Owner, webhook_id: str, event_id: EventId) -> WebhookDelivery | None:
        return await self._read(lambda db: webhook_rows.delivery(db, owner, webhook_id, event_id))

    async def test_webhook(self, test: WebhookDelivery, *, limit: int) -> bool:
        return await self._write("test_webhook", lambda db: webhook_rows.add_test(db, test, limit))

    async def send_again(self, owner: Owner, webhook_id: str, event_id: EventId) -> WebhookDelivery | None:
        return await self._write("send_again", lambda db: webhook_rows.send_again(db, owner, webhook_id, event_id))

    async def claim_deliveries(
        self, *, keeper: str, limit: int, working: Collection[tuple[str, EventId]], crowded: Collection[str]
    ) -> tuple[WebhookDelivery, ...]:
        now = self._clock.now_ms()

        def due(db: sqlite3.Connection) -> tuple[WebhookDelivery, ...]:
            return webhook_rows.due(
                db, me=self.process, keeper=keeper, limit=limit, working=working, crowded=crowded, now=now
            )

        return await self._write(
            "claim_deliveries",
            lambda db: webhook_rows.hold(db, due(db), me=self.process, now=now),
            needs_sync=False,
            looks=lambda db: (not due(db), ()),
        )

    async def end_delivery(self, delivery: WebhookDelivery, ending: DeliveryEnding) -> bool:
        return await self._write(
            "end_delivery", lambda db: webhook_rows.end(db, delivery, ending, me=self.process), needs_sync=False
        )

    async def drop_old_deliveries(self, before: int) -> int:
        return await self._write("drop_old_deliveries", lambda db: webhook_rows.drop_old(db, before), needs_sync=False)

    # Lifecycle

    async def identity(self) -> str:
        return await self._read(rows.identity)

    @property
    def limits(self) -> TurnLimits:
        return self._leases.limits

    @property
    def process(self) -> str:
        return self._liveness.token

    async def is_alive(self, process: str) -> bool:
        return await asyncio.to_thread(lambda: not self._liveness.is_dead(process))

    async def held(self) -> tuple[Lease, ...]:
        return await self._read(self._leases.held)

    async def renew(self, *, ttl_seconds: float) -> bool:
        return await self._write("renew", lambda db: self._renew(db, ttl_seconds), needs_sync=False)

    async def changes(self, *, wanted: Callable[[], bool]) -> AsyncIterator[None]:
        """Commits of this process all come from the writer's connection, which does not count them as changes."""
        seen = await self._data_version()
        while True:
            await self._clock.sleep(CHANGES_SECONDS)
            if self._is_closed or self._death is not None:
                return
            if not wanted():
                continue
            try:
                version = await self._data_version()
            except StoreUnavailable:
                yield  # A needless hint is better than a missed one.
                continue
            if version != seen:
                seen = version
                yield

    async def delete(self, key: Key, *, audit: AuditEntry | None = None) -> bool:
        now, step = self._clock.now_ms(), self._leases.fence_step()
        return await self._write("delete", lambda db: _delete(db, key, now, step), changes=key, audit=audit)

    async def backup(self, path: Path) -> None:
        """Raises `FileExistsError` instead of overwriting a file."""
        self._refuse_if_ended()
        self._files.check()
        try:
            await asyncio.to_thread(back_up, self._path, path)
        except sqlite3.Error as error:
            raise unavailable(error) from error

    # Handing jobs to the threads

    def _refuse_if_ended(self) -> None:
        if self._is_closed:
            raise closed()
        if self._death is not None:
            raise writer_died()

    def _future(self) -> asyncio.Future[Any]:
        if self._is_closed or self._death is not None:
            self._refuse_if_ended()
        return self._loop.create_future()

    def _write(
        self,
        verb: str,
        runs: Callable[[sqlite3.Connection], tuple[T, str | None]],
        *,
        needs_sync: bool = True,
        looks: Callable[[sqlite3.Connection], tuple[bool, T]] | None = None,
        changes: Key | None = None,
        early: Callable[[T], None] | None = None,
        is_background: bool = False,
        size: int = Job.size,
        audit: AuditEntry | None = None,
    ) -> asyncio.Future[T]:
        if needs_sync and verb:
            self._backlog.refuse_if_full()
        job = WriterCall(
            self._future(),
            verb,
            audit_rows.told(runs, audit),
            needs_sync=needs_sync,
            looks=looks,
            changes=changes,
            early=early,
            is_background=is_background,
            size=size,
        )
        return self._submit(job)

    def _submit(self, job: Job) -> asyncio.Future[Any]:
        self._backlog.add(job.size)
        self._writer.submit(job)
        return job.future

    async def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        future = self._future()
        self._readers.submit(future, read)
        result: T = await future
        return result

    async def _data_version(self) -> int:
        return await self._write("", lambda db: (_data_version(db)[1], None), looks=_data_version)

    def _run_jobs(self, db: sqlite3.Connection, jobs: Sequence[Job]) -> None:
        """Run units first: all jobs were handed in before any of them got a result, so any order is valid."""
        units = [job for job in jobs if isinstance(job, UnitJob)]
        if units:
            self._sweeper.appended(db, self._units.run(db, units))
        for job in jobs:
            if isinstance(job, WriterCall):
                job.run(db)
                if job.changes is not None:
                    self._units.forget(job.changes)

    def _claim(
        self, db: sqlite3.Connection, limit: int, without: str, fold_version: int | None
    ) -> tuple[list[Claim], str | None]:
        claims, detail = self._leases.claim(db, limit, without)
        for key in (*(claim.lease.key for claim in claims), *self._leases.attachments.take_woken()):
            self._units.forget(key)
        if fold_version is None:
            return claims, detail
        return [rows.loaded_along(db, claim, fold_version) for claim in claims], detail

    def _renew(self, db: sqlite3.Connection, ttl_seconds: float) -> tuple[bool, str]:
        alive, detail = self._leases.renew(db, ttl_seconds)
        if not alive:
            self._units.forget_all()
        return alive, detail


def has_text_search() -> bool:
    """Whether this Python's SQLite has FTS5."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        return bool(db.execute("SELECT sqlite_compileoption_used('ENABLE_FTS5')").fetchone()[0])


def _prepare(path: Path, liveness: Liveness, own: Leases) -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreUnusable(
            "store_sqlite_too_old",
            f"This Python has SQLite {sqlite3.sqlite_version}; Holdfast needs 3.35 or newer. Use a newer Python.",
        )
    if not has_text_search():
        raise StoreUnusable(
            "store_sqlite_without_search",
            "The SQLite of this Python was built without FTS5, which Holdfast needs to search sessions. Use another "
            "build of Python: those of python.org, of Linux distributions and of uv have it.",
        )
    refuse_network(path)
    refuse_folder(path)
    try:
        create_if_missing(path)
        db = connect(path)
        try:
            migrate(db, path)
            liveness.begin()
            _register(db, own)
        finally:
            db.close()
    except (sqlite3.Error, OSError) as error:
        liveness.end()
        raise unusable(error, path) from error


def _register(db: sqlite3.Connection, own: Leases) -> None:
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("BEGIN IMMEDIATE")
    own.register(db, FIRST_TTL_SECONDS)
    crash_points.reach("register:process:before")
    db.execute("COMMIT")
    crash_points.reach("register:process:after")
    own.bury_strangers(db)
    crash_points.reach("register:strangers:after")


def _delete(db: sqlite3.Connection, key: Key, now: int, fence_step: int) -> tuple[bool, str | None]:
    if db.execute(SQL["put_session"], (key.owner, key.session)).fetchone() is None:
        return False, None
    for name in _DELETE_STATEMENTS:
        db.execute(SQL[name], (key.owner, key.session))
    db.execute(SQL["delete_session"], (key.owner, key.session, now, fence_step))
    file_rows.delete_of_session(db, key, now)
    index_rows.drop_deleted(db)
    return True, "session"


def _data_version(db: sqlite3.Connection) -> tuple[bool, int]:
    return True, int(db.execute("PRAGMA data_version").fetchone()[0])
