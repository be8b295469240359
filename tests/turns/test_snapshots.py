"""Snapshots: written beside the turn, less often if they are large, and without the images, which are in the log."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.events.ids import MessageId, ToolCallId, TurnId
from holdfast.events.message import AssistantMessage, Image, ToolCallBlock, UserMessage
from holdfast.events.session import SessionInfo
from holdfast.events.tool import ToolCompleted, ToolStarted
from holdfast.events.turn import StepStarted, TurnStarted
from holdfast.session.actions import Append
from holdfast.session.bounds import Bounds
from holdfast.session.fold import FOLD_VERSION
from holdfast.session.history import context
from holdfast.store import crash_points
from holdfast.store.store import Snapshot
from holdfast.turns.load import fold_loaded
from tests.turns.recording import KEY, Recording, recording

pytestmark = pytest.mark.anyio

TURN = TurnId("t")
PICTURE = Image(media_type="image/png", data=b"p" * 100_000)


@pytest.fixture
def kept() -> Iterator[list[str]]:
    """The snapshots that were stored since the test began."""
    points: list[str] = []
    crash_points.install(lambda point: points.append(point) if point == "keep_snapshot:snapshot:after" else None)
    yield points
    crash_points.install(None)


async def begin(found: Recording) -> None:
    """Write a turn with one image from a person and one from a tool."""
    call = ToolCallBlock(tool_call_id=ToolCallId("c"), name="look", arguments="{}")
    for bodies in (
        [
            TurnStarted(turn_id=TURN),
            UserMessage(message_id=MessageId("m"), turn_id=TURN, content="Look", delivery="idle", images=(PICTURE,)),
            StepStarted(turn_id=TURN, step=1, message_id=MessageId("a")),
        ],
        [AssistantMessage(message_id=MessageId("a"), blocks=(call,))],
        [ToolStarted(tool_call_id=ToolCallId("c"), tool_name="look", arguments="{}")],
        [ToolCompleted(tool_call_id=ToolCallId("c"), success=True, content="seen", images=(PICTURE,))],
    ):
        assert await found.held.commit(Append(events=[*bodies]))
        await found.held.until_snapshot_kept()


async def note(found: Recording, text: str) -> None:
    assert await found.held.commit(Append(events=[SessionInfo(info_type="note", message=text)]))
    await found.held.until_snapshot_kept()


async def test_snapshots_omit_images_and_a_load_restores_them_from_the_log(tmp_path: Path, kept: list[str]) -> None:
    async with recording(tmp_path) as found:
        found.held.bounds = Bounds(snapshot_every_events=1)
        await begin(found)
        await note(found, "kept")
        loaded = await found.store.load(KEY, fold_version=FOLD_VERSION)
        assert loaded is not None
        assert loaded.snapshot is not None
        assert loaded.snapshot.position == loaded.row.head
        assert len(loaded.snapshot.state) < len(PICTURE.data) // 10
        again = await fold_loaded(found.store, loaded)
        assert again is not None
        assert context(again.state) == context(found.held.state)
        assert sum(len(each.images) for each in context(again.state) if hasattr(each, "images")) == 2


async def test_a_session_with_an_unreadable_snapshot_is_folded_from_its_log(tmp_path: Path) -> None:
    """A snapshot is only a cache, and an earlier release may have written it."""
    async with recording(tmp_path) as found:
        await begin(found)
        lease, head = found.held.lease, found.held.state.head
        assert await found.store.keep_snapshot(lease, Snapshot(FOLD_VERSION, head, b"of another shape"))
        loaded = await found.store.load(KEY, fold_version=FOLD_VERSION)
        assert loaded is not None
        assert loaded.snapshot is not None
        again = await fold_loaded(found.store, loaded)
        assert again is not None
        assert context(again.state) == context(found.held.state)
        assert (await found.operations.state(KEY)).head == head


async def test_a_large_state_gets_fewer_snapshots_so_that_their_cost_for_each_event_is_bounded(
    tmp_path: Path, kept: list[str]
) -> None:
    async with recording(tmp_path) as found:
        found.held.bounds = Bounds(snapshot_every_events=2)
        for number in range(6):
            await note(found, str(number))
        assert len(kept) == 3, "a small state gets a snapshot as often as the bound allows"
        call = ToolCallBlock(tool_call_id=ToolCallId("c"), name="n", arguments="x" * 40_960)
        begun = [TurnStarted(turn_id=TURN), StepStarted(turn_id=TURN, step=1, message_id=MessageId("a"))]
        assert await found.held.commit(Append(events=[*begun]))
        assert await found.held.commit(Append(events=[AssistantMessage(message_id=MessageId("a"), blocks=(call,))]))
        await found.held.until_snapshot_kept()
        before = len(kept)
        for number in range(30):
            await note(found, str(number))
        assert len(kept) - before in (1, 2, 3), "40 KB pay for about ten events"
