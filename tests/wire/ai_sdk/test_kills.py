"""The server is killed at a moment of a stream, and started again: who comes back is told the whole turn, and what was
shown before stays (fault 33)."""

from typing import Any

import aiohttp
import msgspec
import pytest

from tests.wire.ai_sdk.harness import Answer, Home, Model, Talk, calls, message_of, says

pytestmark = pytest.mark.anyio

WORDS = "Look into the file"
FIRST = msgspec.structs.replace(calls("view", path="poem.txt"), reasoning="Let me think.", text="I look into it now.")
REASONING, TEXT = 3, 5
"""How many pieces each of them comes in."""

MOMENTS = [
    *((0, piece) for piece in (0, 1, REASONING, REASONING + 2, REASONING + TEXT, REASONING + TEXT + 1)),
    *((1, piece) for piece in (0, 1, 2)),
]
"""Rounds of tools, and pieces of the answer before which the server dies."""


async def until_broken(answer: Answer) -> None:
    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        await answer.rest()
    assert not answer.is_done


def texts(message: dict[str, Any], kind: str) -> list[str]:
    return [part["text"] for part in message["parts"] if part["type"] == kind]


def visible(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts that people see, and that must not change any more."""
    return [part for part in message["parts"] if part["type"] in ("text", "reasoning", "data-interrupted")]


@pytest.mark.slow
@pytest.mark.parametrize(("round", "piece"), MOMENTS)
async def test_a_turn_whose_server_is_killed_is_streamed_whole_by_the_next(
    own_home: Home, model: Model, round: int, piece: int
) -> None:
    (own_home.work / "poem.txt").write_text("Roses are red.")
    words = f"{WORDS}, {round}.{piece}"
    model.on(words, FIRST, says("It is a poem."))
    hold = model.hold(words, round=round, piece=piece)
    async with own_home.serve() as server, Talk(server, "killed") as talk:
        sent = await talk.send(words)
        await hold.until_reached()
        if piece:
            await until_shown(sent, round)
        await server.kill()
        await until_broken(sent)
    hold.release()
    async with own_home.serve() as server, Talk(server, "killed") as talk:
        replayed = await talk.replay()
        message = await replayed.message()
        assert replayed.types.count("data-interrupted") == (1 if piece else 0)
        assert message["metadata"]["reason"] == "completed"
        assert texts(message, "text")[-1] == "It is a poem."
        assert "I look into it now." in texts(message, "text")
        if sent.chunks:
            check_shown_stays(message_of(sent.chunks), message)
        assert await (await talk.send(words)).message() == message, "the same message sent again is told the same"
        assert len([event for event in await talk.events() if event["type"] == "user.message"]) == 1


async def until_shown(sent: Answer, round: int) -> None:
    """Something of the answer that is about to be cut is there to be seen."""
    if round == 0:
        await sent.until("reasoning-delta")
    else:
        await sent.until_text("It")


def check_shown_stays(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before["id"] == after["id"]
    shown, kept = visible(before), visible(after)
    for earlier, later in zip(shown[:-1], kept, strict=False):
        assert earlier == later
    if shown:
        last = kept[len(shown) - 1]
        assert last["text"].startswith(shown[-1]["text"]), "nothing that was shown is taken back"
        assert last["state"] == "done"


async def test_a_turn_that_waits_survives_its_server_and_the_answer_goes_to_the_next(
    own_home: Home, model: Model
) -> None:
    model.on("Ask and die", calls("ask_user", question="Still there?"), says("{last_tool_result}"))
    async with own_home.serve() as server, Talk(server, "killed") as talk:
        first = await talk.send("Ask and die")
        asked = await first.until("tool-input-available")
        await first.rest()
        await server.kill()
    async with own_home.serve() as server, Talk(server, "killed") as talk:
        assert await (await talk.replay()).message() == message_of(first.chunks)
        answer = {"type": "tool-ask_user", "state": "output-available", "output": "yes"}
        second = await talk.give(first.turn_id, {**answer, "toolCallId": asked["toolCallId"]})
        await second.rest()
        assert "User responded: yes" in second.text
        assert await (await talk.replay()).message() == message_of([*first.chunks, *second.chunks])


async def test_an_edit_that_was_accepted_is_done_by_the_next_server(own_home: Home, model: Model) -> None:
    model.on("Edit and die", says("The old answer."))
    model.on("Edited and dead", says("The new answer."))
    hold = model.hold("Edited and dead")
    async with own_home.serve() as server, Talk(server, "killed") as talk:
        await (await talk.send("Edit and die")).rest()
        edited = await talk.edit("Edited and dead")
        await hold.until_reached()
        await server.kill()
        await until_broken(edited)
    hold.release()
    async with own_home.serve() as server, Talk(server, "killed") as talk:
        message = await (await talk.edit("Edited and dead")).message()
        assert texts(message, "text") == ["The new answer."]
        assert [found["id"] for found in await talk.messages()] == ["user-1"]
