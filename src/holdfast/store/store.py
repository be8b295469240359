"""The seam between the runtime and its database: five verbs (`commit`, `put`, `claim`, `release`, `catch_up`)
and the plain queries beside them.

Two things are serialised, and kept apart. The session row serialises the log: every append takes its positions in
one statement on that row. The lease serialises execution: whatever makes progress carries the fence of the claim
that it was made under, and is refused when another claim came after. Anyone may put into an inbox.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import Fence, MessageId, Owner, Position, RequestId, SessionId, TaskId, ToolCallId, TurnId
from holdfast.events.ids import Key as Key
from holdfast.events.inbox import InboxItem, Item
from holdfast.events.message import BlockKind
from holdfast.events.request import RequestKind
from holdfast.events.task import TaskNotice
from holdfast.store.grants import GRANTED_SOMEWHERE, Grant, GrantOrigin
from holdfast.store.keys import KeyRow
from holdfast.store.tasks import Killer, TaskChange, TaskEnding, TaskRow
from holdfast.store.turn_limits import Stored, TurnLimits, Turns

Status = Literal["idle", "queued", "running", "waiting"]


class Lease(msgspec.Struct, frozen=True):
    """The right to make progress in a session, until another claim raises the fence."""

    key: Key
    fence: Fence


# What a unit is made of


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
    """The session that a client made it of, or calls its parent. It takes up a slot like any other."""
    metadata: Mapping[str, str] = {}
    created_at: int


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """An open request, to be found without reading the log."""

    request_id: RequestId
    kind: RequestKind
    turn_id: TurnId
    tool_call_id: ToolCallId
    title: str
    """One line for people: what is asked. Bounded, whatever the call holds."""
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
    """What one attempt at a model call used; kept when its session is deleted. None is unknown."""

    message_id: MessageId
    attempt: int
    model: str
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cost_microdollars: int | None
    time: int


class Snapshot(msgspec.Struct, frozen=True):
    """A folded state, to fold on from. Only a cache: losing it costs time."""

    fold_version: int
    position: Position
    state: bytes


class Promotion(msgspec.Struct, frozen=True):
    """An inbox item leaves the queue in this unit, and this is how its receipt reads from then on."""

    sequence: int
    outcome: str
    refused: bool = False


LARGE_UNIT_EVENTS: Final = 1_000
"""As many as a page has."""


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """All the writes of one decision for one session: all of them or none.

    Without a fence it may hold only records, and what a call beside the turns used, unless it creates the session:
    nobody can hold what was not there.
    """

    key: Key
    fence: Fence | None
    events: tuple[Event, ...] = ()
    promotes: tuple[Promotion, ...] = ()
    opens: tuple[RequestRow, ...] = ()
    closes: tuple[RequestId, ...] = ()
    """Rejected if an answer to one of them was accepted that the unit does not promote: what was accepted counts."""
    segments: tuple[Segment, ...] = ()
    drops_segments: bool = False
    """The message in flight is in `events` now (or will not be): its segments go."""
    opens_tasks: tuple[TaskRow, ...] = ()
    """Commands that are about to be started; one that has a row keeps it."""
    changes_tasks: tuple[TaskChange, ...] = ()
    ends_commands: bool = False
    """Whoever looks after this session's commands is to kill those that a turn waited for."""
    ledger: tuple[LedgerEntry, ...] = ()
    creates: NewSession | None = None
    supposes_head: Position | None = None
    """It holds only if this is the head before it: nothing was appended that its decision did not know."""
    turn_id: TurnId | None = None
    """The unfinished turn after this unit; read together with `status`."""
    status: Status | None = None
    """What the session row says from now on; None leaves it (and the turn) as it is."""
    title: str | None = None
    model: str | None = None
    """The model that the session uses from now on; None leaves it as it is."""
    makes_progress: bool = False
    """A finished step or a recorded tool result: the session is not poison."""

    @property
    def is_large(self) -> bool:
        """Whether it makes a session with so many events that writing them down takes a while. No other unit is."""
        return self.creates is not None and len(self.events) > LARGE_UNIT_EVENTS


class Committed(msgspec.Struct, frozen=True):
    head: Position
    """The position of the unit's last event, or the head as it is when it had none."""
    inbox_tail: int


class FenceMissed(msgspec.Struct, frozen=True):
    """Another claim came after, or the session was deleted. Nothing was written."""


class Rejected(msgspec.Struct, frozen=True):
    """The world is no longer as the unit supposed (an inbox item is gone). Nothing was written: decide again."""

    reason: str


HEAD_MOVED: Final = "the head has moved"
"""The reason of a unit that supposed another head."""


def answer_key(request_id: RequestId) -> str:
    """What the answer to a request is called in the inbox: the first to be put under it is the one that counts."""
    return f"answer:{request_id}"


def answer_waits(request_id: RequestId) -> str:
    """The reason of a unit that would close a request over an answer that was accepted and that it does not promote."""
    return f"an answer to request {request_id} waits"


Outcome = Committed | FenceMissed | Rejected


# What put answers


class Accepted(msgspec.Struct, frozen=True):
    """The item is durable. `duplicate`: it already was; this is the receipt of the first."""

    item: InboxItem
    duplicate: bool = False
    removed: tuple[InboxItem, ...] = ()
    """Messages that a stop took out of the queue, to be given back to their sender."""
    waits_for_slot: bool = False
    """Its turn does not start at once: others of the same owner run, or are to run before it."""
    head: Position = Position(0)
    """Of a message that was not there before: where the log ended when it was accepted. What comes of it follows."""
    found_idle: bool = False
    """Of such a message: no turn was unfinished, and no message waited."""


class Refused(msgspec.Struct, frozen=True):
    """Nothing was stored. The code is stable; the message is for people."""

    code: Literal[
        "session_not_found",
        "id_reused",
        "queue_full",
        "too_many_turns",
        "storage_full",
        "busy",
        "request_not_found",
        "request_closed",
        "answered_already",
        "stopping",
        "metadata_too_large",
    ]
    message: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A session as its row has it."""

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
    """Either of the two that a new session may name: `parent` or `made_from`."""
    shown: Position = Position(0)
    """The position of the last event that tells its owner something: see `events.event.SHOWN`. What the session was
    made with does not count."""
    seen: Position = Position(0)
    """How far its owner has seen it."""
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
    """Those after the snapshot, or all of them; of a long log the first page. `log_pages.pages` reads the rest."""
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
    """How many claims in a row, this one included, ended without a finished step. Many of them: poison."""
    eligible: bool
    """Whether this process may run the session's turns, or only end them."""
    loaded: Loaded | None = None
    """All that a holder decides on, read along with the claim; None: it is not known to be small, load it."""


Early = Callable[[list[Claim]], None]
"""Who is told of claims that are still being committed."""

ReleaseKind = Literal["done", "for_newer", "handed_over", "gave_way", "failed", "for_another"]
"""Why a session is let go of: nothing is left to do; nothing is left but items that only a newer release can promote
(the next claim of a process of that release takes the session up); another process is to go on with it; it had its
turn, and goes to the end of the line because others wait for its place; something went wrong here, and the claim counts
against the session; or this process may not run it, which is noted, so that it is not asked again."""


class Cursor(msgspec.Struct, frozen=True):
    """How much a reader has seen: a position in the log and, in the message in flight, a byte of a block."""

    position: Position = Position(0)
    message_id: MessageId | None = None
    block: int = 0
    offset: int = 0


class CaughtUp(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader has not seen yet, read in one snapshot."""

    events: tuple[Event, ...]
    segments: tuple[Segment, ...]
    """Those of the message in flight that lie after the cursor (the first may begin before it)."""
    requests: tuple[RequestRow, ...]
    inbox: tuple[InboxItem, ...]
    row: Row
    more: bool
    """The page was full: catch up again from its last position."""


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A client that is present at a session: what it can run and answer. It expires unless it is renewed."""

    attachment_id: str
    key: Key
    node: str
    tools: tuple[str, ...] = ()
    """Client tools that it runs, and no other attachment of the session does."""
    capabilities: tuple[str, ...] = ()
    process: str = ""
    """The process that it is connected to, set by the store: it ends with that one, however that ends."""
    declined: tuple[RequestId, ...] = ()
    """Requests that it was shown and nobody there could answer."""


def declined_by_each(present: Sequence[Attachment], capability: str) -> tuple[frozenset[RequestId], ...]:
    """For each client that has the capability, the requests that it declined."""
    return tuple(frozenset(found.declined) for found in present if capability in found.capabilities)


class Clash(msgspec.Struct, frozen=True):
    """Another attachment runs this tool."""

    tool: str


class Page(msgspec.Struct, frozen=True):
    rows: tuple[Row, ...]
    next: str | None


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions of an owner are in which state, and those that somebody should look at first."""

    waiting: int
    running: int
    queued: int
    idle: int
    idle_lately: int
    """Of the idle ones, those in which something was done since the time that was asked for."""
    first: tuple[Row, ...]
    """Those that wait for an answer come first, and of them who has waited longest; of the others the latest."""


class Store(Protocol):
    """Every method is all or nothing, and what it acknowledged is on disk. Any may raise `StoreUnavailable`;
    after that, whether a write took place is unknown: the holder drops the session and folds it again."""

    # The five verbs

    def commit(self, unit: Unit) -> Awaitable[Outcome]: ...

    def put(
        self,
        key: Key,
        item: Item,
        *,
        item_key: str,
        queue_limit: int,
        only_if_idle: bool = False,
        stop_first: str | None = None,
    ) -> Awaitable[Accepted | Refused]:
        """Accept an item, or give the receipt of the one with the same key. Where one thread writes it is handed in by
        the call itself, so that a claim can be handed in right behind it.

        `only_if_idle` refuses it with "busy" while a turn is unfinished or messages wait. `stop_first` (a stop's id)
        accepts a stop and then the item, in one transaction. `queue_limit` bounds the messages that wait. A message
        that would start one turn more than its owner may have in flight is refused with "too_many_turns"; who asks
        again for what was accepted is not.
        """
        ...

    def claim(
        self,
        *,
        limit: int,
        without_models: Collection[str] = (),
        fold_version: int | None = None,
        early: Early | None = None,
    ) -> Awaitable[list[Claim]]:
        """Take sessions that have something to do and nobody to do it: woken, due, or left by a dead holder.

        Of one owner, no more than there are slots for: sub-sessions of unfinished turns first, which need none, then
        unfinished turns, then who has waited longest. Where there are more than `limit`, owners take turns, and who has
        fewest running is first. A session that is to be stopped needs no slot.

        Those that use one of `without_models` are for other processes to run, and so are those whose secrets are not
        with this one. A claim is counted and committed before any load that may be large or may fail, so that a session
        that kills its holder while it is loaded is counted all the same. With a `fold_version`, sessions that are known
        to be small come loaded; an error in that costs the saving and nothing else. Where what is handed in is written
        in order, `early` may be told of those while the claim is still being committed: whatever is written for them is
        refused unless it took place, but nothing else may be done before it is told in the ordinary way."""
        ...

    async def release(self, lease: Lease, *, seen_tail: int, how: ReleaseKind) -> bool:
        """Give a session back. False: it is still held, or was lost before. When it is `done` or left `for_newer`, that
        is because something was put after `seen_tail`."""
        ...

    async def catch_up(self, key: Key, cursor: Cursor, *, limit: int) -> CaughtUp | None: ...

    # What the holder reads

    async def load(self, key: Key, *, fold_version: int) -> Loaded | None:
        """The events of it are one page, bounded in bytes; see `log_pages.pages`."""
        ...

    async def keep_snapshot(self, lease: Lease, snapshot: Snapshot) -> bool:
        """Keep a snapshot of a held session, beside its units and behind whatever else is to be written. Only a cache:
        it need not be on disk when this returns. False: the lease was lost, the log does not reach that far, or a later
        snapshot is kept."""
        ...

    async def events_after(
        self, key: Key, position: Position, *, limit: int, max_bytes: int | None = None
    ) -> tuple[Event, ...]:
        """A page of the log: at most `limit` events and, if so asked, about `max_bytes` of data, but at least one."""
        ...

    async def turn_start(self, key: Key) -> Position | None:
        """Where the latest turn of a session starts. Reads no event's data; None: it has had no turn."""
        ...

    async def waiting_items(self, key: Key) -> tuple[InboxItem, ...]: ...

    async def tails(self, keys: Sequence[Key]) -> dict[Key, tuple[Fence, int]]:
        """Fence and inbox tail of each session; a deleted one has a fence that nobody holds."""
        ...

    # Plain queries

    async def row(self, key: Key) -> Row | None: ...

    async def rows(
        self, owner: Owner, *, limit: int, after: str | None = None, text: str = "", pinned: bool | None = None
    ) -> Page:
        """The newest first, whether they are pinned or not. `pinned`: only those that are, or that are not."""
        ...

    async def glance(self, owner: Owner, *, since: int, limit: int) -> Glance: ...

    async def has_next(self, *, without_models: Collection[str] = ()) -> bool:
        """Whether a session waits that this process may run and that its owner has a slot for."""
        ...

    async def oldest_unclaimed(self) -> int | None:
        """Since when the session has been waiting that has waited longest for somebody to run it; None: none does."""
        ...

    async def turns(self, owner: Owner) -> Turns:
        """How many turns of an owner run, and how many wait until they may."""
        ...

    async def stored(self, owner: Owner) -> Stored:
        """What an owner has stored, as quotas count it."""
        ...

    async def receipt(self, key: Key, item_key: str) -> InboxItem | None: ...

    async def requests(self, key: Key, *, answered: bool = False) -> tuple[RequestRow, ...]:
        """Those that are open and have no accepted answer; or all that are open, `answered` or not."""
        ...

    async def ledger(self, owner: Owner, session: SessionId | None = None) -> tuple[LedgerEntry, ...]: ...

    # The queue, before it is promoted

    async def edit_item(self, key: Key, item_key: str, *, text: str) -> bool: ...

    async def remove_item(self, key: Key, item_key: str) -> bool:
        """A session that nobody runs, and that has nothing to do without it, is idle again."""
        ...

    async def reorder_items(self, key: Key, item_keys: Sequence[str]) -> bool: ...

    # What owners note about their sessions. It is not in the log, and does not make a session newer.

    async def see(self, key: Key, position: Position) -> Position | None:
        """Its owner has seen all up to there. It never goes back, nor beyond the head. How far it is seen now; None:
        there is no such session. What was known before is not written again."""
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
        """Pin a session or not, and merge into its metadata: a value is set, None takes the entry out, the others stay.
        None: done, all of it. Refused: nothing was, as the metadata would have more entries, or more characters in
        names and values together."""
        ...

    # Presence

    async def attach(self, attachment: Attachment, *, ttl_seconds: float) -> "tuple[Attachment, ...] | Clash":
        """Note a client of this process, or renew it. The others that are there; or the tool that one of them has
        already, and then nothing was noted. What it `declined` is noted with it, unless it is known.

        Where any client has declined something, this, and whatever else changes which clients are there, wakes the
        session in the same transaction: its holder looks again who could answer."""
        ...

    async def decline(self, key: Key, attachment_id: str, request_id: RequestId) -> bool:
        """Nobody at this client can answer the request. It wakes the session. False: the client is not noted (any
        more), and nothing is."""
        ...

    async def detach(self, key: Key, attachment_id: str) -> tuple[Attachment, ...] | None:
        """Those who are left; None: it was not there."""
        ...

    async def attachments(self, key: Key) -> tuple[Attachment, ...]: ...

    async def attached(self) -> frozenset[tuple[Key, str]]:
        """The attachments of this process, as the database has them: it may have lost some, or given them up."""
        ...

    # What people granted beyond one session

    async def grant(
        self, owner: Owner, place: str, rules: Sequence[str], *, origin: GrantOrigin = GRANTED_SOMEWHERE
    ) -> None:
        """Of the same rule, granted again in the same session, the first grant stays."""
        ...

    async def granted(self, owner: Owner, place: str) -> tuple[str, ...]:
        """The rules that hold in that place, those that hold everywhere (granted for the empty place) included."""
        ...

    async def grants(self, owner: Owner) -> tuple[Grant, ...]:
        """All of an owner's, by place, rule and time."""
        ...

    async def revoke_grant(self, owner: Owner, place: str, rule: str) -> bool:
        """Take a rule back in one place, whichever sessions it was granted in. False: it was not granted there."""
        ...

    # What clients entrusted to their sessions

    async def keep_secret(self, key: Key, *, keeper: str, sealed: bytes = b"") -> bool:
        """Note that the process of that token, or whoever has the key of that name, has what a client gave to the
        session, and `sealed` for the latter. Nobody else claims it to run it from now on. False: no such session."""
        ...

    async def lose_secret(self, key: Key, *, keeper: str, sealed: bytes = b"") -> None:
        """Note that nobody has what the session needs, if it is noted like this, or nothing is. `sealed` stays."""
        ...

    async def drop_secret(self, key: Key) -> None:
        """The session needs nothing of the kind: whoever else may run it may."""
        ...

    async def secret(self, key: Key) -> tuple[str, bytes] | None:
        """The keeper, and what is sealed for it."""
        ...

    # API keys

    async def add_key(self, row: KeyRow) -> None: ...

    async def revoke_key(self, key_id: str) -> bool:
        """False: there is none, or it was revoked before."""
        ...

    async def valid_key(self, key_id: str, digest: bytes) -> KeyRow | None:
        """The key that has both, unless it was revoked. One that has only the id is looked for as long as one that is
        not there at all."""
        ...

    async def keys(self, key_id: str | None = None) -> tuple[KeyRow, ...]:
        """All of them, revoked ones too, the oldest first; or the one of that id."""
        ...

    # Tasks

    async def tasks(self, key: Key) -> tuple[TaskRow, ...]:
        """The commands of a session, those in the foreground included, in the order of their start."""
        ...

    async def running_tasks(self, key: Key) -> tuple[TaskRow, ...]:
        """Those of them that run."""
        ...

    async def task(self, key: Key, task_id: TaskId) -> TaskRow | None: ...

    async def owner_tasks(self, owner: Owner) -> tuple[TaskRow, ...]: ...

    async def host_tasks(self, host: str) -> tuple[TaskRow, ...]:
        """What is to be looked after on a machine: what runs in the background there, and what is to be killed."""
        ...

    async def stray_tasks(self, host: str, *, silent_seconds: float) -> tuple[TaskRow, ...]:
        """Those of other machines that nobody has looked after for so long, by the database's clock."""
        ...

    async def end_task(self, row: TaskRow, ending: TaskEnding, notice: TaskNotice | None, *, host: str) -> bool:
        """Note how a task ended and, in the same transaction, put the news of it into its session's inbox, once for
        each kind. It wakes the session unless the news is silent. False: it was known.

        One that was given up as lost may be corrected, by the machine that it belongs to."""
        ...

    async def stall_task(self, row: TaskRow, notice: TaskNotice | None) -> bool:
        """Note that a task seems to wait for an answer, and put the news of it, once; None: it has gone on."""
        ...

    async def ask_kill(self, key: Key, task_id: TaskId, by: Killer) -> bool:
        """Note that a running task is to be killed. False: it does not run, or somebody asked before."""
        ...

    async def drop_task(self, key: Key, task_id: TaskId) -> bool: ...

    async def drop_old_tasks(self, *, ended_seconds: float) -> int:
        """Drop the rows of tasks whose end was noted so long ago, by the database's clock."""
        ...

    async def see_host(self, host: str) -> None:
        """Note that this machine's tasks are looked after now, by the database's clock."""
        ...

    # The process

    @property
    def limits(self) -> TurnLimits:
        """How much of one owner's work is admitted and run at a time, as this process was told."""
        ...

    async def identity(self) -> str:
        """A random name that the database was given when it was made: who shares it knows each other by that."""
        ...

    @property
    def process(self) -> str:
        """The random token of this process start: what its leases are held under."""
        ...

    async def is_alive(self, process: str) -> bool:
        """Whether the process of that token has not ended."""
        ...

    async def held(self) -> tuple[Lease, ...]:
        """What this process holds, also by a claim whose outcome it never heard."""
        ...

    async def renew(self, *, ttl_seconds: float) -> bool:
        """Say that this process lives. False: it was declared dead, and its leases are gone."""
        ...

    def changes(self, *, wanted: Callable[[], bool]) -> AsyncIterator[None]:
        """Yields after another process committed something, while it is `wanted`. A hint: it may be late, or come
        for nothing."""
        ...

    async def delete(self, key: Key) -> bool: ...

    async def backup(self, path: Path) -> None:
        """A consistent copy of the whole database, made while it is in use."""
        ...

    async def close(self) -> None: ...
