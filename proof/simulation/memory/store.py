"""The store seam over the tables in memory: one `MemoryStore` is one process's connection to the database."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.events import codec
from holdfast.events.event import Event
from holdfast.events.ids import (
    EventId,
    Fence,
    FileId,
    Owner,
    Position,
    RequestId,
    SessionId,
    TaskId,
    ToolCallId,
    random_id,
)
from holdfast.events.inbox import INBOX_VERSION, InboxItem, Item, UnknownItem
from holdfast.events.role import RoleBounds
from holdfast.events.task import TaskNotice
from holdfast.store import crash_points
from holdfast.store.admission import encode_put
from holdfast.store.audit import AuditEntry, AuditPage
from holdfast.store.budget import MAX_GROUPS, BudgetNow, EditBudget, OwnerBudget, Spending, SpendingGroup
from holdfast.store.clock import Clock, SystemClock
from holdfast.store.errors import StoreUnavailable
from holdfast.store.fences import FenceStep, random_step
from holdfast.store.file_admission import NewFile
from holdfast.store.files import ContentId, FilePage, FileRow, Reserved
from holdfast.store.grants import GRANTED_SOMEWHERE, Grant, GrantOrigin, NewGrants, TooManyGrants, admit_grants
from holdfast.store.keys import KeyRow
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
from proof.simulation.memory import (
    annotations,
    budgets,
    files,
    inbox,
    leases,
    order,
    reading,
    tasks,
    text_index,
    units,
    webhooks,
)
from proof.simulation.memory.leases import FIRST_TTL_SECONDS, Leases
from proof.simulation.memory.tables import Database, SessionRecord, usage_of

CHANGES_SECONDS: Final = 0.2
"""How long after a commit of another process `changes` reports it."""
UNWANTED_SECONDS: Final = 2.0
"""How long it waits before it checks again for a listener."""

T = TypeVar("T")
R = TypeVar("R", Loaded | None, CaughtUp | None)


class Call(NamedTuple):
    """One call to the database."""

    verb: str
    run: Callable[[], Any]
    """Executes the call atomically."""
    unit: Unit | None = None
    """The unit of a commit."""
    lease: Lease | None = None
    """The lease of a release."""
    how: ReleaseKind | None = None


Carrier = Callable[[Call], Awaitable[Any]]
"""Carries a call to the database, and its result back."""


async def at_once(call: Call) -> Any:
    """A connection without delays or failures."""
    await asyncio.sleep(0)
    return call.run()


class MemoryStore:
    """A `Store`. Many may be open on one database, each for another process."""

    def __init__(
        self,
        db: Database,
        *,
        node: str,
        tools: frozenset[str] = frozenset(),
        secret_key: str = "",
        clock: Clock | None = None,
        process: str | None = None,
        carry: Carrier = at_once,
        limits: TurnLimits = NO_LIMITS,
        fence_step: FenceStep = random_step,
        inbox_version: int = INBOX_VERSION,
        unknown_kinds: frozenset[str] = frozenset(),
    ) -> None:
        """This store reads inbox items of `unknown_kinds` as the previous release would."""
        self._db = db
        self._unknown_kinds = unknown_kinds
        self._me = process or random_id()
        self._clock = clock or SystemClock()
        self._carry = carry
        self._leases = Leases(
            db,
            self._me,
            node=node,
            tools=tools,
            secret_key=secret_key,
            limits=limits,
            fence_step=fence_step,
            inbox_version=inbox_version,
        )
        self._leases.register(FIRST_TTL_SECONDS)
        self._is_closed = False
        self._tells_early = False
        self._others_wrote = asyncio.Event()
        db.on_commit.append(self._others_wrote.set)

    async def close(self) -> None:
        if self._is_closed:
            return
        try:
            await self._write("release", self._leases.leave)
        except StoreUnavailable:
            pass  # The others will find out.
        finally:
            self._is_closed = True
            self._others_wrote.set()
            self._db.on_commit.remove(self._others_wrote.set)

    # Log, inbox and leases

    async def commit(self, unit: Unit) -> Outcome:
        readable = units.stored(unit)
        return await self._write(
            "commit",
            lambda: units.commit(self._db, readable, process=self._me, now=self._now(), limits=self.limits),
            about=unit.key,
            unit=unit,
        )

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
        asked = encode_put(
            key,
            item,
            item_key=item_key,
            queue_limit=queue_limit,
            only_if_idle=only_if_idle,
            stop_first=stop_first,
            grants=grants,
            max_file_bytes=max_file_bytes,
            limits=self.limits,
            now=self._now(),
        )
        return await self._write("put", lambda: inbox.put(self._db, asked), about=key, audit=audit)

    async def claim(
        self,
        *,
        limit: int,
        without_models: Collection[str] = (),
        fold_version: int | None = None,
        early: Early | None = None,
    ) -> list[Claim]:
        without = frozenset(without_models)
        here = copy_context()

        def claim() -> tuple[list[Claim], str | None]:
            claims, detail = self._leases.claim(
                limit=limit, without_models=without, fold_version=fold_version, now=self._now()
            )
            claims = [replace(found, loaded=self._known(found.loaded)) for found in claims]
            self._tells_early = not self._tells_early
            if claims and early is not None and self._tells_early:
                # The caller may receive the result in the ordinary way long after this, or never.
                asyncio.get_running_loop().call_soon(early, claims, context=here)
            return claims, detail

        return await self._write("claim", claim)

    async def release(self, lease: Lease, *, seen_tail: int, how: ReleaseKind) -> bool:
        return await self._write(
            "release",
            lambda: self._leases.release(lease, seen_tail, how, self._now()),
            about=lease.key,
            lease=lease,
            how=how,
        )

    async def catch_up(self, key: Key, cursor: Cursor, *, limit: int) -> CaughtUp | None:
        return await self._read("catch_up", lambda: self._known(reading.catch_up(self._db, key, cursor, limit)))

    # Reads of the holder

    async def load(self, key: Key, *, fold_version: int) -> Loaded | None:
        return await self._read("load", lambda: self._known(reading.load(self._db, key, fold_version)))

    async def keep_snapshot(self, lease: Lease, snapshot: Snapshot) -> bool:
        return await self._write("keep_snapshot", lambda: self._leases.keep_snapshot(lease, snapshot))

    async def events_after(
        self, key: Key, position: Position, *, limit: int, max_bytes: int | None = None
    ) -> tuple[Event, ...]:
        return await self._read("events_after", lambda: reading.events_after(self._db, key, position, limit, max_bytes))

    async def turn_start(self, key: Key) -> Position | None:
        return await self._read("turn_start", lambda: reading.turn_start(self._db, key))

    async def waiting_items(self, key: Key) -> tuple[InboxItem, ...]:
        return await self._read("waiting_items", lambda: self._waiting(key))

    def _waiting(self, key: Key) -> tuple[InboxItem, ...]:
        session = self._db.live(key)
        return tuple(self._item(found.item) for found in session.waiting()) if session else ()

    def _known(self, found: R) -> R:
        """The read values, as this release decodes them."""
        if found is None or not self._unknown_kinds:
            return found
        return replace(found, inbox=tuple(map(self._item, found.inbox)))

    def _item(self, found: InboxItem) -> InboxItem:
        if isinstance(found.item, UnknownItem) or inbox.kind(found.item) not in self._unknown_kinds:
            return found
        payload = msgspec.Raw(codec.encode_item(found.item))
        return replace(found, item=UnknownItem(kind=inbox.kind(found.item), payload=payload))

    async def tails(self, keys: Sequence[Key]) -> dict[Key, tuple[Fence, int]]:
        return await self._read("tails", lambda: reading.tails(self._db, keys))

    # Plain queries

    async def row(self, key: Key) -> Row | None:
        return await self._read("row", lambda: reading.row(self._db, key))

    async def rows(
        self, owner: Owner, *, limit: int, after: str | None = None, text: str = "", pinned: bool | None = None
    ) -> Page:
        unsearched = await self._index_owner(owner) if text else 0
        tokens = query_tokens(owner, text)

        def read() -> Page:
            def is_found(session: SessionRecord) -> bool:
                return text_index.mentions(session, tokens)

            page = reading.rows(self._db, owner, limit=limit, after=after, text=text, is_found=is_found, pinned=pinned)
            return replace(page, unsearched=unsearched)

        return await self._read("rows", read)

    async def glance(self, owner: Owner, *, since: int, limit: int) -> Glance:
        return await self._read("glance", lambda: reading.glance(self._db, owner, since, limit))

    async def has_next(self, *, without_models: Collection[str] = ()) -> bool:
        return await self._read("has_next", lambda: self._leases.has_next(without_models))

    async def oldest_unclaimed(self) -> int | None:
        return await self._read("oldest_unclaimed", self._leases.oldest_unclaimed)

    async def turns(self, owner: Owner) -> Turns:
        return await self._read("turns", lambda: order.turns(self._db, owner))

    async def stored(self, owner: Owner) -> Stored:
        return await self._read("stored", lambda: usage_of(self._db, owner))

    async def receipt(self, key: Key, item_key: str) -> InboxItem | None:
        return await self._read("receipt", lambda: self._receipt(key, item_key))

    def _receipt(self, key: Key, item_key: str) -> InboxItem | None:
        session = self._db.live(key)
        found = session.inbox.get(item_key) if session else None
        return self._item(found.item) if found else None

    async def requests(self, key: Key, *, answered: bool = False) -> tuple[RequestRow, ...]:
        return await self._read("requests", lambda: self._requests(key, answered=answered))

    def _requests(self, key: Key, *, answered: bool) -> tuple[RequestRow, ...]:
        session = self._db.live(key)
        return tuple(session.open_requests(answered=answered)) if session else ()

    async def prompt(self, digest: str) -> bytes | None:
        return await self._read("prompt", lambda: self._db.prompts.get(digest))

    async def ledger(self, owner: Owner, session: SessionId | None = None) -> tuple[LedgerEntry, ...]:
        return await self._read("ledger", lambda: reading.ledger(self._db, owner, session))

    # Budgets

    async def budget(self, owner: Owner) -> BudgetNow:
        return await self._read("budget", lambda: budgets.budget_now(self._db, owner))

    async def edit_budget(self, owner: Owner, edit: EditBudget, *, audit: AuditEntry | None = None) -> bool:
        return await self._write("edit_budget", lambda: budgets.edit(self._db, owner, edit), audit=audit)

    async def budgets(self) -> Mapping[Owner, OwnerBudget]:
        return await self._read("budgets", lambda: dict(sorted(self._db.budgets.items())))

    async def spending(
        self, first_day: int, last_day: int, *, owner: Owner | None = None, session: SessionId | None = None
    ) -> tuple[Spending, ...]:
        return await self._read("spending", lambda: budgets.spending(self._db, first_day, last_day, owner, session))

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
        return await self._read(
            "spending_by", lambda: budgets.spending_by(self._db, group, days, owner, session, limit)
        )

    async def settle_left(self, *, limit: int = 1_000) -> int:
        now = self._clock.now_ms()
        return await self._write("settle_left", lambda: budgets.settle_left(self._db, limit, now))

    # The text index

    async def index_logs(self, keys: Sequence[Key]) -> tuple[Key, ...]:
        steps, left = await self._read("next_steps", lambda: text_index.next_steps(self._db, keys))
        if not steps:
            return tuple(left)
        moved = await self._write("index_logs", lambda: text_index.write(self._db, steps))
        return tuple(dict.fromkeys((*left, *moved)))

    async def search_log(self, key: Key, query: str, *, limit: int, before: Position | None = None) -> tuple[Hit, ...]:
        await bring_up_to_date(self, key)
        return await self._read("search_log", lambda: text_index.search_log(self._db, key, query, limit, before))

    async def passages(self, key: Key, first: Position, last: Position, *, limit: int) -> tuple[Event, ...]:
        await bring_up_to_date(self, key)
        return await self._read("passages", lambda: text_index.passages(self._db, key, first, last, limit))

    async def tool_result(self, key: Key, tool_call_id: ToolCallId) -> Event | None:
        await bring_up_to_date(self, key)
        return await self._read("tool_result", lambda: text_index.tool_result(self._db, key, tool_call_id))

    async def _index_owner(self, owner: Owner) -> int:
        keys = await self._read("behind", lambda: text_index.behind(self._db, owner, MAX_SESSIONS))
        return await index_within_bounds(self, keys)

    # The queue, before it is promoted

    async def edit_item(
        self, key: Key, item_key: str, *, text: str, bounds: RoleBounds | None = None
    ) -> Refused | None:
        return await self._write(
            "edit_item", lambda: inbox.edit_item(self._db, key, item_key, text, self.limits, bounds)
        )

    async def remove_item(self, key: Key, item_key: str) -> bool:
        return await self._write("remove_item", lambda: inbox.remove_item(self._db, key, item_key))

    async def reorder_items(self, key: Key, item_keys: Sequence[str]) -> bool:
        return await self._write("reorder_items", lambda: inbox.reorder_items(self._db, key, item_keys))

    # Annotations

    async def see(self, key: Key, position: Position) -> Position | None:
        return await self._write("see", lambda: annotations.see(self._db, key, position))

    async def annotate(
        self,
        key: Key,
        *,
        pinned: bool | None = None,
        metadata: Mapping[str, str | None] | None = None,
        max_entries: int,
        max_characters: int,
    ) -> Refused | None:
        def write() -> tuple[Refused | None, str | None]:
            bounds = {"max_entries": max_entries, "max_characters": max_characters}
            return annotations.annotate(self._db, key, pinned=pinned, metadata=metadata, **bounds)

        return await self._write("annotate", write)

    # Presence

    async def attach(self, attachment: Attachment, *, ttl_seconds: float) -> tuple[Attachment, ...] | Clash:
        return await self._write("attach", lambda: self._leases.attach(attachment, ttl_seconds, self._now()))

    async def detach(self, key: Key, attachment_id: str) -> tuple[Attachment, ...] | None:
        return await self._write("detach", lambda: self._leases.detach(key, attachment_id, self._now()))

    async def decline(self, key: Key, attachment_id: str, request_id: RequestId) -> bool:
        return await self._write("decline", lambda: self._leases.decline(key, attachment_id, request_id, self._now()))

    async def attachments(self, key: Key) -> tuple[Attachment, ...]:
        return await self._read("attachments", lambda: self._leases.attachments(key))

    async def attached(self) -> frozenset[tuple[Key, str]]:
        return await self._read("attached", self._leases.attached)

    # Grants beyond one session

    async def grant(
        self,
        owner: Owner,
        place: str,
        rules: Sequence[str],
        *,
        origin: GrantOrigin = GRANTED_SOMEWHERE,
        audit: AuditEntry | None = None,
    ) -> TooManyGrants | None:
        def write() -> tuple[TooManyGrants | None, str | None]:
            new = admit_grants(self._db.grants_of(owner), place, rules, origin)
            if isinstance(new, TooManyGrants):
                return new, None
            self._db.add_grants(owner, new)
            return None, "rules" if new else None

        return await self._write("grant", write, audit=audit)

    async def granted(self, owner: Owner, place: str) -> tuple[str, ...]:
        def read() -> tuple[str, ...]:
            return tuple(
                sorted({rule for who, where, rule, _ in self._db.grants if who == owner and where in ("", place)})
            )

        return await self._read("granted", read)

    async def grants(self, owner: Owner) -> tuple[Grant, ...]:
        return await self._read("grants", lambda: self._db.grants_of(owner))

    async def revoke_grant(self, owner: Owner, place: str, rule: str, *, audit: AuditEntry | None = None) -> bool:
        def write() -> tuple[bool, str | None]:
            gone = [found for found in self._db.grants if found[:3] == (owner, place, rule)]
            for found in gone:
                del self._db.grants[found]
            return bool(gone), "rule" if gone else None

        return await self._write("revoke_grant", write, audit=audit)

    # Files

    async def add_file(
        self, row: FileRow, *, session: SessionId | None = None, is_stored: bool = False
    ) -> FileRow | Reserved | Refused:
        new = NewFile(row=row, session=session, is_stored=is_stored, limits=self.limits)
        return await self._write("add_file", lambda: files.add(self._db, new))

    async def file(self, owner: Owner, file_id: FileId) -> FileRow | None:
        return await self._read("file", lambda: self._db.files.get((owner, file_id)))

    async def files(
        self, owner: Owner, *, limit: int, after: str | None = None, session: SessionId | None = None
    ) -> FilePage:
        return await self._read("files", lambda: files.page(self._db, owner, limit, after, session))

    async def keep_file(self, owner: Owner, file_id: FileId, *, is_kept: bool) -> FileRow | None:
        return await self._write("keep_file", lambda: files.keep(self._db, owner, file_id, is_kept=is_kept))

    async def delete_file(self, owner: Owner, file_id: FileId) -> bool:
        return await self._write("delete_file", lambda: files.delete(self._db, owner, file_id))

    async def use_files(self, key: Key, file_ids: Sequence[FileId]) -> None:
        await self._write("use_files", lambda: files.use(self._db, key, file_ids))

    async def doom_contents(self, *, unused_ms: int, storing_ms: int) -> tuple[ContentId, ...]:
        now = self._now()
        return await self._write("doom_contents", lambda: files.doom(self._db, now, unused_ms, storing_ms))

    async def drop_content(self, content_id: ContentId) -> None:
        await self._write("drop_content", lambda: files.drop_content(self._db, content_id))

    async def file_home(self, name: str) -> str:
        return await self._write("file_home", lambda: files.home(self._db, name))

    # Secrets of clients

    async def keep_secret(self, key: Key, *, keeper: str, sealed: bytes = b"") -> bool:
        return await self._write("keep_secret", lambda: leases.keep_secret(self._db, key, keeper, sealed))

    async def lose_secret(self, key: Key, *, keeper: str, sealed: bytes = b"") -> None:
        await self._write("lose_secret", lambda: leases.lose_secret(self._db, key, keeper, sealed))

    async def drop_secret(self, key: Key) -> None:
        await self._write("drop_secret", lambda: leases.drop_secret(self._db, key))

    async def secret(self, key: Key) -> tuple[str, bytes] | None:
        def read() -> tuple[str, bytes] | None:
            session = self._db.live(key)
            return session.secret if session else None

        return await self._read("secret", read)

    # API keys

    async def add_key(self, row: KeyRow, *, audit: AuditEntry | None = None) -> None:
        def write() -> tuple[None, str]:
            self._db.api_keys[row.key_id] = row
            return None, "key"

        await self._write("add_key", write, audit=audit)

    async def revoke_key(self, key_id: str, *, audit: AuditEntry | None = None) -> bool:
        def write() -> tuple[bool, str | None]:
            found = self._db.api_keys.get(key_id)
            if found is None or found.revoked_at is not None:
                return False, None
            self._db.api_keys[key_id] = msgspec.structs.replace(found, revoked_at=self._now())
            return True, "key"

        return await self._write("revoke_key", write, audit=audit)

    async def valid_key(self, key_id: str, digest: bytes) -> KeyRow | None:
        def read() -> KeyRow | None:
            found = self._db.api_keys.get(key_id)
            is_valid = found is not None and found.digest == digest and found.revoked_at is None
            return found if is_valid else None

        return await self._read("valid_key", read)

    async def keys(self, key_id: str | None = None) -> tuple[KeyRow, ...]:
        def read() -> tuple[KeyRow, ...]:
            found = [row for row in self._db.api_keys.values() if key_id in (None, row.key_id)]
            return tuple(sorted(found, key=lambda row: (row.created_at, row.key_id)))

        return await self._read("keys", read)

    # The audit log

    async def audit(self, entry: AuditEntry) -> None:
        await self._write("audit", lambda: (None, "entry"), audit=entry)

    async def audit_log(self, *, after: int = 0, limit: int) -> AuditPage:
        return await self._read("audit_log", lambda: self._db.audit_page(after, limit))

    async def trim_audit(self, before: int, *, audit: AuditEntry | None = None) -> int:
        def write() -> tuple[int, str | None]:
            trimmed = self._db.trim_audit(before)
            return trimmed, "entries" if trimmed else None

        return await self._write("trim_audit", write, audit=audit)

    # Tasks

    async def tasks(self, key: Key) -> tuple[TaskRow, ...]:
        return await self._tasks(lambda row: row.key == key)

    async def running_tasks(self, key: Key) -> tuple[TaskRow, ...]:
        return await self._tasks(lambda row: row.key == key and row.status == "running")

    async def task(self, key: Key, task_id: TaskId) -> TaskRow | None:
        found = await self._tasks(lambda row: row.key == key and row.task_id == task_id)
        return found[0] if found else None

    async def owner_tasks(self, owner: Owner) -> tuple[TaskRow, ...]:
        return await self._tasks(lambda row: row.key.owner == owner)

    async def _tasks(self, wanted: Callable[[TaskRow], bool]) -> tuple[TaskRow, ...]:
        return await self._read("tasks", lambda: tuple(row for row in tasks.visible(self._db) if wanted(row)))

    async def host_tasks(self, host: str) -> tuple[TaskRow, ...]:
        return await self._read("host_tasks", lambda: tasks.of_host(self._db, host))

    async def stray_tasks(self, host: str, *, silent_seconds: float) -> tuple[TaskRow, ...]:
        return await self._read("stray_tasks", lambda: tasks.strays(self._db, host, silent_seconds))

    async def end_task(self, row: TaskRow, ending: TaskEnding, notice: TaskNotice | None, *, host: str) -> bool:
        now = self._now()
        return await self._write("end_task", lambda: tasks.end(self._db, row, ending, notice, host=host, now=now))

    async def stall_task(self, row: TaskRow, notice: TaskNotice | None) -> bool:
        now = self._now()
        return await self._write("stall_task", lambda: tasks.stall(self._db, row, notice, now=now))

    async def ask_kill(self, key: Key, task_id: TaskId, by: Killer) -> bool:
        return await self._write("ask_kill", lambda: tasks.ask_kill(self._db, key, task_id, by))

    async def drop_task(self, key: Key, task_id: TaskId) -> bool:
        return await self._write("drop_task", lambda: tasks.drop(self._db, key, task_id))

    async def drop_old_tasks(self, *, ended_seconds: float) -> int:
        return await self._write("drop_old_tasks", lambda: tasks.drop_old(self._db, ended_seconds))

    async def see_host(self, host: str) -> None:
        await self._write("see_host", lambda: tasks.see_host(self._db, host))

    # Webhooks

    async def add_webhook(self, row: WebhookRow, *, limit: int | None) -> bool:
        return await self._write("add_webhook", lambda: webhooks.add(self._db, row, limit))

    async def change_webhook(self, owner: Owner, webhook_id: str, change: WebhookChange) -> WebhookRow | None:
        return await self._write("change_webhook", lambda: webhooks.change(self._db, owner, webhook_id, change))

    async def delete_webhook(self, owner: Owner, webhook_id: str) -> bool:
        return await self._write("delete_webhook", lambda: webhooks.delete(self._db, owner, webhook_id))

    async def webhooks(self, owner: Owner, webhook_id: str | None = None) -> tuple[WebhookRow, ...]:
        return await self._read("webhooks", lambda: webhooks.read(self._db, owner, webhook_id))

    async def webhook(self, webhook_id: str) -> WebhookRow | None:
        return await self._read("webhook", lambda: self._db.webhooks.get(webhook_id))

    async def webhook_backlog(self, webhook_id: str) -> WebhookBacklog:
        return await self._read("backlog", lambda: webhooks.backlog(self._db, webhook_id))

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
            "deliveries",
            lambda: webhooks.deliveries(self._db, owner, webhook_id, limit=limit, after=after, state=state),
        )

    async def delivery(self, owner: Owner, webhook_id: str, event_id: EventId) -> WebhookDelivery | None:
        return await self._read("delivery", lambda: webhooks.delivery(self._db, owner, webhook_id, event_id))

    async def test_webhook(self, test: WebhookDelivery, *, limit: int) -> bool:
        return await self._write("test_webhook", lambda: webhooks.add_test(self._db, test, limit))

    async def send_again(self, owner: Owner, webhook_id: str, event_id: EventId) -> WebhookDelivery | None:
        return await self._write("send_again", lambda: webhooks.send_again(self._db, owner, webhook_id, event_id))

    async def claim_deliveries(
        self, *, keeper: str, limit: int, working: Collection[tuple[str, EventId]], crowded: Collection[str]
    ) -> tuple[WebhookDelivery, ...]:
        now = self._now()

        def write() -> tuple[tuple[WebhookDelivery, ...], str | None]:
            return webhooks.claim(
                self._db, me=self._me, keeper=keeper, limit=limit, working=working, crowded=crowded, now=now
            )

        return await self._write("claim_deliveries", write)

    async def end_delivery(self, delivery: WebhookDelivery, ending: DeliveryEnding) -> bool:
        return await self._write("end_delivery", lambda: webhooks.end(self._db, delivery, ending, me=self.process))

    async def drop_old_deliveries(self, before: int) -> int:
        return await self._write("drop_old_deliveries", lambda: webhooks.drop_old(self._db, before))

    async def identity(self) -> str:
        return await self._read("identity", lambda: self._db.identity)

    # The process

    @property
    def limits(self) -> TurnLimits:
        return self._leases.limits

    @property
    def process(self) -> str:
        return self._me

    async def is_alive(self, process: str) -> bool:
        return await self._read("is_alive", lambda: not self._db.is_dead(process))

    async def held(self) -> tuple[Lease, ...]:
        return await self._read("held", self._leases.held)

    async def renew(self, *, ttl_seconds: float) -> bool:
        return await self._write("renew", lambda: self._leases.renew(ttl_seconds))

    async def changes(self, *, wanted: Callable[[], bool]) -> AsyncIterator[None]:
        seen = self._db.commits_of_others(self._me)
        while not self._is_closed:
            if self._db.commits_of_others(self._me) == seen:
                self._others_wrote.clear()
                await self._others_wrote.wait()
            await self._clock.sleep(CHANGES_SECONDS if wanted() else UNWANTED_SECONDS)
            version = self._db.commits_of_others(self._me)
            if wanted() and version != seen and not self._is_closed:
                seen = version
                yield

    async def delete(self, key: Key, *, audit: AuditEntry | None = None) -> bool:
        return await self._write("delete", lambda: leases.delete(self._db, key, self._leases.fence_step()), audit=audit)

    async def backup(self, path: Path) -> None:
        raise StoreUnavailable("store_failed", "What is only in memory can't be backed up.")

    # How calls are made

    def _now(self) -> int:
        return self._clock.now_ms()

    async def _write(
        self,
        verb: str,
        run: Callable[[], tuple[T, str | None]],
        *,
        about: Key | None = None,
        unit: Unit | None = None,
        lease: Lease | None = None,
        how: ReleaseKind | None = None,
        audit: AuditEntry | None = None,
    ) -> T:
        def write() -> T:
            result, detail = run()
            if detail is not None:
                if audit is not None:
                    self._db.add_audit(audit)
                # A process that dies in either has, or has not, written: both come to the same here.
                crash_points.reach(f"{verb}:{detail}:before")
                self._db.committed(self._me)
                self._db.last_write = f"{verb}:{detail}" if about is None else f"{about.session} {verb}:{detail}"
                crash_points.reach(f"{verb}:{detail}:after")
            return result

        result: T = await self._call(Call(verb, write, unit, lease, how))
        return result

    async def _read(self, verb: str, run: Callable[[], T]) -> T:
        result: T = await self._call(Call(verb, run))
        return result

    async def _call(self, call: Call) -> Any:
        if self._is_closed:
            raise StoreUnavailable("store_closed", "The store is closed.")
        return await self._carry(call)
