"""Answers and stops that come twice, too late, at once, in the wrong form or from the wrong person."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Runtime
from holdfast.events.ids import Key, MessageId, Owner, RequestId, SessionId
from holdfast.events.message import Image
from holdfast.events.request import PermissionCompleted
from holdfast.events.session import ClientTool
from holdfast.events.tool import MAX_ANSWER_BYTES, MAX_RESULT_BYTES, ToolAttempted
from holdfast.events.turn import TurnEnded
from holdfast.models.scripted import Reply, ScriptedModel
from holdfast.protocol.request import Answered, RequestView
from holdfast.protocol.stop import Stopped
from holdfast.server.embedded.session import Session
from holdfast.server.errors import NotFound, OperationError
from holdfast.tools.tool import tool
from tests.faults.world import bodies_of, call, endings_of, model_said, patience, runtime_on, told, until
from tests.rows import row_of

pytestmark = pytest.mark.anyio


@tool
async def guarded() -> str:
    """Something that a person must allow."""
    return "done"


LOCATE = ClientTool(name="locate", description="Where is it?", parameters={"type": "object"})


def model() -> ScriptedModel:
    over = Reply(text="Over.")
    return ScriptedModel(
        told(
            permission=(call("guarded"), over),
            question=(call("ask_user", question="Which?"), over),
            client=(call("locate"), over),
        )
    )


async def asked(runtime: Runtime, kind: str) -> tuple[Session, RequestView]:
    session = await runtime.session(client_tools=(LOCATE,))
    (request,) = (await session.run(kind)).requests
    return session, request


# A stop against an answer


async def receipt_or_code(receipt: Any) -> Answered | Stopped | str:
    try:
        found: Answered | Stopped = await receipt
    except OperationError as refused:
        return refused.code
    return found


@pytest.mark.parametrize("processes", [1, 2])
async def test_of_a_stop_and_an_answer_at_once_both_get_true_replies(database: Path, processes: int) -> None:
    """Again and again, in any order, from one process or two: the log says the same as the receipts."""
    chance = random.Random(processes)
    seen: set[tuple[str, str]] = set()
    async with (
        runtime_on(database, model(), tools=[guarded]) as runtime,
        runtime_on(database, work=False) as other,
        patience(),
    ):
        for _ in range(40):
            session, request = await asked(runtime, "permission")
            stopper = session if processes == 1 else other.open(session.id)
            moves = [
                delayed(session.approve(request.id), chance.uniform(0, 0.003)),
                delayed(stopper.stop(stop_id="stop"), chance.uniform(0, 0.006)),
            ]
            chance.shuffle(moves)
            receipts = await asyncio.gather(*(receipt_or_code(move) for move in moves))
            await until(session, lambda body: isinstance(body, TurnEnded))
            seen.add(await check_race(session, receipts))
    assert ("answered", "stopped") in seen or ("answered", "completed") in seen
    assert any(answer in ("stopping", "request_closed") for answer, _ in seen)


async def delayed(move: Any, seconds: float) -> Any:
    await asyncio.sleep(seconds)
    return await move


async def settled(session: Session) -> str:
    """How the stop ended. Its holder takes it up after the turn's last write, which readers may see first."""
    while (outcome := (await session.stop(stop_id="stop")).outcome) == "stopping":  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.005)
    return outcome


async def check_race(session: Session, receipts: list[Answered | Stopped | str]) -> tuple[str, str]:
    """The outcome of the answer and of the turn, after both receipts were compared with the log."""
    answer = next((found for found in receipts if isinstance(found, Answered | str)), "")
    stopped = next(found for found in receipts if isinstance(found, Stopped))
    (completed,) = await bodies_of(session, PermissionCompleted)
    (ending,) = await endings_of(session)
    attempts = await bodies_of(session, ToolAttempted)
    if isinstance(answer, Answered):
        assert completed.decision == "approved", "it was accepted, and so it counts"
    else:
        assert answer in ("stopping", "request_closed")
        assert completed.decision == "cancelled"
        assert (ending, attempts) == ("stopped", [])
    final = await settled(session)
    assert ending in ("stopped", "completed")
    assert (ending == "stopped") == (final == "stopped")
    if stopped.outcome == "stopping":
        assert final in ("stopped", "turn_ended_before"), "the stop was accepted, and its receipt says how it ended"
    else:
        assert (final, ending) == (stopped.outcome, "completed"), "nothing ran any more when the stop came"
    return ("answered" if isinstance(answer, Answered) else answer), ending


# Answers that come twice, or do not fit


async def test_a_second_answer_is_refused_with_a_sentence_and_changes_nothing(database: Path) -> None:
    async with runtime_on(database, model(), tools=[guarded]) as runtime, patience():
        session, request = await asked(runtime, "permission")
        await session.deny(request.id, feedback="Not today.")
        with pytest.raises(OperationError) as refused:
            await session.approve(request.id)
        assert refused.value.code == "answered_already"
        assert refused.value.message.endswith(".")
        await until(session, lambda body: isinstance(body, TurnEnded))
        assert await bodies_of(session, ToolAttempted) == []
        assert (await model_said(session))[-1] == "Over."


@pytest.mark.parametrize("kind", ["permission", "question", "client"])
async def test_an_answer_of_the_wrong_kind_is_refused_and_the_request_stays_open(database: Path, kind: str) -> None:
    async with runtime_on(database, model(), tools=[guarded]) as runtime, patience():
        session, request = await asked(runtime, kind)
        right: dict[str, Any] = {
            "permission": session.approve,
            "question": lambda found: session.answer(found, "Blue"),
            "client": lambda found: session.give_result(found, "There"),
        }
        for other, answer in right.items():
            if other != kind:
                with pytest.raises(OperationError) as refused:
                    await answer(request.id)
                assert refused.value.code == "wrong_answer"
        assert await session.requests() == (request,)
        await right[kind](request.id)
        await until(session, lambda body: isinstance(body, TurnEnded))
        assert (await model_said(session))[-1] == "Over."


@pytest.mark.parametrize("kind", ["permission", "question", "client"])
async def test_an_answer_is_bounded_in_bytes_and_not_in_characters(database: Path, kind: str) -> None:
    async with runtime_on(database, model(), tools=[guarded]) as runtime, patience():
        session, request = await asked(runtime, kind)
        answer: dict[str, Any] = {
            "permission": lambda text: session.deny(request.id, feedback=text),
            "question": lambda text: session.answer(request.id, text),
            "client": lambda text: session.give_result(request.id, text),
        }
        most = "é" * (MAX_ANSWER_BYTES // 2)
        with pytest.raises(OperationError) as refused:
            await answer[kind](most + "x")
        assert refused.value.code == "answer_too_large"
        assert await session.requests() == (request,)
        await answer[kind](most)
        await until(session, lambda body: isinstance(body, TurnEnded))


async def test_a_refused_answer_says_which_bound_it_exceeds(database: Path) -> None:
    pixel, most = Image(media_type="image/png", data=b"p"), Image(media_type="image/png", data=b"p" * MAX_RESULT_BYTES)
    async with runtime_on(database, model(), tools=[guarded]) as runtime, patience():
        session, request = await asked(runtime, "client")
        answer = runtime.operations.answer_tool
        with pytest.raises(OperationError, match="The text of an answer has at most 5,000,000 bytes"):
            await answer(session.key, request.id, "x" * (MAX_ANSWER_BYTES + 1), images=(pixel,))
        with pytest.raises(OperationError, match="An answer with images has at most 10,000,000 bytes"):
            await answer(session.key, request.id, "x", images=(most,))
        assert await session.requests() == (request,)


@pytest.mark.parametrize("request_id", ["", "no-such", "x" * 10_000, "nul\0", "'; DROP TABLE session; --"])
async def test_an_answer_to_nothing_is_refused(database: Path, request_id: str) -> None:
    async with runtime_on(database, model(), tools=[guarded]) as runtime, patience():
        session, _ = await asked(runtime, "permission")
        with pytest.raises(NotFound) as refused:
            await session.approve(request_id)
        assert refused.value.code == "request_not_found"
        assert len(await session.requests()) == 1


@pytest.mark.parametrize("answer_id", ["", "x" * 65, "new\nline"])
async def test_an_answer_with_a_bad_id_is_refused(database: Path, answer_id: str) -> None:
    async with runtime_on(database, model(), tools=[guarded]) as runtime, patience():
        session, request = await asked(runtime, "permission")
        with pytest.raises(OperationError) as refused:
            await session.approve(request.id, answer_id=answer_id)
        assert refused.value.code == "id_invalid"
        await session.approve(request.id, answer_id="good")
        await until(session, lambda body: isinstance(body, TurnEnded))
        assert (await session.run("And now?")).reason == "completed"


# Somebody else's session


async def test_a_session_of_another_owner_is_the_same_as_a_missing_one_for_every_verb(database: Path) -> None:
    async with runtime_on(database, model(), tools=[guarded]) as runtime, patience():
        session, request = await asked(runtime, "permission")
        verbs = runtime.operations
        before = await row_of(session)

        async def read(key: Key) -> None:
            async for _ in verbs.read(key).until_now():
                pass

        attempts: dict[str, Any] = {
            "session": lambda key: verbs.session(key),
            "send": lambda key: verbs.send(key, "Hello", message_id=MessageId("m")),
            "interrupt": lambda key: verbs.send(key, "Hello", delivery="interrupt"),
            "stop": lambda key: verbs.stop(key, stop_id="s"),
            "queue": lambda key: verbs.queue(key),
            "requests": lambda key: verbs.requests(key),
            "approve": lambda key: verbs.decide_permission(key, RequestId(request.id), "approved"),
            "rename": lambda key: verbs.rename(key, "Mine"),
            "change_model": lambda key: verbs.change_model(key, "mine"),
            "note_resume": lambda key: verbs.note_resume(key),
            "receipt": lambda key: verbs.receipt(key, MessageId("m")),
            "edit": lambda key: verbs.edit_queued(key, MessageId("m"), "x"),
            "remove": lambda key: verbs.remove_queued(key, MessageId("m")),
            "read": read,
            "delete": lambda key: verbs.delete(key),
        }
        for name, attempt in attempts.items():
            said = []
            for key in (Key(Owner("thief"), session.id), Key(runtime.owner, SessionId("never-was"))):
                with pytest.raises(OperationError) as refused:
                    await attempt(key)
                said.append((type(refused.value), refused.value.code, refused.value.message.replace(key.session, "")))
            assert said[0] == said[1], name
        after = await row_of(session)
        assert (after.head, after.inbox_tail, after.title) == (before.head, before.inbox_tail, before.title)
        await session.approve(request.id)
        await until(session, lambda body: isinstance(body, TurnEnded))
        assert (await runtime.operations.usage(Owner("thief"))) == ()


async def test_another_owner_may_use_the_same_id_for_a_session_of_their_own(database: Path) -> None:
    async with runtime_on(database, model(), tools=[guarded], owner="one") as one, patience():
        first = await one.session("same-id")
        assert (await first.run("Mine")).reason == "completed"
        async with runtime_on(database, model(), tools=[guarded], owner="two") as two:
            second = await two.session("same-id")
            assert (await second.run("And mine")).reason == "completed"
            await second.delete()
        assert (await first.run("Still here")).reason == "completed"
