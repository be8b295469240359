"""Reading a session's events by cursor: from the start, from the tail, by type, and by waiting for news."""

import asyncio
from typing import Any

import pytest
from copilot import CopilotClient
from copilot._jsonrpc import JsonRpcError
from copilot.rpc import EventLogReadRequest, RegisterEventInterestParams, ReleaseEventInterestParams

from tests.wire.copilot.harness import Model, approving, ask, patience, reply_to, says

pytestmark = pytest.mark.anyio


async def test_all_events_are_read_from_the_beginning(client: CopilotClient, model: Model) -> None:
    model.on("Log this", says("Logged."))
    session = await client.create_session(**approving())
    await reply_to(session, "Log this")
    read = await session.rpc.event_log.read(EventLogReadRequest(max=1000))
    kept = [event.id for event in await session.get_events()]
    assert [event.id for event in read.events if not event.ephemeral] == kept
    assert read.cursor_status.value == "ok"
    assert read.has_more is False


async def test_pages_follow_each_other_without_gap_or_repetition(client: CopilotClient, model: Model) -> None:
    model.on("Page this", says("Paged."))
    session = await client.create_session(**approving())
    await reply_to(session, "Page this")
    found = []
    cursor = None
    while True:
        page = await session.rpc.event_log.read(EventLogReadRequest(cursor=cursor, max=2))
        assert len(page.events) <= 2
        found += [event.id for event in page.events if not event.ephemeral]
        cursor = page.cursor
        if not page.has_more:
            break
    assert found == [event.id for event in await session.get_events()]


async def test_read_after_the_tail_returns_only_new_events(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    tail = (await session.rpc.event_log.tail()).cursor
    nothing = await session.rpc.event_log.read(EventLogReadRequest(cursor=tail, max=100))
    assert nothing.events == []
    await session.log("New in the log")
    news = await session.rpc.event_log.read(EventLogReadRequest(cursor=tail, max=100))
    assert [event.type.value for event in news.events] == ["session.info"]


async def test_events_can_be_read_by_type(client: CopilotClient, model: Model) -> None:
    model.on("Filter this", says("Filtered."))
    session = await client.create_session(**approving())
    await reply_to(session, "Filter this")
    read = await ask(session, "session.eventLog.read", max=100, waitMs=0, types=["user.message", "assistant.message"])
    assert [event["type"] for event in read["events"]] == ["user.message", "assistant.message"]


async def test_waiting_read_returns_on_a_new_event(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    tail = (await session.rpc.event_log.tail()).cursor
    waiting = asyncio.create_task(ask(session, "session.eventLog.read", cursor=tail, max=100, waitMs=30_000))
    await session.log("Wake up")
    async with patience():
        read = await waiting
    assert [event["data"]["message"] for event in read["events"]] == ["Wake up"]


async def test_wait_without_events_returns_none(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    tail = (await session.rpc.event_log.tail()).cursor
    read = await ask(session, "session.eventLog.read", cursor=tail, max=100, waitMs=50)
    assert read["events"] == []


async def test_interest_can_be_registered_and_released_repeatedly(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    log = session.rpc.event_log
    registered = await log.register_interest(RegisterEventInterestParams(event_type="session.title_changed"))
    assert registered.handle
    for _ in range(2):
        assert (await log.release_interest(ReleaseEventInterestParams(handle=registered.handle))).success is True


@pytest.mark.parametrize("cursor", ["nonsense", "|", "00000000-0000-0000-0000-000000000000|999999999", "a|b|c"])
async def test_foreign_cursor_is_refused_or_reads_from_a_known_position(client: CopilotClient, cursor: str) -> None:
    session = await client.create_session(**approving())
    try:
        read: dict[str, Any] = await ask(session, "session.eventLog.read", cursor=cursor, max=10, waitMs=0)
    except JsonRpcError:
        return
    assert read["cursorStatus"] != "ok"


async def test_the_log_of_an_unknown_session_is_an_error(client: CopilotClient) -> None:
    with pytest.raises(Exception, match="nope"):
        await ask(client, "session.eventLog.read", sessionId="nope", max=10, waitMs=0)
