"""A session that nobody can load is ended by what is stored beside its log."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.events.event import Event
from holdfast.events.ids import EventId, MessageId, Position
from holdfast.events.session import SessionInfo
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Claim, Committed, Row, Segment, Unit
from holdfast.turns.load import folded
from tests.turns.recording import KEY, recording

pytestmark = pytest.mark.anyio

SHOWN = Segment(message_id=MessageId("a"), attempt=1, block=0, offset=0, kind="text", text="shown")


@pytest.mark.parametrize("beyond", [1, 2])
async def test_what_was_shown_is_found_though_records_are_appended_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    async with recording(tmp_path) as found:
        await found.holding.commit_segments([SHOWN])
        note = Event(Position(0), EventId("n"), 1, SessionInfo(info_type="note", message="meanwhile"))
        row = SqliteStore.row

        async def append_after(self: SqliteStore, *given: Any) -> Row | None:
            read = await row(self, *given)
            for _ in range(3):
                assert isinstance(await self.commit(Unit(key=KEY, fence=None, events=(note,))), Committed)
            return read

        monkeypatch.setattr(SqliteStore, "row", append_after)
        claim = Claim(lease=found.holding.lease, claims_without_progress=3 + beyond, eligible=True)
        loaded = await folded(found.store, claim, max_claims=3)
        assert loaded is not None
        assert loaded.segments == (SHOWN,)
