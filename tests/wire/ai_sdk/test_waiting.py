"""Approvals, questions and the tools of clients: where a turn waits, who answers, and what is told then."""

from typing import Any

import pytest

from tests.wire.ai_sdk.harness import Answer, Model, Server, Talk, calls, calls_all, message_of, says

pytestmark = pytest.mark.anyio

LOCATE = {"name": "locate", "description": "Where the person is.", "parameters": {"type": "object"}}


def approval(asked: dict[str, Any], approved: bool, **more: Any) -> dict[str, Any]:
    """The part that asked, as a client sends it back: all that is in it but the decision could be made up."""
    return {
        "type": "tool-anything",
        "toolCallId": asked["toolCallId"],
        "state": "approval-responded",
        "input": {"path": "/forged"},
        "approval": {"id": asked["approvalId"], "approved": approved, **more},
    }


def output(call_id: str, value: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool-locate", "toolCallId": call_id, "state": "output-available", "output": value, **more}


def tool_part(message: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(part for part in message["parts"] if part["type"].startswith("tool-"))
    return found


async def asking(talk: Talk, model: Model, words: str) -> tuple[Answer, dict[str, Any]]:
    """A turn that waits for a file to be approved; what asks."""
    model.on(words, calls("create", path=f"{talk.name}.txt", file_text="Hi"), says("So: {last_tool_result}"))
    answer = await talk.send(words)
    asked = await answer.until("tool-approval-request")
    await answer.rest()
    return answer, asked


async def test_a_leg_ends_where_the_turn_waits_and_the_next_tells_what_came_of_the_answer(
    talk: Talk, model: Model
) -> None:
    first, asked = await asking(talk, model, "Write it down")
    assert first.types[-4:] == ["tool-input-available", "tool-approval-request", "finish-step", "finish"]
    assert first.chunks[-1]["finishReason"] == "tool-calls"
    assert first.is_done

    second = await talk.give(first.turn_id, approval(asked, True))
    told = await second.rest()
    assert second.turn_id == first.turn_id
    assert second.types[:3] == ["start", "tool-output-available", "start-step"]
    assert "tool-input-available" not in second.types, "only what is new"
    assert (second.types.count("start"), second.types.count("finish")) == (1, 1)

    whole = await (await talk.replay()).message()
    assert whole == message_of([*first.chunks, *told])
    part = tool_part(whole)
    assert (part["state"], part["providerExecuted"]) == ("output-available", True)
    assert part["input"]["path"] == f"{talk.name}.txt", "what the client sent back of the input was not looked at"


async def test_a_replay_during_a_wait_gives_everything_up_to_the_wait(talk: Talk, model: Model) -> None:
    first, _ = await asking(talk, model, "Write and wait")
    replayed = await talk.replay()
    assert await replayed.message() == message_of(first.chunks)
    assert replayed.types[-1] == "finish"
    assert [found["id"] for found in await talk.messages()] == ["user-1"], "it would be replayed, so it is not loaded"


async def test_a_replay_in_the_second_leg_includes_the_first(talk: Talk, model: Model) -> None:
    model.on("Write slowly", calls("create", path="slow.txt", file_text="Hi"), says("One two three."))
    hold = model.hold("Write slowly", round=1, piece=1)
    first = await talk.send("Write slowly")
    asked = await first.until("tool-approval-request")
    await first.rest()
    second = await talk.give(first.turn_id, approval(asked, True))
    await hold.until_reached()
    replayed = await talk.replay()
    await replayed.until("tool-output-available")
    assert replayed.types.count("start") == 1
    assert "finish" not in replayed.types
    hold.release()
    assert await replayed.message() == message_of([*first.chunks, *await second.rest()])


async def test_a_denial_reaches_the_model_with_its_reason_and_people_as_a_denial(talk: Talk, model: Model) -> None:
    first, asked = await asking(talk, model, "Write what I deny")
    second = await talk.give(first.turn_id, approval(asked, False, reason="Not there."))
    await second.rest()
    assert second.types[1] == "tool-output-denied"
    assert "So: The user rejected this tool call. Not there." in second.text


async def test_the_same_answers_again_get_the_same_stream(talk: Talk, model: Model) -> None:
    first, asked = await asking(talk, model, "Write it once")
    told = await (await talk.give(first.turn_id, approval(asked, True))).rest()
    again = await talk.give(first.turn_id, approval(asked, True))
    assert message_of([*first.chunks, *await again.rest()]) == message_of([*first.chunks, *told])
    assert "data-answered-elsewhere" not in again.types
    assert len(model.calls_about("Write it once")) == 2


async def test_the_stream_of_a_late_answer_says_what_happened_instead(talk: Talk, model: Model) -> None:
    first, asked = await asking(talk, model, "Write it, says another")
    await talk.decide("approve")
    second = await talk.give(first.turn_id, approval(asked, False))
    told = await second.rest()
    assert told[0] == {
        "type": "data-answered-elsewhere",
        "data": {"requestIds": [asked["approvalId"]]},
        "transient": True,
    }
    assert "tool-output-available" in second.types, "the first answer counts"


async def test_two_answers_sent_together_are_streamed_in_one_leg(talk: Talk, model: Model) -> None:
    both = calls_all(
        ("create", {"path": "one.txt", "file_text": "1"}), ("create", {"path": "two.txt", "file_text": "2"})
    )
    model.on("Write two files", both, says("Both."))
    first = await talk.send("Write two files")
    await first.rest()
    asked = [chunk for chunk in first.chunks if chunk["type"] == "tool-approval-request"]
    assert len(asked) == 2
    second = await talk.give(first.turn_id, *(approval(found, True) for found in asked))
    await second.rest()
    assert second.types.count("tool-output-available") == 2
    assert second.text == "Both."


async def test_one_of_two_answers_leads_to_the_next_wait(talk: Talk, model: Model) -> None:
    both = calls_all(
        ("create", {"path": "uno.txt", "file_text": "1"}), ("create", {"path": "due.txt", "file_text": "2"})
    )
    model.on("Write two, one by one", both, says("Both, one by one."))
    first = await talk.send("Write two, one by one")
    await first.rest()
    one, other = [chunk for chunk in first.chunks if chunk["type"] == "tool-approval-request"]
    second = await talk.give(first.turn_id, approval(one, True))
    told = await second.rest()
    assert (second.types.count("tool-output-available"), second.types[-1]) == (1, "finish")
    third = await talk.give(first.turn_id, approval(other, True))
    told += await third.rest()
    assert third.text == "Both, one by one."
    assert await (await talk.replay()).message() == message_of([*first.chunks, *told])


async def test_a_clients_tool_is_run_by_the_client(talk: Talk, model: Model) -> None:
    model.on("Where am I", calls("locate"), says("You are at {last_tool_result}."))
    first = await talk.send("Where am I", tools=[LOCATE])
    announced = await first.until("tool-input-available")
    assert "providerExecuted" not in announced
    await first.rest()
    place = {"city": "Ulm", "at": [48, 9]}
    second = await talk.give(first.turn_id, output(announced["toolCallId"], place))
    await second.rest()
    assert second.chunks[1] == {
        "type": "tool-output-available",
        "toolCallId": announced["toolCallId"],
        "output": place,
    }
    assert second.text == 'You are at {"city":"Ulm","at":[48,9]}.'


async def test_a_clients_tool_may_fail(talk: Talk, model: Model) -> None:
    model.on("Where am I not", calls("locate"), says("I heard: {last_tool_result}"))
    first = await talk.send("Where am I not", tools=[LOCATE])
    announced = await first.until("tool-input-available")
    await first.rest()
    failed = {**output(announced["toolCallId"], None), "state": "output-error", "errorText": "No permission."}
    second = await talk.give(first.turn_id, failed)
    await second.rest()
    assert second.types[1] == "tool-output-error"
    assert second.text == "I heard: No permission."


async def test_a_question_is_answered_like_a_clients_tool(talk: Talk, model: Model) -> None:
    model.on("Ask me", calls("ask_user", question="Which?", choices=["red", "blue"]), says("{last_tool_result}"))
    first = await talk.send("Ask me")
    announced = await first.until("tool-input-available")
    assert announced["input"] == {"question": "Which?", "choices": ["red", "blue"]}
    await first.rest()
    second = await talk.give(first.turn_id, output(announced["toolCallId"], "blue"))
    await second.rest()
    assert second.chunks[1]["output"] == "blue"
    assert second.text == "User selected: blue"


async def test_an_answered_leg_is_streamed_again_after_the_next_has_begun(talk: Talk, model: Model) -> None:
    model.on("Ask me twice", calls("ask_user", question="One?"), calls("ask_user", question="Two?"), says("Thanks."))
    first = await talk.send("Ask me twice")
    one = (await first.until("tool-input-available"))["toolCallId"]
    await first.rest()
    second = await talk.give(first.turn_id, output(one, "yes"))
    two = (await second.until("tool-input-available"))["toolCallId"]
    await second.rest()
    third = await talk.give(first.turn_id, output(one, "yes"), output(two, "no"))
    await third.rest()
    assert third.text == "Thanks."
    again = await talk.give(first.turn_id, output(one, "yes"))
    assert await again.rest() == second.chunks


async def test_an_answer_to_no_open_request_is_refused(talk: Talk, model: Model) -> None:
    first, _ = await asking(talk, model, "Write unanswered")
    for parts in ((), (output("call-nobody-made", 1),), ({"type": "text", "text": "yes"},)):
        refused = await talk.give(first.turn_id, *parts)
        assert refused.status == 409
        assert (await refused.json())["error"]["code"] == "nothing_to_answer"
    unknown = await talk.give("no-such-turn", output("call-1", 1))
    assert unknown.status == 404
    assert len(await talk.requests()) == 1, "it waits still"


async def test_another_sessions_request_can_not_be_answered_here(talk: Talk, model: Model, server: Server) -> None:
    _, asked = await asking(talk, model, "Write, says one")
    async with Talk(server) as other:
        first, _ = await asking(other, model, "Write, says the other")
        refused = await other.give(first.turn_id, approval(asked, True))
        assert refused.status == 409
    assert len(await talk.requests()) == 1


async def test_a_stop_ends_a_waiting_turn_and_its_readers_see_it(talk: Talk, model: Model) -> None:
    model.on("Where was I", calls("locate"), says("Never said."))
    first = await talk.send("Where was I", tools=[LOCATE])
    announced = await first.until("tool-input-available")
    await first.rest()
    await talk.stop()
    replayed = await talk.replay()
    message = await replayed.message()
    assert replayed.types[-1] == "abort"
    assert tool_part(message)["state"] == "output-error"
    assert message["parts"][-1] == {"type": "step-start"}, "nothing is left in the last step that could be answered"
    late = await talk.give(first.turn_id, output(announced["toolCallId"], "Ulm"))
    told = await late.rest()
    assert (told[0]["type"], late.types[-1]) == ("data-answered-elsewhere", "abort")


async def test_only_a_client_that_names_release_7_sees_how_an_approval_was_decided(talk: Talk, model: Model) -> None:
    first, asked = await asking(talk, model, "Write for the seventh")
    await (await talk.give(first.turn_id, approval(asked, True))).rest()
    six, seven = await talk.replay(), await talk.replay("?release=7")
    await six.rest()
    await seven.rest()
    assert "tool-approval-response" not in six.types
    assert {"type": "tool-approval-response", "approvalId": asked["approvalId"], "approved": True} in seven.chunks
    assert (await talk.replay("?release=8")).status == 422
