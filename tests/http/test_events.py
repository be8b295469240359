"""The log as pages and as a stream: from any cursor, in the middle of an answer, and without an end."""

import asyncio
import re
import socket
from typing import Any

import pytest

from tests.http.world import LONG, Client, Frame, Model, Place, Server, code_of, patience


async def until_idle(client: Client, session: str, *, after: str = "", query: str = "") -> list[Frame]:
    """The frames that a reader gets up to the end of a turn."""
    found = []
    async with patience(), client.follow(session, after=after, query=query) as frames:
        async for frame in frames:
            found.append(frame)
            if frame.kind == "event" and frame.data["type"] == "holdfast.turn_ended":
                break
    return found


def told(frames: list[Frame]) -> tuple[list[Any], dict[tuple[str, int], str]]:
    """The events in order, and the text of every block: what two readings are compared by."""
    events = [frame.data for frame in frames if frame.kind == "event"]
    blocks: dict[tuple[str, int], str] = {}
    for frame in frames:
        if frame.kind == "delta":
            place = (frame.data["message_id"], frame.data["block"])
            assert len(blocks.get(place, "").encode()) == frame.data["offset"], "no hole, and nothing twice"
            blocks[place] = blocks.get(place, "") + frame.data["text"]
    return events, blocks


# Pages


async def test_the_log_is_read_page_by_page(client: Client) -> None:
    session = await client.make()
    await client.say(session, "good morning")
    whole = await client.events(session)
    assert [event["position"] for event in whole] == list(range(1, len(whole) + 1))
    assert whole[0]["type"] == "session.start"
    found: list[dict[str, Any]] = []
    cursor = "0"
    while len(found) < len(whole):
        page = (await client.get(f"/v1/sessions/{session}/events", params={"after": cursor, "limit": 2})).json()
        found, cursor = [*found, *page["events"]], page["cursor"]
    assert found == whole


async def test_a_page_is_waited_for(client: Client) -> None:
    session = await client.make()
    head = (await client.get(f"/v1/sessions/{session}")).json()["cursor"]
    waiting = asyncio.create_task(client.get(f"/v1/sessions/{session}/events", params={"after": head, "wait": 60}))
    await client.patch(f"/v1/sessions/{session}", json={"title": "Renamed"})
    page = (await waiting).json()
    assert [event["type"] for event in page["events"]] == ["session.title_changed"]
    nothing = (
        await client.get(f"/v1/sessions/{session}/events", params={"after": page["cursor"], "wait": 0.01})
    ).json()
    assert nothing == {"events": [], "cursor": page["cursor"]}


@pytest.mark.parametrize("query", ["after=x", "after=-1", "after=1/a", "after=1/a/b/c", "wait=61", "wait=x", "limit=0"])
async def test_a_cursor_that_was_never_given_out_is_refused(client: Client, query: str) -> None:
    session = await client.make()
    for headers in ({}, {"accept": "text/event-stream"}):
        response = await client.get(f"/v1/sessions/{session}/events?{query}", headers=headers)
        assert response.status_code == 422
        assert code_of(response) in ("cursor_invalid", "invalid")


# The stream


async def test_a_stream_tells_what_was_and_what_comes(own_place: Place, own_model: Model) -> None:
    async with own_place.serve() as server, server.client() as client:
        session = await client.make()
        own_model.hold(10)
        saying = asyncio.create_task(client.say(session, "a long answer"))
        await own_model.until_held()
        reading = asyncio.create_task(until_idle(client, session))
        own_model.release()
        events, blocks = told(await reading)
        await saying
        assert events == await client.events(session)
        assert list(blocks.values()) == [LONG]


async def test_fault_33_a_reader_that_comes_back_at_any_cursor_has_seen_the_whole(
    own_place: Place, own_model: Model
) -> None:
    async with own_place.serve() as server, server.client() as client:
        session = await client.make()
        own_model.hold(20)
        saying = asyncio.create_task(client.say(session, "a long answer"))
        await own_model.until_held()
        before: list[Frame] = []
        async with patience(), client.follow(session) as frames:
            async for frame in frames:
                before.append(frame)
                if frame.kind == "delta" and "word18" in frame.data["text"]:
                    break
        own_model.release()
        await saying
        whole = told(await until_idle(client, session))
        cursors = [frame.id for frame in before if frame.id]
        assert any("/" in cursor for cursor in cursors), "one of them is in the middle of an answer"
        for number, cursor in enumerate(cursors):
            seen = [frame for frame in before if frame.id][: number + 1]
            assert told([*seen, *await until_idle(client, session, after=cursor)]) == whole
            assert told([*seen, *await until_idle(client, session, query=f"?after={cursor}")]) == whole


async def test_fault_33_a_cursor_in_the_middle_of_a_word_goes_on_there(client: Client) -> None:
    session = await client.make()
    await client.say(session, "a long answer")
    frames = await until_idle(client, session)
    (delta,) = [frame for frame in frames if frame.kind == "delta"]
    position, message_id, block, _ = re.split("/", delta.id)
    rest = await until_idle(client, session, after=f"{position}/{message_id}/{block}/3")
    (again,) = [frame for frame in rest if frame.kind == "delta"]
    assert (again.data["offset"], again.data["text"]) == (3, LONG[3:])


async def test_fault_37_a_reader_that_leaves_stops_nothing(own_place: Place, own_model: Model) -> None:
    async with own_place.serve() as server, server.client() as client:
        session = await client.make()
        own_model.hold(10)
        async with client.stream(
            "POST", f"/v1/sessions/{session}/stream", json={"text": "a long answer", "message_id": "m1"}
        ) as sending:
            async with client.follow(session) as frames:
                async for frame in frames:
                    if frame.kind == "delta":
                        break
            assert sending.status_code == 200
        own_model.release()
        await until_idle(client, session)
        assert (await client.texts(session))[-1] == LONG


async def test_fault_36_a_hundred_readers_that_came_and_went_leave_nothing_behind(
    client: Client, server: Server
) -> None:
    session = await client.make()
    for _ in range(100):
        async with patience(), client.follow(session) as frames:
            await anext(frames)
    async with patience():
        while (await readers(client)) != 0:
            pass


async def test_fault_35_a_reader_that_reads_nothing_slows_no_other(own_place: Place, own_model: Model) -> None:
    async with own_place.serve() as server, server.client() as client:
        session = await client.make()
        with socket.create_connection(("127.0.0.1", server.port)) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(
                f"GET /v1/sessions/{session}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
                f"Authorization: Bearer {server.token}\r\n\r\n".encode()
            )
            async with patience():
                while await readers(client) != 1:
                    pass
            for number in range(20):
                async with patience():
                    await client.say(session, f"{number}: " + "x" * 60_000)
        assert len(await client.texts(session)) == 40


async def test_a_stream_of_a_deleted_session_says_so_and_ends(client: Client) -> None:
    session = await client.make()
    async with patience(), client.follow(session) as frames:
        assert (await anext(frames)).kind == "event"
        await client.delete(f"/v1/sessions/{session}")
        assert [frame.kind async for frame in frames][-1] == "deleted"


async def test_a_stream_is_not_opened_for_a_session_that_there_is_not(client: Client) -> None:
    response = await client.get("/v1/sessions/nobody/events", headers={"accept": "text/event-stream"})
    assert (response.status_code, code_of(response)) == (404, "session_not_found")


async def readers(client: Client) -> int:
    found = re.search(r"^holdfast_readers (\d+)$", (await client.get("/metrics")).text, re.MULTILINE)
    assert found is not None
    return int(found[1])
