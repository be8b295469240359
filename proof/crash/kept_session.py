"""The data of a trial's session in any kind of database, and its readers: from the beginning, and again from positions
in the middle."""

from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import Key
from holdfast.events.inbox import InboxItem
from holdfast.live.local import LocalLive
from holdfast.server.reader import Reader, Reading
from holdfast.store.audit import AuditEntry
from holdfast.store.budget import Reservation, Spending
from holdfast.store.files import FileRow
from holdfast.store.keys import KeyRow
from holdfast.store.store import CaughtUp, Cursor, LedgerEntry, RequestRow, Row, Segment, Snapshot, Store

LEFT_OF_A_SESSION: Final = (
    "event",
    "segment",
    "inbox",
    "request",
    "snapshot",
    "attachment",
    "annotation",
    "webhook_delivery",
    "file_use",
)
"""The tables that a deleted session must not have a row in."""

CUTS: Final = 8
"""Places at which a reading is cut in two. More would find little more, and take time."""


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that only the session table holds, deleted sessions included."""

    fence: int
    lease_holder: str | None
    is_runnable: bool
    is_deleted: bool


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a command, those of deleted sessions included."""

    task_id: str
    is_foreground: bool
    status: str
    exit_code: int | None
    kill_asked: str
    is_settled: bool


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    session: SessionRow | None
    row: Row | None
    events: tuple[Event, ...]
    inbox: tuple[InboxItem, ...]
    """All receipts, in the order in which they were accepted, or last changed."""
    requests: tuple[RequestRow, ...]
    segments: tuple[Segment, ...]
    snapshot: Snapshot | None
    ledger: tuple[LedgerEntry, ...]
    spending: tuple[Spending, ...]
    """What the session was charged."""
    owner_charged: int
    """What its owner was charged, in all sessions."""
    reserved: tuple[Reservation, ...]
    """What is reserved for its model calls."""
    leftovers: int
    """Rows of a deleted session that are still there."""
    commands: tuple[Command, ...] = ()
    keys: tuple[KeyRow, ...] = ()
    audit: tuple[AuditEntry, ...] = ()
    files: tuple[FileRow, ...] = ()
    """All files of the session's owner."""
    contents: dict[str, str] = {}
    """The state of each content, by its id."""
    used: tuple[str, ...] = ()
    """The files that the session uses."""
    readings: tuple[tuple[Reading, Cursor], ...]
    """The whole session, read in one go, with the cursor after each reading."""
    rereadings: tuple[tuple[Cursor, tuple[Reading, ...]], ...]
    """The deltas read from some of these cursors."""


EVER = (-(1 << 30), 1 << 30)
"""All days."""


def money_of(spending: Sequence[Spending], reserved: Sequence[Reservation], key: Key) -> dict[str, Any]:
    return {
        "spending": tuple(row for row in spending if row.session == key.session),
        "owner_charged": sum(row.charged for row in spending),
        "reserved": tuple(row for row in reserved if row.session == key.session),
    }


class Readable(Protocol):
    """As much of a store as a reader needs."""

    async def catch_up(self, key: Key, cursor: Cursor, *, limit: int) -> CaughtUp | None: ...


async def read_whole(source: Readable, key: Key, cursor: Cursor | None = None) -> tuple[tuple[Reading, Cursor], ...]:
    reader = Reader(cast(Store, source), LocalLive(), key, cursor or Cursor())
    return tuple([(reading, reader.cursor) async for reading in reader.until_now()])


async def read_again(
    source: Readable, key: Key, readings: tuple[tuple[Reading, Cursor], ...]
) -> tuple[tuple[Cursor, tuple[Reading, ...]], ...]:
    again = []
    for _, cursor in readings[:: max(1, len(readings) // CUTS)]:
        again.append((cursor, tuple([reading for reading, _ in await read_whole(source, key, cursor)])))
    return tuple(again)
