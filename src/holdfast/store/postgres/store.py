"""The store on PostgreSQL. Units go through one flusher per process and are committed in groups; every other write is a
transaction of its own; renewals have a connection that no other work can block."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, Self, TypeVar

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import EventId, Fence, FileId, Owner, Position, RequestId, SessionId, TaskId, ToolCallId
from holdfast.events.inbox import INBOX_VERSION, InboxItem, Item
from holdfast.events.role import RoleBounds
from holdfast.events.task import TaskNotice
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
from holdfast.store.postgres import (
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
from holdfast.store.postgres.changes import Announcer, Changes
from holdfast.store.postgres.connections import (
    TRY_LOCK_SECONDS,
    DatabaseAddress,
    Lane,
    Link,
    Reads,
    Writes,
    read,
    write,
)
from holdfast.store.postgres.flusher import Flusher
from holdfast.store.postgres.leases import Leases
from holdfast.store.postgres.liveness import Liveness
from holdfast.store.postgres.migrations import migrated
from holdfast.store.postgres.units import UnitJob, Units
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

READING: Final = 4
WRITING: Final = 4
WAITING: Final = 2
"""A process's connections for reads, for writes that are not units, and for such writes that wait for a lock. With the
connections of the flusher, the renewals and the listener it has at most thirteen."""

BUSY_PAUSES_SECONDS: Final = (0.005, 0.01, 0.02)
"""The pauses after which a claim tries again the owners that it had to skip."""

T = TypeVar("T")

log = logging.getLogger(__name__)

_DELETE_STATEMENTS: Final = (
    "delete_events",
    "delete_segments",
    "delete_inbox",
    "delete_requests",
    "delete_snapshot",
    "delete_attachments",
    "delete_annotation",
    "drop_secret",
    "delete_tasks",
)


class PostgresStore:
    """Created by `open`. Any number of processes, on any number of machines, may have the same database open."""

    def __init__(
        self,
        address: DatabaseAddress,
        direct: DatabaseAddress | None,
        clock: Clock,
        token: str,
        own: Leases,
        on_writer_failure: OnWriterFailure | None = None,
    ) -> None:
        self._clock = clock
        self._token = token
        self._leases = own
        self._reads = Lane(address, size=READING)
        impatient = address.impatient(lock_seconds=TRY_LOCK_SECONDS)
        self._writes = Lane(impatient, size=WRITING)
        self._waits = Lane(impatient, size=WAITING)
        self._renewals = Lane(address, size=1)
        self._flushes = Lane(impatient, size=1)
        self._announcer = Announcer(self._writes, token)
        listens_at = direct if direct is not None else None if address.is_pooled else address
        self._changes = Changes(listens_at, self._reads, clock, token)
        self._liveness = Liveness(self._renewals, own)
        self._backlog = Backlog()
        units = Units(process=token, now_ms=clock.now_ms, limits=own.limits)
        self._flusher = Flusher(self._flushes, units, self._announcer.announce, self._settled, self._died)
        self._on_writer_failure = on_writer_failure
        self._death: StoreUnavailable | None = None
        self._dying: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[Any]] = set()
        self._keeping = asyncio.Lock()
        self._indexing = asyncio.Lock()
        self._is_closed = False
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        node: str,
        tools: frozenset[str] = frozenset(),
        secret_key: str = "",
        is_pooled: bool = False,
        direct_url: str | None = None,
        clock: Clock | None = None,
        limits: TurnLimits = NO_LIMITS,
        about: ProcessDescription = NO_DESCRIPTION,
        inbox_version: int = INBOX_VERSION,
        on_writer_failure: OnWriterFailure | None = None,
    ) -> Self:
        """Open the database, after migrating it. Raises `StoreUnusable` or `StoreUnavailable`, which say what to do.

        `node`, `tools` and `secret_key` (a name, not the key) decide which sessions this process may run. With
        `is_pooled` there is a pooler at `url` that may give each transaction another connection; then `direct_url`,
        which bypasses it, is used for migrations and for listening. `on_writer_failure` stops the work under this
        process's leases if the store can no longer write."""
        clock = clock or SystemClock()
        address = DatabaseAddress(url, is_pooled=is_pooled)
        direct = DatabaseAddress(direct_url) if direct_url is not None else None
        first = await migrated(direct or address)
        token = secrets.token_hex(16)
        own = Leases(
            token=token,
            node=node,
            tools=tools,
            secret_key=secret_key,
            limits=limits,
            now_ms=clock.now_ms,
            about=about,
            inbox_version=inbox_version,
        )
        store = cls(address, direct, clock, token, own, on_writer_failure)
        if direct is None:
            store._renewals.adopt(first)
        else:
            await first.close(timeout=5)
        try:
            await write(store._renewals, "register", own.begin)
        except BaseException:
            await store._renewals.close()
            raise
        store._announcer.start()
        store._liveness.start()
        store._flusher.start()
        return store

    async def close(self) -> None:
        """Write all units that were handed in, free this process's leases and close all connections. Safe to repeat."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    def _settled(self, jobs: int, size: int) -> None:
        self._backlog.remove(jobs, size)

    def _died(self, death: StoreUnavailable) -> None:
        """The flusher failed: refuse every call from now on, and give up the leases."""
        self._backlog.clear()
        if not self._is_closed:
            self._death = death
            self._dying = asyncio.ensure_future(self._give_up(death))

    async def _give_up(self, death: StoreUnavailable) -> None:
        try:
            await stop_leased_work(self._on_writer_failure, death)
        finally:
            await self._leave()

    async def _leave(self) -> None:
        """Free this process's leases, so that other processes can claim the sessions at once."""
        await self._liveness.stop()
        try:
            await write(self._renewals, "release", self._leases.leave)
            self._announcer.announce()
        except StoreUnavailable:
            pass  # Other processes will find its leases expired instead.

    async def _close(self) -> None:
        self._is_closed = True
        if self._dying is not None:
            await self._dying
        await self._flusher.stop()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._leave()
        await self._announcer.stop()
        await self._changes.close()
        for lane in (self._flushes, self._writes, self._waits, self._reads, self._renewals):
            await lane.close()

    # Log, inbox and leases

    async def commit(self, unit: Unit) -> Outcome:
        if not self._backlog.has_room:
            await self._backlog.room()
        future = asyncio.get_running_loop().create_future()
        job = await asyncio.to_thread(UnitJob, future, unit) if unit.is_large else UnitJob(future, unit)
        self._refuse_if_closed()
        self._backlog.add(job.size)
        self._flusher.submit(job)
        outcome: Outcome = await future
        return outcome

    async def put(
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
    ) -> Accepted | Refused:
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
        return await self._write("put", lambda db: puts.put(db, call), audit=audit)

    async def claim(
        self,
        *,
        limit: int,
        without_models: Collection[str] = (),
        fold_version: int | None = None,
        early: Early | None = None,
    ) -> list[Claim]:
        if not await self._read(lambda db: self._leases.is_anything_to_claim(db, without_models)):
            return []
        claims = await self._claimed(limit, without_models)
        return claims if fold_version is None or not claims else await self._loaded_along(claims, fold_version)

    async def _claimed(self, limit: int, without_models: Collection[str]) -> list[Claim]:
        """A claim skips owners whose turns another process is counting right now. Most processes finish in a moment;
        one that does not may be frozen, and its owners are left to the next claim."""
        known = self._leases.busy
        for pause in BUSY_PAUSES_SECONDS:
            claims = await self._write(
                "claim", lambda db: self._leases.claim(db, limit, without_models), announces=False
            )
            if claims or self._leases.busy <= known:
                return claims
            await asyncio.sleep(pause)
        return await self._write("claim", lambda db: self._leases.claim(db, limit, without_models), announces=False)

    async def release(self, lease: Lease, *, seen_tail: int, how: ReleaseKind) -> bool:
        return await self._write("release", lambda db: self._leases.release(db, lease, seen_tail, how))

    async def catch_up(self, key: Key, cursor: Cursor, *, limit: int) -> CaughtUp | None:
        return await self._read(lambda db: rows.catch_up(db, key, cursor, limit), is_one=False)

    # Reading a session's log and inbox

    async def load(self, key: Key, *, fold_version: int) -> Loaded | None:
        return await self._read(
            lambda db: rows.load(db, key, fold_version, limit=PAGE_EVENTS, max_bytes=PAGE_BYTES), is_one=False
        )

    async def keep_snapshot(self, lease: Lease, snapshot: Snapshot) -> bool:
        async with self._keeping:  # One at a time: snapshots are large, and other writes need the connections more.
            return await self._write(
                "keep_snapshot",
                lambda db: self._leases.keep_snapshot(db, lease, snapshot),
                is_synced=False,
                announces=False,
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
            lambda db: rows.rows(db, owner, limit=limit, after=after, text=text, matching=matching, pinned=pinned),
            is_one=False,
        )
        return page if not unsearched else msgspec.structs.replace(page, unsearched=unsearched)

    async def glance(self, owner: Owner, *, since: int, limit: int) -> Glance:
        return await self._read(lambda db: rows.glance(db, owner, since, limit), is_one=False)

    async def has_next(self, *, without_models: Collection[str] = ()) -> bool:
        return await self._read(lambda db: self._leases.has_next(db, without_models), is_one=False)

    async def oldest_unclaimed(self) -> int | None:
        return await self._read(self._leases.oldest_unclaimed, is_one=False)

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
        async with self._indexing:  # One at a time: other writes need the connections more.
            steps, left = await self._read(lambda db: index_rows.next_steps(db, keys), is_one=False)
            if not steps:
                return tuple(left)
            moved = await self._write(
                "index_logs", lambda db: index_rows.write(db, steps), is_synced=False, announces=False
            )
        return tuple(dict.fromkeys((*left, *moved)))

    async def search_log(self, key: Key, query: str, *, limit: int, before: Position | None = None) -> tuple[Hit, ...]:
        await bring_up_to_date(self, key)
        return await self._read(lambda db: index_rows.search_log(db, key, query, limit, before), is_one=False)

    async def passages(self, key: Key, first: Position, last: Position, *, limit: int) -> tuple[Event, ...]:
        await bring_up_to_date(self, key)
        return await self._read(lambda db: index_rows.passages(db, key, first, last, limit), is_one=False)

    async def tool_result(self, key: Key, tool_call_id: ToolCallId) -> Event | None:
        await bring_up_to_date(self, key)
        return await self._read(lambda db: index_rows.tool_result(db, key, tool_call_id), is_one=False)

    async def _index_owner(self, owner: Owner) -> int:
        keys = await self._read(lambda db: index_rows.behind(db, owner, MAX_SESSIONS))
        return await index_within_bounds(self, keys)

    # Changing the queue

    async def edit_item(
        self, key: Key, item_key: str, *, text: str, bounds: RoleBounds | None = None
    ) -> Refused | None:
        return await self._write("edit_item", lambda db: puts.edit_item(db, key, item_key, text, self.limits, bounds))

    async def remove_item(self, key: Key, item_key: str) -> bool:
        return await self._write("remove_item", lambda db: puts.remove_item(db, key, item_key))

    async def reorder_items(self, key: Key, item_keys: Sequence[str]) -> bool:
        return await self._write("reorder_items", lambda db: puts.reorder_items(db, key, item_keys))

    # Annotations

    async def see(self, key: Key, position: Position) -> Position | None:
        is_known, seen = await self._read(lambda db: annotation_rows.has_seen(db, key, position))
        return seen if is_known else await self._write("see", lambda db: annotation_rows.see(db, key, position))

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
            "attach", lambda db: self._leases.attachments.attach(db, attachment, ttl_seconds), is_synced=False
        )

    async def detach(self, key: Key, attachment_id: str) -> tuple[Attachment, ...] | None:
        return await self._write(
            "detach", lambda db: self._leases.attachments.detach(db, key, attachment_id), is_synced=False
        )

    async def decline(self, key: Key, attachment_id: str, request_id: RequestId) -> bool:
        return await self._write(
            "decline", lambda db: self._leases.attachments.decline(db, key, attachment_id, request_id), is_synced=False
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
        return await self._read(lambda db: budget_rows.budget_now(db, owner), is_one=False)

    async def edit_budget(self, owner: Owner, edit: EditBudget, *, audit: AuditEntry | None = None) -> bool:
        return await self._write("edit_budget", lambda db: budget_rows.edit(db, owner, edit), audit=audit)

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
        if not await self._read(lambda db: db.rows("reservations_left", 1)):
            return 0
        now = self._clock.now_ms()
        return await self._write("settle_left", lambda db: budget_rows.settle_left(db, limit, now))

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
        await self._write("audit", lambda db: audit_rows.nothing_else(db), audit=entry)

    async def audit_log(self, *, after: int = 0, limit: int) -> AuditPage:
        self._refuse_if_closed()
        return await self._finished(audit_rows.read_page(self._reads, after, limit))

    async def trim_audit(self, before: int, *, audit: AuditEntry | None = None) -> int:
        return await self._write("trim_audit", lambda db: audit_rows.trim(db, before), audit=audit)

    # Files

    async def add_file(
        self, row: FileRow, *, session: SessionId | None = None, is_stored: bool = False
    ) -> FileRow | Reserved | Refused:
        new = NewFile(row=row, session=session, is_stored=is_stored, limits=self.limits)
        return await self._write("add_file", lambda db: file_rows.add(db, new), announces=False)

    async def file(self, owner: Owner, file_id: FileId) -> FileRow | None:
        return await self._read(lambda db: file_rows.find(db, owner, file_id))

    async def files(
        self, owner: Owner, *, limit: int, after: str | None = None, session: SessionId | None = None
    ) -> FilePage:
        return await self._read(lambda db: file_rows.page(db, owner, limit, after, session))

    async def keep_file(self, owner: Owner, file_id: FileId, *, is_kept: bool) -> FileRow | None:
        return await self._write(
            "keep_file", lambda db: file_rows.keep(db, owner, file_id, is_kept=is_kept), announces=False
        )

    async def delete_file(self, owner: Owner, file_id: FileId) -> bool:
        now = self._clock.now_ms()
        return await self._write("delete_file", lambda db: file_rows.delete(db, owner, file_id, now), announces=False)

    async def use_files(self, key: Key, file_ids: Sequence[FileId]) -> None:
        await self._write("use_files", lambda db: file_rows.use_of_session(db, key, file_ids), announces=False)

    async def doom_contents(self, *, unused_ms: int, storing_ms: int) -> tuple[ContentId, ...]:
        now = self._clock.now_ms()
        return await self._write(
            "doom_contents", lambda db: file_rows.doom(db, now, unused_ms, storing_ms), announces=False
        )

    async def drop_content(self, content_id: ContentId) -> None:
        await self._write("drop_content", lambda db: file_rows.drop_content(db, content_id), announces=False)

    async def file_home(self, name: str) -> str:
        return await self._write("file_home", lambda db: file_rows.home(db, name), announces=False)

    # Tasks

    async def tasks(self, key: Key) -> tuple[TaskRow, ...]:
        return await self._read(lambda db: task_rows.of_session(db, key))

    async def running_tasks(self, key: Key) -> tuple[TaskRow, ...]:
        return await self._read(lambda db: task_rows.of_session(db, key, only_running=True))

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
        return await self._write("end_task", lambda db: task_rows.end(db, row, ending, notice, host=host, now=now))

    async def stall_task(self, row: TaskRow, notice: TaskNotice | None) -> bool:
        now = self._clock.now_ms()
        return await self._write("stall_task", lambda db: task_rows.stall(db, row, notice, now=now))

    async def ask_kill(self, key: Key, task_id: TaskId, by: Killer) -> bool:
        return await self._write("ask_kill", lambda db: task_rows.ask_kill(db, key, task_id, by))

    async def drop_task(self, key: Key, task_id: TaskId) -> bool:
        return await self._write("drop_task", lambda db: task_rows.drop(db, key, task_id))

    async def drop_old_tasks(self, *, ended_seconds: float) -> int:
        return await self._write("drop_old_tasks", lambda db: task_rows.drop_old(db, ended_seconds))

    async def see_host(self, host: str) -> None:
        await self._write("see_host", lambda db: task_rows.see_host(db, host), is_synced=False, announces=False)

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
        if not await self._read(webhook_rows.has_pending):
            return ()
        now = self._clock.now_ms()
        return await self._write(
            "claim_deliveries",
            lambda db: webhook_rows.claim(
                db, me=self.process, keeper=keeper, limit=limit, working=working, crowded=crowded, now=now
            ),
            is_synced=False,
            announces=False,
        )

    async def end_delivery(self, delivery: WebhookDelivery, ending: DeliveryEnding) -> bool:
        return await self._write(
            "end_delivery",
            lambda db: webhook_rows.end(db, delivery, ending, me=self.process),
            is_synced=False,
            announces=False,
        )

    async def drop_old_deliveries(self, before: int) -> int:
        return await self._write(
            "drop_old_deliveries", lambda db: webhook_rows.drop_old(db, before), is_synced=False, announces=False
        )

    # Lifecycle

    @property
    def limits(self) -> TurnLimits:
        return self._leases.limits

    async def identity(self) -> str:
        return await self._read(rows.identity)

    @property
    def process(self) -> str:
        return self._token

    async def is_alive(self, process: str) -> bool:
        return await self._read(lambda db: self._leases.is_alive(db, process))

    async def held(self) -> tuple[Lease, ...]:
        return await self._read(self._leases.held)

    async def renew(self, *, ttl_seconds: float) -> bool:
        return await self._write(
            "renew",
            lambda db: self._leases.renew(db, ttl_seconds),
            lane=self._renewals,
            is_synced=False,
            announces=False,
        )

    async def changes(self, *, wanted: Callable[[], bool]) -> AsyncIterator[None]:
        async for _ in self._changes.heard(wanted=wanted):
            yield

    async def delete(self, key: Key, *, audit: AuditEntry | None = None) -> bool:
        now, step = self._clock.now_ms(), self._leases.fence_step()
        return await self._write("delete", lambda db: _delete(db, key, now, step), audit=audit)

    async def backup(self, path: Path) -> NoReturn:
        raise StoreUnusable(
            "store_backed_up_elsewhere",
            "A database on PostgreSQL is backed up with its own tools: pg_dump, or the archive of its write-ahead log.",
        )

    # Handing work to the connections

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("store_closed", "The store is closed. Open it again.")
        if self._death is not None:
            raise writer_died()

    async def _write(
        self,
        verb: str,
        work: Writes[T],
        *,
        lane: Lane | None = None,
        is_synced: bool = True,
        announces: bool = True,
        audit: AuditEntry | None = None,
    ) -> T:
        self._refuse_if_closed()
        work = audit_rows.told(work, audit)
        patient = self._waits if lane is None else None
        result = await self._finished(write(lane or self._writes, verb, work, is_synced=is_synced, patient=patient))
        if announces:
            self._announcer.announce()
        return result

    async def _read(self, work: Reads[T], *, is_one: bool = True) -> T:
        self._refuse_if_closed()
        return await self._finished(read(self._reads, work, is_one=is_one))

    async def _finished(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work to its end, also if its caller no longer waits: a statement that is cancelled costs a connection."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # Retrieved here, in case the caller no longer waits for it.

    async def _loaded_along(self, claims: list[Claim], fold_version: int) -> list[Claim]:
        """The claims with their small sessions, read after the commit: nothing is locked, and all claims are counted.
        If the read fails for one session, the holder loads each of them by itself, and only that one fails."""
        try:
            return await self._read(lambda db: rows.loaded_along(db, claims, fold_version), is_one=False)
        except Exception as error:
            log.warning("no session could be read along with its claim: %s", error)
            return claims


async def _delete(db: Link, key: Key, now: int, fence_step: int) -> tuple[bool, str | None]:
    if await db.row("lock_session", key.owner, key.session) is None:
        return False, None
    for name in _DELETE_STATEMENTS:
        await db.run(name, key.owner, key.session)
    await file_rows.delete_of_session(db, key, now)
    await db.run("delete_session", key.owner, key.session, now, fence_step)
    return True, "session"
