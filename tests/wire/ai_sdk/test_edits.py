"""Words said anew, and answers asked for again: what was said before is taken back with what is sent, in one unit."""

import asyncio
from typing import Any

import pytest

from tests.wire.ai_sdk.harness import Model, Talk, calls, says

pytestmark = pytest.mark.anyio


def texts(call: dict[str, Any]) -> list[str]:
    """The messages of a conversation, as the model was sent them."""
    return [str(message["content"]) for message in call["messages"] if message["role"] in ("user", "assistant")]


async def turns_started(talk: Talk) -> int:
    return sum(event["type"] == "holdfast.turn_started" for event in await talk.events())


async def test_an_edited_message_is_answered_in_place_of_the_first(talk: Talk, model: Model) -> None:
    await (await talk.send("What came before", "user-0")).rest()
    model.on("Say it wrong", says("As you said."))
    model.on("Say it right", says("Better."))
    first = await (await talk.send("Say it wrong")).message()
    await (await talk.send("What came after", "user-2")).rest()
    answer = await talk.edit("Say it right")
    edited = await answer.message()
    assert edited["id"] != first["id"]
    assert edited["parts"][1]["text"] == "Better."
    assert not any("wrong" in text or "after" in text for text in texts(model.last_call_about("Say it right")))
    loaded = await talk.messages()
    assert [found["id"] for found in loaded if found["role"] == "user"] == ["user-0", "user-1"]
    assert loaded[-1]["parts"] == [{"type": "text", "text": "Say it right"}]
    assert await (await talk.replay()).message() == edited


async def test_an_edit_takes_back_and_sends_in_one_unit(talk: Talk) -> None:
    await (await talk.send("The old words")).rest()
    await (await talk.edit("The new words")).rest()
    types = [event["type"] for event in await talk.events()]
    at = types.index("holdfast.truncated")
    assert types[at + 1 : at + 4] == ["holdfast.turn_started", "user.message", "assistant.turn_start"]


async def test_ten_equal_edits_at_once_are_one_run(talk: Talk, model: Model) -> None:
    await (await talk.send("Ten times wrong")).rest()
    model.on("Ten times right", says("Once is enough."))
    answers = await asyncio.gather(*(talk.edit("Ten times right") for _ in range(10)))
    messages = await asyncio.gather(*(answer.message() for answer in answers))
    assert [found for found in messages if found != messages[0]] == []
    assert len(model.calls_about("Ten times right")) == 1
    again = await talk.edit("Ten times right")
    assert await again.message() == messages[0], "a duplicate, while its turn is the last"
    assert await turns_started(talk) == 2


async def test_an_edit_may_be_edited_and_edited_back(talk: Talk, model: Model) -> None:
    for words in ("Version A", "Version B", "Version A", "Version B"):
        model.on(words, says(f"Heard: {words}."))
    first = await (await talk.send("Version A")).message()
    ids = [first["id"]]
    for words in ("Version B", "Version A", "Version B"):
        message = await (await talk.edit(words)).message()
        assert message["parts"][1]["text"] == f"Heard: {words}."
        ids.append(message["id"])
    assert len(set(ids)) == 4


async def test_an_edit_to_the_same_words_is_a_new_run_once_something_followed(talk: Talk, model: Model) -> None:
    model.on("Say the same", says("The same."))
    first = await (await talk.send("Say the same")).message()
    assert await (await talk.edit("Say the same")).message() == first
    await (await talk.send("Then something else", "user-2")).rest()
    again = await (await talk.edit("Say the same")).message()
    assert again["id"] != first["id"]
    assert [found["id"] for found in await talk.messages()] == ["user-1"]


async def test_an_edit_stops_the_turn_that_runs_and_gives_back_what_waits(talk: Talk, model: Model) -> None:
    model.on("Run for long", says("One two three four."))
    model.on("Run for less", says("Done."))
    hold = model.hold("Run for long", piece=2)
    running = await talk.send("Run for long")
    await hold.until_reached()
    await (await talk.send("I wait", "user-2", delivery="enqueue")).rest()
    edited = await talk.edit("Run for less")
    told = await edited.rest()
    waited = {"messageId": "user-2", "text": "I wait"}
    assert told[0] == {
        "type": "data-returned",
        "data": {"texts": ["I wait"], "messages": [waited]},
        "transient": True,
    }
    assert edited.text == "Done."
    await running.rest()
    assert running.types[-1] == "abort"


async def test_a_message_that_waits_is_edited_where_it_waits(talk: Talk, model: Model) -> None:
    model.on("Let it wait", says("One two."))
    hold = model.hold("Let it wait", piece=1)
    running = await talk.send("Let it wait")
    await hold.until_reached()
    await (await talk.send("Old words in the queue", "user-2", delivery="enqueue")).rest()
    edited = await talk.edit("New words in the queue", "user-2")
    assert [chunk["type"] for chunk in await edited.rest()] == ["data-queued"]
    path = f"/v1/sessions/{talk.name}/queue"
    assert [found["text"] for found in (await (await talk.request("GET", path)).json())["messages"]] == [
        "New words in the queue"
    ]
    hold.release()
    await running.rest()


async def test_an_edit_of_a_message_that_never_arrived_sends_it(talk: Talk, model: Model) -> None:
    model.on("At the second try", says("Now I hear you."))
    await (await talk.send("Hello", "user-0")).rest()
    assert (await talk.send("x" * 64_001)).status == 422
    assert (await (await talk.edit("At the second try")).message())["parts"][1]["text"] == "Now I hear you."


async def test_an_answer_may_be_asked_for_again(talk: Talk, model: Model) -> None:
    model.on("Guess a number", says("", texts=("Seven.", "Eight.")))
    first = await (await talk.send("Guess a number")).message()
    again = await talk.regenerate("not looked at", answer_id=first["id"])
    second = await again.message()
    assert (first["parts"][1]["text"], second["parts"][1]["text"]) == ("Seven.", "Eight.")
    assert second["id"] != first["id"]
    assert not any("Seven." in text for text in texts(model.last_call_about("Guess a number")))
    assert [found["parts"][0]["text"] for found in await talk.messages()] == ["Guess a number"]


async def test_ten_equal_requests_for_another_answer_are_one_run(talk: Talk, model: Model) -> None:
    model.on("Guess a colour", says("", texts=("Red.", "Blue.", "Green.")))
    first = await (await talk.send("Guess a colour")).message()
    answers = await asyncio.gather(*(talk.regenerate("", answer_id=first["id"]) for _ in range(10)))
    messages = await asyncio.gather(*(answer.message() for answer in answers))
    assert [found for found in messages if found != messages[0]] == []
    assert messages[0]["parts"][1]["text"] == "Blue."
    again = await (await talk.regenerate("", answer_id=first["id"])).message()
    assert again == messages[0], "a duplicate, while its turn is the last"
    third = await (await talk.regenerate("", answer_id=again["id"])).message()
    assert third["parts"][1]["text"] == "Green."
    assert await turns_started(talk) == 3


async def test_an_older_answer_may_be_asked_for_again(talk: Talk, model: Model) -> None:
    model.on("And then", says("Nothing."))
    model.on("Guess a name", says("", texts=("Ada.", "Grace.")))
    first = await (await talk.send("Guess a name")).message()
    await (await talk.send("And then", "user-2")).rest()
    again = await (await talk.regenerate("", answer_id=first["id"])).message()
    assert again["parts"][1]["text"] == "Grace."
    assert [found["id"] for found in await talk.messages()] == ["user-1"]


async def test_without_the_answers_id_each_request_is_a_new_run(talk: Talk, model: Model) -> None:
    model.on("Guess a town", says("", texts=("Ulm.", "Bern.", "Graz.")))
    await (await talk.send("Guess a town")).rest()
    for town in ("Bern.", "Graz."):
        assert (await (await talk.regenerate("")).message())["parts"][1]["text"] == town


async def test_an_answer_that_waits_may_be_asked_for_again(talk: Talk, model: Model) -> None:
    model.on("Ask or not", calls("ask_user", question="Really?"), says("Well then."))
    first = await talk.send("Ask or not")
    await first.rest()
    again = await talk.regenerate("", answer_id=first.turn_id)
    await again.rest()
    assert again.types[-1] == "finish"
    assert again.turn_id != first.turn_id
    (request,) = await talk.requests()
    assert request["turn_id"] == again.turn_id, "the first question is closed with its turn"


async def test_there_must_be_a_message_to_answer_again(talk: Talk) -> None:
    await (await talk.send("Hello")).rest()
    assert (await talk.regenerate("", "user-9")).status == 404
    lonely = await talk.post(
        {"messages": [{"id": "a", "role": "assistant", "parts": []}], "trigger": "regenerate-message"}
    )
    assert lonely.status == 409


async def test_a_retry_of_words_that_were_edited_since_is_refused(talk: Talk) -> None:
    await (await talk.send("The very first words")).rest()
    await (await talk.edit("Other words by now")).rest()
    refused = await talk.send("The very first words")
    assert refused.status == 409
    assert (await refused.json())["error"]["code"] == "message_replaced"
