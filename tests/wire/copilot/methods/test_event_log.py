"""Reading a session's events by cursor: no gap, no repetition, even across rewinds, restarts and dropped events."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import Runtime
from holdfast.events.session import SessionInfo
from holdfast.server.copilot import hub
from tests.wire.copilot.methods.world import Desk, Refused, Session, desk_at

pytestmark = pytest.mark.anyio


async def _pages(session: Session, cursor: str | None = None, **params: Any) -> tuple[list[dict[str, Any]], str]:
    """All events, read page by page, and the last cursor."""
    found: list[dict[str, Any]] = []
    while True:
        given = {} if cursor is None else {"cursor": cursor}
        page = await session.ask("eventLog.read", **given, **params)
        assert page["cursorStatus"] == "ok"
        found += page["events"]
        cursor = page["cursor"]
        assert cursor is not None
        if not page["hasMore"]:
            return found, cursor


def _kept(events: list[dict[str, Any]]) -> list[str]:
    return [event["id"] for event in events if not event.get("ephemeral")]


async def _ids(session: Session) -> list[str]:
    return [event["id"] for event in await session.events()]


@pytest.mark.parametrize("size", [1, 2, 3, 1_000])
async def test_pages_of_any_size_add_up_to_the_whole_log(session: Session, size: int) -> None:
    await session.say("Hello")
    found, _ = await _pages(session, max=size)
    assert _kept(found) == await _ids(session)
    assert len({event["id"] for event in found}) == len(found)
    assert "session.idle" in [event["type"] for event in found]


async def test_client_that_attaches_later_reads_earlier_events(desk: Desk, session: Session) -> None:
    await session.say("Hello")
    await session.ask("detach")
    other = desk.client()
    await other.ask("session.resume", sessionId=session.id)
    again = Session(other, session.id, session.folder)
    found, _ = await _pages(again, max=2)
    assert _kept(found) == await _ids(again)


async def test_read_from_the_tail_returns_only_new_events(session: Session) -> None:
    tail = (await session.ask("eventLog.tail"))["cursor"]
    assert (await session.ask("eventLog.read", cursor=tail))["events"] == []
    await session.ask("log", message="News")
    found, cursor = await _pages(session, tail)
    assert [event["data"]["message"] for event in found] == ["News"]
    assert (await _pages(session, cursor))[0] == []


async def test_events_of_another_process_are_read_before_the_hub_sent_them(
    desk: Desk, session: Session, tmp_path: Path
) -> None:
    tail = (await session.ask("eventLog.tail"))["cursor"]
    async with Runtime(database=tmp_path / "holdfast.db", work=False) as elsewhere:
        await elsewhere.operations.record(desk.key(session), SessionInfo(info_type="x", message="From elsewhere"))
        found, _ = await _pages(session, tail, types=["session.info"])
        assert [event["data"]["message"] for event in found] == ["From elsewhere"]
        await elsewhere.operations.record(desk.key(session), SessionInfo(info_type="x", message="Once more"))
        tail = (await session.ask("eventLog.tail"))["cursor"]
        assert (await _pages(session, tail, types=["session.info"]))[0] == []


async def test_filtered_out_events_are_skipped_once(session: Session) -> None:
    await session.say("Hello")
    found, cursor = await _pages(session, types=["user.message", "assistant.message"], max=1)
    assert [event["type"] for event in found] == ["user.message", "assistant.message"]
    await session.say("Again")
    found, _ = await _pages(session, cursor, types=["user.message"], max=1)
    assert [event["data"]["content"] for event in found] == ["Again"]


async def test_ephemeral_events_can_be_excluded(session: Session) -> None:
    await session.say("Hello")
    found, _ = await _pages(session, includeEphemeral=False)
    assert [event["id"] for event in found] == await _ids(session)


async def test_agent_filter_matches_no_events(session: Session) -> None:
    assert (await session.ask("eventLog.read", agentIds=["a"]))["events"] == []


async def test_waiting_read_returns_on_a_matching_event(session: Session) -> None:
    tail = (await session.ask("eventLog.tail"))["cursor"]
    waiting = session.client.begin(
        "session.eventLog.read", sessionId=session.id, cursor=tail, types=["session.info"], waitMs=30_000
    )
    await session.ask("mode.set", mode="plan")
    await session.ask("log", message="Wake up")
    found = (await waiting)["result"]
    assert [event["data"]["message"] for event in found["events"]] == ["Wake up"]


async def test_wait_without_events_returns_the_same_cursor(session: Session) -> None:
    tail = (await session.ask("eventLog.tail"))["cursor"]
    found = await session.ask("eventLog.read", cursor=tail, types=["session.error"], waitMs=30)
    assert (found["events"], found["hasMore"], found["cursorStatus"]) == ([], False, "ok")
    await session.ask("log", message="News")
    news, _ = await _pages(session, found["cursor"], types=["session.info"])
    assert [event["data"]["message"] for event in news] == ["News"]


async def test_cursor_outlives_the_process_that_issued_it(tmp_path: Path) -> None:
    async with desk_at(tmp_path) as desk:
        session = await desk.client().session()
        await session.say("Before")
        _, cursor = await _pages(session)
    async with desk_at(tmp_path) as desk:
        client = desk.client()
        await client.ask("session.resume", sessionId=session.id)
        again = Session(client, session.id, session.folder)
        await again.say("After")
        found, _ = await _pages(again, cursor)
        said = [event["data"]["content"] for event in found if event["type"] == "user.message"]
        assert said == ["After"]


async def test_events_that_the_hub_dropped_are_read_from_the_store(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "KEPT_EVENTS", 4)
    session = await desk.client().session()
    before, early = await _pages(session)
    await session.say("One")
    await session.say("Two")
    found, _ = await _pages(session, max=3)
    assert _kept(found) == await _ids(session)
    found, _ = await _pages(session, early, max=3)
    assert _kept(before) + _kept(found) == await _ids(session)


async def test_attached_reader_sees_the_rewind_event(session: Session) -> None:
    await session.say("One")
    _, cursor = await _pages(session)
    await session.say("Two")
    await _take_back(session, "One")
    news, _ = await _pages(session, cursor)
    types = [event["type"] for event in news]
    assert types.index("user.message") < types.index("session.snapshot_rewind")
    whole, _ = await _pages(session, max=2)
    assert _kept(whole) == await _ids(session)
    assert "user.message" not in [event["type"] for event in whole]


async def test_cursor_at_a_rewound_event_has_expired_for_other_readers(desk: Desk, session: Session) -> None:
    await session.say("One")
    _, behind_one = await _pages(session)
    await session.say("Two")
    _, behind_two = await _pages(session)
    await _take_back(session, "Two")
    await session.say("Three")
    await session.ask("detach")
    other = desk.client()
    await other.ask("session.resume", sessionId=session.id)
    again = Session(other, session.id, session.folder)
    expired = await again.ask("eventLog.read", cursor=behind_two)
    assert expired["cursorStatus"] == "expired"
    assert _kept(expired["events"]) == await _ids(again)
    rest, _ = await _pages(again, behind_one)
    said = [event["data"]["content"] for event in rest if event["type"] == "user.message"]
    assert said == ["Three"]


async def _take_back(session: Session, content: str) -> None:
    found = next(event for event in await session.events() if event["data"].get("content") == content)
    await session.ask("history.truncate", eventId=found["id"])
    await session.client.until("session.snapshot_rewind")


@pytest.mark.parametrize(
    "cursor", ["x", "|", "a|b|c", "a|-1|b", "a|99999999999999999999999|b", "a|1|b|c", "a|\u0661|b"]
)
async def test_malformed_cursor_is_refused(session: Session, cursor: str) -> None:
    with pytest.raises(Refused, match="This is no cursor of this runtime"):
        await session.ask("eventLog.read", cursor=cursor)


@pytest.mark.parametrize("cursor", ["another|3|unknown", "another|history|unknown", "another|3|"])
async def test_cursor_of_an_unknown_event_has_expired(session: Session, cursor: str) -> None:
    found = await session.ask("eventLog.read", cursor=cursor)
    assert found["cursorStatus"] == "expired"
    assert _kept(found["events"]) == await _ids(session)


async def test_backward_read_starts_at_the_end(session: Session) -> None:
    await session.say("Hello")
    ids = await _ids(session)
    found: list[str] = []
    page = await session.ask("eventLog.read", direction="backward", max=2)
    while True:
        found = [event["id"] for event in page["events"]] + found
        if not page["hasMore"]:
            break
        page = await session.ask("eventLog.read", cursor=page["cursor"], max=2)
    assert found == ids
    unknown = await session.ask("eventLog.read", cursor="x|backward|unknown", max=2)
    assert (unknown["cursorStatus"], [event["id"] for event in unknown["events"]]) == ("expired", ids[-2:])


async def test_session_without_attachment_is_read_from_the_store(desk: Desk, session: Session) -> None:
    await session.say("Hello")
    ids = await _ids(session)
    stranger = desk.client()
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await stranger.ask("sessions.readPersistedEvents", sessionId=session.id, max=2, **cursor)
        found += [event["id"] for event in page["events"]]
        cursor = {"cursor": page["cursor"]}
        if not page["hasMore"]:
            break
    assert found == ids
    back = await stranger.ask("sessions.readPersistedEvents", sessionId=session.id, max=2, direction="backward")
    assert [event["id"] for event in back["events"]] == ids[-2:]
    gone = await stranger.ask("sessions.readPersistedEvents", sessionId=session.id, cursor="x|history|unknown")
    assert (gone["events"], gone["cursorStatus"], gone["hasMore"]) == ([], "expired", False)


@pytest.mark.parametrize(
    ("level", "event_type", "name"),
    [("info", "session.info", "infoType"), ("warning", "session.warning", "warningType")],
)
async def test_log_line_is_persisted_with_its_level(session: Session, level: str, event_type: str, name: str) -> None:
    event_id = (await session.ask("log", message="A line", level=level, type="build"))["eventId"]
    (kept,) = [event for event in await session.events() if event["id"] == event_id]
    assert (kept["type"], kept["data"]) == (event_type, {name: "build", "message": "A line"})


async def test_error_line_of_a_client_ends_no_turn(session: Session) -> None:
    await session.ask("log", message="Bad", level="error")
    assert (await session.client.until("session.error"))["errorType"] == "notification"
    assert await session.say("Still there?") == "Yes."


async def test_ephemeral_log_line_is_sent_and_not_persisted(session: Session) -> None:
    event_id = (await session.ask("log", message="Passing", ephemeral=True))["eventId"]
    assert await session.client.until("session.info") == {"infoType": "notification", "message": "Passing"}
    assert event_id not in await _ids(session)


async def test_each_interest_has_its_own_handle(session: Session) -> None:
    handles = [(await session.ask("eventLog.registerInterest", eventType="x"))["handle"] for _ in range(2)]
    assert len(set(handles)) == 2
    for _ in range(2):
        assert await session.ask("eventLog.releaseInterest", handle=handles[0]) == {"success": True}
