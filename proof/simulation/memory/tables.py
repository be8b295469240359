"""The tables of the store in memory. No operation here waits or fails half-way."""

from collections.abc import Callable, Iterable

from holdfast.events import codec
from holdfast.events.event import Event
from holdfast.events.ids import EventId, Fence, FileId, MessageId, Owner, Position, RequestId, SessionId, TaskId, TurnId
from holdfast.events.inbox import InboxItem, Message
from holdfast.store.audit import TRIM_ENTRIES, AuditEntry, AuditPage, AuditRecord
from holdfast.store.budget import OwnerBudget, Reservation, Spending
from holdfast.store.files import ContentId, FileRow
from holdfast.store.grants import Grant, GrantOrigin
from holdfast.store.keys import KeyRow
from holdfast.store.store import Attachment, Key, LedgerEntry, NewSession, RequestRow, Segment, Snapshot, Status
from holdfast.store.tasks import TaskRow
from holdfast.store.text_index import IndexEntry
from holdfast.store.turn_limits import Stored
from holdfast.store.webhooks import WebhookDelivery, WebhookRow

SILENT_SECONDS = 26.0
"""How long a silent process counts as alive after its leases have expired."""


class InboxRecord:
    """An item, its place in the queue, its original text, and the bytes that both take up."""

    __slots__ = ("item", "original", "place", "removed_by", "size")

    def __init__(self, item: InboxItem, original: bytes, size: int) -> None:
        self.item = item
        self.size = size
        self.place = item.sequence
        self.original = original
        self.removed_by: str | None = None

    @property
    def waits(self) -> bool:
        return self.item.state == "accepted"


class Written:
    """The writer of an event, which is not part of the store but needed to judge a simulation; and its size."""

    __slots__ = ("fence", "process", "size")

    def __init__(self, fence: Fence | None, process: str, size: int = 0) -> None:
        self.fence = fence
        self.process = process
        self.size = size


class SessionRecord:
    """A session: its row, its log, its inbox, its requests."""

    def __init__(self, key: Key, new: NewSession, *, status: Status, title: str, now: int) -> None:
        self.key = key
        self.fence = Fence(0)
        self.holder: str | None = None
        self.claims = 0
        self.is_runnable = False
        self.runnable_since: int | None = None
        self.noted_at: int | None = None
        self.needs_inbox: int | None = None
        self.status: Status = status
        self.turn_id: TurnId | None = None
        self.title = title
        self.host = new.host
        self.tools = frozenset(new.tools)
        self.model = new.model
        self.parent = new.parent
        self.made_from = new.made_from
        self.created_at = new.created_at
        self.updated_at = now
        self.is_deleted = False
        self.tail = 0
        self.shown = Position(0)
        self.forget()
        self.metadata.update(new.metadata)

    def forget(self) -> None:
        """The data that is deleted with the session."""
        self.events: list[Event] = []
        self.written: list[Written] = []
        self.segments: list[Segment] = []
        self.inbox: dict[str, InboxRecord] = {}
        self.requests: dict[RequestId, RequestRow] = {}
        self.closed: set[RequestId] = set()
        self.snapshot: Snapshot | None = None
        self.attachments: dict[tuple[str, str], AttachmentRecord] = {}
        """By process and id: the same id at two processes is two attachments."""
        self.secret: tuple[str, bytes] | None = None
        self.passages: dict[Position, IndexEntry] = {}
        self.indexed = Position(0)
        self.seen = Position(0)
        self.is_pinned = False
        self.metadata: dict[str, str] = {}

    def waiting(self) -> list[InboxRecord]:
        return sorted((found for found in self.inbox.values() if found.waits), key=lambda found: found.place)

    def waiting_messages(self) -> list[InboxRecord]:
        return [found for found in self.waiting() if isinstance(found.item.item, Message)]

    def open_requests(self, *, answered: bool = False) -> list[RequestRow]:
        """Open requests without an answer in the inbox or the log; or all open requests."""
        found = [
            row
            for row in self.requests.values()
            if row.request_id not in self.closed and (answered or f"answer:{row.request_id}" not in self.inbox)
        ]
        return sorted(found, key=lambda row: (row.opened_at, row.request_id))


class AttachmentRecord:
    __slots__ = ("attachment", "expires_at")

    def __init__(self, attachment: Attachment, expires_at: float) -> None:
        self.attachment = attachment
        self.expires_at = expires_at


class TaskRecord:
    """The row of a command. It is `settled` once its own machine has said how it ended."""

    __slots__ = ("end_noted_at", "opened_at", "row", "settled")

    def __init__(self, row: TaskRow, opened_at: float) -> None:
        self.row = row
        self.opened_at = opened_at
        self.end_noted_at: float | None = None
        self.settled = False


class ReservationRecord:
    __slots__ = ("fence", "model", "row")

    def __init__(self, row: Reservation, model: str, fence: Fence | None) -> None:
        self.row = row
        self.model = model
        self.fence = fence


class DeliveryRecord:
    """A delivery of a webhook, and the process that attempts it."""

    __slots__ = ("held_by", "row")

    def __init__(self, row: WebhookDelivery) -> None:
        self.row = row
        self.held_by: str | None = None


class ContentRecord:
    """The row of a content."""

    __slots__ = ("changed_at", "digest", "owner", "size", "state")

    def __init__(self, owner: Owner, digest: str, size: int, state: str, changed_at: int) -> None:
        self.owner = owner
        self.digest = digest
        self.size = size
        self.state = state
        self.changed_at = changed_at


class ProcessRecord:
    """A process that has the store open."""

    __slots__ = ("expires_at", "is_dead")

    def __init__(self, expires_at: float) -> None:
        self.expires_at = expires_at
        self.is_dead = False
        """The process has ended, and all others see that at once. A process on another machine only stops renewing."""


class Database:
    """The whole database. `now` is the database's own time in seconds, which no process can change."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.identity = "0123456789abcdef" * 2
        self.sessions: dict[Key, SessionRecord] = {}
        self.processes: dict[str, ProcessRecord] = {}
        self.prompts: dict[str, bytes] = {}
        self.ledger: dict[tuple[Key, str, int], LedgerEntry] = {}
        self.spending: dict[tuple[Key, int, str], Spending] = {}
        self.charged_to_turns: dict[tuple[Key, TurnId | None], int] = {}
        self.roots: dict[tuple[Owner, SessionId], SessionId] = {}
        self.reservations: dict[tuple[Key, MessageId, int], ReservationRecord] = {}
        self.budgets: dict[Owner, OwnerBudget] = {}
        self.grants: dict[tuple[Owner, str, str, str], GrantOrigin] = {}
        """Keyed by owner, place, rule and session."""
        self.files: dict[tuple[Owner, FileId], FileRow] = {}
        self.file_uses: set[tuple[Key, FileId]] = set()
        self.contents: dict[ContentId, ContentRecord] = {}
        self.file_home: str | None = None
        self.api_keys: dict[str, KeyRow] = {}
        self.audit: list[AuditRecord] = []
        self.audit_head = 0
        self.tasks: dict[tuple[Key, TaskId], TaskRecord] = {}
        self.hosts: dict[str, float] = {}
        self.webhooks: dict[str, WebhookRow] = {}
        self.deliveries: dict[tuple[str, EventId], DeliveryRecord] = {}
        """By webhook and event."""
        self.commits: dict[str, int] = {}
        """How often each process wrote."""
        self.on_commit: list[Callable[[], None]] = []
        self.last_write = ""
        """The crash point of the last write, for the trace."""

    def live(self, key: Key) -> SessionRecord | None:
        """The session, unless it was deleted."""
        found = self.sessions.get(key)
        return None if found is None or found.is_deleted else found

    def of_owner(self, owner: Owner) -> list[SessionRecord]:
        return [found for key, found in self.sessions.items() if key.owner == owner and not found.is_deleted]

    def grants_of(self, owner: Owner) -> tuple[Grant, ...]:
        found = [
            Grant(place=place, rule=rule, origin=origin)
            for (who, place, rule, _), origin in self.grants.items()
            if who == owner
        ]
        return tuple(sorted(found, key=lambda one: (one.place, one.rule, one.origin.granted_at, one.origin.session)))

    def add_grants(self, owner: Owner, new: Iterable[Grant]) -> None:
        for added in new:
            self.grants[owner, added.place, added.rule, added.origin.session] = added.origin

    def add_audit(self, entry: AuditEntry) -> None:
        self.audit_head += 1
        self.audit.append(AuditRecord(number=self.audit_head, entry=entry))

    def audit_page(self, after: int, limit: int) -> AuditPage:
        found = [record for record in self.audit if record.number > after]
        return AuditPage(records=tuple(found[:limit]), head=self.audit_head)

    def trim_audit(self, before: int) -> int:
        gone = [record for record in self.audit[:TRIM_ENTRIES] if record.entry.at < before]
        self.audit = [record for record in self.audit if record not in gone]
        return len(gone)

    def is_dead(self, process: str) -> bool:
        """A process that ended unseen counts as dead some time after its leases expire, as on PostgreSQL."""
        found = self.processes.get(process)
        return found is None or found.is_dead or found.expires_at + SILENT_SECONDS <= self.now()

    def committed(self, process: str) -> None:
        self.commits[process] = self.commits.get(process, 0) + 1
        for heard in self.on_commit:
            heard()

    def commits_of_others(self, process: str) -> int:
        return sum(self.commits.values()) - self.commits.get(process, 0)


def usage_of(db: Database, owner: Owner) -> Stored:
    """The data of one owner."""
    own = [found for key, found in db.sessions.items() if key.owner == owner and not found.is_deleted]
    size = sum(len(codec.encode(event.body)[2]) for found in own for event in found.events)
    size += sum(item.size for found in own for item in found.inbox.values())
    return Stored(sessions=len(own), stored_bytes=size)
