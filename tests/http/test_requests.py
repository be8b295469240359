"""Open requests are listed with their content, and the first answer counts."""

import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.events.tool import MAX_ANSWER_BYTES, MAX_RESULT_BYTES, MAX_RESULT_JSON_BYTES
from holdfast.server.ai_sdk.bodies import MAX_BODY_BYTES
from holdfast.server.copilot.frames import MAX_FRAME_BYTES
from holdfast.server.http.routes.requests import AnswerBody
from tests.http.world import Client, Place, Server, code_of

LOOKUP = {"name": "lookup", "description": "Looks people up.", "parameters": {"type": "object"}}


async def asked(client: Client, text: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """A session that waits, and what it asks."""
    session = await client.make(**options)
    await client.say(session, text)
    (request,) = (await client.get(f"/v1/sessions/{session}/requests")).json()["requests"]
    return session, request


async def answered(client: Client, session: str, request: dict[str, Any], **answer: Any) -> Any:
    return await client.post(f"/v1/sessions/{session}/requests/{request['id']}", json=answer)


async def until_idle(client: Client, session: str) -> list[str]:
    """The messages after the continued turn has ended."""
    async with client.follow(session) as frames:
        async for frame in frames:
            if frame.kind == "event" and frame.data["type"] == "holdfast.turn_ended":
                break
    return await client.texts(session)


async def test_a_permission_is_approved_and_the_turn_goes_on_by_itself(client: Client) -> None:
    session, request = await asked(client, "write a note")
    assert (request["kind"], request["details"]["permission"], request["details"]["subject"]) == (
        "permission",
        "write",
        "note.txt",
    )
    view = (await client.get(f"/v1/sessions/{session}")).json()["session"]
    assert (view["status"], view["pending_requests"]) == ("waiting", 1)
    response = await answered(client, session, request, decision="approve", answer_id="a1")
    assert response.json() == {"request_id": request["id"], "answer_id": "a1", "duplicate": False}
    assert (await until_idle(client, session))[-1] == "Written."
    assert (await client.get(f"/v1/sessions/{session}/requests")).json() == {"requests": []}


async def test_a_permission_is_denied_with_a_reason(client: Client) -> None:
    session, request = await asked(client, "write a note")
    await answered(client, session, request, decision="deny", feedback="Not now.")
    await until_idle(client, session)
    (completed,) = [event for event in await client.events(session) if event["type"] == "permission.completed"]
    assert completed["data"]["decision"] == "denied-interactively-by-user"
    assert (completed["data"]["feedback"], completed["data"]["answeredBy"]) == ("Not now.", "local")


async def asks_again(client: Client, **options: Any) -> bool:
    """Whether a new session asks before it writes."""
    session = await client.make(**options)
    await client.say(session, "write a note")
    return bool((await client.get(f"/v1/sessions/{session}/requests")).json()["requests"])


async def test_an_approval_for_always_holds_in_new_sessions_of_its_directory_only(
    client: Client, tmp_path: Path
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    session, request = await asked(client, "write a note", working_directory=str(here))
    for is_again in (False, True):
        response = await answered(client, session, request, decision="approve_always", answer_id="a1")
        assert response.json() == {"request_id": request["id"], "answer_id": "a1", "duplicate": is_again}
    await until_idle(client, session)
    (here / "note.txt").unlink()
    await client.say(session, "write a note")
    assert (await client.texts(session))[-1] == "Written.", "it holds in the session itself, too"
    assert not await asks_again(client, working_directory=str(here))
    assert await asks_again(client, working_directory=str(elsewhere))


async def test_an_approval_for_everywhere_holds_in_every_directory_also_after_a_restart(
    own_place: Place, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with own_place.serve() as server, server.client() as client:
        session, request = await asked(client, "write a note")
        assert (await answered(client, session, request, decision="approve_always", everywhere=True)).is_success
        await server.end(signal.SIGKILL)
    async with own_place.serve() as server, server.client() as client:
        assert not await asks_again(client, working_directory=str(elsewhere))


async def test_an_always_that_comes_after_a_no_grants_nothing(client: Client) -> None:
    session, request = await asked(client, "write a note")
    await answered(client, session, request, decision="deny", answer_id="first")
    late = await answered(client, session, request, decision="approve_always", answer_id="second")
    assert late.status_code == 409
    assert await asks_again(client)


async def test_an_always_beyond_the_owner_s_permissions_is_refused_and_the_request_stays_open(
    own_place: Place,
) -> None:
    long = "x" * 980
    async with own_place.serve() as server, server.client() as client:
        first, second = [[f"read({number}-{each:03}{long})" for each in range(100)] for number in range(2)]
        session, request = await asked(client, "write a note")
        always = {"decision": "approve_always", "everywhere": True}
        assert (await answered(client, session, request, **always, rules=first)).is_success
        session, request = await asked(client, "write a note")
        response = await answered(client, session, request, **always, rules=second)
        assert (response.status_code, code_of(response)) == (403, "too_many_permissions")
        assert "holdfast permissions" in response.text
        assert len((await client.get("/v1/permissions")).json()["permissions"]) == 100
        assert (await client.get(f"/v1/sessions/{session}/requests")).json()["requests"] == [request]
        assert (await answered(client, session, request, decision="approve")).is_success
        assert (await until_idle(client, session))[-1] == "Written."


@pytest.mark.parametrize(
    ("rule", "code"), [("write(" + "*?" * 17 + ")", "rule_too_complex"), ("write(" + "x" * 1_000 + ")", "invalid")]
)
async def test_a_rule_beyond_the_bounds_is_refused_with_an_answer_and_with_a_new_session(
    client: Client, rule: str, code: str
) -> None:
    session, request = await asked(client, "write a note")
    for decision in ("approve_for_session", "approve_always"):
        response = await answered(client, session, request, decision=decision, rules=[rule])
        assert (response.status_code, code_of(response)) == (422, code)
    response = await client.post("/v1/sessions", json={"allow": [rule]})
    assert (response.status_code, code_of(response)) == (422, code)
    assert (await answered(client, session, request, decision="approve")).is_success


async def test_always_is_no_answer_to_a_question(client: Client) -> None:
    session, request = await asked(client, "ask me something")
    wrong = await answered(client, session, request, decision="approve_always")
    assert (wrong.status_code, code_of(wrong)) == (422, "wrong_answer")


async def test_a_question_is_answered(client: Client) -> None:
    session, request = await asked(client, "ask me something")
    assert request["details"] == {"question": "Which?", "choices": ["red", "blue"], "allow_freeform": True}
    await answered(client, session, request, answer="red", was_freeform=False)
    assert "red" in (await until_idle(client, session))[-1]


async def test_a_client_s_tool_is_run_by_the_client(client: Client) -> None:
    session, request = await asked(client, "look up ada", client_tools=[LOOKUP])
    assert request["details"]["tool_name"] == "lookup"
    assert '"ada"' in request["details"]["arguments"]
    await answered(client, session, request, content="a mathematician")
    assert (await until_idle(client, session))[-1] == "Found: a mathematician"


async def test_a_client_tool_may_give_a_long_answer(client: Client) -> None:
    session, request = await asked(client, "look up ada", client_tools=[LOOKUP])
    most = "x" * MAX_ANSWER_BYTES
    refused = await answered(client, session, request, content=most + "x")
    assert (refused.status_code, code_of(refused)) == (422, "answer_too_large")
    refused = await answered(client, session, request, content=most[:-1] + "é")
    assert (refused.status_code, code_of(refused)) == (422, "json_too_large")
    response = await answered(client, session, request, content=most)
    assert response.status_code == 200, response.text
    await until_idle(client, session)
    detail = (await client.get(f"/v1/sessions/{session}")).json()
    (result,) = [message for message in detail["messages"] if message["role"] == "tool"]
    assert result["content"] == most


def test_the_largest_answer_fits_into_its_message_as_text_or_as_pictures() -> None:
    answer = AnswerBody(answer_id="a" * 64, content="\n" + "line" * (MAX_RESULT_BYTES // 5))
    assert len(msgspec.json.encode(answer)) <= MAX_RESULT_JSON_BYTES
    assert MAX_RESULT_BYTES * 4 // 3 + 100_000 <= MAX_RESULT_JSON_BYTES, "base64 writes three bytes as four"
    assert min(MAX_FRAME_BYTES, MAX_BODY_BYTES) >= MAX_RESULT_JSON_BYTES


async def test_the_ai_sdk_surface_takes_a_result_with_the_conversation_before_it(client: Client) -> None:
    sent = b'{"id": "big", "text": "' + b"x" * (MAX_RESULT_BYTES + 3_000_000) + b'"}'
    response = await client.post("/v1/chat", content=sent)
    assert (response.status_code, code_of(response)) == (422, "message_too_long")


async def test_the_first_answer_counts_and_the_same_one_again_gets_its_receipt(client: Client) -> None:
    session, request = await asked(client, "ask me something")
    first = await answered(client, session, request, answer="red", answer_id="mine")
    again = await answered(client, session, request, answer="red", answer_id="mine")
    other = await answered(client, session, request, answer="blue", answer_id="theirs")
    assert (first.json()["duplicate"], again.json()["duplicate"]) == (False, True)
    assert other.status_code == 409
    assert code_of(other) in ("answered_already", "request_closed")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"decision": "maybe"},
        {"decision": "approve", "answer": "x"},
        {"answer": 1},
        {"answer": "x", "more": 1},
        {"decision": None},
    ],
)
async def test_an_answer_is_one_of_three(client: Client, body: object) -> None:
    session, request = await asked(client, "ask me something")
    response = await client.post(f"/v1/sessions/{session}/requests/{request['id']}", json=body)
    assert (response.status_code, code_of(response)) == (422, "invalid")
    assert len((await client.get(f"/v1/sessions/{session}/requests")).json()["requests"]) == 1


async def test_the_id_of_an_answer_is_one_that_clients_may_choose(client: Client) -> None:
    session, request = await asked(client, "ask me something")
    response = await answered(client, session, request, answer="x", answer_id="x" * 65)
    assert (response.status_code, code_of(response)) == (422, "id_invalid")
    assert len((await client.get(f"/v1/sessions/{session}/requests")).json()["requests"]) == 1


async def test_an_answer_of_the_wrong_kind_and_to_nothing_is_refused(client: Client) -> None:
    session, request = await asked(client, "ask me something")
    wrong = await answered(client, session, request, decision="approve")
    assert (wrong.status_code, code_of(wrong)) == (422, "wrong_answer")
    nothing = await answered(client, session, {"id": "nobody"}, answer="red")
    assert (nothing.status_code, code_of(nothing)) == (404, "request_not_found")


async def test_fault_61_a_request_without_the_token_answers_nothing(client: Client, server: Server) -> None:
    session, request = await asked(client, "ask me something")
    async with server.client("") as nobody:
        response = await answered(nobody, session, request, answer="red")
    assert (response.status_code, code_of(response)) == (401, "not_signed_in")
    assert len((await client.get(f"/v1/sessions/{session}/requests")).json()["requests"]) == 1


async def test_fault_61_a_command_has_nothing_in_its_environment_that_could_answer(
    client: Client, server: Server
) -> None:
    session = await client.make(allow=["shell"])
    await client.say(session, "show the environment")
    (completed,) = [event for event in await client.events(session) if event["type"] == "tool.execution_complete"]
    assert "PATH=" in completed["data"]["content"]
    assert server.token not in completed["data"]["content"]
    assert server.token_file.stat().st_mode & 0o777 == 0o600
