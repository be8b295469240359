"""Messages of AI SDK clients have the bounds of their sender's role: those that are sent, edited, and sent instead of
earlier ones."""

from typing import Any

import httpx
import pytest

from tests.http.world import Client, code_of
from tests.security.test_roles import admin, answer_the_request, folder, people, until, user

__all__ = ["admin", "folder", "people", "user"]

JSON = {"accept": "application/json"}


def chat(message_id: str, text: str, **more: Any) -> dict[str, Any]:
    said = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"messages": [said], "trigger": "submit-message", **more}


async def made(admin: Client, folder: Any) -> str:
    """A session that users may use as well."""
    return await admin.make(working_directory=str(folder / "people" / "ada"), tools=["view", "create"])


async def post(client: Client, session: str, body: dict[str, Any]) -> httpx.Response:
    """Send, without reading the stream that answers."""
    request = client.build_request("POST", f"/v1/sessions/{session}/stream", json=body, headers=JSON)
    response = await client.send(request, stream=True)
    if response.headers["content-type"].startswith("application/json"):
        await response.aread()
    await response.aclose()
    return response


async def errors(client: Client, session: str, turns: int) -> list[str]:
    events = await until(client, session, "holdfast.turn_ended", turns)
    return [found["data"]["errorType"] for found in events if found["type"] == "session.error"]


@pytest.mark.parametrize("way", ["sends", "edits"])
async def test_a_waiting_message_is_held_to_the_role_of_its_sender(
    user: Client, admin: Client, folder: Any, way: str
) -> None:
    session = await made(admin, folder)
    one = f"/v1/sessions/{session}"
    await admin.say(session, "write a note")
    if way == "edits":
        later = {"text": "hello", "message_id": "later", "delivery": "enqueue"}
        assert (await admin.post(f"{one}/messages", json=later)).status_code == 200
        body = chat("later", "write a note", messageId="later")
    else:
        body = chat("later", "write a note", delivery="enqueue")
    assert (await post(user, session, body)).status_code == 202
    assert (await admin.patch(one, json={"working_directory": str(folder / "private")})).status_code == 200
    await answer_the_request(admin, session, decision="deny")
    assert await errors(admin, session, 2) == ["session_beyond_role"]


@pytest.mark.parametrize("trigger", ["regenerate-message", "submit-message"])
async def test_a_message_sent_instead_has_the_bounds_of_its_sender(
    user: Client, admin: Client, folder: Any, trigger: str
) -> None:
    session = await made(admin, folder)
    assert (await post(admin, session, chat("first", "hello"))).status_code == 200
    await until(admin, session, "holdfast.turn_ended", 1)
    edit = {} if trigger == "regenerate-message" else {"messageId": "first"}
    again = chat("first", "hello, again", **edit) | {"trigger": trigger}
    assert (await post(user, session, again)).status_code == 200
    await until(admin, session, "holdfast.turn_ended", 2)
    log = (await admin.get(f"/v1/sessions/{session}/export")).json()["events"]
    by_admin, by_user = [found["data"].get("bounds") for found in log if found["type"] == "user.message"]
    assert by_admin is None
    assert by_user["folders"] == [str(folder / "people" / "ada")]
    shown = [found["data"] for found in await user.events(session) if found["type"] == "user.message"]
    assert not [data for data in shown if "bounds" in data]


EXPENSIVE = "openai/expensive"


async def test_a_user_puts_no_text_into_a_waiting_message_with_a_model_that_only_admins_may_choose(
    user: Client, admin: Client, folder: Any
) -> None:
    session = await made(admin, folder)
    one = f"/v1/sessions/{session}"
    await admin.say(session, "write a note")
    later = {"text": "later", "message_id": "later", "delivery": "enqueue", "model": EXPENSIVE}
    assert (await admin.post(f"{one}/messages", json=later)).status_code == 200
    refused = await post(user, session, chat("later", "mine", messageId="later"))
    assert (refused.status_code, code_of(refused)) == (403, "model_not_allowed")
    queue = (await admin.get(f"{one}/queue")).json()["messages"]
    assert [message["text"] for message in queue] == ["later"]


async def test_a_user_sends_no_message_instead_of_one_with_a_model_that_only_admins_may_choose(
    user: Client, admin: Client, folder: Any
) -> None:
    """Unless the request names another model."""
    session = await made(admin, folder)
    assert (await post(admin, session, chat("first", "hello", model=EXPENSIVE))).status_code == 200
    await until(admin, session, "holdfast.turn_ended", 1)
    regeneration = {"trigger": "regenerate-message"}
    for body in (
        chat("first", "mine", messageId="first"),
        chat("first", "hello") | regeneration,
        chat("first", "hello", model=EXPENSIVE) | regeneration,
    ):
        refused = await post(user, session, body)
        assert (refused.status_code, code_of(refused)) == (403, "model_not_allowed"), body
    assert [found["type"] for found in await admin.events(session)].count("user.message") == 1
    body = chat("first", "hello", model="openai/scripted") | regeneration
    assert (await post(user, session, body)).status_code == 200
    events = await until(admin, session, "holdfast.turn_ended", 2)
    assert [found["data"]["model"] for found in events if found["type"] == "user.message"] == [
        EXPENSIVE,
        "openai/scripted",
    ]
