"""Messages that are sent, and the responses to their senders."""

import asyncio
from typing import Any

import pytest

from holdfast.models.scripted import Failure
from tests.wire.ai_sdk.harness import STREAM, Home, Model, Talk, message_of, says, user

pytestmark = pytest.mark.anyio

JSON = "application/json"


async def typed_texts(talk: Talk) -> list[str]:
    return [event["data"]["content"] for event in await talk.events() if event["type"] == "user.message"]


async def test_a_message_is_answered_with_the_stream_of_its_turn(talk: Talk, model: Model) -> None:
    model.on("Say hello", says("Hello to you."))
    answer = await talk.send("Say hello")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith(STREAM)
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
    message = await answer.message()
    assert [part["type"] for part in message["parts"]] == ["step-start", "text"]
    assert message["parts"][1]["text"] == "Hello to you."
    assert message["metadata"]["reason"] == "completed"


async def test_ten_equal_requests_at_once_are_one_run_and_ten_equal_streams(talk: Talk, model: Model) -> None:
    """Fault 10."""
    model.on("Ten at once", says("One answer for ten."))
    answers = await asyncio.gather(*(talk.send("Ten at once") for _ in range(10)))
    messages = await asyncio.gather(*(answer.message() for answer in answers))
    assert messages[0]["parts"][1]["text"] == "One answer for ten."
    assert [found for found in messages if found != messages[0]] == []
    assert len(model.calls_about("Ten at once")) == 1
    assert await typed_texts(talk) == ["Ten at once"]


async def test_the_same_message_again_gets_the_same_stream_after_the_turn_has_ended(talk: Talk, model: Model) -> None:
    model.on("Once only", says("Just once."))
    first = await (await talk.send("Once only")).message()
    assert await (await talk.send("Once only")).message() == first
    await (await talk.send("Something else", "user-2")).rest()
    assert await (await talk.send("Once only")).message() == first
    assert len(model.calls_about("Once only")) == 2, "one for each of the two messages"


async def test_another_text_under_the_same_id_is_refused(talk: Talk) -> None:
    await (await talk.send("The first words")).rest()
    answer = await talk.send("Other words")
    assert answer.status == 409
    assert (await answer.json())["error"]["code"] == "id_reused"


async def test_a_message_may_be_sent_by_hand(talk: Talk, model: Model) -> None:
    model.on("By hand", says("Seen."))
    answer = await talk.post({"text": "By hand", "message_id": "mine", "context": {"url": "https://example.org/a"}})
    assert (await answer.message())["parts"][1]["text"] == "Seen."
    (call,) = model.calls_about("By hand")
    assert "[Page URL: https://example.org/a]" in call["messages"][-1]["content"]
    assert await typed_texts(talk) == ["By hand"], "people are shown what was typed"
    path = f"/v1/sessions/{talk.name}/stream"
    again = await talk.request("POST", path, {"text": "By hand again"})
    assert (await again.message())["parts"][1]["text"] == "Seen."


async def test_a_message_during_a_turn_joins_it_and_its_sender_learns_that_at_once(talk: Talk, model: Model) -> None:
    model.on("A long job", says("One two three four."))
    hold = model.hold("A long job", piece=2)
    running = await talk.send("A long job")
    await hold.until_reached()
    queued = await talk.send("And this too", "user-2")
    assert await queued.rest() == [
        {
            "type": "data-queued",
            "data": {"messageId": "user-2", "bufferLength": 1, "maxBufferLength": 10, "turnInFlight": True},
            "transient": True,
        }
    ]
    assert queued.is_done
    named = await talk.post({"messages": [user("And this too", "user-2")]}, accept=f"text/html, {JSON}; q=0.9")
    assert named.status == 202
    assert await named.json() == {
        "message_id": "user-2",
        "buffer_length": 1,
        "max_buffer_length": 10,
        "turn_in_flight": True,
    }
    anything = await talk.post({"messages": [user("And this too", "user-2")]}, accept="*/*")
    assert anything.status == 200
    hold.release()
    message = await running.message()
    follow_up = {"type": "data-follow-up", "id": "user-2", "data": {"messageId": "user-2", "text": "And this too"}}
    assert follow_up in message["parts"]
    assert await (await talk.replay()).message() == message
    await (await talk.send("The next turn", "user-3")).rest()
    loaded = await talk.messages()
    assert [found["id"] for found in loaded] == ["user-1", message["id"], "user-3"], (
        "it is in the turn, live and loaded"
    )
    assert loaded[1] == message


async def test_a_message_that_is_to_wait_has_a_turn_of_its_own(talk: Talk, model: Model) -> None:
    model.on("First of two", says("The first answer."))
    model.on("Second of two", says("The second answer."))
    hold = model.hold("First of two", piece=1)
    first = await talk.send("First of two")
    await hold.until_reached()
    queued = await talk.send("Second of two", "user-2", delivery="enqueue")
    assert [chunk["type"] for chunk in await queued.rest()] == ["data-queued"]
    hold.release()
    assert "The first answer." in str(await first.message())
    again = await talk.send("Second of two", "user-2", delivery="enqueue")
    while (await again.rest())[0]["type"] == "data-queued":  # Until its turn has begun.
        again = await talk.send("Second of two", "user-2", delivery="enqueue")
    assert "The second answer." in str(message_of(again.chunks))


async def test_a_message_may_insist_on_an_idle_session(talk: Talk, model: Model) -> None:
    hold = model.hold("Keep busy", piece=0)
    model.on("Keep busy", says("Busy."))
    running = await talk.send("Keep busy")
    await hold.until_reached()
    refused = await talk.send("Not now", "user-2", delivery="reject")
    assert refused.status == 409
    assert (await refused.json())["error"]["code"] == "busy"
    hold.release()
    await running.rest()
    assert await typed_texts(talk) == ["Keep busy"]


async def test_a_message_may_interrupt_the_turn_and_have_its_own(talk: Talk, model: Model) -> None:
    model.on("Go on for long", says("A very long story."))
    model.on("Stop that", says("I stopped."))
    hold = model.hold("Go on for long", piece=1)
    running = await talk.send("Go on for long")
    await hold.until_reached()
    await (await talk.send("Waits", "user-2", delivery="enqueue")).rest()
    instead = await talk.send("Stop that", "user-3", delivery="interrupt")
    assert "I stopped." in str(await instead.message())
    stopped = await running.message()
    assert running.types[-1] == "abort"
    assert stopped["metadata"]["reason"] == "stopped"
    assert await typed_texts(talk) == ["Go on for long", "Stop that"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"messages": []}, "messages_empty"),
        ({"messages": [{"id": "s", "role": "system", "parts": []}]}, "role_invalid"),
        ({"messages": [{"id": "u", "role": "user", "parts": [{"type": "text", "text": " "}]}]}, "message_empty"),
        (
            {
                "messages": [
                    {"id": "u", "role": "user", "parts": [{"type": "file", "url": "https://example.org/a.png"}]}
                ]
            },
            "file_url_unsupported",
        ),
        (
            {"messages": [{"id": "u", "role": "user", "parts": [{"type": "file", "url": "data:;base64,?"}]}]},
            "file_url_invalid",
        ),
        ({"messages": [{"id": "", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}]}, "id_invalid"),
        ({"messages": [{"id": "u", "role": "user", "parts": "?"}]}, "parts_invalid"),
        ({"messages": [user("Hi")], "messageId": "other"}, "message_not_given"),
        ({"messages": [user("Hi")], "trigger": "dance"}, "invalid"),
        ({"messages": [user("Hi")], "text": "Hi"}, "invalid"),
        ({"messages": [user("Hi")], "delivery": "pigeon"}, "invalid"),
        ({"messages": [user("x" * 64_001)]}, "message_too_long"),
    ],
)
async def test_an_invalid_message_is_refused_with_a_sentence(talk: Talk, body: dict[str, Any], code: str) -> None:
    await (await talk.send("Hello")).rest()
    before = await talk.events()
    answer = await talk.post(body)
    assert answer.status == 422
    error = (await answer.json())["error"]
    assert error["code"] == code
    assert error["message"]
    assert await talk.events() == before, "a refused message leaves no trace"


async def test_a_session_that_is_not_there(talk: Talk) -> None:
    path = f"/v1/sessions/{talk.name}/stream"
    for answer in (await talk.request("POST", path, {"text": "Hello?"}), await talk.request("GET", path)):
        assert answer.status == 404
        assert (await answer.json())["error"]["code"] == "session_not_found"
    assert (await talk.replay()).status == 204, "a client may look before it has said anything"
    assert await talk.messages() == []
    refused = await talk.regenerate("Hello?")
    assert refused.status == 404


async def test_the_tools_of_a_client_are_those_that_it_named_last(talk: Talk, model: Model) -> None:
    def named(call: dict[str, Any]) -> set[str]:
        return {tool["function"]["name"] for tool in call["tools"]}

    one = {"name": "locate", "description": "Where I am.", "parameters": {"type": "object"}}
    await (await talk.send("With one tool", tools=[one])).rest()
    await (await talk.send("With no word of tools", "user-2")).rest()
    await (await talk.send("With another tool", "user-3", tools=[{"name": "measure"}])).rest()
    calls = [model.calls_about(words)[0] for words in ("With one", "With no word", "With another")]
    assert [sorted(named(call) & {"locate", "measure"}) for call in calls] == [["locate"], ["locate"], ["measure"]]


async def test_a_message_too_many_is_refused_and_leaves_no_trace(talk: Talk, model: Model) -> None:
    """Fault 13."""
    model.on("Hold them all", says("Held."))
    hold = model.hold("Hold them all", piece=0)
    running = await talk.send("Hold them all")
    await hold.until_reached()
    for number in range(10):
        assert (await talk.send(f"Wait {number}", f"waits-{number}", delivery="enqueue")).status == 200
    refused = await talk.send("One too many", "waits-10", delivery="enqueue")
    assert refused.status == 429
    assert (await refused.json())["error"]["code"] == "queue_full"
    again = await talk.send("Wait 3", "waits-3", delivery="enqueue")
    assert again.status == 200, "a retry is no new message"
    await talk.stop()
    hold.release()
    await running.rest()
    assert await typed_texts(talk) == ["Hold them all"]


async def test_an_error_of_the_model_is_streamed_and_kept(talk: Talk, model: Model) -> None:
    """Faults 20 and 22."""
    model.on("Break it", says("Half of an answer.", fail=Failure(kind="unauthorized")))
    answer = await talk.send("Break it")
    message = await answer.message()
    assert answer.types[-1] == "error"
    assert answer.chunks[-1]["errorText"] == message["metadata"]["error"]["message"]
    assert message["metadata"]["reason"] == "error"
    replayed = await talk.replay()
    assert await replayed.message() == message
    assert replayed.types[-1] == "error"
    await (await talk.send("Never mind", "user-2")).rest()
    assert (await talk.messages())[1]["metadata"]["error"] == message["metadata"]["error"]


async def test_a_message_whose_answer_could_not_be_told_is_not_accepted(own_home: Home, model: Model) -> None:
    """Fault 13."""
    model.on("Take the only stream", says("Taken."))
    hold = model.hold("Take the only stream", piece=0)
    async with own_home.serve(HOLDFAST_STREAMS_PER_OWNER="1") as server, Talk(server) as talk, Talk(server) as other:
        running = await talk.send("Take the only stream")
        await hold.until_reached()
        refused = await other.send("One stream too many")
        assert refused.status == 429
        assert (await refused.json())["error"]["code"] == "too_many_streams"
        assert (await other.request("GET", f"/v1/sessions/{other.name}")).status == 404, "no session was made for it"
        hold.release()
        await running.rest()
