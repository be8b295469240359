"""Forks, rewinds, exports and imports."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.http.world import Client, Model, Place, code_of


async def two_turns(client: Client) -> tuple[str, list[dict[str, Any]]]:
    session = await client.make(title="Two turns")
    await client.say(session, "first")
    await client.say(session, "second")
    return session, await client.events(session)


def end_of_first(events: list[dict[str, Any]]) -> int:
    return next(int(event["position"]) for event in events if event["type"] == "holdfast.turn_ended")


async def test_a_fork_is_a_new_session_with_all_that_was_said(client: Client) -> None:
    session, _ = await two_turns(client)
    made = await client.post(f"/v1/sessions/{session}/fork")
    assert made.status_code == 201
    assert made.headers["location"] == f"/v1/sessions/{made.json()['id']}"
    assert made.json()["id"] != session
    assert made.json()["title"] == "Fork of Two turns"
    assert await client.texts(made.json()["id"]) == ["first", "Hello, world.", "second", "Hello, world."]


async def test_a_fork_begins_as_a_copy_up_to_a_position(client: Client) -> None:
    session, events = await two_turns(client)
    made = await client.post(f"/v1/sessions/{session}/fork?at={end_of_first(events)}", json={"title": "Half"})
    assert made.json()["title"] == "Half"
    fork = made.json()["id"]
    assert await client.texts(fork) == ["first", "Hello, world."]
    await client.say(fork, "third")
    assert await client.texts(fork) == ["first", "Hello, world.", "third", "Hello, world."]
    assert len(await client.texts(session)) == 4


@pytest.mark.parametrize("query", ["at=0", "at=99999", "at=x", "more=1"])
async def test_a_fork_is_made_at_a_position_that_there_is(client: Client, query: str) -> None:
    session = await client.make()
    response = await client.post(f"/v1/sessions/{session}/fork?{query}")
    assert response.status_code == 422
    assert code_of(response) in ("invalid", "position_invalid")


async def test_a_rewind_takes_back_what_came_after(client: Client) -> None:
    session, events = await two_turns(client)
    response = await client.post(f"/v1/sessions/{session}/rewind", json={"to": end_of_first(events), "rewind_id": "r1"})
    assert response.status_code == 200
    assert await client.texts(session) == ["first", "Hello, world."]
    again = await client.post(f"/v1/sessions/{session}/rewind", json={"to": end_of_first(events), "rewind_id": "r1"})
    assert again.status_code == 200
    truncated = [event for event in await client.events(session) if event["type"] == "holdfast.truncated"]
    assert len(truncated) == 1
    await client.say(session, "instead")
    assert await client.texts(session) == ["first", "Hello, world.", "instead", "Hello, world."]


async def test_a_rewind_stops_the_turn_first(own_place: Place, own_model: Model) -> None:
    async with own_place.serve() as server, server.client() as client:
        session = await client.make()
        await client.say(session, "first")
        end = (await client.get(f"/v1/sessions/{session}")).json()["session"]["head"]
        own_model.hold(5)
        saying = asyncio.create_task(client.say(session, "a long answer"))
        await own_model.until_held()
        response = await client.post(f"/v1/sessions/{session}/rewind", json={"to": end})
        own_model.release()
        assert response.status_code == 200
        await saying
        assert await client.texts(session) == ["first", "Hello, world."]


@pytest.mark.parametrize("body", [{}, {"to": 0}, {"to": "1"}, {"to": 1, "more": 1}, {"to": 9_999}])
async def test_a_rewind_names_a_position_that_there_is(client: Client, body: object) -> None:
    session = await client.make()
    response = await client.post(f"/v1/sessions/{session}/rewind", json=body)
    assert response.status_code == 422
    assert code_of(response) in ("invalid", "position_invalid")


async def test_an_export_goes_in_again_as_a_new_idle_session(client: Client) -> None:
    session, _ = await two_turns(client)
    exported = await client.get(f"/v1/sessions/{session}/export")
    assert exported.status_code == 200
    assert exported.headers["content-disposition"].startswith("attachment")
    made = await client.post("/v1/sessions/import", content=exported.content)
    assert made.status_code == 201
    assert (made.json()["title"], made.json()["status"]) == ("Two turns", "idle")
    assert await client.texts(made.json()["id"]) == ["first", "Hello, world.", "second", "Hello, world."]


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b'{"format": "x"}', b"[" * 100_000, b"\xff\xfe"])
async def test_a_document_that_is_not_an_export_is_refused(client: Client, document: bytes) -> None:
    response = await client.post("/v1/sessions/import", content=document)
    assert (response.status_code, code_of(response)) == (422, "import_invalid")


async def test_an_import_may_be_larger_than_other_bodies(client: Client) -> None:
    session, _ = await two_turns(client)
    document = msgspec.json.decode((await client.get(f"/v1/sessions/{session}/export")).content)
    for event in document["events"]:
        if event["type"] == "user.message":
            event["data"]["content"] = "x" * 1_000_000
    made = await client.post("/v1/sessions/import", content=msgspec.json.encode(document))
    assert made.status_code == 201


async def test_a_rewind_to_a_position_that_was_taken_back_does_not_restore_it(client: Client) -> None:
    session, events = await two_turns(client)
    await client.post(f"/v1/sessions/{session}/rewind", json={"to": end_of_first(events)})
    await client.say(session, "third")
    await client.post(f"/v1/sessions/{session}/rewind", json={"to": events[-1]["position"]})
    assert await client.texts(session) == ["first", "Hello, world."]
    await client.say(session, "fourth")
    assert await client.texts(session) == ["first", "Hello, world.", "fourth", "Hello, world."]
