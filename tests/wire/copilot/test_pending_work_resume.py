"""A client leaves in mid-turn, and another resumes and finishes the pending work.

The first six are GitHub's own end-to-end tests of its Python client, under their own names.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from copilot import CopilotClient, CopilotSession, RuntimeConnection
from copilot.rpc import (
    HandlePendingToolCallRequest,
    PermissionDecisionRequest,
    PermissionDecisionUserNotAvailable,
)
from copilot.session import PermissionHandler, PermissionRequestResult
from copilot.session_events import (
    ExternalToolRequestedData,
    PermissionRequest,
    PermissionRequestedData,
    SessionResumeData,
    SessionShutdownData,
    ToolExecutionCompleteData,
)

from tests.wire.copilot.harness import (
    PATIENCE_SECONDS,
    TOKEN,
    Heard,
    Home,
    Model,
    Server,
    Waiting,
    approving,
    calls,
    calls_all,
    client_tool,
    connected,
    content_of,
    final_answer,
    get_final_assistant_message,
    history,
    leave,
    patience,
    reply_to,
    running,
    says,
    stop,
    tool_results,
)

pytestmark = pytest.mark.anyio

INTERRUPTED = "The execution of this tool, or a previous tool was interrupted."


@pytest.fixture(scope="module", autouse=True)
def _script(model: Model) -> None:
    result = says("{last_tool_result}")
    model.on("Use resume_permission_tool", calls("resume_permission_tool", value="alpha"), result)
    model.on("Use resume_external_tool", calls("resume_external_tool", value="beta"), result)
    both = calls_all(("pending_lookup_a", {"value": "alpha"}), ("pending_lookup_b", {"value": "beta"}))
    model.on("Call pending_lookup_a", both, result)
    for name in ("NO_PENDING_TURN", "CONTINUE_PENDING_WORK_TRUE_TURN"):
        for number in ("ONE", "TWO"):
            model.on(f"{name}_{number}", says(f"{name}_{number}"))
    model.on("And now?", says("It went on."))


@asynccontextmanager
async def tcp_server(home: Home) -> AsyncIterator[str]:
    """A runtime that a client started, and its address."""
    async with running(home.tcp()) as server:
        yield f"localhost:{server.runtime_port}"


def client_of(url: str) -> CopilotClient:
    return CopilotClient(connection=RuntimeConnection.for_uri(url, connection_token=TOKEN))


async def wait_for_external_tool_requests(
    session: CopilotSession, tool_names: list[str]
) -> dict[str, ExternalToolRequestedData]:
    heard = Heard(session)
    await heard.until(ExternalToolRequestedData, lambda data: data.tool_name in tool_names, times=len(tool_names))
    return {data.tool_name: data for data in heard.all(ExternalToolRequestedData)}


def not_available(request: PermissionRequest, invocation: Any) -> PermissionRequestResult:
    return PermissionDecisionUserNotAvailable()


async def answer_tool(session: CopilotSession, request_id: str, result: str) -> bool:
    given = HandlePendingToolCallRequest(request_id=request_id, result=result)
    return (await session.rpc.tools.handle_pending_tool_call(given)).success


async def answer_permission(session: CopilotSession, request_id: str, kind: str = "approve-once") -> bool:
    given = PermissionDecisionRequest.from_dict({"requestId": request_id, "result": {"kind": kind}})
    return (await session.rpc.permissions.handle_pending_permission_request(given)).success


class Holding:
    """A permission handler that decides nothing until it is released."""

    def __init__(self) -> None:
        self.captured: asyncio.Future[PermissionRequest] = asyncio.get_running_loop().create_future()
        self.release: asyncio.Future[PermissionRequestResult] = asyncio.get_running_loop().create_future()

    async def __call__(self, request: PermissionRequest, invocation: Any) -> PermissionRequestResult:
        if not self.captured.done():
            self.captured.set_result(request)
        return await asyncio.shield(self.release)


class TestPendingWorkResume:
    async def test_should_continue_pending_permission_request_after_resume(self, own_home: Home) -> None:
        async with tcp_server(own_home) as url:
            hold_permission = Holding()
            resumed_values: list[str] = []

            def original_tool(arguments: dict[str, Any]) -> str:
                return f"ORIGINAL_SHOULD_NOT_RUN_{arguments.get('value', '')}"

            def resumed_tool(arguments: dict[str, Any]) -> str:
                resumed_values.append(arguments["value"])
                return f"PERMISSION_RESUMED_{arguments['value'].upper()}"

            suspended_client = client_of(url)
            session1 = await suspended_client.create_session(
                on_permission_request=hold_permission,
                tools=[client_tool("resume_permission_tool", original_tool)],
            )
            heard = Heard(session1)
            await session1.send("Use resume_permission_tool with value 'alpha', then reply with the result.")
            async with patience():
                await hold_permission.captured
            permission = await heard.until(PermissionRequestedData)
            # Nobody decides: the request stays pending in the runtime.
            await suspended_client.force_stop()

            resumed_client = client_of(url)
            try:
                session2 = await resumed_client.resume_session(
                    session1.session_id,
                    on_permission_request=not_available,
                    continue_pending_work=True,
                    tools=[client_tool("resume_permission_tool", resumed_tool)],
                )
                assert await answer_permission(session2, permission.request_id)
                answer = await get_final_assistant_message(session2)
                assert resumed_values == ["alpha"]
                assert "PERMISSION_RESUMED_ALPHA" in content_of(answer)
                await session2.disconnect()
            finally:
                await stop(resumed_client)
                hold_permission.release.set_result(PermissionDecisionUserNotAvailable())

    async def test_should_continue_pending_external_tool_request_after_resume(self, own_home: Home) -> None:
        async with tcp_server(own_home) as url:
            blocking_external_tool = Waiting()
            suspended_client = client_of(url)
            session1 = await suspended_client.create_session(
                **approving(tools=[client_tool("resume_external_tool", blocking_external_tool)])
            )
            requests = asyncio.create_task(wait_for_external_tool_requests(session1, ["resume_external_tool"]))
            await session1.send("Use resume_external_tool with value 'beta', then reply with the result.")
            tool_events = await requests
            assert await blocking_external_tool.started() == "beta"
            await suspended_client.force_stop()

            resumed_client = client_of(url)
            try:
                session2 = await resumed_client.resume_session(
                    session1.session_id,
                    on_permission_request=PermissionHandler.approve_all,
                    continue_pending_work=True,
                )
                request_id = tool_events["resume_external_tool"].request_id
                assert await answer_tool(session2, request_id, "EXTERNAL_RESUMED_BETA")
                answer = await get_final_assistant_message(session2)
                assert "EXTERNAL_RESUMED_BETA" in content_of(answer)
                await session2.disconnect()
            finally:
                await stop(resumed_client)
                blocking_external_tool.release.set_result("ORIGINAL_SHOULD_NOT_WIN")

    async def test_should_continue_parallel_pending_external_tool_requests_after_resume(self, own_home: Home) -> None:
        async with tcp_server(own_home) as url:
            tool_a, tool_b = Waiting(), Waiting()
            suspended_client = client_of(url)
            session1 = await suspended_client.create_session(
                **approving(tools=[client_tool("pending_lookup_a", tool_a), client_tool("pending_lookup_b", tool_b)])
            )
            requests = asyncio.create_task(
                wait_for_external_tool_requests(session1, ["pending_lookup_a", "pending_lookup_b"])
            )
            await session1.send(
                "Call pending_lookup_a with value 'alpha' and "
                "pending_lookup_b with value 'beta', then reply with both results."
            )
            tool_events = await requests
            assert await tool_a.started() == "alpha"
            assert await tool_b.started() == "beta"
            await suspended_client.force_stop()

            resumed_client = client_of(url)
            try:
                session2 = await resumed_client.resume_session(
                    session1.session_id,
                    on_permission_request=PermissionHandler.approve_all,
                    continue_pending_work=True,
                )
                assert await answer_tool(session2, tool_events["pending_lookup_b"].request_id, "PARALLEL_B_BETA")
                assert await answer_tool(session2, tool_events["pending_lookup_a"].request_id, "PARALLEL_A_ALPHA")
                # Not in the original: neither result went to the wrong call.
                await get_final_assistant_message(session2)
                told = tool_results(own_home.model.last_call_about("Call pending_lookup_a"))
                assert told == ["PARALLEL_A_ALPHA", "PARALLEL_B_BETA"]
                await session2.disconnect()
            finally:
                await stop(resumed_client)
                tool_a.release.set_result("ORIGINAL_A_SHOULD_NOT_WIN")
                tool_b.release.set_result("ORIGINAL_B_SHOULD_NOT_WIN")

    async def test_should_resume_successfully_when_no_pending_work_exists(self, own_home: Home) -> None:
        async with tcp_server(own_home) as url:
            first_client = client_of(url)
            try:
                first_session = await first_client.create_session(**approving())
                first_answer = await first_session.send_and_wait("Reply with exactly: NO_PENDING_TURN_ONE")
                assert "NO_PENDING_TURN_ONE" in content_of(first_answer)
                await first_session.disconnect()
            finally:
                await stop(first_client)

            resumed_client = client_of(url)
            try:
                resumed_session = await resumed_client.resume_session(
                    first_session.session_id,
                    on_permission_request=PermissionHandler.approve_all,
                    continue_pending_work=True,
                )
                follow_up = await resumed_session.send_and_wait("Reply with exactly: NO_PENDING_TURN_TWO")
                assert "NO_PENDING_TURN_TWO" in content_of(follow_up)
                await resumed_session.disconnect()
            finally:
                await stop(resumed_client)

    async def test_should_keep_pending_external_tool_handleable_on_warm_resume_when_continuependingwork_is_false(
        self, own_home: Home
    ) -> None:
        async with tcp_server(own_home) as url:
            blocking_external_tool = Waiting()
            suspended_client = client_of(url)
            session1 = await suspended_client.create_session(
                **approving(tools=[client_tool("resume_external_tool", blocking_external_tool)])
            )
            requests = asyncio.create_task(wait_for_external_tool_requests(session1, ["resume_external_tool"]))
            await session1.send("Use resume_external_tool with value 'beta', then reply with the result.")
            tool_events = await requests
            assert await blocking_external_tool.started() == "beta"
            await suspended_client.force_stop()

            resumed_client = client_of(url)
            try:
                session2 = await resumed_client.resume_session(
                    session1.session_id,
                    on_permission_request=PermissionHandler.approve_all,
                    continue_pending_work=False,
                )
                resume_events = await history(session2, SessionResumeData)
                assert len(resume_events) == 1, "Expected exactly one session.resume event"
                assert resume_events[0].continue_pending_work is False
                assert resume_events[0].session_was_active is True

                # The pending tool call can still be satisfied.
                request_id = tool_events["resume_external_tool"].request_id
                assert await answer_tool(session2, request_id, "EXTERNAL_RESUMED_BETA")
                answer = await get_final_assistant_message(session2)
                assert len(blocking_external_tool.values) == 1
                assert "EXTERNAL_RESUMED_BETA" in content_of(answer)
                await session2.disconnect()
            finally:
                await stop(resumed_client)
                blocking_external_tool.release.set_result("ORIGINAL_SHOULD_NOT_WIN")

    async def test_should_report_continuependingwork_true_in_resume_event(self, own_home: Home) -> None:
        async with tcp_server(own_home) as url:
            first_client = client_of(url)
            try:
                first_session = await first_client.create_session(**approving())
                first_answer = await first_session.send_and_wait(
                    "Reply with exactly: CONTINUE_PENDING_WORK_TRUE_TURN_ONE", timeout=PATIENCE_SECONDS
                )
                assert "CONTINUE_PENDING_WORK_TRUE_TURN_ONE" in content_of(first_answer)
                await first_session.disconnect()
            finally:
                await stop(first_client)

            resumed_client = client_of(url)
            try:
                resumed_session = await resumed_client.resume_session(
                    first_session.session_id,
                    on_permission_request=PermissionHandler.approve_all,
                    continue_pending_work=True,
                )
                resume_events = await history(resumed_session, SessionResumeData)
                assert len(resume_events) == 1, "Expected exactly one session.resume event"
                assert resume_events[0].continue_pending_work is True
                assert resume_events[0].session_was_active is False

                follow_up = await resumed_session.send_and_wait(
                    "Reply with exactly: CONTINUE_PENDING_WORK_TRUE_TURN_TWO", timeout=PATIENCE_SECONDS
                )
                assert "CONTINUE_PENDING_WORK_TRUE_TURN_TWO" in content_of(follow_up)
                await resumed_session.disconnect()
            finally:
                await stop(resumed_client)


# Cold: the runtime itself is gone as well


class Left:
    """A session that its client left in mid-turn, and its pending requests."""

    def __init__(self, session_id: str, requests: dict[str, str]) -> None:
        self.session_id = session_id
        self.requests = requests
        """Request ids by the name of the tool."""


async def leave_tools_pending(home: Home, prompt: str, *names: str, **more: Any) -> Left:
    """Leave a turn waiting for client tools: its client is stopped by force, then its server is killed."""
    handlers = [Waiting() for _ in names]
    async with home.serve() as server:
        client = server.client()
        session = await client.create_session(
            **approving(tools=[client_tool(name, one, **more) for name, one in zip(names, handlers, strict=True)])
        )
        requests = asyncio.create_task(wait_for_external_tool_requests(session, list(names)))
        await session.send(prompt)
        asked = await requests
        for handler in handlers:
            await handler.started()
        await client.force_stop()
        await server.kill()
    return Left(session.session_id, {name: data.request_id for name, data in asked.items()})


async def leave_permission_pending(home: Home) -> Left:
    async with home.serve() as server:
        client = server.client()
        holding = Holding()
        session = await client.create_session(
            on_permission_request=holding, tools=[client_tool("resume_permission_tool", lambda a: "NOT_THIS_ONE")]
        )
        heard = Heard(session)
        await session.send("Use resume_permission_tool with value 'alpha', then reply with the result.")
        asked = await heard.until(PermissionRequestedData)
        async with patience():
            await holding.captured
        await client.force_stop()
        await server.kill()
    holding.release.set_result(PermissionDecisionUserNotAvailable())
    return Left(session.session_id, {"resume_permission_tool": asked.request_id})


ONE = ("Use resume_external_tool with value 'beta', then reply with the result.", "resume_external_tool")


async def test_a_pending_permission_outlives_the_client_and_the_server(own_home: Home) -> None:
    left = await leave_permission_pending(own_home)
    values: list[str] = []

    def resumed_tool(arguments: dict[str, Any]) -> str:
        values.append(arguments["value"])
        return f"PERMISSION_RESUMED_{arguments['value'].upper()}"

    async with own_home.serve() as server, connected(server.client()) as client:
        session = await client.resume_session(
            left.session_id,
            on_permission_request=not_available,
            continue_pending_work=True,
            tools=[client_tool("resume_permission_tool", resumed_tool)],
        )
        (resumed,) = await history(session, SessionResumeData)
        assert resumed.session_was_active is False
        assert await answer_permission(session, left.requests["resume_permission_tool"])
        assert "PERMISSION_RESUMED_ALPHA" in content_of(await get_final_assistant_message(session))
        assert values == ["alpha"]


async def test_a_pending_client_tool_outlives_the_client_and_the_server(own_home: Home) -> None:
    left = await leave_tools_pending(own_home, *ONE)
    async with own_home.serve() as server, connected(server.client()) as client:
        session = await client.resume_session(left.session_id, **approving(continue_pending_work=True))
        assert await answer_tool(session, left.requests["resume_external_tool"], "EXTERNAL_RESUMED_BETA")
        assert "EXTERNAL_RESUMED_BETA" in content_of(await get_final_assistant_message(session))


async def test_parallel_pending_client_tools_outlive_the_client_and_the_server(own_home: Home) -> None:
    prompt = "Call pending_lookup_a with value 'alpha' and pending_lookup_b with value 'beta'."
    left = await leave_tools_pending(own_home, prompt, "pending_lookup_a", "pending_lookup_b")
    async with own_home.serve() as server, connected(server.client()) as client:
        session = await client.resume_session(left.session_id, **approving(continue_pending_work=True))
        assert await answer_tool(session, left.requests["pending_lookup_b"], "COLD_B")
        assert await answer_tool(session, left.requests["pending_lookup_a"], "COLD_A")
        await get_final_assistant_message(session)
        assert tool_results(own_home.model.last_call_about("Call pending_lookup_a"))[-2:] == ["COLD_A", "COLD_B"]


async def test_client_that_resumes_with_the_tool_gets_the_pending_call_again(own_home: Home) -> None:
    left = await leave_tools_pending(own_home, *ONE)
    heard = Heard()
    async with own_home.serve() as server, connected(server.client()) as client:
        tool = client_tool("resume_external_tool", lambda arguments: f"AGAIN_{arguments['value']}")
        session = await client.resume_session(
            left.session_id, **approving(continue_pending_work=True, tools=[tool], on_event=heard)
        )
        assert (await heard.until(ExternalToolRequestedData)).request_id == left.requests["resume_external_tool"]
        assert "AGAIN_beta" in content_of(await get_final_assistant_message(session))
        (done,) = await history(session, ToolExecutionCompleteData)
        assert done.success is True


async def test_deliver_once_tool_is_not_delivered_again_and_stays_answerable(own_home: Home) -> None:
    once = {"holdfast": {"deliver": "once"}}
    left = await leave_tools_pending(own_home, *ONE, metadata=once)
    invoked: list[dict[str, Any]] = []
    async with own_home.serve() as server, connected(server.client()) as client:
        tool = client_tool("resume_external_tool", lambda arguments: invoked.append(arguments), metadata=once)
        session = await client.resume_session(left.session_id, **approving(continue_pending_work=True, tools=[tool]))
        assert await answer_tool(session, left.requests["resume_external_tool"], "ONLY_BY_ID")
        assert "ONLY_BY_ID" in content_of(await get_final_assistant_message(session))
    assert invoked == []


Leave = Callable[[Home], Awaitable[Left]]


async def _leave_one_tool(home: Home) -> Left:
    return await leave_tools_pending(home, *ONE)


@pytest.mark.parametrize("asked", [False, None], ids=["false", "absent"])
@pytest.mark.parametrize("leave_pending", [_leave_one_tool, leave_permission_pending], ids=["tool", "permission"])
async def test_cold_resume_without_continue_interrupts_pending_requests(
    own_home: Home, leave_pending: Leave, asked: bool | None
) -> None:
    left = await leave_pending(own_home)
    (request_id,) = left.requests.values()
    (tool_name,) = left.requests
    invoked: list[dict[str, Any]] = []
    async with own_home.serve() as server, connected(server.client()) as client:
        tool = client_tool(tool_name, lambda arguments: invoked.append(arguments))
        session = await client.resume_session(left.session_id, **approving(continue_pending_work=asked, tools=[tool]))
        (resumed,) = await history(session, SessionResumeData)
        assert resumed.continue_pending_work is asked
        assert resumed.session_was_active is False
        is_permission = tool_name == "resume_permission_tool"
        late = answer_permission(session, request_id) if is_permission else answer_tool(session, request_id, "LATE")
        assert await late is False
        assert await reply_to(session, "And now?") == "It went on."
        assert tool_results(own_home.model.last_call_about("And now?")) == [INTERRUPTED]
        assert await history(session, ToolExecutionCompleteData) == []
    assert invoked == []


async def test_the_second_answer_is_refused(server: Server) -> None:
    waiting = Waiting()
    client = server.client()
    session = await client.create_session(**approving(tools=[client_tool("resume_external_tool", waiting)]))
    heard = Heard(session)
    await session.send(ONE[0])
    request_id = (await heard.until(ExternalToolRequestedData)).request_id
    await waiting.started()
    await client.force_stop()
    async with connected(server.client()) as second, connected(server.client()) as third:
        sessions = [
            await one.resume_session(session.session_id, **approving(continue_pending_work=True))
            for one in (second, third)
        ]
        outcomes = await asyncio.gather(
            *(answer_tool(one, request_id, f"ANSWER_{i}") for i, one in enumerate(sessions))
        )
        assert sorted(outcomes) == [False, True]
        winner = outcomes.index(True)
        assert f"ANSWER_{winner}" in content_of(await get_final_assistant_message(sessions[winner]))
        assert await answer_tool(sessions[winner], request_id, "ONCE_MORE") is False
    await leave(client)


async def test_message_queued_behind_an_interrupted_turn_gets_its_turn(own_home: Home) -> None:
    waiting = Waiting()
    async with own_home.serve() as server:
        client = server.client()
        session = await client.create_session(**approving(tools=[client_tool("resume_external_tool", waiting)]))
        await session.send(ONE[0])
        await waiting.started()
        await session.send("And now?")
        await client.force_stop()
        await server.kill()
    async with own_home.serve() as server, connected(server.client()) as client:
        again = await client.resume_session(session.session_id, **approving())
        assert await final_answer(again) == "It went on."
        assert tool_results(own_home.model.last_call_about("And now?")) == [INTERRUPTED]


async def test_plain_resume_keeps_requests_that_another_client_can_answer(own_home: Home) -> None:
    waiting = Waiting()
    async with own_home.serve() as second, connected(second.client()) as stays:
        async with own_home.serve() as first:
            client = first.client()
            session = await client.create_session(**approving(tools=[client_tool("resume_external_tool", waiting)]))
            heard = Heard(session)
            await session.send(ONE[0])
            request_id = (await heard.until(ExternalToolRequestedData)).request_id
            await waiting.started()
            beside = await stays.resume_session(session.session_id, **approving(continue_pending_work=True))
            await first.client().resume_session(session.session_id, **approving())  # the last to come
            await client.force_stop()
            await first.kill()
        async with connected(second.client()) as comes:
            await comes.resume_session(session.session_id, **approving())
            assert await answer_tool(beside, request_id, "STILL_OPEN")
            assert "STILL_OPEN" in content_of(await get_final_assistant_message(beside))


async def test_on_last_disconnect_close_shuts_down_and_pending_work_can_be_continued(
    own_home: Home,
) -> None:
    """`--on-last-disconnect close` ends the session when its last client leaves, as newer runtimes of GitHub do."""
    waiting = Waiting()
    async with own_home.serve("--on-last-disconnect", "close") as server:
        client = server.client()
        session = await client.create_session(**approving(tools=[client_tool("resume_external_tool", waiting)]))
        heard = Heard(session)
        await session.send(ONE[0])
        request_id = (await heard.until(ExternalToolRequestedData)).request_id
        await waiting.started()
        await session.disconnect()  # It returns when the session is closed; a client that vanishes is noticed later.
        async with connected(server.client()) as second:
            resumed = await second.resume_session(session.session_id, **approving(continue_pending_work=True))
            (record,) = await history(resumed, SessionResumeData)
            assert record.session_was_active is False
            assert len(await history(resumed, SessionShutdownData)) == 1
            assert await answer_tool(resumed, request_id, "STILL_TAKEN")
            assert "STILL_TAKEN" in content_of(await get_final_assistant_message(resumed))
