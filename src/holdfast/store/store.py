"""The seam between the runtime and its database: the `Store` protocol, and the values that its methods take and return.

The protocol groups its methods by the role that the database plays: log, inbox, leases, presence, reading, tasks,
webhooks, keys and grants, budgets, the audit log, annotations, lifecycle. Two things are serialised, separately. The
session row serialises the log: every append takes its positions in one statement on that row. The lease serialises
execution: every write that makes progress carries the fence of its claim, and is refused after a later claim. Anyone
may put into an inbox.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import (
    EventId,
    Fence,
    FileId,
    MessageId,
    Owner,
    Position,
    RequestId,
    SessionId,
    TaskId,
    ToolCallId,
    TurnId,
)
from holdfast.events.ids import Key as Key
from holdfast.events.inbox import InboxItem, Item
from holdfast.events.message import BlockKind
from holdfast.events.request import RequestKind
from holdfast.events.role import RoleBounds
from holdfast.events.task import TaskNotice
from holdfast.store.audit import AuditEntry, AuditPage
from holdfast.store.budget import (
    MAX_GROUPS,
    Ask,
    BudgetNow,
    EditBudget,
    Granted,
    OverBudget,
    OwnerBudget,
    Spending,
    SpendingGroup,
)
from holdfast.store.files import ContentId, FilePage, FileRow, Reserved
from holdfast.store.grants import GRANTED_SOMEWHERE, Grant, GrantOrigin, NewGrants, TooManyGrants
from holdfast.store.keys import KeyRow
from holdfast.store.tasks import Killer, TaskChange, TaskEnding, TaskRow
from holdfast.store.text_index import Hit
from holdfast.store.turn_limits import Stored, TurnLimits, Turns
from holdfast.store.webhooks import (
    DeliveryEnding,
    DeliveryState,
    WebhookBacklog,
    WebhookChange,
    WebhookDelivery,
    WebhookRow,
)

Status = Literal["idle", "queued", "running", "waiting"]


class Lease(msgspec.Struct, frozen=True):
    """The right to make progress in a session, until another claim raises the fence."""

    key: Key
    fence: Fence


# The parts of a unit


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a session that a unit creates."""

    host: str | None = None
    """The machine that it must run on; None where its files are shared or not needed."""
    tools: tuple[str, ...] = ()
    """Tools that a process must have to run it."""
    model: str | None = None
    """The model that a process must be able to use to run it."""
    parent: SessionId | None = None
    """The session in whose turn the runtime started it: it runs in that turn's slot."""
    made_from: SessionId | None = None
    """The session that a client copied it from, or named as its parent. The new session takes up a slot of its own."""
    metadata: Mapping[str, str] = {}
    created_at: int


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """An open request; finding it does not read the log."""

    request_id: RequestId
    kind: RequestKind
    turn_id: TurnId
    tool_call_id: ToolCallId
    title: str
    """One line for people that says what the session asks. Its length is bounded, however long the call is."""
    opened_at: int


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a message in flight. Its text starts at `offset` (bytes of UTF-8) of block `block`."""

    message_id: MessageId
    attempt: int
    block: int
    offset: int
    kind: BlockKind
    text: str
    tool_call_id: str = ""
    name: str = ""


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one attempt at a model call; kept when its session is deleted. None: unknown."""

    message_id: MessageId
    attempt: int
    model: str
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cost_microdollars: int | None
    time: int
    cache_write_tokens: int | None = None
    refused: bool = False
    """The provider answered with a refusal: the attempt costs nothing."""


class PromptRow(msgspec.Struct, frozen=True):
    """The content of a prompt that sessions refer to by its digest. It is the same in all of them, and stays when they
    are deleted: there are as many as releases and sets of tools were used."""

    digest: str
    content: bytes


class Snapshot(msgspec.Struct, frozen=True):
    """A folded state, to fold on from. Only a cache: losing it costs time."""

    fold_version: int
    position: Position
    state: bytes


class Promotion(msgspec.Struct, frozen=True):
    """An inbox item that leaves the queue in this unit, and the outcome that its receipt states from then on."""

    sequence: int
    outcome: str
    refused: bool = False


LARGE_UNIT_EVENTS: Final = 1_000
"""The number of events in a page."""


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """All the writes of one decision for one session: all of them or none.

    Without a fence it may hold only records, and the ledger entries of a model call outside the turns, unless it
    creates the session: a session that does not exist yet has no holder.
    """

    key: Key
    fence: Fence | None
    events: tuple[Event, ...] = ()
    promotes: tuple[Promotion, ...] = ()
    opens: tuple[RequestRow, ...] = ()
    closes: tuple[RequestId, ...] = ()
    """The unit is rejected if an answer to one of them was accepted and the unit does not promote it: an accepted
    answer counts."""
    segments: tuple[Segment, ...] = ()
    drops_segments: bool = False
    """The message in flight is in `events` now (or never will be): its segments are deleted."""
    opens_tasks: tuple[TaskRow, ...] = ()
    """Commands that are about to be started; a command that already has a row keeps it."""
    changes_tasks: tuple[TaskChange, ...] = ()
    ends_commands: bool = False
    """The keeper of this session's commands is to kill those that a turn waited for."""
    ledger: tuple[LedgerEntry, ...] = ()
    creates: NewSession | None = None
    supposes_head: Position | None = None
    """The unit is committed only if this is the head before it: its decision knew every appended event."""
    turn_id: TurnId | None = None
    """The unfinished turn after this unit; read together with `status`."""
    status: Status | None = None
    """The session row's status from now on; None leaves it (and the turn) as it is."""
    title: str | None = None
    model: str | None = None
    """The model that the session uses from now on; None leaves it as it is."""
    prompt: PromptRow | None = None
    """A prompt that the events refer to. It is written unless the store has it."""
    releases: tuple[tuple[MessageId, int], ...] = ()
    """Attempts at model calls, with money reserved for them, that will not be made."""
    reserves: Ask | None = None
    """The model call that comes next. If its cost has no room in a budget, the unit is rejected."""
    audit: tuple[AuditEntry, ...] = ()
    """Entries of the audit log about these writes."""
    makes_progress: bool = False
    """A finished step or a recorded tool result: the session is not poison."""

    @property
    def is_large(self) -> bool:
        """Whether it creates a session with so many events that writing them takes a while. No other unit is large."""
        return self.creates is not None and len(self.events) > LARGE_UNIT_EVENTS


class Committed(msgspec.Struct, frozen=True):
    head: Position
    """The position of the unit's last event; the unchanged head if the unit had no events."""
    inbox_tail: int
    granted: Granted | None = None
    """For a unit with `reserves`."""


class FenceMissed(msgspec.Struct, frozen=True):
    """A later claim took the session, or it was deleted. Nothing was written."""


class Rejected(msgspec.Struct, frozen=True):
    """The session is no longer as the unit supposed (an inbox item is gone). Nothing was written: decide again."""

    reason: str
    over: OverBudget | None = None
    """For a unit whose `reserves` has no room."""


OVER_BUDGET: Final = "over budget"
"""The reason why a unit is rejected that leads to a model call for which there is no money."""

HEAD_MOVED: Final = "the head has moved"
"""The reason why a unit that supposed another head is rejected."""


def answer_key(request_id: RequestId) -> str:
    """The inbox key of the answer to a request: the first answer put under it counts."""
    return f"answer:{request_id}"


def answer_waits(request_id: RequestId) -> str:
    """The reason why a unit is rejected that would close a request without promoting its accepted answer."""
    return f"an answer to request {request_id} waits"


Outcome = Committed | FenceMissed | Rejected


# The outcomes of put


class Accepted(msgspec.Struct, frozen=True):
    """The item is durable. `duplicate`: it already was; this is the receipt of the first."""

    item: InboxItem
    duplicate: bool = False
    removed: tuple[InboxItem, ...] = ()
    """Messages that a stop removed from the queue, to be returned to their sender."""
    waits_for_slot: bool = False
    """Its turn does not start at once: other turns of the same owner run, or are to run before it."""
    head: Position = Position(0)
    """For a message that is not a duplicate: the head of the log when it was accepted. Its turn's events follow."""
    found_idle: bool = False
    """For such a message: no turn was unfinished, and no message waited."""


class Refused(msgspec.Struct, frozen=True):
    """Nothing was stored. The code is stable; the message is for people."""

    code: Literal[
        "session_not_found",
        "id_reused",
        "queue_full",
        "too_many_turns",
        "storage_full",
        "busy",
        "message_not_queued",
        "request_not_found",
        "request_closed",
        "answered_already",
        "stopping",
        "metadata_too_large",
        "too_many_permissions",
        "too_many_files",
        "files_full",
        "upload_expired",
        "message_files_too_large",
    ]
    """Its HTTP status is in `server/http/errors.py`; docs/http.md#limits lists the limits."""
    message: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a session."""

    key: Key
    head: Position
    inbox_tail: int
    status: Status
    turn_id: TurnId | None
    title: str
    host: str | None
    created_at: int
    updated_at: int
    open_requests: int
    waiting_messages: int
    held_by: str | None
    """The process that holds the lease."""
    model: str | None = None
    parent: SessionId | None = None
    """The new session's `parent` or `made_from`, whichever was set."""
    shown: Position = Position(0)
    """The position of the last event that is news to its owner: see `events.event.SHOWN`. Events that the session was
    created with do not count."""
    seen: Position = Position(0)
    """The position up to which its owner has seen it."""
    pinned: bool = False
    metadata: Mapping[str, str] = {}

    @property
    def is_unread(self) -> bool:
        return self.shown > self.seen


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """All that a holder decides on, read in one snapshot."""

    row: Row
    snapshot: Snapshot | None
    events: tuple[Event, ...]
    """The events after the snapshot, or all of them; of a long log the first page. `log_pages.pages` reads the rest."""
    inbox: tuple[InboxItem, ...]
    """Accepted and not yet promoted, in order of arrival."""
    segments: tuple[Segment, ...]

    @property
    def read_up_to(self) -> Position:
        """The position of the last event that the load read, in the snapshot or as an event."""
        if self.events:
            return self.events[-1].position
        return self.snapshot.position if self.snapshot is not None else Position(0)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A session that this process now holds."""

    lease: Lease
    claims_without_progress: int
    """How many claims in a row, including this one, ended without a finished step. Many of them: poison."""
    eligible: bool
    """Whether this process may run the session's turns, or only stop them, or record that no process can run them."""
    loaded: Loaded | None = None
    """All that a holder decides on, read along with the claim; None: the session is not known to be small, load it."""


Early = Callable[[list[Claim]], None]
"""Called with claims that are still being committed."""

ReleaseKind = Literal["done", "for_newer", "handed_over", "gave_way", "failed", "for_another"]
"""Why a holder releases a session.

- done: nothing is left to do.
- for_newer: only items are left that a newer release can promote; the next claim by a process of that release takes
  the session up.
- handed_over: another process is to go on with it.
- gave_way: it had its turn, and goes to the end of the line because other sessions wait for its place.
- failed: something went wrong in this process, and the claim counts against the session.
- for_another: this process may not run it; that is recorded, so that this process does not claim it again.
"""


class Cursor(msgspec.Struct, frozen=True):
    """How much a reader has seen: a position in the log and, in the message in flight, a byte of a block."""

    position: Position = Position(0)
    message_id: MessageId | None = None
    block: int = 0
    offset: int = 0


class CaughtUp(msgspec.Struct, frozen=True, kw_only=True):
    """Everything after a reader's cursor, read in one snapshot."""

    events: tuple[Event, ...]
    segments: tuple[Segment, ...]
    """The segments of the message in flight that lie after the cursor (the first may begin before it)."""
    requests: tuple[RequestRow, ...]
    inbox: tuple[InboxItem, ...]
    row: Row
    more: bool
    """The page was full: catch up again from its last position."""


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A client that is present at a session, with the tools it runs and the requests it can answer. It expires unless
    it is renewed."""

    attachment_id: str
    key: Key
    node: str
    tools: tuple[str, ...] = ()
    """Client tools that it runs; no other attachment of the session runs them."""
    capabilities: tuple[str, ...] = ()
    process: str = ""
    """The process that it is connected to, set by the store: the attachment ends with that process."""
    declined: tuple[RequestId, ...] = ()
    """Requests that the client was shown and could not answer."""


def declined_by_each(present: Sequence[Attachment], capability: str) -> tuple[frozenset[RequestId], ...]:
    """For each client that has the capability, the requests that it declined."""
    return tuple(frozenset(client.declined) for client in present if capability in client.capabilities)


class Clash(msgspec.Struct, frozen=True):
    """Another attachment runs this tool."""

    tool: str


class Page(msgspec.Struct, frozen=True):
    rows: tuple[Row, ...]
    next: str | None
    unsearched: int = 0
    """In how many sessions a search has not seen the newest messages, because the index has still to be made for them.
    The next search goes on with that."""


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """The number of an owner's sessions in each state, and the sessions to look at first."""

    waiting: int
    running: int
    queued: int
    idle: int
    idle_lately: int
    """The idle sessions that changed since the requested time."""
    first: tuple[Row, ...]
    """Sessions that wait for an answer come first, longest wait first; then the others, latest first."""


class Store(Protocol):
    """Every method is all or nothing, and a write that it acknowledges is on disk, unless the method says otherwise.

    Any method may raise `StoreUnavailable`. After that the outcome of a write is unknown: the holder drops the session
    and folds it again."""

    # Log: events are appended by units, and read page by page

    def commit(self, unit: Unit) -> Awaitable[Outcome]: ...

    async def load(self, key: Key, *, fold_version: int) -> Loaded | None:
        """All that a holder decides on. The events are one page, bounded in bytes; see `log_pages.pages`."""
        ...

    async def keep_snapshot(self, lease: Lease, snapshot: Snapshot) -> bool:
        """Keep a snapshot of a held session, written apart from its units and after every other waiting write. It is
        only a cache: it need not be on disk when this returns. False: the lease was lost, the log does not reach that
        position, or a later snapshot is kept."""
        ...

    async def events_after(
        self, key: Key, position: Position, *, limit: int, max_bytes: int | None = None
    ) -> tuple[Event, ...]:
        """A page of the log: at most `limit` events and, if `max_bytes` is set, about that much data, but at least one
        event."""
        ...

    async def prompt(self, digest: str) -> bytes | None:
        """The content of the prompt with this digest; None: the database never had it."""
        ...

    async def turn_start(self, key: Key) -> Position | None:
        """The position where the session's latest turn starts; None: it has had no turn. Reads no event's data."""
        ...

    async def catch_up(self, key: Key, cursor: Cursor, *, limit: int) -> CaughtUp | None: ...

    # Inbox: items are put by anyone, and can be changed until the holder promotes them

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
        """Accept an item, or return the receipt of the item with the same key. Where one thread does all writing, the
        call itself hands the item to that thread, so that a claim handed in next is written right after it.

        `only_if_idle` refuses the item with "busy" while a turn is unfinished or messages wait. `stop_first` (a stop's
        id) accepts a stop and then the item, in one transaction. `queue_limit` bounds the waiting messages. A message
        that would start one turn more than its owner may have in flight is refused with "too_many_turns"; a repeated
        put of an accepted item is not. The session uses the files of a message from now on; `max_file_bytes` bounds
        them, and files that the owner does not have are dropped.
        """
        ...

    async def receipt(self, key: Key, item_key: str) -> InboxItem | None: ...

    async def waiting_items(self, key: Key) -> tuple[InboxItem, ...]: ...

    async def edit_item(
        self, key: Key, item_key: str, *, text: str, bounds: RoleBounds | None = None
    ) -> Refused | None:
        """Give a queued message another text. None: done. `bounds` are those of the editor's role, and hold for the
        message from now on; without them, those of its sender stay."""
        ...

    async def remove_item(self, key: Key, item_key: str) -> bool:
        """Remove an item that was not promoted. A session that no process runs, and that has nothing else to do, is
        idle again."""
        ...

    async def reorder_items(self, key: Key, item_keys: Sequence[str]) -> bool: ...

    # Leases: one process at a time makes progress in a session

    def claim(
        self,
        *,
        limit: int,
        without_models: Collection[str] = (),
        fold_version: int | None = None,
        early: Early | None = None,
    ) -> Awaitable[list[Claim]]:
        """Claim sessions that have something to do and no live holder: woken, due, or left by a dead holder.

        Of one owner, it claims no more sessions than the owner has free slots: sub-sessions of unfinished turns first,
        which need none, then unfinished turns, then the sessions that have waited longest. If more than `limit` could
        be claimed, owners take turns, and the owner with the fewest running turns is first. A session that is to be
        stopped needs no slot.

        Sessions that use one of `without_models`, or whose secrets this process does not have, are left for other
        processes to run. A claim is counted and committed before any load that may be large or may fail, so that a
        session that kills its holder during the load is counted all the same. With a `fold_version`, sessions that are
        known to be small come loaded; an error in that load costs only the saving. Where writes are committed in the
        order in which they were handed in, `early` may be called with those claims while the claim is still being
        committed: any write under such a claim is refused unless the claim took place, but the caller may do nothing
        else before this call returns the claims."""
        ...

    async def release(self, lease: Lease, *, seen_tail: int, how: ReleaseKind) -> bool:
        """Give a session back. False: it is still held, or was lost before. It is still held, when released as `done`
        or `for_newer`, because an item was put after `seen_tail`."""
        ...

    async def tails(self, keys: Sequence[Key]) -> dict[Key, tuple[Fence, int]]:
        """Fence and inbox tail of each session; a deleted session has a fence that no process holds."""
        ...

    async def has_next(self, *, without_models: Collection[str] = ()) -> bool:
        """Whether a session waits that this process may run and that its owner has a slot for."""
        ...

    async def oldest_unclaimed(self) -> int | None:
        """When the session that has waited longest for a process to run it became runnable; None if none waits."""
        ...

    async def held(self) -> tuple[Lease, ...]:
        """The leases of this process, including those of a claim whose outcome it never received."""
        ...

    async def renew(self, *, ttl_seconds: float) -> bool:
        """Renew all leases of this process for `ttl_seconds`. False: the process was declared dead, and its leases are
        gone."""
        ...

    # Presence: the clients that are attached to a session

    async def attach(self, attachment: Attachment, *, ttl_seconds: float) -> "tuple[Attachment, ...] | Clash":
        """Record a client of this process, or renew it. Returns the session's other attachments; or the tool that one
        of them runs already, and then nothing is recorded. The requests that the client `declined` are recorded with
        it, unless the client is already known.

        If any client of the session has declined a request, this call, like every other change of which clients are
        attached, wakes the session in the same transaction: its holder looks again for a client that could answer."""
        ...

    async def decline(self, key: Key, attachment_id: str, request_id: RequestId) -> bool:
        """Record that no person at this client can answer the request, and wake the session. False: the client is not
        attached (any more), and nothing is recorded."""
        ...

    async def detach(self, key: Key, attachment_id: str) -> tuple[Attachment, ...] | None:
        """The attachments that are left; None: this one was not attached."""
        ...

    async def attachments(self, key: Key) -> tuple[Attachment, ...]: ...

    async def attached(self) -> frozenset[tuple[Key, str]]:
        """The attachments of this process as the database has them: it may have lost or dropped some."""
        ...

    # Reading: queries about sessions that read no log

    async def row(self, key: Key) -> Row | None: ...

    async def rows(
        self, owner: Owner, *, limit: int, after: str | None = None, text: str = "", pinned: bool | None = None
    ) -> Page:
        """The owner's sessions, newest first, pinned or not. `pinned` selects only pinned, or only unpinned, ones.

        `text` selects those whose title contains it, or in which one message of a person or the model has all of its
        words; a word may be the beginning of a longer one. Any text is allowed."""
        ...

    async def glance(self, owner: Owner, *, since: int, limit: int) -> Glance: ...

    async def turns(self, owner: Owner) -> Turns:
        """How many turns of an owner run, and how many wait for a slot."""
        ...

    async def stored(self, owner: Owner) -> Stored:
        """How much an owner has stored, as quotas count it."""
        ...

    async def requests(self, key: Key, *, answered: bool = False) -> tuple[RequestRow, ...]:
        """The open requests without an accepted answer; with `answered`, all open requests."""
        ...

    async def ledger(self, owner: Owner, session: SessionId | None = None) -> tuple[LedgerEntry, ...]: ...

    # The text index: what was said in a session, and results of tools, without what a rewind undid

    async def index_logs(self, keys: Sequence[Key]) -> tuple[Key, ...]:
        """Index the next part of these sessions' logs, in one transaction. Returns the sessions that need more. The
        reads below do this first, so calling it early only saves them time. It need not be on disk on return: the
        index is made again from the log."""
        ...

    async def search_log(self, key: Key, query: str, *, limit: int, before: Position | None = None) -> tuple[Hit, ...]:
        """The newest passages that have all words of the query, before that position. A word may be the beginning of a
        longer one; any query is allowed."""
        ...

    async def passages(self, key: Key, first: Position, last: Position, *, limit: int) -> tuple[Event, ...]:
        """The first of the passages between two positions, with both."""
        ...

    async def tool_result(self, key: Key, tool_call_id: ToolCallId) -> Event | None:
        """The last result of a call, found without reading the log."""
        ...

    # Tasks: the rows of commands

    async def tasks(self, key: Key) -> tuple[TaskRow, ...]:
        """The commands of a session, including those in the foreground, in the order of their start."""
        ...

    async def running_tasks(self, key: Key) -> tuple[TaskRow, ...]:
        """The session's commands that still run."""
        ...

    async def task(self, key: Key, task_id: TaskId) -> TaskRow | None: ...

    async def owner_tasks(self, owner: Owner) -> tuple[TaskRow, ...]: ...

    async def host_tasks(self, host: str) -> tuple[TaskRow, ...]:
        """The tasks that a machine's keeper looks after: those that run in the background, and those to be killed."""
        ...

    async def stray_tasks(self, host: str, *, silent_seconds: float) -> tuple[TaskRow, ...]:
        """Tasks of other machines whose keeper has been silent for that long, by the database's clock."""
        ...

    async def end_task(self, row: TaskRow, ending: TaskEnding, notice: TaskNotice | None, *, host: str) -> bool:
        """Record how a task ended and, in the same transaction, put its news into the session's inbox, once for each
        kind of news. It wakes the session unless the news is silent. False: the end was already recorded.

        The end of a task that was given up as lost may be corrected, by the machine that the task belongs to."""
        ...

    async def stall_task(self, row: TaskRow, notice: TaskNotice | None) -> bool:
        """Record that a task seems to wait for an answer, and put the news, once; None: the task has gone on."""
        ...

    async def ask_kill(self, key: Key, task_id: TaskId, by: Killer) -> bool:
        """Record that a running task is to be killed. False: it does not run, or its kill was requested before."""
        ...

    async def drop_task(self, key: Key, task_id: TaskId) -> bool: ...

    async def drop_old_tasks(self, *, ended_seconds: float) -> int:
        """Drop the rows of tasks whose end was recorded that long ago, by the database's clock."""
        ...

    async def see_host(self, host: str) -> None:
        """Record that this machine's tasks are looked after now, by the database's clock."""
        ...

    # Webhooks: the events of an owner's sessions on their way to receivers. The database itself puts the events that
    # webhooks report into the outbox, in the transaction of the event.

    async def add_webhook(self, row: WebhookRow, *, limit: int | None) -> bool:
        """False: the owner has `limit` webhooks already."""
        ...

    async def change_webhook(self, owner: Owner, webhook_id: str, change: WebhookChange) -> WebhookRow | None:
        """The webhook after the change; None: the owner has none of that id. What is pending is due at once."""
        ...

    async def delete_webhook(self, owner: Owner, webhook_id: str) -> bool:
        """Delete a webhook with its deliveries. False: the owner has none of that id."""
        ...

    async def webhooks(self, owner: Owner, webhook_id: str | None = None) -> tuple[WebhookRow, ...]:
        """The owner's webhooks, oldest first; or the one with that id."""
        ...

    async def webhook(self, webhook_id: str) -> WebhookRow | None:
        """The webhook of a delivery, whoever owns it."""
        ...

    async def webhook_backlog(self, webhook_id: str) -> WebhookBacklog: ...

    async def deliveries(
        self,
        owner: Owner,
        webhook_id: str,
        *,
        limit: int,
        after: EventId | None = None,
        state: DeliveryState | None = None,
    ) -> tuple[WebhookDelivery, ...]:
        """The deliveries of a webhook, latest first; a page of them begins after the one of event `after`."""
        ...

    async def delivery(self, owner: Owner, webhook_id: str, event_id: EventId) -> WebhookDelivery | None: ...

    async def test_webhook(self, test: WebhookDelivery, *, limit: int) -> bool:
        """Put a test into the outbox. False: there is no such webhook, or `limit` of its tests are pending."""
        ...

    async def send_again(self, owner: Owner, webhook_id: str, event_id: EventId) -> WebhookDelivery | None:
        """Have a delivery attempted now: a pending one in its line, one that has ended once and outside it. None: there
        is none."""
        ...

    async def claim_deliveries(
        self, *, keeper: str, limit: int, working: Collection[tuple[str, EventId]], crowded: Collection[str]
    ) -> tuple[WebhookDelivery, ...]:
        """Hold deliveries that are due, for an attempt each: at most one of each webhook, the first of its line. The
        hold ends with the attempt, or with this process. `keeper`: the name of the key that this process can unseal
        secrets with. `working`: deliveries that it attempts already; others that it holds may be claimed again.
        `crowded`: webhooks that get no further attempt now. It need not be on disk on return: a forgotten claim is
        another attempt."""
        ...

    async def end_delivery(self, delivery: WebhookDelivery, ending: DeliveryEnding) -> bool:
        """Record the end of an attempt. A delivery that stays pending delays its line; one that ended frees it. False:
        this process no longer holds it. It need not be on disk on return: a forgotten end is another attempt."""
        ...

    async def drop_old_deliveries(self, before: int) -> int:
        """Drop deliveries that ended before that time, a bounded number at once."""
        ...

    # Keys and grants: API keys, permission rules granted beyond one session, and secrets entrusted to sessions

    async def add_key(self, row: KeyRow, *, audit: AuditEntry | None = None) -> None: ...

    async def revoke_key(self, key_id: str, *, audit: AuditEntry | None = None) -> bool:
        """False: there is no such key, or it was revoked before."""
        ...

    async def valid_key(self, key_id: str, digest: bytes) -> KeyRow | None:
        """The key with this id and digest, unless it was revoked. A wrong digest takes as long to look up as an unknown
        id."""
        ...

    async def keys(self, key_id: str | None = None) -> tuple[KeyRow, ...]:
        """All keys, including revoked ones, oldest first; or the one with that id."""
        ...

    async def grant(
        self,
        owner: Owner,
        place: str,
        rules: Sequence[str],
        *,
        origin: GrantOrigin = GRANTED_SOMEWHERE,
        audit: AuditEntry | None = None,
    ) -> TooManyGrants | None:
        """Record granted rules, all or none: `TooManyGrants` if the owner would have more than `admit_grants` admits.
        If a session grants the same rule again, the first grant stays."""
        ...

    async def granted(self, owner: Owner, place: str) -> tuple[str, ...]:
        """The rules that hold in that place, including those that hold everywhere (granted for the empty place)."""
        ...

    async def grants(self, owner: Owner) -> tuple[Grant, ...]:
        """All grants of an owner, by place, rule and time."""
        ...

    async def revoke_grant(self, owner: Owner, place: str, rule: str, *, audit: AuditEntry | None = None) -> bool:
        """Revoke a rule in one place, for every session that granted it. False: it was not granted there."""
        ...

    async def keep_secret(self, key: Key, *, keeper: str, sealed: bytes = b"") -> bool:
        """Record the keeper of the session's secrets: the token of a process, or the name of the key with which
        `sealed` is encrypted. From now on no other process claims the session to run it. False: no such session."""
        ...

    async def lose_secret(self, key: Key, *, keeper: str, sealed: bytes = b"") -> None:
        """Record that no process has the session's secrets, if its row has this keeper and this sealed text, or no
        keeper at all. `sealed` stays."""
        ...

    async def drop_secret(self, key: Key) -> None:
        """The session needs no secrets any more: every process that may run it otherwise may claim it."""
        ...

    async def secret(self, key: Key) -> tuple[str, bytes] | None:
        """The keeper, and the bytes that are sealed for it."""
        ...

    # Budgets: what model calls cost, and what they may cost. Reservations are made and settled by units.

    async def budget(self, owner: Owner) -> BudgetNow: ...

    async def edit_budget(self, owner: Owner, edit: EditBudget, *, audit: AuditEntry | None = None) -> bool:
        """Change an owner's limits; of several edits at once, each sees the outcome of the one before. False: they
        stayed as they were."""
        ...

    async def budgets(self) -> Mapping[Owner, OwnerBudget]:
        """The owners whose limits were set."""
        ...

    async def spending(
        self, first_day: int, last_day: int, *, owner: Owner | None = None, session: SessionId | None = None
    ) -> tuple[Spending, ...]:
        """What was spent in these UTC days, counted from 1970-01-01."""
        ...

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
        """The same summed up: a row for each model of each group, in the order of what the groups were charged. Of more
        than `limit` groups, those that were charged the most. What the rows of a group do not share is empty."""
        ...

    async def settle_left(self, *, limit: int = 1_000) -> int:
        """Charge the attempts at model calls that no holder will record any more, because it died or lost its session,
        what was reserved for them. Returns how many there were."""
        ...

    # The audit log. Methods with a parameter `audit` add that entry in their own transaction, if they write anything.

    async def audit(self, entry: AuditEntry) -> None:
        """Add an entry about an act that writes nothing else: a refusal, or a read."""
        ...

    async def audit_log(self, *, after: int = 0, limit: int) -> AuditPage:
        """The entries with higher numbers than `after`, in the order of their numbers."""
        ...

    async def trim_audit(self, before: int, *, audit: AuditEntry | None = None) -> int:
        """Remove some of the oldest entries, if they are from before that time. Returns how many; call again until
        there are none."""

    # Files: their rows and those of their contents; the objects themselves are in the file store

    async def add_file(
        self, row: FileRow, *, session: SessionId | None = None, is_stored: bool = False
    ) -> FileRow | Reserved | Refused:
        """Add a file, or first reserve its content, if the owner has none with this digest: then store the object, and
        call again with `is_stored`. The same file again returns its row. `session` uses the file from the start."""
        ...

    async def file(self, owner: Owner, file_id: FileId) -> FileRow | None: ...

    async def files(
        self, owner: Owner, *, limit: int, after: str | None = None, session: SessionId | None = None
    ) -> FilePage:
        """The owner's files, newest first; with `session`, those that the session uses."""
        ...

    async def keep_file(self, owner: Owner, file_id: FileId, *, is_kept: bool) -> FileRow | None:
        """Say whether a file stays without a session that uses it. None: there is no such file."""
        ...

    async def delete_file(self, owner: Owner, file_id: FileId) -> bool:
        """Delete a file, though sessions use it. Its object is left to the sweeper."""
        ...

    async def use_files(self, key: Key, file_ids: Sequence[FileId]) -> None:
        """Record that a session uses these files of its owner; the others are passed over. Files that are not kept go
        with the last session that uses them."""
        ...

    async def doom_contents(self, *, unused_ms: int, storing_ms: int) -> tuple[ContentId, ...]:
        """Delete files that are so old, are not kept and that no session uses, give up uploads that have taken so long,
        and return the contents, some at a time, whose objects are to be removed."""
        ...

    async def drop_content(self, content_id: ContentId) -> None:
        """Drop the row of a doomed content, after its object was removed."""
        ...

    async def file_home(self, name: str) -> str:
        """The name of the file store that this database's files are in: the given one, unless another is recorded."""
        ...

    # Annotations: an owner's notes about a session. They are not in the log, and do not make a session newer.

    async def see(self, key: Key, position: Position) -> Position | None:
        """Record that the owner has seen the session up to `position`. The mark never moves back, nor past the head; an
        unchanged mark is not written again. Returns the mark; None: there is no such session."""
        ...

    async def annotate(
        self,
        key: Key,
        *,
        pinned: bool | None = None,
        metadata: Mapping[str, str | None] | None = None,
        max_entries: int,
        max_characters: int,
    ) -> Refused | None:
        """Pin or unpin a session, and merge into its metadata: a value sets its entry, None removes it, other entries
        stay. None: all of it is done. Refused: nothing is, because the metadata would exceed `max_entries`, or
        `max_characters` in names and values together."""
        ...

    # Lifecycle: sessions end here, and so do this process and its store

    async def delete(self, key: Key, *, audit: AuditEntry | None = None) -> bool: ...

    @property
    def limits(self) -> TurnLimits:
        """How much of one owner's work is admitted and run at a time, as this process was configured."""
        ...

    async def identity(self) -> str:
        """A random name that the database was given when it was made. Processes that share the database recognise each
        other by it."""
        ...

    @property
    def process(self) -> str:
        """The random token of this process start; its leases are held under this token."""
        ...

    async def is_alive(self, process: str) -> bool:
        """Whether the process of that token has not ended."""
        ...

    def changes(self, *, wanted: Callable[[], bool]) -> AsyncIterator[None]:
        """Yields after another process committed something, while `wanted` returns true. It is a hint: it may be late,
        or come without a change."""
        ...

    async def backup(self, path: Path) -> None:
        """A consistent copy of the whole database, made while it is in use."""
        ...

    async def close(self) -> None: ...
