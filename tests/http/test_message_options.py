"""The options of a message: the context of its writer, the model, and the thinking budget."""

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.events.quote import unmarked
from tests.http.world import Client, Model, Place, code_of

PAGE = {"url": "https://example.org/a", "content": "The price is 12.", "title": "ignored"}
TOLD = "[Page URL: https://example.org/a]\n[Page content]\nThe price is 12."


def asked(model: Model, index: int = -1) -> dict[str, Any]:
    """A call that the model got."""
    found: dict[str, Any] = msgspec.json.decode(model.requests[index])
    return found


def told(model: Model) -> list[str]:
    """The last message that the model was sent, without the marks of its origin."""
    return [unmarked(found["content"]) for found in asked(model)["messages"]]


# Where the writer is


async def test_the_model_sees_the_page_context_and_readers_do_not(client: Client, model: Model) -> None:
    session = await client.make()
    answered = await client.say(session, "What does it cost?", context=PAGE)
    assert answered.status_code == 200
    assert told(model)[-1] == f"{TOLD}\n\nWhat does it cost?"
    assert (await client.texts(session))[0] == "What does it cost?"
    for shown in (
        (await client.get(f"/v1/sessions/{session}")).text,
        (await client.get(f"/v1/sessions/{session}/events")).text,
        (await client.get(f"/v1/chat/{session}")).text,
        answered.text,
    ):
        assert "example.org" not in shown
    await client.say(session, "And now?")
    assert f"{TOLD}\n\nWhat does it cost?" in told(model)


@pytest.mark.parametrize("page", [{"url": "x" * 2_001}, {"content": "x" * 32_001}, {"url": 7}, "here"])
async def test_a_page_has_its_bounds(client: Client, page: object) -> None:
    session = await client.make()
    response = await client.say(session, "hello", context=page)
    assert (response.status_code, code_of(response)) == (422, "invalid")


async def test_a_page_travels_with_a_follow_up_and_comes_back_with_it(own_place: Place, own_model: Model) -> None:
    async with own_place.serve() as server, server.client() as client:
        session = await client.make()
        own_model.hold(5)
        saying = asyncio.create_task(client.say(session, "a long answer"))
        await own_model.until_held()
        chosen: dict[str, Any] = {"context": PAGE, "thinking": 500, "mode": "plan", "delivery": "enqueue"}
        await client.add(session, "first", message_id="m1", **chosen)
        await client.add(session, "second", message_id="m2", **chosen)
        (first, second) = (await client.get(f"/v1/sessions/{session}/queue")).json()["messages"]
        page = {"url": PAGE["url"], "content": PAGE["content"]}
        assert [first["context"], first["thinking"], first["mode"]] == [page, 500, "plan"]
        await client.patch(f"/v1/sessions/{session}/queue/m2", json={"text": "second, edited"})
        await client.delete(f"/v1/sessions/{session}/queue/m1")
        stopped = (await client.post(f"/v1/sessions/{session}/cancel")).json()
        (returned,) = stopped["returned_messages"]
        assert (returned["text"], returned["context"]) == ("second, edited", second["context"])
        own_model.release()
        await saying
        await client.say(session, returned["text"], context=returned["context"], thinking=returned["thinking"])
        assert told(own_model)[-1] == f"{TOLD}\n\nsecond, edited"


async def test_the_same_message_with_another_page_is_another_message(client: Client) -> None:
    session = await client.make()
    await client.say(session, "hello", message_id="mine", context=PAGE)
    assert (await client.say(session, "hello", message_id="mine", context=PAGE)).status_code == 200
    response = await client.say(session, "hello", message_id="mine", context={"url": "https://example.org/b"})
    assert (response.status_code, code_of(response)) == (409, "id_reused")


async def test_a_message_that_is_sent_for_its_receipt_may_choose_as_much(client: Client, model: Model) -> None:
    session = await client.make()
    body = {"text": "What does it cost?", "message_id": "m", "context": PAGE, "thinking": 9, "tier": "standard"}
    response = await client.post(f"/v1/sessions/{session}/messages", json=body)
    assert response.status_code == 200
    assert (await client.say(session, "And now?")).status_code == 200
    assert f"{TOLD}\n\nWhat does it cost?" in told(model)
    refused = await client.post(f"/v1/sessions/{session}/messages", json={"text": "x", "tier": "best"})
    assert (refused.status_code, code_of(refused)) == (422, "invalid")


# Who answers, and how


async def test_a_message_chooses_its_model_for_its_own_turn_alone(own_place: Place, own_model: Model) -> None:
    async with own_place.serve(HOLDFAST_MODEL_ADVANCED="openai/large") as server, server.client() as client:
        session = await client.make()
        for chosen in ({"tier": "advanced"}, {}, {"model": "openai/other"}, {"tier": "standard"}):
            assert (await client.say(session, "hello", **chosen)).status_code == 200
        assert [asked(own_model, n)["model"] for n in range(4)] == ["large", "scripted", "other", "scripted"]
        detail = (await client.get(f"/v1/sessions/{session}")).json()
        said = [found["model"] for found in detail["messages"] if found["role"] == "assistant"]
        assert said == ["openai/large", "openai/scripted", "openai/other", "openai/scripted"]
        assert (detail["settings"]["model"], detail["session"]["model"]) == ("openai/scripted", "openai/scripted")
        advanced = await client.make(tier="advanced")
        await client.say(advanced, "hello")
        assert asked(own_model)["model"] == "large"
        await client.patch(f"/v1/sessions/{advanced}", json={"tier": "standard"})
        await client.say(advanced, "hello")
        assert asked(own_model)["model"] == "scripted"


async def test_the_thinking_budget_is_that_of_the_message_or_else_of_the_session(
    own_place: Place, own_model: Model
) -> None:
    async with own_place.serve(HOLDFAST_THINKING="2000") as server, server.client() as client:
        session = await client.make()
        await client.say(session, "as configured")
        await client.say(session, "off", thinking="off")
        await client.patch(f"/v1/sessions/{session}", json={"thinking": 10_000})
        await client.say(session, "as the session has it")
        await client.say(session, "long", thinking=50_000)
        await client.patch(f"/v1/sessions/{session}", json={"thinking": None})
        await client.say(session, "its own habit")
        efforts = [asked(own_model, n).get("reasoning_effort") for n in range(5)]
        assert efforts == ["low", "none", "medium", "high", None]
        settings = (await client.get(f"/v1/sessions/{session}")).json()["settings"]
        assert settings["thinking"] is None
        off = await client.make(thinking=0)
        assert (await client.get(f"/v1/sessions/{off}")).json()["settings"]["thinking"] == 0


@pytest.mark.parametrize(
    ("chosen", "code"),
    [
        ({"tier": "best"}, "invalid"),
        ({"tier": "advanced"}, "tier_not_offered"),
        ({"thinking": "on"}, "invalid"),
        ({"thinking": -1}, "invalid"),
        ({"thinking": 1_000_001}, "invalid"),
        ({"thinking": 1.5}, "invalid"),
        ({"mode": "fast"}, "invalid"),
        ({"model": ""}, "invalid"),
        ({"model": "nowhere/at-all"}, "model_not_usable"),
        ({"model": "demo", "tier": "standard"}, "invalid"),
    ],
)
async def test_invalid_message_options_are_refused_before_anything_is_stored(
    client: Client, chosen: dict[str, Any], code: str
) -> None:
    session = await client.make()
    head = (await client.get(f"/v1/sessions/{session}")).json()["session"]["head"]
    response = await client.say(session, "hello", **chosen)
    assert (response.status_code, code_of(response)) == (422, code)
    found = (await client.get(f"/v1/sessions/{session}")).json()["session"]
    assert (found["head"], found["waiting_messages"], found["status"]) == (head, 0, "idle")
    if "mode" not in chosen:
        made = await client.post("/v1/sessions", json=chosen)
        assert (made.status_code, code_of(made)) == (422, code)


async def test_a_mode_is_kept_with_the_message_and_with_the_session(client: Client) -> None:
    session = await client.make()
    await client.say(session, "hello", mode="plan")
    (said,) = [event for event in await client.events(session) if event["type"] == "user.message"]
    assert said["data"]["agentMode"] == "plan"
    await client.patch(f"/v1/sessions/{session}", json={"mode": "autopilot"})
    assert (await client.get(f"/v1/sessions/{session}")).json()["settings"]["mode"] == "autopilot"


async def test_a_dry_run_is_chosen_with_the_session_and_shown(client: Client) -> None:
    session = await client.make(dry_run=True, allow=["write"])
    await client.say(session, "write a note")
    detail = (await client.get(f"/v1/sessions/{session}")).json()
    assert detail["settings"]["dry_run"] is True
    (result,) = [found for found in detail["messages"] if found["role"] == "tool"]
    assert result["simulated"] is True
