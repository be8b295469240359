"""Finding, listing, closing and deleting sessions without being attached to them."""

import pytest

from tests.wire.copilot.methods.world import Client, Desk, Refused, Session

pytestmark = pytest.mark.anyio


async def test_newer_method_names_return_the_same(client: Client, session: Session) -> None:
    await session.say("Hello")
    assert await client.ask("sessions.list") == await client.ask("session.list")
    assert await client.ask("sessions.list", source="remote") == {"sessions": []}
    found = await client.ask("sessions.getMetadata", sessionId=session.id)
    assert found == await session.ask("getMetadata")
    assert found["session"]["name"] == "Hello"


async def test_a_session_is_deleted_once(client: Client, session: Session) -> None:
    assert await client.ask("sessions.delete", sessionId=session.id) is None
    with pytest.raises(Refused, match=f"Session file not found for {session.id}"):
        await client.ask("sessions.delete", sessionId=session.id)


async def test_bulk_delete_names_the_sessions_that_existed(client: Client) -> None:
    one, two = await client.session(), await client.session()
    told = await client.ask("sessions.bulkDelete", sessionIds=[one.id, "missing", two.id])
    assert told == {"freedBytes": {one.id: 0, two.id: 0}}
    assert not one.folder.exists()


async def test_attached_client_keeps_a_session_in_use(desk: Desk, client: Client, session: Session) -> None:
    stranger = desk.client()
    assert await stranger.ask("sessions.checkInUse", sessionIds=[session.id, "missing"]) == {"inUse": [session.id]}
    assert await client.ask("sessions.close", sessionId=session.id) == {}
    assert await stranger.ask("sessions.checkInUse", sessionIds=[session.id]) == {"inUse": []}


async def test_session_is_found_by_the_prefix_of_its_id(client: Client) -> None:
    for session_id in ("abc-1", "abc-2", "xyz"):
        await (await client.session(sessionId=session_id)).say("Hello")
    assert await client.ask("sessions.findByPrefix", prefix="xy") == {"sessionId": "xyz"}
    assert await client.ask("sessions.findByPrefix", prefix="abc") == {}
    assert await client.ask("sessions.findByPrefix", prefix="") == {}
    assert sorted((await client.ask("sessions.listNonEmptySessionIds"))["sessionIds"]) == ["abc-1", "abc-2", "xyz"]
    assert len((await client.ask("sessions.listNonEmptySessionIds", limit=2))["sessionIds"]) == 2


async def test_last_session_of_the_same_directory_is_preferred(desk: Desk, client: Client) -> None:
    assert await client.ask("sessions.getLastForContext") == {}
    there = str(desk.service.settings.home.parent)
    first = await client.session(workingDirectory=there)
    await first.say("Hello")
    second = await client.session()
    await second.say("Hello")
    assert await client.ask("sessions.getLastForContext") == {"sessionId": second.id}
    assert await client.ask("sessions.getLastForContext", context={"cwd": there}) == {"sessionId": first.id}


async def test_too_many_session_ids_are_refused(client: Client) -> None:
    with pytest.raises(Refused, match="At most 1,000 sessions at once"):
        await client.ask("sessions.bulkDelete", sessionIds=["x"] * 1_001)
