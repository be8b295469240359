"""An owner keeps so many sessions and so many bytes; what is refused is said in words, and deleting makes room."""

import json

import pytest

from tests.http.test_limits import key_of
from tests.http.test_requests import LOOKUP, answered, asked, until_idle
from tests.http.world import Client, Model, Place, code_of


async def test_one_session_too_many_is_refused_however_it_is_made(own_place: Place) -> None:
    key = await key_of(own_place, "ann")
    async with (
        own_place.serve("--auth", "keys", HOLDFAST_MAX_SESSIONS_PER_OWNER="1") as server,
        server.client(token=key) as client,
    ):
        session = await client.make()
        exported = (await client.get(f"/v1/sessions/{session}/export")).content
        for refused in (
            await client.post("/v1/sessions", json={}),
            await client.post(f"/v1/sessions/{session}/fork", json={}),
            await client.post("/v1/sessions/import", content=exported),
            await client.post("/v1/chat", json={"id": "another", "text": "hello"}),
        ):
            assert (refused.status_code, code_of(refused)) == (403, "too_many_sessions")
            assert "Delete one" in refused.json()["error"]["message"]
        assert len((await client.get("/v1/sessions")).json()["sessions"]) == 1
        assert (await client.post("/v1/sessions", json={"id": session})).status_code == 200, (
            "the same again is the same"
        )
        assert (await client.delete(f"/v1/sessions/{session}")).status_code == 204
        assert (await client.post("/v1/sessions/import", content=exported)).status_code == 201


async def test_an_owner_whose_logs_are_full_can_say_nothing_more(own_place: Place) -> None:
    key = await key_of(own_place, "ann")
    async with (
        own_place.serve("--auth", "keys", HOLDFAST_MAX_BYTES_PER_OWNER="5000") as server,
        server.client(token=key) as client,
    ):
        session = await client.make(system_message="x" * 3_000)
        refused = await client.post("/v1/sessions", json={"system_message": "x" * 3_000})
        assert (refused.status_code, code_of(refused)) == (403, "storage_full")
        assert (await client.patch(f"/v1/sessions/{session}", json={"metadata": {"a": "b"}})).status_code == 200
        for _ in range(30):
            await client.patch(f"/v1/sessions/{session}", json={"title": "y" * 200})
        one = f"/v1/sessions/{session}"
        for refused in (
            await client.post(f"{one}/messages", json={"text": "hello"}),
            await client.post(f"{one}/compact", json={}),
            await client.put(f"{one}/messages/any/pin"),
        ):
            assert (refused.status_code, code_of(refused)) == (403, "storage_full")


async def test_messages_that_are_sent_and_removed_fill_the_storage_too(own_place: Place, own_model: Model) -> None:
    key = await key_of(own_place, "ann")
    async with (
        own_place.serve("--auth", "keys", HOLDFAST_MAX_BYTES_PER_OWNER="21000") as server,
        server.client(token=key) as client,
    ):
        session = await client.make()
        own_model.hold(0)
        await client.post(f"/v1/sessions/{session}/messages", json={"text": "work"})
        await own_model.until_held()
        for size in (2_000, 1):
            codes = []
            for number in range(100):
                queued = {"message_id": f"{size}-{number}", "text": "x" * size, "delivery": "enqueue"}
                codes.append((await client.post(f"/v1/sessions/{session}/messages", json=queued)).status_code)
                await client.delete(f"/v1/sessions/{session}/queue/{size}-{number}")
            assert codes == sorted(codes)
            assert (codes[0], codes[-1]) == (200, 403)
        before = await client.events(session)
        refused = await client.post(f"/v1/sessions/{session}/rewind", json={"to": 1, "rewind_id": "r" * 64})
        assert (refused.status_code, code_of(refused)) == (403, "storage_full")
        assert (await client.get(f"/v1/sessions/{session}")).json()["session"]["status"] == "running", "it goes on"
        assert await client.events(session) == before
        stopped = await client.post(f"/v1/sessions/{session}/cancel", json={})
        assert stopped.status_code == 200, "what was accepted can always be stopped"
        own_model.release()
        nothing = await client.post(f"/v1/sessions/{session}/cancel", json={"stop_id": "s" * 64})
        assert (nothing.status_code, nothing.json()["outcome"]) == (200, "nothing_running"), "and nothing is stored"


async def test_imports_and_forks_fill_the_storage_like_everything_else(own_place: Place) -> None:
    key = await key_of(own_place, "ann")
    async with (
        own_place.serve("--auth", "keys", HOLDFAST_MAX_BYTES_PER_OWNER="5000") as server,
        server.client(token=key) as client,
    ):
        session = await client.make()
        for _ in range(8):
            assert (await client.patch(f"/v1/sessions/{session}", json={"title": "y" * 200})).status_code == 200
        exported = (await client.get(f"/v1/sessions/{session}/export")).content
        imported = await client.post("/v1/sessions/import", content=exported)
        assert imported.status_code == 201, "two of them fit"
        for refused in (
            await client.post("/v1/sessions/import", content=exported),
            await client.post(f"/v1/sessions/{session}/fork", json={}),
        ):
            assert (refused.status_code, code_of(refused)) == (403, "storage_full")
        assert (await client.delete(f"/v1/sessions/{imported.json()['id']}")).status_code == 204
        assert (await client.post(f"/v1/sessions/{session}/fork", json={})).status_code == 201


async def test_an_owner_whose_logs_are_full_stores_nothing_beside_messages_either(own_place: Place) -> None:
    key = await key_of(own_place, "ann")
    async with (
        own_place.serve("--auth", "keys", HOLDFAST_MAX_BYTES_PER_OWNER="5000") as server,
        server.client(token=key) as client,
    ):
        session = await client.make(system_message="x" * 3_000)
        large = {"type": "object", "title": "x" * 5_000}
        one, other = ([{"name": name, "parameters": large}] for name in ("one", "other"))
        first = {"id": session, "message_id": "first", "text": "hello"}
        refused = await client.post("/v1/chat", json={**first, "tools": one})
        assert (refused.status_code, code_of(refused)) == (403, "storage_full"), "its tools came first"
        before = (await client.get(f"/v1/sessions/{session}")).json()["session"]["head"]
        for refused in (
            await client.post("/v1/chat", json={**first, "tools": one}),
            await client.post("/v1/chat", json={**first, "tools": other}),
            await client.patch(f"/v1/sessions/{session}", json={"title": "y" * 200}),
            await client.patch(f"/v1/sessions/{session}", json={"mode": "autopilot"}),
            await client.patch(f"/v1/sessions/{session}", json={"thinking": 2_048}),
            await client.post(f"/v1/sessions/{session}/rewind", json={"to": 1}),
        ):
            assert (refused.status_code, code_of(refused)) == (403, "storage_full")
        assert (await client.get(f"/v1/sessions/{session}")).json()["session"]["head"] == before


async def fill(client: Client, session: str, limit: int) -> None:
    """Fill the storage by renaming the session until no name has room."""
    for _ in range(limit // 100):
        if (await client.patch(f"/v1/sessions/{session}", json={"title": "y" * 200})).status_code == 403:
            return
    raise AssertionError("the storage is not full")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The options of commands that name the database."""
    return ("--database", request.getfixturevalue("postgres_url")) if request.param == "postgresql" else ()


async def test_a_long_answer_needs_room_and_its_request_stays_open_for_a_short_one(
    own_place: Place, database: tuple[str, ...]
) -> None:
    key = await key_of(own_place, "ann", *database)
    async with (
        own_place.serve("--auth", "keys", *database, HOLDFAST_MAX_BYTES_PER_OWNER="20000") as server,
        server.client(token=key) as client,
    ):
        session, request = await asked(client, "look up ada", client_tools=[LOOKUP])
        for size in (4_900_000, 10_000):
            refused = await answered(client, session, request, content="x" * size, answer_id="a1")
            assert (refused.status_code, code_of(refused)) == (403, "storage_full")
            assert "4,096 bytes always have room" in refused.json()["error"]["message"]
        await fill(client, session, 20_000)
        assert (await client.get(f"/v1/sessions/{session}/requests")).json()["requests"] == [request]
        short = {"content": "x" * 3_000, "success": False, "answer_id": "a1"}
        assert (await answered(client, session, request, **short)).is_success
        await until_idle(client, session)
        again = await answered(client, session, request, **short)
        assert (again.status_code, again.json()["duplicate"]) == (200, True)


async def test_a_long_answer_is_accepted_again_after_a_session_was_deleted(own_place: Place) -> None:
    key = await key_of(own_place, "ann")
    async with (
        own_place.serve("--auth", "keys", HOLDFAST_MAX_BYTES_PER_OWNER="40000") as server,
        server.client(token=key) as client,
    ):
        other = await client.make(system_message="x" * 25_000)
        session, request = await asked(client, "look up ada", client_tools=[LOOKUP])
        long = {"content": "x" * 10_000, "answer_id": "a1"}
        assert code_of(await answered(client, session, request, **long)) == "storage_full"
        assert (await client.delete(f"/v1/sessions/{other}")).status_code == 204
        assert (await answered(client, session, request, **long)).is_success
        assert (await until_idle(client, session))[-1].startswith("Found: xxx")


async def test_an_ai_sdk_client_hears_that_its_result_has_no_room_and_can_give_a_shorter_one(own_place: Place) -> None:
    key = await key_of(own_place, "ann")
    async with (
        own_place.serve("--auth", "keys", HOLDFAST_MAX_BYTES_PER_OWNER="20000") as server,
        server.client(token=key) as client,
    ):
        session = await client.make(client_tools=[LOOKUP])
        told = await client.say(session, "look up ada")
        chunks = [json.loads(line[6:]) for line in told.text.splitlines() if line.startswith("data: {")]
        turn = next(chunk["messageId"] for chunk in chunks if chunk["type"] == "start")
        call = next(chunk["toolCallId"] for chunk in chunks if chunk["type"] == "tool-input-available")

        def with_output(size: int) -> dict[str, object]:
            part = {"type": "tool-lookup", "toolCallId": call, "state": "output-available", "output": "x" * size}
            message = {"id": turn, "role": "assistant", "parts": [part]}
            return {"messages": [message], "trigger": "submit-message", "messageId": turn}

        refused = await client.post(f"/v1/sessions/{session}/stream", json=with_output(10_000))
        assert (refused.status_code, code_of(refused)) == (403, "storage_full")
        shorter = await client.post(f"/v1/sessions/{session}/stream", json=with_output(10))
        assert shorter.status_code == 200
        assert (await client.texts(session))[-1] == "Found: xxxxxxxxxx"


async def test_an_owner_sees_what_they_use_of_each_quota(own_place: Place) -> None:
    key, other = await key_of(own_place, "ann"), await key_of(own_place, "bob")
    async with (
        own_place.serve(
            "--auth",
            "keys",
            HOLDFAST_MAX_SESSIONS_PER_OWNER="7",
            HOLDFAST_STREAMS_PER_OWNER="3",
            HOLDFAST_MAX_BYTES_PER_OWNER="0",
        ) as server,
        server.client(token=key) as ann,
        server.client(token=other) as bob,
    ):
        for number in range(2):
            await ann.make(id=f"s{number}")
        async with ann.follow("s0") as first, ann.follow("s1") as second:
            await anext(first)
            await anext(second)
            usage = (await ann.get("/v1/identity")).json()["usage"]
            assert (usage["sessions"], usage["streams"]) == ({"used": 2, "limit": 7}, {"used": 2, "limit": 3})
            assert usage["stored_bytes"]["limit"] is None
            assert usage["stored_bytes"]["used"] > 0
            assert (usage["running_turns"], usage["turns_in_flight"]) == (
                {"used": 0, "limit": 5},
                {"used": 0, "limit": 15},
            )
            async with ann.follow("s0") as third:
                await anext(third)
                refused = await ann.get("/v1/sessions/s0/events", headers={"accept": "text/event-stream"})
                assert (refused.status_code, code_of(refused)) == (429, "too_many_streams")
        theirs = (await bob.get("/v1/identity")).json()["usage"]
        assert (theirs["sessions"]["used"], theirs["stored_bytes"]["used"], theirs["streams"]["used"]) == (0, 0, 0)
    shown = await own_place.run(
        "whoami", HOLDFAST_OWNER="ann", HOLDFAST_AUTH="keys", HOLDFAST_MAX_SESSIONS_PER_OWNER="7"
    )
    assert shown.out.splitlines()[:2] == ["ann (admin)", "sessions         2 of 7"]
