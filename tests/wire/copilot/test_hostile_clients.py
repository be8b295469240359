"""Clients that never answer, answer nonsense, vanish or flood get an error or are dropped; other clients are
unaffected."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from copilot import CopilotClient
from copilot.session import PermissionNoResult
from copilot.session_events import PermissionCompletedData, PermissionRequestedData, UserInputRequestedData

from holdfast.server.copilot.frames import MAX_FRAME_BYTES
from tests.wire.copilot.harness import (
    TOKEN,
    Heard,
    Model,
    RawClient,
    Server,
    approving,
    ask,
    calls,
    content_of,
    frame,
    get_final_assistant_message,
    patience,
    reply_to,
    says,
)

pytestmark = pytest.mark.anyio

MEGABYTE = 1 << 20


@asynccontextmanager
async def undisturbed(client: CopilotClient, model: Model) -> AsyncIterator[None]:
    """Check that another client of the server works before, during and after."""
    model.on("Are you disturbed?", says("Not at all."))
    session = await client.create_session(**approving())
    assert await reply_to(session, "Are you disturbed?") == "Not at all."
    yield
    assert (await client.ping("still")).message == "pong: still"
    assert await reply_to(session, "Are you disturbed?") == "Not at all."


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(frame(b"{"), id="half an object"),
        pytest.param(frame(b"\xff\xfe\xfd"), id="no text"),
        pytest.param(frame(b""), id="nothing"),
        pytest.param(frame(b"null"), id="null"),
        pytest.param(frame(b"[]"), id="an empty batch"),
        pytest.param(frame(b'"connect"'), id="a string"),
        pytest.param(frame(b'{"jsonrpc":"2.0","id":1,"method":5}'), id="a method that is a number"),
        pytest.param(frame(b'{"jsonrpc":"2.0","id":{},"method":"ping"}'), id="an id that is an object"),
        pytest.param(frame(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}'), id="params that are a list"),
        pytest.param(frame(b"[" * 100_000), id="a hundred thousand brackets"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="a web browser"),
        pytest.param(b"Content-Length: -5\r\n\r\n", id="a negative length"),
        pytest.param(b"Content-Length: x\r\n\r\n", id="a length that is no number"),
        pytest.param(b"Content-Length: 99999999999999999999\r\n\r\n", id="a length beyond all bounds"),
        pytest.param(b"x" * (2 * MEGABYTE), id="a header without end"),
    ],
)
@pytest.mark.parametrize("admitted", [True, False], ids=["admitted", "not admitted"])
async def test_garbage_is_answered_with_an_error_or_the_connection_is_dropped(
    client: CopilotClient, server: Server, model: Model, garbage: bytes, admitted: bool
) -> None:
    async with undisturbed(client, model), RawClient.to(server.port, token=TOKEN if admitted else None) as raw:
        raw.write(garbage)
        outcome = await raw.outcome()
        assert outcome is None or isinstance(outcome["error"]["code"], int)


async def test_a_frame_beyond_the_bound_is_refused_or_dropped(
    client: CopilotClient, server: Server, model: Model
) -> None:
    async with undisturbed(client, model), RawClient.to(server.port) as raw:
        head = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"message":"'
        body = head + b"x" * (MAX_FRAME_BYTES - len(head)) + b'"}}'
        sending = asyncio.create_task(_write(raw, frame(body)))
        outcome = await raw.outcome()
        assert outcome is None or "error" in outcome
        sending.cancel()


async def _write(raw: RawClient, data: bytes) -> None:
    raw.write(data)
    try:
        await raw.drain()
    except ConnectionError:
        return  # dropped, as it may be


async def test_unauthenticated_client_can_not_send_a_large_frame(
    client: CopilotClient, server: Server, model: Model
) -> None:
    async with undisturbed(client, model), RawClient.to(server.port, token=None) as raw:
        raw.write(b"Content-Length: %d\r\n\r\n" % MEGABYTE)
        outcome = await raw.outcome()
        assert outcome is None or "error" in outcome


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096
    except FileNotFoundError:
        return 0  # Not Linux: nothing to compare.


@pytest.mark.parametrize(
    "part",
    [b"Content-Le", b"Content-Length: 100\r\n", b"Content-Length: 100\r\n\r\n", b"Content-Length: 100\r\n\r\n{"],
    ids=["in the header", "after the header", "before the body", "in the body"],
)
async def test_a_client_that_vanishes_in_mid_request_is_forgotten(
    client: CopilotClient, server: Server, model: Model, part: bytes
) -> None:
    async with undisturbed(client, model), RawClient.to(server.port) as raw:
        raw.write(part)
        await raw.drain()
        raw.hang_up()


async def test_client_that_vanishes_before_its_answer_harms_nothing(
    client: CopilotClient, server: Server, model: Model
) -> None:
    async with undisturbed(client, model):
        for _ in range(20):
            async with RawClient.to(server.port) as raw:
                raw.begin("session.create", sessionId=str(uuid4()))
                raw.begin("session.list")
                await raw.drain()
                raw.hang_up()


async def test_a_flood_of_requests_is_answered_or_slowed_and_others_are_served(
    client: CopilotClient, server: Server, model: Model
) -> None:
    async with undisturbed(client, model), RawClient.to(server.port) as raw:
        last = 0
        for _ in range(5000):
            last = raw.begin("ping", message="flood")
        async with patience():
            assert (await client.ping("in between")).message == "pong: in between"
            answered = await raw.response(last)
        assert answered["result"]["message"] == "pong: flood"


async def test_a_client_that_does_not_read_is_slowed_or_dropped_and_costs_bounded_memory(
    client: CopilotClient, server: Server, model: Model
) -> None:
    before = _resident_bytes(server.pid)
    async with undisturbed(client, model), RawClient.to(server.port) as raw:
        for _ in range(600):
            raw.begin("ping", message="x" * (MEGABYTE // 2))
        unsent = -1
        while unsent != (unsent := raw.unsent_bytes):  # It still takes some.
            for _ in range(20):
                assert (await client.ping("meanwhile")).message == "pong: meanwhile"
        assert _resident_bytes(server.pid) - before < 150 * MEGABYTE


async def attached(raw: RawClient, session_id: str, **more: Any) -> None:
    answer = await raw.request("session.resume", sessionId=session_id, requestPermission=True, **more)
    assert "result" in answer, answer


async def test_silent_client_does_not_keep_others_from_answering(
    client: CopilotClient, server: Server, model: Model
) -> None:
    model.on("Who answers, then?", calls("bash", command="echo answered"), says("Somebody."))
    heard = Heard()
    async with undisturbed(client, model), RawClient.to(server.port) as silent:
        session = await client.create_session(**approving(on_event=heard))
        await attached(silent, session.session_id)
        assert await reply_to(session, "Who answers, then?") == "Somebody."
        assert (await heard.until(PermissionCompletedData)).result.kind == "approved"


async def test_a_question_to_a_client_that_never_answers_can_be_answered_by_another(
    client: CopilotClient, server: Server, model: Model
) -> None:
    model.on("Ask the silent one", calls("ask_user", question="Well?"), says("{last_tool_result}"))
    async with undisturbed(client, model), RawClient.to(server.port) as silent:
        session = await client.create_session(**approving())
        await attached(silent, session.session_id, requestUserInput=True)
        await session.send("Ask the silent one")
        asked = await silent.until(
            lambda m: m.get("method") == "session.event" and m["params"]["event"]["type"] == "user_input.requested"
        )
        request_id = asked["params"]["event"]["data"]["requestId"]
        response = {"answer": "I do", "wasFreeform": True}
        answer = await ask(session, "session.ui.handlePendingUserInput", requestId=request_id, response=response)
        assert answer == {"success": True}
        assert content_of(await get_final_assistant_message(session)) == "User responded: I do"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"result": {"answer": 5}}, id="an answer that is a number"),
        pytest.param({"result": None}, id="null"),
        pytest.param({"result": []}, id="a list"),
        pytest.param({}, id="neither a result nor an error"),
        pytest.param({"error": "no"}, id="an error that is a string"),
        pytest.param({"error": {"code": -32601, "message": "Method not found"}}, id="no such method"),
    ],
)
async def test_a_question_that_is_answered_with_nonsense_ends_or_stays_answerable(
    client: CopilotClient, server: Server, model: Model, answer: dict[str, Any]
) -> None:
    model.on("Ask the mad one", calls("ask_user", question="Well?"), says("So be it."))
    async with undisturbed(client, model), RawClient.to(server.port) as mad:
        heard = Heard()
        session = await client.create_session(**approving(on_event=heard))
        await attached(mad, session.session_id, requestUserInput=True)
        await session.send("Ask the mad one")
        asked = await mad.until(lambda message: message.get("method") == "userInput.request")
        mad.send({"jsonrpc": "2.0", "id": asked["id"], **answer})
        assert (await mad.request("ping"))["result"]
        requested = await heard.until(UserInputRequestedData)
        response = {"answer": "Enough", "wasFreeform": True}
        by_id = {"requestId": requested.request_id, "response": response}
        await ask(session, "session.ui.handlePendingUserInput", **by_id)
        await heard.until_idle()


@pytest.mark.parametrize(
    "result",
    [{"kind": "approve-everything"}, {"kind": 5}, {}, None, "approve-once", ["approve-once"]],
    ids=["unknown", "a number", "nothing", "null", "a string", "a list"],
)
async def test_nonsensical_decision_decides_nothing(
    client: CopilotClient, server: Server, model: Model, result: Any
) -> None:
    model.on("Decide madly", calls("bash", command="echo decided"), says("Decided."))
    heard = Heard()

    def leaves_it(request: Any, invocation: Any) -> Any:
        return PermissionNoResult()

    async with undisturbed(client, model), RawClient.to(server.port) as mad:
        session = await client.create_session(on_permission_request=leaves_it, on_event=heard)
        await attached(mad, session.session_id)
        await session.send("Decide madly")
        asked = await heard.until(PermissionRequestedData)
        decide = "session.permissions.handlePendingPermissionRequest"
        params = {"sessionId": session.session_id, "requestId": asked.request_id}
        refused = await mad.request(decide, **params, result=result)
        assert refused["error"]["code"] in (-32603, -32602), refused
        accepted = await mad.request(decide, **params, result={"kind": "approve-once"})
        assert accepted["result"] == {"success": True}
        await heard.until_idle()


async def test_responses_to_requests_that_were_never_made_are_ignored(
    client: CopilotClient, server: Server, model: Model
) -> None:
    async with undisturbed(client, model), RawClient.to(server.port) as raw:
        for number in (0, 1, 2, 10**30, "abc", None):
            raw.send({"jsonrpc": "2.0", "id": number, "result": {"answer": "x"}})
            raw.send({"jsonrpc": "2.0", "id": number})
        outcome = await raw.request("ping", message="after")
        assert outcome["result"]["message"] == "pong: after"


@pytest.mark.parametrize("method", ["session.send", "session.abort", "session.getMessages", "session.suspend"])
async def test_connection_can_not_use_a_session_that_it_did_not_resume(
    client: CopilotClient, server: Server, method: str
) -> None:
    session = await client.create_session(**approving())
    async with RawClient.to(server.port) as raw:
        refused = await raw.request(method, sessionId=session.session_id, prompt="hi")
        assert refused["error"]["code"] == -32603


async def test_two_hundred_concurrent_sessions_do_not_block_another(
    client: CopilotClient, server: Server, model: Model
) -> None:
    async with undisturbed(client, model), RawClient.to(server.port) as raw:
        numbers = [raw.begin("session.create", sessionId=str(uuid4()), requestPermission=False) for _ in range(200)]
        assert (await client.ping("meanwhile")).message == "pong: meanwhile"
        made: set[int] = set()
        while len(made) < len(numbers):
            answer = await raw.until(lambda message: message.get("id") in numbers and "method" not in message)
            assert "result" in answer, answer
            made.add(answer["id"])
