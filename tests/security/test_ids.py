"""One rule for every id that a client may choose: what is refused makes nothing, and what is made can be fetched."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.events.ids import CHOSEN_ID_RULE
from holdfast.server.errors import Invalid
from tests.http.test_requests import answered, asked
from tests.http.world import Client, code_of
from tests.wire.copilot.methods.world import Refused, desk_at

BAD = [
    "",
    "x" * 65,
    "a/b",
    "/",
    "..",
    ".",
    ".hidden",
    "a\\b",
    "a b",
    " a",
    "a\n",
    "a\0b",
    "\x7f",
    "é",
    "日本",
    "\u202eabc",
    "\u0430dmin",
    "a%2Fb",
    "a?b",
    "a#b",
    "a;b",
    'a"b',
    "<b>",
    "\ud800",
]
GOOD = ["a", "A-b_c.d:e", "x" * 64, "0", "-", "_", ":", "a..b", "123e4567-e89b-42d3-a456-426614174000"]


def refusal(what: str) -> str:
    return f" {what} id has 1 to 64 characters: {CHOSEN_ID_RULE}."


async def sessions(client: Client) -> set[str]:
    return {found["id"] for found in (await client.get("/v1/sessions?limit=200")).json()["sessions"]}


def asks(client: Client, path: str, body: dict[str, Any]) -> Any:
    """As JSON, also what is no text."""

    return client.post(path, content=json.dumps(body).encode(), headers={"content-type": "application/json"})


@pytest.mark.parametrize("bad", BAD)
async def test_over_http_a_bad_id_is_refused_with_the_rule_and_makes_nothing(client: Client, bad: str) -> None:
    session = await client.make()
    before, log = await sessions(client), await client.events(session)
    words = [{"id": bad, "role": "user", "parts": [{"type": "text", "text": "Hi"}]}]
    tool = {"name": "lookup"}
    for what, path, body in (
        ("session", "/v1/sessions", {"id": bad}),
        ("session", "/v1/chat", {"id": bad, "text": "Hi"}),
        ("message", "/v1/chat", {"id": "new", "text": "Hi", "message_id": bad}),
        ("message", "/v1/chat", {"id": "new", "messages": words, "tools": [tool]}),
        ("message", f"/v1/sessions/{session}/messages", {"text": "Hi", "message_id": bad}),
        ("message", f"/v1/sessions/{session}/stream", {"messages": words, "tools": [tool]}),
        ("stop", f"/v1/sessions/{session}/cancel", {"stop_id": bad}),
        ("rewind", f"/v1/sessions/{session}/rewind", {"to": 1, "rewind_id": bad}),
    ):
        refused = await asks(client, path, body)
        if bad == "\ud800":
            assert refused.status_code in (400, 422), path
            continue
        assert (refused.status_code, code_of(refused)) == (422, "id_invalid"), path
        assert refusal(what) in refused.json()["error"]["message"]
    assert (await sessions(client), await client.events(session)) == (before, log)


@pytest.mark.parametrize("bad", [found for found in BAD if found.isprintable()])
async def test_an_answer_under_a_bad_id_is_refused_and_the_request_stays_open(client: Client, bad: str) -> None:
    session, request = await asked(client, "ask me something")
    refused = await answered(client, session, request, answer="red", answer_id=bad)
    assert (refused.status_code, code_of(refused)) == (422, "id_invalid")
    assert refusal("answer") in refused.json()["error"]["message"]
    assert len((await client.get(f"/v1/sessions/{session}/requests")).json()["requests"]) == 1


@pytest.mark.parametrize("good", GOOD)
async def test_every_valid_id_can_be_created_fetched_and_deleted(client: Client, good: str) -> None:
    made = await client.post("/v1/sessions", json={"id": good})
    assert (made.status_code, made.json()["id"]) == (201, good)
    assert (await client.get(made.headers["location"])).json()["session"]["id"] == good
    sent = await client.post(f"/v1/sessions/{good}/messages", json={"text": "Hi", "message_id": good})
    assert sent.is_success
    assert (await client.get(f"/v1/sessions/{good}/messages/{good}")).is_success
    assert (await client.delete(f"/v1/sessions/{good}")).is_success


@pytest.mark.parametrize("bad", BAD)
async def test_the_other_surfaces_have_the_same_rule(tmp_path: Path, bad: str) -> None:
    async with desk_at(tmp_path) as desk:
        if bad and bad != "\ud800":  # Without one, or without text, the client has named nothing.
            with pytest.raises(Refused, match="session id has 1 to 64 characters"):
                await desk.client().session(sessionId=bad)
        with pytest.raises(Invalid) as refused:
            await desk.runtime.session(bad)
        assert (refused.value.code, refusal("session") in refused.value.message) == ("id_invalid", True)
        assert [found async for found in desk.runtime.sessions()] == []
