"""Annotations of sessions: the seen position, pins, and metadata."""

import asyncio
from typing import Any

import pytest

from tests.http.world import Client, Place, Server, code_of


async def view(client: Client, session: str) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(f"/v1/sessions/{session}")).json()["session"]
    return found


async def listed(client: Client, **query: Any) -> dict[str, dict[str, Any]]:
    page = (await client.get("/v1/sessions", params={"limit": 200, **query})).json()
    return {found["id"]: found for found in page["sessions"]}


# Unread


async def test_a_session_with_output_is_unread_until_its_owner_has_seen_it(client: Client) -> None:
    session = await client.make()
    assert not (await view(client, session))["unread"]
    await client.say(session, "good morning")
    assert (await view(client, session))["unread"]
    assert (await listed(client))[session]["unread"]
    overview = (await client.get("/v1/overview")).json()["items"]
    assert next(found for found in overview if found["id"] == session)["unread"]
    response = await client.post(f"/v1/sessions/{session}/seen")
    head = (await view(client, session))["head"]
    assert (response.status_code, response.json()) == (200, {"position": head, "unread": False})
    assert not (await listed(client))[session]["unread"]
    await client.say(session, "and again")
    assert (await view(client, session))["unread"]


async def test_the_seen_position_never_decreases_nor_passes_the_head(client: Client) -> None:
    session = await client.make()
    await client.say(session, "good morning")
    seen = f"/v1/sessions/{session}/seen"
    head = (await view(client, session))["head"]
    assert (await client.post(seen, json={"position": 2})).json() == {"position": 2, "unread": True}
    assert (await client.post(seen, json={"position": 2**53})).json() == {"position": head, "unread": False}
    for _ in range(2):
        assert (await client.post(seen, json={"position": 1})).json() == {"position": head, "unread": False}
    assert (await view(client, session))["seen"] == head


async def test_a_new_title_a_pin_and_metadata_are_no_news(client: Client) -> None:
    session = await client.make()
    await client.patch(f"/v1/sessions/{session}", json={"title": "Mine", "pinned": True, "metadata": {"a": "b"}})
    assert not (await view(client, session))["unread"]


async def test_an_open_request_makes_a_session_unread(client: Client) -> None:
    session = await client.make()
    await client.say(session, "ask me something")
    found = await view(client, session)
    assert (found["status"], found["pending_requests"], found["unread"]) == ("waiting", 1, True)


async def test_a_copy_and_what_was_imported_are_not_unread(client: Client) -> None:
    session = await client.make(metadata={"ticket": "12"})
    await client.say(session, "good morning")
    copy = (await client.post(f"/v1/sessions/{session}/fork")).json()["id"]
    exported = (await client.get(f"/v1/sessions/{session}/export")).content
    imported = (await client.post("/v1/sessions/import", content=exported)).json()["id"]
    assert not (await view(client, copy))["unread"]
    assert ((await view(client, copy))["metadata"], (await view(client, copy))["parent"]) == ({"ticket": "12"}, session)
    assert not (await view(client, imported))["unread"]
    assert (await view(client, imported))["metadata"] == {"imported_from": session}


@pytest.mark.parametrize("body", [{"position": -1}, {"position": "1"}, {"position": 2**53 + 1}, {"head": 1}])
async def test_nothing_else_is_seen(client: Client, body: object) -> None:
    session = await client.make()
    response = await client.post(f"/v1/sessions/{session}/seen", json=body)
    assert (response.status_code, code_of(response)) == (422, "invalid")


# Pins and metadata


async def test_a_session_is_pinned_and_listed_so_without_being_newer(client: Client) -> None:
    pinned, other = await client.make(title="Pin me"), await client.make()
    changed = await client.patch(f"/v1/sessions/{pinned}", json={"pinned": True})
    assert (changed.status_code, changed.json()["pinned"]) == (200, True)
    order = [found for found in await listed(client) if found in (pinned, other)]
    assert order == [other, pinned]
    assert (pinned in await listed(client, pinned=True), other in await listed(client, pinned=True)) == (True, False)
    assert (pinned in await listed(client, pinned=False), other in await listed(client, pinned=False)) == (False, True)
    assert (await client.get("/v1/sessions?pinned=perhaps")).status_code == 422
    await client.patch(f"/v1/sessions/{pinned}", json={"pinned": False})
    assert pinned not in await listed(client, pinned=True)


async def test_metadata_is_kept_from_the_start_merged_into_and_shown(client: Client) -> None:
    session = await client.make(metadata={"ticket": "12", "team": "blue"})
    assert (await listed(client))[session]["metadata"] == {"ticket": "12", "team": "blue"}
    for _ in range(2):
        changed = await client.patch(f"/v1/sessions/{session}", json={"metadata": {"team": None, "state": "open"}})
        assert changed.json()["metadata"] == {"ticket": "12", "state": "open"}
    assert (await view(client, session))["metadata"] == {"ticket": "12", "state": "open"}


@pytest.mark.parametrize(
    "metadata",
    [
        {f"key{number}": "" for number in range(65)},
        {"long": "x" * 16_001},
        {"x" * 65: "long"},
        {"": "empty"},
        {"deep": {"er": "1"}},
        {"number": 1},
        ["list"],
    ],
)
async def test_too_much_metadata_is_refused_and_changes_nothing(client: Client, metadata: object) -> None:
    session = await client.make(title="As it was", metadata={"a": "b"})
    body = {"metadata": metadata, "pinned": True, "title": "Another"}
    for response in (
        await client.patch(f"/v1/sessions/{session}", json=body),
        await client.post("/v1/sessions", json={"metadata": metadata}),
    ):
        assert (response.status_code, code_of(response) in ("invalid", "metadata_too_large")) == (422, True)
    found = await view(client, session)
    assert (found["title"], found["metadata"], found["pinned"]) == ("As it was", {"a": "b"}, False)


async def test_many_who_note_something_at_once_all_do(client: Client) -> None:
    session = await client.make()
    one = f"/v1/sessions/{session}"
    await asyncio.gather(*(client.patch(one, json={"metadata": {f"k{n}": str(n)}}) for n in range(10)))
    assert (await view(client, session))["metadata"] == {f"k{n}": str(n) for n in range(10)}


async def test_notes_of_a_missing_session_are_refused(client: Client) -> None:
    for response in (
        await client.post("/v1/sessions/nobody/seen", json={"position": 1}),
        await client.patch("/v1/sessions/nobody", json={"pinned": True}),
    ):
        assert (response.status_code, code_of(response)) == (404, "session_not_found")


async def test_notes_outlive_the_server(place: Place) -> None:
    async with place.serve() as server, server.client() as client:
        session = await client.make(metadata={"ticket": "12"})
        await client.say(session, "think about it")
        await client.patch(f"/v1/sessions/{session}", json={"pinned": True})
        seen = (await client.post(f"/v1/sessions/{session}/seen")).json()["position"]
        await server.end(9)
    async with place.serve() as server, server.client() as client:
        found = await view(client, session)
        assert (found["pinned"], found["metadata"], found["seen"]) == (True, {"ticket": "12"}, seen)
        assert not found["unread"]


async def test_a_session_in_a_list_says_its_model_and_its_parent(client: Client, server: Server) -> None:
    parent = await client.make(model="demo")
    child = await client.make(parent=parent)
    found = await listed(client)
    assert (found[parent]["model"], found[parent]["parent"]) == ("demo", None)
    assert (found[child]["model"], found[child]["parent"]) == ("openai/scripted", parent)
