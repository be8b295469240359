"""Questions of the model to a person, through the client's handler or by id."""

import asyncio
from typing import Any

import pytest
from copilot import CopilotClient
from copilot.session import UserInputRequest, UserInputResponse
from copilot.session_events import ToolExecutionCompleteData, UserInputCompletedData, UserInputRequestedData

from tests.wire.copilot.harness import (
    Heard,
    Home,
    Model,
    approving,
    ask,
    calls,
    connected,
    content_of,
    get_final_assistant_message,
    history,
    patience,
    reply_to,
    says,
    tool_names,
    tool_results,
)

pytestmark = pytest.mark.anyio


class Answering:
    """A handler that answers with the first choice, or with a text of its own."""

    def __init__(self, answer: str | None = None) -> None:
        self.asked: list[UserInputRequest] = []
        self._answer = answer

    def __call__(self, request: UserInputRequest, invocation: dict[str, str]) -> UserInputResponse:
        self.asked.append(request)
        if self._answer is not None:
            return {"answer": self._answer, "wasFreeform": True}
        return {"answer": request["choices"][0], "wasFreeform": False}


async def test_should_invoke_user_input_handler_when_model_uses_ask_user_tool(
    client: CopilotClient, model: Model
) -> None:
    question = "Please choose between the following options:"
    asks = calls("ask_user", question=question, choices=["Option A", "Option B"])
    model.on("Let me choose", asks, says("{last_tool_result}"))
    handler = Answering()
    session = await client.create_session(**approving(on_user_input_request=handler))
    assert await reply_to(session, "Let me choose") == "User selected: Option A"
    (asked,) = handler.asked
    assert asked["question"] == question
    assert asked["choices"] == ["Option A", "Option B"]
    assert asked["allowFreeform"] is True


async def test_should_handle_freeform_user_input_response(client: CopilotClient, model: Model) -> None:
    model.on("Let me speak", calls("ask_user", question="What is your favourite colour?"), says("{last_tool_result}"))
    own = "This is my custom freeform answer that was not in the choices"
    session = await client.create_session(**approving(on_user_input_request=Answering(own)))
    assert await reply_to(session, "Let me speak") == f"User responded: {own}"


async def test_ask_user_is_offered_only_if_a_client_can_ask(client: CopilotClient, model: Model) -> None:
    model.on("Can you ask?", says("That depends."))
    for handler, offered in ((None, False), (Answering(), True)):
        session = await client.create_session(**approving(on_user_input_request=handler))
        await reply_to(session, "Can you ask?")
        assert ("ask_user" in tool_names(model.last_call_about("Can you ask?"))) is offered


async def test_a_question_is_announced_and_completed(client: CopilotClient, model: Model) -> None:
    model.on("Announce the question", calls("ask_user", question="Sure?", choices=["Yes"]), says("Good."))
    heard = Heard()
    session = await client.create_session(**approving(on_user_input_request=Answering(), on_event=heard))
    await session.send("Announce the question")
    asked = await heard.until(UserInputRequestedData)
    done = await heard.until(UserInputCompletedData)
    assert asked.request_id == done.request_id
    assert asked.question == "Sure?"
    await heard.until_idle()


async def test_a_question_can_be_answered_by_id_by_another_client(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("Let another answer", calls("ask_user", question="Who?"), says("{last_tool_result}"))
    never: asyncio.Future[UserInputResponse] = asyncio.get_running_loop().create_future()

    async def silent(request: UserInputRequest, invocation: dict[str, str]) -> UserInputResponse:
        return await asyncio.shield(never)

    heard = Heard()
    one = await client.create_session(**approving(on_user_input_request=silent, on_event=heard))
    two = await another.resume_session(one.session_id, **approving())
    await one.send("Let another answer")
    asked = await heard.until(UserInputRequestedData)
    response = {"answer": "Somebody else", "wasFreeform": True}
    by_id: dict[str, Any] = {"requestId": asked.request_id, "response": response}
    assert await ask(two, "session.ui.handlePendingUserInput", **by_id) == {"success": True}
    assert await ask(two, "session.ui.handlePendingUserInput", **by_id) == {"success": False}
    assert content_of(await get_final_assistant_message(two)) == "User responded: Somebody else"
    never.set_result({"answer": "Too late", "wasFreeform": True})
    async with patience():
        await heard.until_idle()
    assert len(await history(one, ToolExecutionCompleteData)) == 1


async def test_a_handler_that_fails_does_not_hang_the_turn(client: CopilotClient, model: Model) -> None:
    model.on("Fail to ask", calls("ask_user", question="Will it fail?"), says("It failed."))

    def failing(request: UserInputRequest, invocation: dict[str, str]) -> UserInputResponse:
        raise RuntimeError("no screen")

    session = await client.create_session(**approving(on_user_input_request=failing))
    async with patience():
        assert await reply_to(session, "Fail to ask") == "It failed."


async def test_an_answer_that_has_no_room_does_not_hang_the_turn(own_home: Home) -> None:
    model = own_home.model
    model.on("Hear a long story", calls("ask_user", question="What happened?"), says("{last_tool_result}"))
    limits = {"HOLDFAST_AUTH": "keys", "HOLDFAST_MAX_BYTES_PER_OWNER": "20000"}
    async with own_home.serve(**limits) as server, connected(server.client()) as client:
        session = await client.create_session(**approving(on_user_input_request=Answering("x" * 10_000)))
        async with patience():
            told = await reply_to(session, "Hear a long story")
    assert told.startswith("The user could not be asked: There is no room for this answer")


async def test_a_question_outlives_the_client_and_the_server(own_home: Home) -> None:
    model = own_home.model
    model.on("Ask and be left", calls("ask_user", question="Still there?"), says("{last_tool_result}"))

    async def silent(request: UserInputRequest, invocation: dict[str, str]) -> UserInputResponse:
        await asyncio.Event().wait()
        raise AssertionError

    heard = Heard()
    async with own_home.serve() as server:
        client = server.client()
        session = await client.create_session(**approving(on_user_input_request=silent, on_event=heard))
        await session.send("Ask and be left")
        await heard.until(UserInputRequestedData)
        await client.force_stop()
        await server.kill()
    async with own_home.serve() as server, connected(server.client()) as client:
        again = await client.resume_session(
            session.session_id, **approving(on_user_input_request=Answering("Here"), continue_pending_work=True)
        )
        assert content_of(await get_final_assistant_message(again)) == "User responded: Here"
        assert tool_results(model.last_call_about("Ask and be left")) == ["User responded: Here"]
