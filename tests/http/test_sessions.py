"""Sessions over HTTP: made, listed, looked at, changed, deleted and stopped."""

import asyncio

import pytest

from tests.http.world import LONG, Client, Model, Place, code_of, patience


async def test_a_session_is_made_with_what_was_asked_for_and_the_server_s_choice_for_the_rest(client: Client) -> None:
    response = await client.post("/v1/sessions", json={"id": "made", "title": "Mine", "allow": ["write(docs/*)"]})
    assert response.status_code == 201
    assert response.headers["location"] == "/v1/sessions/made"
    view = response.json()
    assert (view["id"], view["title"], view["status"], view["turn_id"]) == ("made", "Mine", "idle", None)
    settings = (await client.get("/v1/sessions/made")).json()["settings"]
    assert (settings["model"], settings["allow"]) == ("openai/scripted", ["write(docs/*)"])
    assert "create" in settings["tools"]
    assert settings["working_directory"].endswith("/work")


async def test_the_same_id_again_is_the_same_session(client: Client) -> None:
    first = await client.post("/v1/sessions", json={"id": "again", "title": "First"})
    second = await client.post("/v1/sessions", json={"id": "again", "title": "Second"})
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json()["title"] == "First"


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"id": 7}, "`$.id`"),
        ({"id": ""}, "session id"),
        ({"id": "x" * 65}, "session id"),
        ({"nothing": 1}, "`nothing`"),
        ({"tools": "view"}, "`$.tools`"),
        ({"client_tools": [{"name": "a b"}]}, "`$.client_tools[0].name`"),
        ({"metadata": {"a": 1}}, "`$.metadata[...]`"),
        ([], "`object`"),
        ({"working_directory": "/does/not/exist"}, "/does/not/exist"),
        ({"working_directory": "relative"}, "absolute"),
        ({"tools": ["fly"]}, "fly"),
        ({"allow": ["write(("]}, "write(("),
        ({"metadata": {"a": "b" * 20_000}}, "Metadata"),
    ],
)
async def test_invalid_options_of_a_new_session_are_refused_with_their_field(
    client: Client, body: object, where: str
) -> None:
    before = (await client.get("/v1/overview")).json()["counts"]
    response = await client.post("/v1/sessions", json=body)
    assert response.status_code == 422
    assert code_of(response)
    assert where in response.json()["error"]["message"]
    assert (await client.get("/v1/overview")).json()["counts"] == before


async def test_a_parent_must_be_one_s_own_session(client: Client) -> None:
    response = await client.post("/v1/sessions", json={"parent": "nobody"})
    assert (response.status_code, code_of(response)) == (404, "session_not_found")
    parent = await client.make()
    assert await client.make(parent=parent)


async def test_sessions_are_listed_newest_first_page_by_page_and_searched(client: Client) -> None:
    made = [await client.make(title=f"Invoice {number}") for number in range(5)]
    page = (await client.get("/v1/sessions", params={"limit": 2, "q": "invoice"})).json()
    found = [view["id"] for view in page["sessions"]]
    while page["next"] is not None:
        page = (await client.get("/v1/sessions", params={"limit": 2, "q": "invoice", "cursor": page["next"]})).json()
        found += [view["id"] for view in page["sessions"]]
    assert sorted(found) == sorted(made)
    await client.patch(f"/v1/sessions/{made[0]}", json={"title": "Invoice 0, paid"})
    assert (await client.get("/v1/sessions", params={"limit": 1})).json()["sessions"][0]["id"] == made[0]


async def test_sessions_are_found_by_the_words_that_were_said_in_them(client: Client) -> None:
    lamp, other = await client.make(), await client.make()
    await client.say(lamp, "The lantern on the stair is green.")
    await client.say(other, "Nothing of the kind.")
    for query in ("stair LANT", '"lantern" AND (', "grün OR green*"):
        page = (await client.get("/v1/sessions", params={"q": query})).json()
        wanted = [] if "grün" in query or "AND" in query else [lamp]
        assert ([view["id"] for view in page["sessions"]], page["unsearched"]) == (wanted, 0)


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "nothing=1", "limit=1&limit=2"])
async def test_a_list_is_not_asked_for_in_ways_that_there_are_not(client: Client, query: str) -> None:
    response = await client.get(f"/v1/sessions?{query}")
    assert (response.status_code, code_of(response)) == (422, "invalid")


async def test_a_conversation_is_shown_with_its_answers(client: Client) -> None:
    session = await client.make()
    assert (await client.say(session, "good morning")).status_code == 200
    detail = (await client.get(f"/v1/sessions/{session}")).json()
    assert [message["role"] for message in detail["messages"]] == ["user", "assistant", "turn_end"]
    assert await client.texts(session) == ["good morning", "Hello, world."]
    assert detail["session"]["status"] == "idle"
    assert detail["cursor"] == str(detail["session"]["head"])


async def test_messages_that_a_replay_would_send_can_be_left_out(client: Client) -> None:
    session = await client.make()
    await client.say(session, "good morning")
    detail = (await client.get(f"/v1/sessions/{session}", params={"leave_out_replayed": True})).json()
    assert [message["role"] for message in detail["messages"]] == ["user"]
    rest = (await client.get(f"/v1/sessions/{session}/events", params={"after": detail["cursor"]})).json()["events"]
    assert rest[0]["type"] == "assistant.turn_start"


async def test_a_title_and_a_model_are_changed(client: Client) -> None:
    session = await client.make()
    response = await client.patch(f"/v1/sessions/{session}", json={"title": "Renamed", "model": "demo"})
    assert (response.status_code, response.json()["title"]) == (200, "Renamed")
    assert (await client.get(f"/v1/sessions/{session}")).json()["settings"]["model"] == "demo"


@pytest.mark.parametrize("body", [{"title": ""}, {"title": 1}, {"title": "x" * 201}, {"owner": "me"}, {"model": ""}])
async def test_nothing_else_is_changed(client: Client, body: object) -> None:
    session = await client.make(title="As it was")
    response = await client.patch(f"/v1/sessions/{session}", json=body)
    assert (response.status_code, code_of(response)) == (422, "invalid")
    assert (await client.get(f"/v1/sessions/{session}")).json()["session"]["title"] == "As it was"


async def test_a_deleted_session_is_gone_and_its_id_is_not_used_again(client: Client) -> None:
    session = await client.make()
    assert (await client.delete(f"/v1/sessions/{session}")).status_code == 204
    for response in (await client.get(f"/v1/sessions/{session}"), await client.delete(f"/v1/sessions/{session}")):
        assert (response.status_code, code_of(response)) == (404, "session_not_found")
    again = await client.post("/v1/sessions", json={"id": session})
    assert (again.status_code, code_of(again)) == (409, "session_deleted")


# Stopping


async def test_a_stop_says_what_it_did(own_place: Place, own_model: Model) -> None:
    async with own_place.serve() as server, server.client() as client:
        session = await client.make()
        own_model.hold(5)
        saying = asyncio.create_task(client.say(session, "a long answer"))
        await own_model.until_held()
        queued = await client.add(session, "and then", delivery="enqueue")
        assert queued.status_code == 202
        stop = {"stop_id": "s1"}
        stopped = await client.post(f"/v1/sessions/{session}/cancel", json=stop)
        own_model.release()
        assert stopped.status_code == 200
        assert stopped.json()["returned"] == ["and then"]
        async with patience():
            while stopped.json()["outcome"] == "stopping":  # It took more than two seconds: asked again, it says more.
                stopped = await client.post(f"/v1/sessions/{session}/cancel", json=stop)
        assert (stopped.json()["stop_id"], stopped.json()["returned"]) == ("s1", ["and then"])
        assert [found["text"] for found in stopped.json()["returned_messages"]] == ["and then"]
        await saying
        ended = (await client.get(f"/v1/sessions/{session}")).json()["messages"][-1]
        assert (ended["role"], ended["reason"]) == ("turn_end", "stopped")


async def test_a_stop_of_nothing_says_so(client: Client) -> None:
    session = await client.make()
    response = await client.post(f"/v1/sessions/{session}/cancel")
    assert (response.status_code, response.json()["outcome"]) == (200, "nothing_running")


async def test_a_stop_that_is_meant_for_another_turn_stops_nothing(own_place: Place, own_model: Model) -> None:
    async with own_place.serve() as server, server.client() as client:
        session = await client.make()
        own_model.hold(5)
        saying = asyncio.create_task(client.say(session, "a long answer"))
        await own_model.until_held()
        response = await client.post(f"/v1/sessions/{session}/cancel", json={"turn_id": "another"})
        assert response.json()["outcome"] in ("stopping", "turn_ended_before", "nothing_running")
        own_model.release()
        await saying
        assert (await client.texts(session))[-1] == LONG


async def test_a_stop_for_another_turn_leaves_all_messages_in_the_queue(own_place: Place, own_model: Model) -> None:
    async with own_place.serve() as server, server.client() as client:
        session = await client.make()
        own_model.hold(5)
        saying = asyncio.create_task(client.say(session, "a long answer"))
        await own_model.until_held()
        await client.add(session, "from somebody else", message_id="theirs", delivery="enqueue")
        stopped = (await client.post(f"/v1/sessions/{session}/cancel", json={"turn_id": "another"})).json()
        assert (stopped["outcome"], stopped["returned"]) == ("turn_ended_before", [])
        queue = (await client.get(f"/v1/sessions/{session}/queue")).json()
        assert [waiting["message_id"] for waiting in queue["messages"]] == ["theirs"]
        own_model.release()
        await saying
