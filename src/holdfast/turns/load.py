"""Loads a claimed session and folds it into a state.

A session is folded page by page, so that no more than one page of its log is in memory beside its state. A session that
killed its holders again and again is poison, and loading it may be the cause: its turn alone is folded, without the
history, which is enough to end the turn where people see it. If that fails too, the turn is ended from the session's
row, without reading any event.
"""

import asyncio
import logging
from typing import Any, Final

import msgspec

from holdfast.events.compaction import CompactionEnded
from holdfast.events.ids import Key, MessageId, Position
from holdfast.events.inbox import InboxItem
from holdfast.events.session import Truncated
from holdfast.session.fold import (
    FOLD_VERSION,
    fold,
    fold_turn,
    images_left,
    put_images_back,
    restored,
    undone_compactions,
)
from holdfast.session.state import ModelReply, OpenRequest, Phase, State, ToolCall, Turn
from holdfast.store.log_pages import NO_SNAPSHOT, page_up_to, pages
from holdfast.store.store import CaughtUp, Claim, Cursor, Loaded, Row, Segment, Snapshot, Store

log = logging.getLogger(__name__)

PAST_THE_END: Final = Position(1 << 62)
"""A position after every head, also one that moves meanwhile: the store gives segments only to readers that missed no
event."""


class FoldedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session as its holder starts with it: the folded state, and the rows beside the log."""

    row: Row
    state: State
    inbox: tuple[InboxItem, ...]
    segments: tuple[Segment, ...]
    snapshot_at: Position = Position(0)
    """The position of the snapshot that the fold started from."""
    snapshot_bytes: int = 0
    is_partial: bool = False
    """The state lacks the history: it can only be used to end the turn."""


async def load_claimed(
    store: Store, claim: Claim, *, max_claims: int, claiming: asyncio.Future[Any] | None = None
) -> FoldedSession | None:
    """Load and fold the session of a claim; None if it was deleted meanwhile. After more than `max_claims` claims
    without progress the session is poison. `claiming` is the pending claim, if it is not yet committed."""
    key, beyond = claim.lease.key, claim.claims_without_progress - max_claims
    if claim.loaded is not None:
        return await fold_loaded(store, claim.loaded, claiming)
    if beyond > 1:
        return await _state_from_row(store, key)
    if beyond > 0:
        return await _fold_turn_only(store, key)
    loaded = await store.load(key, fold_version=FOLD_VERSION)
    return None if loaded is None else await fold_loaded(store, loaded)


async def fold_loaded(
    store: Store, loaded: Loaded, claiming: asyncio.Future[Any] | None = None
) -> FoldedSession | None:
    """Fold the whole session, from its snapshot on; None if it was deleted meanwhile."""
    snapshot = loaded.snapshot
    state = restored(snapshot.state if snapshot is not None else None)
    if state is None:
        return await _fold_whole_log(store, loaded.row.key, claiming)
    async for page in pages(store, loaded):
        fold(page, state)
    if state.head < loaded.row.head:
        return None
    if state.is_behind:
        return await _fold_behind(store, loaded, claiming)
    return await _folded(store, loaded, state, claiming, snapshot)


async def _folded(
    store: Store, loaded: Loaded, state: State, claiming: asyncio.Future[Any] | None, snapshot: Snapshot | None
) -> FoldedSession:
    left = images_left(state)
    if left and claiming is not None:
        await asyncio.shield(claiming)  # Images may be large: the claim must be counted before they are loaded.
    for position, items in left.items():
        for event in await store.events_after(loaded.row.key, Position(position - 1), limit=1):
            put_images_back(items, event)
    return FoldedSession(
        row=loaded.row,
        state=state,
        inbox=loaded.inbox,
        segments=loaded.segments,
        snapshot_at=snapshot.position if snapshot is not None else Position(0),
        snapshot_bytes=len(snapshot.state) if snapshot is not None else 0,
    )


async def _fold_whole_log(store: Store, key: Key, claiming: asyncio.Future[Any] | None) -> FoldedSession | None:
    log.warning("the snapshot of session %s can't be read: its whole log is", key.session)
    if claiming is not None:
        await asyncio.shield(claiming)  # The log may be large: the claim must be counted before it is loaded.
    loaded = await store.load(key, fold_version=NO_SNAPSHOT)
    return None if loaded is None else await fold_loaded(store, loaded)


async def _fold_behind(store: Store, loaded: Loaded, claiming: asyncio.Future[Any] | None) -> FoldedSession | None:
    """Fold the log from its start without the compactions whose part of the conversation a later rewind reached into:
    first find them, then fold."""
    if claiming is not None:
        await asyncio.shield(claiming)
    key = loaded.row.key
    whole = await store.load(key, fold_version=NO_SNAPSHOT)
    if whole is None:
        return None
    compactions: list[tuple[Position, Position]] = []
    rewinds: list[tuple[Position, Position]] = []
    async for page in pages(store, whole):
        for event in page:
            if isinstance(event.body, CompactionEnded) and event.body.success:
                compactions.append((event.position, event.body.up_to))
            elif isinstance(event.body, Truncated):
                rewinds.append((event.position, event.body.kept))
    state = State(undone=undone_compactions(compactions, rewinds))
    async for page in pages(store, whole):
        fold(page, state)
    state.is_behind, state.undone = False, ()
    return await _folded(store, whole, state, claiming, None)


async def _fold_turn_only(store: Store, key: Key) -> FoldedSession | None:
    """Fold the unfinished turn without the events before it, and keep only the last reply of its history."""
    beside_log = await _read_beside_log(store, key)
    if beside_log is None:
        return None
    row, state = beside_log.row, State(title=beside_log.row.title)
    fold(await store.events_after(key, Position(0), limit=1), state)
    start = await store.turn_start(key) if row.turn_id is not None else None
    position = row.head if start is None else Position(start - 1)
    while position < row.head:
        page = await page_up_to(store, key, position, row.head)
        if not page:
            return None
        fold_turn(page, state)
        position = page[-1].position
    state.head = row.head
    return FoldedSession(row=row, state=state, inbox=beside_log.inbox, segments=beside_log.segments, is_partial=True)


async def _state_from_row(store: Store, key: Key) -> FoldedSession | None:
    """Build a state without reading any event. The phase of the turn is guessed from the rows beside the log; a wrong
    guess adds the end of a step that was over, which changes nothing in a fold. Calls that wait for an answer are known
    from their requests. Calls that ran get no result in the log: folds and readers close them with their step."""
    beside_log = await _read_beside_log(store, key)
    if beside_log is None:
        return None
    row = beside_log.row
    state = State(head=row.head, title=row.title, session_id=key.session)
    if row.turn_id is not None:
        in_flight = beside_log.segments[-1].message_id if beside_log.segments else MessageId("")
        state.turn = Turn(turn_id=row.turn_id, started_at=row.updated_at, message_id=in_flight)
        state.phase = _likely_phase(beside_log)
        open_requests = await store.requests(key, answered=True)
        for request in open_requests:
            state.requests[request.request_id] = OpenRequest(request.request_id, request.kind, request.tool_call_id)
        calls = [ToolCall(request.tool_call_id, "", "", request_id=request.request_id) for request in open_requests]
        if calls:
            state.history.append(ModelReply(row.head, MessageId(""), "", calls))
    return FoldedSession(row=row, state=state, inbox=beside_log.inbox, segments=beside_log.segments, is_partial=True)


async def _read_beside_log(store: Store, key: Key) -> CaughtUp | None:
    """Read what is stored beside the log: the row, the inbox, the message in flight and the open requests."""
    return await store.catch_up(key, Cursor(position=PAST_THE_END), limit=1)


def _likely_phase(beside_log: CaughtUp) -> Phase:
    if beside_log.segments:
        return Phase.CALLING_MODEL
    return Phase.WAITING if beside_log.row.status == "waiting" else Phase.RUNNING_TOOLS
