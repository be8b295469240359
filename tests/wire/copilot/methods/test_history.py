"""Rewinding a conversation."""

from pathlib import Path
from typing import Any

import pytest

from tests.wire.copilot.methods.world import Hold, Refused, Session, desk_at

pytestmark = pytest.mark.anyio


async def _said(session: Session) -> list[str]:
    return [event["data"]["content"] for event in await session.events() if event["type"] == "user.message"]


async def _message(session: Session, content: str) -> dict[str, Any]:
    return next(event for event in await session.events() if event["data"].get("content") == content)


async def test_rewound_messages_are_gone_for_readers_and_for_the_model(session: Session) -> None:
    await session.say("First")
    kept = await session.events()
    await session.say("Second")
    whole = await session.events()
    removed = await session.ask("history.truncate", eventId=(await _message(session, "Second"))["id"])
    assert removed == {"eventsRemoved": len(whole) - len(kept)}
    assert await session.events() == kept
    await session.say("Third")
    assert await _said(session) == ["First", "Third"]
    after = await session.events()
    assert after[len(kept)]["parentId"] == kept[-1]["id"]


async def test_error_names_the_missing_event(session: Session) -> None:
    with pytest.raises(Refused) as refused:
        await session.ask("history.truncate", eventId="missing-event")
    assert refused.value.message == (
        "Request session.history.truncate failed with message: Event missing-event not found in session"
    )


async def test_rewound_event_is_no_rewind_point(session: Session) -> None:
    await session.say("First")
    await session.say("Second")
    second = await _message(session, "Second")
    await session.ask("history.truncate", eventId=second["id"])
    with pytest.raises(Refused, match="not found in session"):
        await session.ask("history.truncate", eventId=second["id"])


@pytest.mark.parametrize("number", [0, 1])
async def test_rewind_keeps_the_session_start(session: Session, number: int) -> None:
    await session.say("First")
    start = (await session.events())[number]
    await session.ask("history.truncate", eventId=start["id"])
    assert [event["type"] for event in await session.events()] == ["session.start", "session.model_change"]
    assert await session.say("Again") == "Yes."


async def test_every_turn_is_a_rewind_point(session: Session) -> None:
    await session.say("First")
    await session.say("Second")
    found = await session.ask("history.listRewindPoints")
    assert found["fileChangeTrackingEnabled"] is False
    assert [point["userMessage"] for point in found["points"]] == ["First", "Second"]
    event_id = found["points"][1]["eventId"]
    preview = await session.ask("history.previewRewind", eventId=event_id)
    assert (preview["available"], preview["reason"]) == (False, "file-change-tracking-disabled")
    done = await session.ask("history.rewind", eventId=event_id, mode="conversation")
    assert (done["outcome"], done["restoredFiles"]) == ("success", [])
    assert done["eventsRemoved"] > 0
    assert await _said(session) == ["First"]


async def test_rewind_reports_no_restored_files(session: Session) -> None:
    await session.say("First")
    event_id = (await _message(session, "First"))["id"]
    done = await session.ask("history.rewind", eventId=event_id, mode="conversation-and-files")
    assert done["outcome"] == "file-change-tracking-disabled"
    assert await _said(session) == ["First"]


async def test_busy_session_is_not_rewound(tmp_path: Path) -> None:
    hold = Hold(held=False)
    async with desk_at(tmp_path, "Done.", gate=hold) as desk:
        session = await desk.client().session(streaming=True)
        await session.say("First")
        event_id = (await _message(session, "First"))["id"]
        hold.hold()
        await session.ask("send", prompt="Second")
        await hold.until_reached()
        with pytest.raises(Refused, match="The session is busy"):
            await session.ask("history.truncate", eventId=event_id)
        done = await session.ask("history.rewind", eventId=event_id, mode="conversation")
        assert done == {"outcome": "session-busy", "restoredFiles": [], "skippedFiles": []}
        hold.release()
        await session.client.until("session.idle")


async def test_a_session_without_an_older_part_reports_that_nothing_was_compacted(session: Session) -> None:
    assert await session.ask("history.compact") == {"success": False, "tokensRemoved": 0, "messagesRemoved": 0}
    assert await session.ask("history.cancelBackgroundCompaction") == {"cancelled": False}
    assert await session.ask("history.abortManualCompaction") == {"aborted": False}
    assert await session.ask("history.summarizeForHandoff") == {"summary": ""}
