"""A request outlives every process, is answered once, and is closed with its turn."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Runtime
from holdfast.events.ids import RequestId
from holdfast.events.request import ExternalToolRequested, PermissionCompleted, UserInputCompleted, UserInputRequested
from holdfast.events.session import ClientTool
from holdfast.events.tool import ToolCompleted
from holdfast.events.turn import TurnEnded
from holdfast.models.scripted import Reply, Script, ScriptedCall, ScriptedModel
from holdfast.protocol.request import RequestView
from holdfast.server.embedded.session import Session
from holdfast.server.errors import OperationError
from holdfast.tools.tool import tool
from tests.faults.processes import child_on, journal_of
from tests.faults.world import (
    SHORT_LEASE,
    bodies_of,
    call,
    endings_of,
    model_said,
    patience,
    runtime_on,
    says,
    scripted,
    told,
    until,
)
from tests.rows import row_of

pytestmark = pytest.mark.anyio

CLIENT_TOOL = ClientTool(name="locate", description="Where is it?", parameters={"type": "object"})
CLIENT_TOOLS = [{"name": "locate", "description": "Where is it?", "parameters": {"type": "object"}}]


def asking_three_things() -> Script:
    calls = (
        ScriptedCall("careful", {"line": "x"}),
        ScriptedCall("ask_user", {"question": "Which?"}),
        ScriptedCall("locate", {"what": "it"}),
    )
    return says(Reply(tool_calls=calls), Reply(text="All answered."))


# 30


async def test_fault_30_requests_survive_client_worker_and_server_are_seen_by_all_and_wake_the_turn(
    database: Path,
) -> None:
    script = asking_three_things()
    async with child_on(database, script=script) as doomed:
        await doomed.ask("create", session="s", client_tools=CLIENT_TOOLS)
        await doomed.ask("send", session="s", text="Hello", message_id="m")
        assert (await doomed.ask("result", session="s", message_id="m"))["reason"] == "waiting"
        await doomed.kill()
    async with (
        runtime_on(database, work=False) as first_client,
        runtime_on(database, work=False) as second_client,
        patience(),
    ):
        session = first_client.open("s")
        here, there = await session.requests(), await second_client.open("s").requests()
        assert here == there, "nobody runs the session, and both clients see the same"
        asked = {request.kind: request for request in here}
        assert set(asked) == {"permission", "question", "client_tool"}
        async with child_on(database, script=script) as doomed_too:
            await session.answer(asked["question"].id, "The blue one")
            await until(session, lambda body: isinstance(body, UserInputCompleted))
            await doomed_too.kill()
        await second_client.open("s").give_result(asked["client_tool"].id, "Behind you")
        async with child_on(database, script=script):
            await session.approve(asked["permission"].id)
            await until(session, lambda body: isinstance(body, TurnEnded))
        assert (await model_said(session))[-1] == "All answered."
        contents = {body.content for body in await bodies_of(session, ToolCompleted)}
        assert contents == {"done x", "User responded: The blue one", "Behind you"}
        assert await session.requests() == ()
    assert len(journal_of(database)) == 1


async def test_fault_30_of_many_answers_at_once_the_first_wins_and_every_other_is_refused(database: Path) -> None:
    async with child_on(database, script=asking_three_things()) as worker, patience():
        await worker.ask("create", session="s", client_tools=CLIENT_TOOLS)
        await worker.ask("send", session="s", text="Hello", message_id="m")
        await worker.ask("result", session="s", message_id="m")
        async with runtime_on(database, work=False) as client:
            session = client.open("s")
            permission = next(found for found in await session.requests() if found.kind == "permission")
            here = [session.approve(permission.id, answer_id=f"here-{n}") for n in range(5)]
            there = [
                worker.begin("approve", session="s", request_id=permission.id, answer_id=f"there-{n}") for n in range(5)
            ]
            outcomes: list[Any] = list(await asyncio.gather(*here, return_exceptions=True))
            outcomes += await asyncio.gather(*(worker.answer(n) for n in there), return_exceptions=True)
            refused = [found for found in outcomes if isinstance(found, Exception)]
            assert len(refused) == 9
            codes = {getattr(error, "code", "?") for error in refused}
            assert codes <= {"answered_already"}, codes
            await until(session, lambda body: isinstance(body, PermissionCompleted))
            assert len(await bodies_of(session, PermissionCompleted)) == 1
    assert len(journal_of(database)) == 1


async def test_fault_30_the_same_answer_twice_gets_the_same_receipt(database: Path) -> None:
    async with (
        runtime_on(database, scripted(call("guarded"), Reply(text="Over.")), tools=[guarded]) as runtime,
        patience(),
    ):
        session = await runtime.session()
        (request,) = (await session.run("Hello")).requests
        first = await session.approve(request.id, answer_id="mine")
        again = await session.approve(request.id, answer_id="mine")
        assert (first.duplicate, again.duplicate) == (False, True)
        await until(session, lambda body: isinstance(body, TurnEnded))
        later = await session.approve(request.id, answer_id="mine")
        assert later.duplicate
        with pytest.raises(OperationError) as refused:
            await session.deny(request.id, answer_id="yours")
        assert refused.value.code == "answered_already"
        assert [body.decision for body in await bodies_of(session, PermissionCompleted)] == ["approved"]


async def test_fault_30_a_paused_holder_and_its_successor_don_t_both_run_what_was_approved(database: Path) -> None:
    script = says(call("careful", line="x"), Reply(text="Over."))
    short = {**SHORT_LEASE, "linger_seconds": 60}
    async with child_on(database, script=script, **short) as sleeper:
        await sleeper.ask("create", session="s")
        await sleeper.ask("send", session="s", text="Hello", message_id="m")
        await sleeper.ask("result", session="s", message_id="m")
        (request,) = await sleeper.ask("requests", session="s")
        sleeper.signal(signal.SIGSTOP)
        async with child_on(database, script=script, **short) as heir, patience():
            await heir.ask("approve", session="s", request_id=request["id"])
            async with runtime_on(database, work=False) as reader:
                await until(reader.open("s"), lambda body: isinstance(body, TurnEnded))
                sleeper.signal(signal.SIGCONT)
                await sleeper.logged("could not renew in time")
                assert await endings_of(reader.open("s")) == ["completed"]
    assert len(journal_of(database)) == 1


# 31


@tool
async def guarded() -> str:
    """Something that a person must allow."""
    return "done"


async def refusal_of(session: Session, request: RequestView) -> str:
    with pytest.raises(OperationError) as refused:
        await session.approve(request.id)
    return refused.value.code


async def test_fault_31_after_a_stop_no_prompt_is_left_not_even_for_a_late_answer(database: Path) -> None:
    async with runtime_on(database, scripted(call("guarded")), tools=[guarded]) as runtime, patience():
        session = await runtime.session()
        waiting = await session.run("Hello")
        (request,) = waiting.requests
        await session.stop()
        await until(session, lambda body: isinstance(body, TurnEnded))
        assert await session.requests() == ()
        assert (await row_of(session)).open_requests == 0
        assert await refusal_of(session, request) == "request_closed"
        assert [body.decision for body in await bodies_of(session, PermissionCompleted)] == ["cancelled"]
    async with runtime_on(database, scripted(Reply(text="Fine.")), tools=[guarded]) as restarted, patience():
        session = restarted.open(session.id)
        assert await session.requests() == ()
        assert await refusal_of(session, request) == "request_closed"
        assert (await session.run("And now?")).text == "Fine."


async def test_fault_31_after_a_stop_of_a_session_without_a_holder_a_restart_closes_its_prompts(database: Path) -> None:
    async with runtime_on(database, scripted(call("guarded")), tools=[guarded]) as runtime, patience():
        session_id = (await runtime.session("s")).id
        assert len((await runtime.open(session_id).run("Hello")).requests) == 1
    async with runtime_on(database, work=False) as client, patience():
        session = client.open("s")
        (request,) = await session.requests()
        await session.stop()
        assert await refusal_of(session, request) == "stopping"
        # Whoever comes next, even without the tools that the session needs, can end its turn.
        async with runtime_on(database, scripted(Reply(text="Fine."))):
            await until(session, lambda body: isinstance(body, TurnEnded))
        assert await session.requests() == ()
        assert await endings_of(session) == ["stopped"]
        assert await refusal_of(session, request) == "request_closed"


async def test_fault_31_a_turn_that_fails_beside_an_open_prompt_closes_it(database: Path) -> None:
    """A poisoned turn with a request that is still open: it ends, and the request with it."""
    script = says(Reply(tool_calls=(ScriptedCall("careful", {"line": "x"}), ScriptedCall("die"))))
    async with runtime_on(database, work=False) as client:
        async with child_on(database, script=script, max_claims_without_progress=1) as first:
            await first.ask("create", session="s")
            first.begin("send", session="s", text="Hello", message_id="m")
            await first.gone()
        session = client.open("s")
        (request,) = await session.requests()
        async with child_on(database, script=script, max_claims_without_progress=1):
            await until(session, lambda body: isinstance(body, TurnEnded))
        assert await endings_of(session) == ["error"]
        assert await session.requests() == ()
        assert await refusal_of(session, request) == "request_closed"


# 32

MEGABYTE = "x" * 1_000_000


async def waiting_for(runtime: Runtime, **options: Any) -> tuple[Session, RequestView]:
    session = await runtime.session(**options)
    result = await session.run("Hello")
    assert result.reason == "waiting"
    (request,) = result.requests
    assert len(request.title) <= 200
    return session, request


async def ended_well(session: Session) -> None:
    await until(session, lambda body: isinstance(body, TurnEnded))
    assert await endings_of(session) == ["completed"]
    assert (await model_said(session))[-1] == "Over."


async def test_fault_32_a_permission_for_a_megabyte_of_arguments_can_be_answered(
    database: Path, tmp_path: Path
) -> None:
    model = scripted(call("create", path="big.txt", file_text=MEGABYTE), Reply(text="Over."))
    async with runtime_on(database, model) as runtime, patience():
        session, request = await waiting_for(runtime, working_directory=str(tmp_path))
        await session.approve(request.id)
        await ended_well(session)
        assert (tmp_path / "big.txt").read_text() == MEGABYTE


async def test_fault_32_a_permission_whose_subject_is_a_megabyte_long_is_refused_or_answerable(
    database: Path, tmp_path: Path
) -> None:
    model = scripted(call("create", path="/".join(["deep"] * 200_000), file_text="x"), Reply(text="Over."))
    async with runtime_on(database, model) as runtime, patience():
        session = await runtime.session(working_directory=str(tmp_path))
        result = await session.run("Hello")
        if result.reason == "waiting":
            await session.deny(result.requests[0].id)
        await ended_well(session)


async def test_fault_32_a_question_of_a_megabyte_can_be_answered_with_a_megabyte(database: Path) -> None:
    model = scripted(call("ask_user", question=MEGABYTE, choices=[MEGABYTE[:1000]] * 100), Reply(text="Over."))
    async with runtime_on(database, model) as runtime, patience():
        session, request = await waiting_for(runtime)
        (asked,) = await bodies_of(session, UserInputRequested)
        assert asked.question == MEGABYTE
        await session.answer(request.id, MEGABYTE)
        await ended_well(session)


async def test_fault_32_a_client_tool_takes_and_gives_megabytes(database: Path) -> None:
    model = scripted(call("locate", what=MEGABYTE), Reply(text="Over."))
    async with runtime_on(database, model) as runtime, patience():
        session, request = await waiting_for(runtime, client_tools=(CLIENT_TOOL,))
        (asked,) = await bodies_of(session, ExternalToolRequested)
        assert MEGABYTE in asked.arguments
        await session.give_result(request.id, MEGABYTE * 5)
        await ended_well(session)
        (result,) = await bodies_of(session, ToolCompleted)
        assert len(result.content) == 5_000_000
        assert result.preview is not None
        assert len(result.preview) < 100_000


async def test_fault_32_an_answer_too_large_to_keep_is_refused_and_the_request_stays_answerable(
    database: Path,
) -> None:
    model = ScriptedModel(told(otherwise=(call("locate", what="it"), Reply(text="Over."))))
    async with runtime_on(database, model, max_tool_result_bytes=1000) as runtime, patience():
        session, request = await waiting_for(runtime, client_tools=(CLIENT_TOOL,))
        with pytest.raises(OperationError) as refused:
            await session.give_result(request.id, "x" * 1001)
        assert refused.value.code == "answer_too_large"
        with pytest.raises(OperationError):
            await session.answer(RequestId("no-such-request"), "x")
        await session.give_result(request.id, "x" * 1000)
        await ended_well(session)
