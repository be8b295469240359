"""How a holder gets from a claimed session's rows to its state.

A session is folded page by page, so that beside its state no more than a page of its log is in memory. One that ended
its holders again and again is poison, and loading it may be why: it is folded without its history, only as far as it
takes to end its turn where people see it, and if that fails too, its turn is ended by what the session's row says.
"""

import asyncio
import logging
from typing import Any, Final

import msgspec

from holdfast.events.ids import Key, MessageId, Position
from holdfast.events.inbox import InboxItem
from holdfast.session.fold import FOLD_VERSION, fold, fold_turn, images_left, put_images_back, restored
from holdfast.session.state import ModelReply, OpenRequest, Phase, State, ToolCall, Turn
from holdfast.store.log_pages import NO_SNAPSHOT, page_up_to, pages
from holdfast.store.store import CaughtUp, Claim, Cursor, Loaded, Row, Segment, Store

log = logging.getLogger(__name__)

PAST_THE_END: Final = Position(1 << 62)
"""A position behind every head, also one that moves meanwhile: only a reader that missed no event is given segments."""


class Folded(msgspec.Struct, frozen=True, kw_only=True):
    """All that a holder decides on, folded."""

    row: Row
    state: State
    inbox: tuple[InboxItem, ...]
    segments: tuple[Segment, ...]
    snapshot_at: Position = Position(0)
    """The position of the snapshot that the fold began from."""
    snapshot_bytes: int = 0
    is_partial: bool = False
    """The state lacks the history: good for ending the turn, and for nothing after it."""


async def folded(
    store: Store, claim: Claim, *, max_claims: int, claiming: asyncio.Future[Any] | None = None
) -> Folded | None:
    """The session of a claim; None: it was deleted meanwhile. `max_claims` without progress is as many as a session may
    have before it is poison. `claiming` is the claim itself, where that was told before it was committed."""
    key, beyond = claim.lease.key, claim.claims_without_progress - max_claims
    if claim.loaded is not None:
        return await folded_whole(store, claim.loaded, claiming)
    if beyond > 1:
        return await _row_alone(store, key)
    if beyond > 0:
        return await _turn_alone(store, key)
    loaded = await store.load(key, fold_version=FOLD_VERSION)
    return None if loaded is None else await folded_whole(store, loaded)


async def folded_whole(store: Store, loaded: Loaded, claiming: asyncio.Future[Any] | None = None) -> Folded | None:
    kept = loaded.snapshot
    state = restored(kept.state if kept is not None else None)
    if state is None:
        return await _folded_from_the_log(store, loaded.row.key, claiming)
    async for page in pages(store, loaded):
        fold(page, state)
    if state.head < loaded.row.head:
        return None
    left = images_left(state)
    if left and claiming is not None:
        await asyncio.shield(claiming)  # They may be large: the claim is to be counted first.
    for position, pictured in left.items():
        for event in await store.events_after(loaded.row.key, Position(position - 1), limit=1):
            put_images_back(pictured, event)
    return Folded(
        row=loaded.row,
        state=state,
        inbox=loaded.inbox,
        segments=loaded.segments,
        snapshot_at=kept.position if kept is not None else Position(0),
        snapshot_bytes=len(kept.state) if kept is not None else 0,
    )


async def _folded_from_the_log(store: Store, key: Key, claiming: asyncio.Future[Any] | None) -> Folded | None:
    log.warning("the snapshot of session %s can't be read: its whole log is", key.session)
    if claiming is not None:
        await asyncio.shield(claiming)  # The log may be large: the claim is to be counted first.
    loaded = await store.load(key, fold_version=NO_SNAPSHOT)
    return None if loaded is None else await folded_whole(store, loaded)


async def _turn_alone(store: Store, key: Key) -> Folded | None:
    """The unfinished turn without what came before it, and of its history the last reply only."""
    found = await _around(store, key)
    if found is None:
        return None
    row, state = found.row, State(title=found.row.title)
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
    return Folded(row=row, state=state, inbox=found.inbox, segments=found.segments, is_partial=True)


async def _row_alone(store: Store, key: Key) -> Folded | None:
    """No event is read. Where the turn stands is guessed from what is stored beside the log; a wrong guess adds an end
    of a step that was over, which changes nothing in a fold. Calls that wait for an answer are known by their requests;
    those that ran get no result in the log: folds and readers close them with their step."""
    found = await _around(store, key)
    if found is None:
        return None
    row = found.row
    state = State(head=row.head, title=row.title, session_id=key.session)
    if row.turn_id is not None:
        in_flight = found.segments[-1].message_id if found.segments else MessageId("")
        state.turn = Turn(turn_id=row.turn_id, started_at=row.updated_at, message_id=in_flight)
        state.phase = _likely_phase(found)
        open_ones = await store.requests(key, answered=True)
        for asked in open_ones:
            state.requests[asked.request_id] = OpenRequest(asked.request_id, asked.kind, asked.tool_call_id)
        calls = [ToolCall(asked.tool_call_id, "", "", request_id=asked.request_id) for asked in open_ones]
        if calls:
            state.history.append(ModelReply(row.head, MessageId(""), "", calls))
    return Folded(row=row, state=state, inbox=found.inbox, segments=found.segments, is_partial=True)


async def _around(store: Store, key: Key) -> CaughtUp | None:
    """What is stored beside the log: the row, the inbox, the message in flight and the open requests."""
    return await store.catch_up(key, Cursor(position=PAST_THE_END), limit=1)


def _likely_phase(found: CaughtUp) -> Phase:
    if found.segments:
        return Phase.CALLING_MODEL
    return Phase.WAITING if found.row.status == "waiting" else Phase.RUNNING_TOOLS
