"""A failing model or a wrong request gives a clear error at once, and the session goes on."""

import pytest
from copilot import CopilotClient
from copilot._jsonrpc import JsonRpcError
from copilot.session_events import AssistantMessageData, SessionErrorData, UserMessageData

from holdfast.models.scripted import Failure, Reply
from tests.wire.copilot.harness import Heard, Home, Model, approving, ask, connected, history, reply_to, says

pytestmark = pytest.mark.anyio


async def test_should_throw_when_sending_to_disconnected_session(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    await session.disconnect()
    with pytest.raises(Exception, match="not found"):
        await session.send("Hello")


async def test_should_throw_when_getting_messages_from_disconnected_session(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    await session.disconnect()
    with pytest.raises(Exception, match="not found"):
        await session.get_events()


async def test_should_handle_double_abort_without_error(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    await session.abort()
    await session.abort()


async def test_should_throw_when_resuming_non_existent_session(client: CopilotClient) -> None:
    with pytest.raises(Exception, match="not found"):
        await client.resume_session("non-existent-session-id", **approving())


async def test_disconnecting_twice_is_no_error(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    await session.disconnect()
    await session.disconnect()


@pytest.mark.parametrize(
    ("failure", "kind", "status"),
    [
        pytest.param(Failure(kind="refused"), "query", 400, id="refused"),
        pytest.param(Failure(kind="unauthorized"), "authorization", 401, id="unauthorized"),
        pytest.param(Failure(kind="rate_limited", retry_after=0), "rate_limit", 429, id="rate limited"),
        pytest.param(Failure(kind="unavailable", status=503), "query", 503, id="unavailable"),
    ],
)
async def test_a_model_that_fails_ends_the_turn_with_an_error_that_stays(
    client: CopilotClient, model: Model, failure: Failure, kind: str, status: int
) -> None:
    prompt = f"Fail with {status}"
    model.on(prompt, Reply(fail=failure))
    model.on(f"And after {status}?", says("It works."))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    with pytest.raises(Exception, match=r"(?i)error"):
        await reply_to(session, prompt)
    error = await heard.until(SessionErrorData)
    assert error.error_type == kind
    assert error.status_code == status
    assert error.message
    await heard.until_idle()
    (kept,) = await history(session, SessionErrorData)
    assert kept.message == error.message
    assert heard.types.index("assistant.turn_end") < heard.types.index("session.error")
    assert await reply_to(session, f"And after {status}?") == "It works."


async def test_temporarily_failing_model_is_retried(client: CopilotClient, model: Model) -> None:
    model.on("Fail twice", Reply(text="The third time.", fail=Failure(kind="unavailable", times=2)))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    assert await reply_to(session, "Fail twice") == "The third time."
    assert len(model.calls_about("Fail twice")) == 3
    assert heard.types.count("model.call_failure") == 2
    assert heard.all(SessionErrorData) == []


async def test_cut_stream_is_repeated_and_shown_text_stays(client: CopilotClient, model: Model) -> None:
    model.on("Be cut", Reply(text="one two three", fail=Failure(kind="cut", times=1, after=2)))
    heard = Heard()
    session = await client.create_session(**approving(streaming=True, on_event=heard))
    assert await reply_to(session, "Be cut") == "one two three"
    texts = [data.content for data in await history(session, AssistantMessageData)]
    assert texts[-1] == "one two three"
    assert texts[0].startswith("one")


async def test_empty_model_answer_is_reported(client: CopilotClient, model: Model) -> None:
    model.on("Say nothing at all", says(""))
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    await session.send("Say nothing at all")
    await heard.until_idle()
    told = [data.message for data in heard.all(SessionErrorData)]
    assert told or any(data.content for data in heard.all(AssistantMessageData))


async def test_an_empty_prompt_is_refused_or_answered_and_never_lost(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    with pytest.raises(Exception, match=r"JSON-RPC Error -326\d\d"):
        await session.send("")
    assert await history(session, UserMessageData) == []


async def test_too_long_prompt_is_refused_and_leaves_no_trace(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    with pytest.raises(Exception, match=r"JSON-RPC Error -326\d\d"):
        await session.send("x" * 10_000_000)
    assert await history(session, UserMessageData) == []


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session.send", {"sessionId": "nope", "prompt": "hi"}),
        ("session.abort", {"sessionId": "nope"}),
        ("session.getMessages", {"sessionId": "nope"}),
        ("session.name.get", {"sessionId": "nope"}),
        ("session.queue.pendingItems", {"sessionId": "nope"}),
    ],
)
async def test_an_unknown_session_is_named_in_the_error(
    client: CopilotClient, method: str, params: dict[str, str]
) -> None:
    with pytest.raises(Exception, match=rf"JSON-RPC Error -32603: Request {method} failed with message: .*nope"):
        await ask(client, method, **params)


async def test_an_unknown_method_is_named_in_the_error(client: CopilotClient) -> None:
    with pytest.raises(Exception, match=r"JSON-RPC Error -32601: Unhandled method session\.makeCoffee"):
        await ask(client, "session.makeCoffee", sessionId="nope")


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"sessionId": 5, "prompt": "hi"}, id="an id that is no string"),
        pytest.param({"sessionId": None, "prompt": "hi"}, id="no id"),
    ],
)
async def test_nonsensical_params_get_a_clear_error(client: CopilotClient, params: dict[str, object]) -> None:
    with pytest.raises(Exception, match=r"JSON-RPC Error -326\d\d"):
        await ask(client, "session.send", **params)


async def test_unreachable_model_endpoint_is_an_error_and_not_a_hang(own_home: Home) -> None:
    async with own_home.serve(COPILOT_API_URL="http://127.0.0.1:9/v1") as server, connected(server.client()) as client:
        with pytest.raises(JsonRpcError, match=r"127\.0\.0\.1:9"):
            await reply_to(await client.create_session(**approving()), "Is anybody there?")


async def test_session_with_a_hostile_id_stays_inside_the_home(client: CopilotClient, home: Home) -> None:
    for hostile in ("../../outside", "a/b", "..", "x" * 5000, "nul\u0000byte"):
        try:
            session = await client.create_session(**approving(session_id=hostile))
        except JsonRpcError:
            continue
        assert session.workspace_path is not None
        assert session.workspace_path.resolve().is_relative_to(home.data.resolve())
    assert not (home.folder / "outside").exists()
    assert not (home.data / "outside").exists()
