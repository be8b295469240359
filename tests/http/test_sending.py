"""Messages sent for a receipt alone; whether a session has come to rest; and a secret that comes in two pieces."""

import asyncio
import os
from typing import Any

import pytest

from tests.http.world import Client, Model, Place, Server, code_of, patience


async def send(client: Client, session: str, **message: Any) -> dict[str, Any]:
    response = await client.post(f"/v1/sessions/{session}/messages", json=message)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def at_rest(client: Client, session: str) -> int:
    """Wait until nothing happens any more; the position of the last event."""
    async with patience():
        while True:
            found = (await client.get(f"/v1/sessions/{session}/activity")).json()
            if found["is_settled"]:
                return int(found["head"])
            await asyncio.sleep(0.01)


async def test_a_message_gets_a_receipt_and_the_same_again_the_same(client: Client) -> None:
    session = await client.make()
    first = await send(client, session, text="good morning", message_id="one")
    assert (first["message_id"], first["duplicate"]) == ("one", False)
    await at_rest(client, session)
    again = await send(client, session, text="good morning", message_id="one")
    assert (again["state"], again["duplicate"]) == ("promoted", True)
    receipt = await client.get(f"/v1/sessions/{session}/messages/one")
    assert receipt.json()["state"] == "promoted"
    assert await client.texts(session) == ["good morning", "Hello, world."]
    other = await client.post(f"/v1/sessions/{session}/messages", json={"text": "else", "message_id": "one"})
    assert (other.status_code, code_of(other)) == (409, "id_reused")


async def test_an_unattended_message_never_opens_a_request(client: Client) -> None:
    session = await client.make()
    await send(client, session, text="write a note", unattended=True)
    await at_rest(client, session)
    assert (await client.get(f"/v1/sessions/{session}/requests")).json()["requests"] == []
    assert (await client.texts(session))[-1] == "Written."


async def test_a_session_rests_when_it_waits_for_somebody_and_not_while_a_turn_runs(
    client: Client, model: Model
) -> None:
    session = await client.make()
    model.hold(3)
    await send(client, session, text="long")
    await model.until_held()
    assert not (await client.get(f"/v1/sessions/{session}/activity")).json()["is_settled"]
    model.release()
    await at_rest(client, session)
    await send(client, session, text="ask me something")
    await at_rest(client, session)
    (request,) = (await client.get(f"/v1/sessions/{session}/requests")).json()["requests"]
    await client.post(f"/v1/sessions/{session}/requests/{request['id']}", json={"answer": "red"})
    head = await at_rest(client, session)
    events = await client.events(session)
    assert (events[-1]["type"], events[-1]["position"]) == ("holdfast.turn_ended", head)


@pytest.mark.parametrize("path", ["/messages/none", "/activity"])
async def test_a_missing_session_is_not_found(client: Client, server: Server, path: str) -> None:
    assert (await client.get(f"/v1/sessions/none{path}")).status_code == 404
    refused = await client.post("/v1/sessions/none/messages", json={"text": "hello"})
    assert (refused.status_code, code_of(refused)) == (404, "session_not_found")


@pytest.mark.parametrize("body", [{}, {"text": ""}, {"text": "a", "more": 1}, {"text": "a", "delivery": "fly"}])
async def test_a_message_that_is_none_is_refused(client: Client, body: dict[str, Any]) -> None:
    session = await client.make()
    assert (await client.post(f"/v1/sessions/{session}/messages", json=body)).status_code == 422


SECRET = "sk-0123456789abcdef"


async def test_no_part_of_an_output_shows_a_part_of_a_secret(own_place: Place) -> None:
    os.mkfifo(own_place.work / "pipe")
    serving = own_place.serve(OPENAI_API_KEY=SECRET)
    async with serving as server, server.client() as client, patience():
        session = await client.make(allow=["shell"])
        await client.say(session, "start it")
        (task,) = (await client.get("/v1/tasks")).json()["tasks"]
        assert task["session_id"] == session
        output = f"/v1/sessions/{session}/tasks/{task['id']}/output"
        with await asyncio.to_thread((own_place.work / "pipe").open, "w", encoding="utf-8") as pipe:
            pipe.write(f"key: {SECRET[:10]}")
            pipe.flush()
            part: dict[str, Any] = {"text": ""}
            while not part["text"]:
                part = (await client.get(output, params={"wait": 5})).json()
            assert part == {"offset": 0, "text": "key: ", "next_offset": 5}
            pipe.write(f"{SECRET[10:]}\nend\n")
        while (await client.get(f"/v1/sessions/{session}/tasks/{task['id']}")).json()["status"] == "running":
            pass
        shown, offset = "", 0
        while True:
            part = (await client.get(output, params={"offset": offset, "length": 7})).json()
            if part["next_offset"] == offset:
                break
            shown, offset = shown + part["text"], part["next_offset"]
        assert shown == "key: [redacted]\nend\n"
        last = (await client.get(output, params={"tail": 8})).json()
        assert SECRET[-3:] not in last["text"]
        assert last["text"].endswith("\nend\n")
