"""Loading a session: page by page, large parts only after its claim is counted, and a poisoned session from the rows
beside its log."""

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from holdfast.events.event import Event
from holdfast.events.ids import EventId, MessageId, Position, TurnId
from holdfast.events.message import Image, UserMessage
from holdfast.events.session import SessionInfo
from holdfast.events.turn import TurnStarted
from holdfast.session.actions import Append
from holdfast.session.fold import FOLD_VERSION, dump
from holdfast.store.log_pages import PAGE_BYTES
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Claim, Committed, Row, Segment, Snapshot, Unit
from holdfast.turns.load import fold_loaded, load_claimed
from tests.turns.recording import KEY, Recording, recording

pytestmark = pytest.mark.anyio

SHOWN = Segment(message_id=MessageId("a"), attempt=1, block=0, offset=0, kind="text", text="shown")


@pytest.mark.parametrize("beyond", [1, 2])
async def test_shown_segments_are_loaded_even_if_records_are_appended_concurrently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    async with recording(tmp_path) as found:
        await found.held.commit_segments([SHOWN])
        note = Event(Position(0), EventId("n"), 1, SessionInfo(info_type="note", message="meanwhile"))
        row = SqliteStore.row

        async def append_after(self: SqliteStore, *given: Any) -> Row | None:
            read = await row(self, *given)
            for _ in range(3):
                assert isinstance(await self.commit(Unit(key=KEY, fence=None, events=(note,))), Committed)
            return read

        monkeypatch.setattr(SqliteStore, "row", append_after)
        claim = Claim(lease=found.held.lease, claims_without_progress=3 + beyond, eligible=True)
        loaded = await load_claimed(found.store, claim, max_claims=3)
        assert loaded is not None
        assert loaded.segments == (SHOWN,)


PAGES = 16


async def test_folding_a_long_log_keeps_only_a_few_pages_in_memory(tmp_path: Path) -> None:
    async with recording(tmp_path) as found:
        note = SessionInfo(info_type="note", message="x" * (PAGE_BYTES * 3 // 4))
        for number in range(PAGES):
            event = Event(Position(0), EventId(str(number)), 1, note)
            assert isinstance(await found.store.commit(Unit(key=KEY, fence=None, events=(event,))), Committed)
        claim = Claim(lease=found.held.lease, claims_without_progress=1, eligible=True)
        tracemalloc.start()
        try:
            loaded = await load_claimed(found.store, claim, max_claims=3)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert loaded is not None
        assert loaded.state.head == loaded.row.head > PAGES
        assert peak < PAGES // 2 * PAGE_BYTES


async def with_a_picture(found: Recording) -> None:
    """Start a turn whose message has an image, which a snapshot omits."""
    turn = TurnId("t")
    picture = Image(media_type="image/png", data=b"p" * 100)
    said = UserMessage(message_id=MessageId("m"), turn_id=turn, content="Look", delivery="idle", images=(picture,))
    assert await found.held.commit(Append(events=[TurnStarted(turn_id=turn), said]))


@pytest.mark.parametrize("snapshot", ["without its images", "of another shape"])
async def test_images_and_whole_logs_are_read_only_after_the_claim_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: str
) -> None:
    """If the process died of the load before that, the claim would never be counted."""
    async with recording(tmp_path) as found:
        await with_a_picture(found)
        state = dump(found.held.state) if snapshot == "without its images" else b"of another shape"
        kept = Snapshot(FOLD_VERSION, found.held.state.head, state)
        assert await found.store.keep_snapshot(found.held.lease, kept)
        loaded = await found.store.load(KEY, fold_version=FOLD_VERSION)
        assert loaded is not None
        claiming: asyncio.Future[list[Claim]] = asyncio.get_running_loop().create_future()
        counted: list[bool] = []
        read = SqliteStore._read

        async def read_and_note(self: SqliteStore, *given: Any) -> Any:
            counted.append(claiming.done())
            return await read(self, *given)

        monkeypatch.setattr(SqliteStore, "_read", read_and_note)
        folding = asyncio.ensure_future(fold_loaded(found.store, loaded, claiming))
        await asyncio.sleep(0)  # Let it run until it waits for the claim.
        claiming.set_result([])
        assert await folding is not None
        assert counted
        assert all(counted)
