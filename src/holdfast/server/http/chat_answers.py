"""Answers to what a turn waits for, as AI SDK clients send them: ids, decisions and results, and nothing else of what
came with them."""

import hashlib
from collections.abc import Awaitable, Iterator
from typing import Final

import msgspec

from holdfast.events.ids import Key, Position, RequestId
from holdfast.events.request import Decision
from holdfast.server.ai_sdk.sent import Answers, Approval, Output
from holdfast.server.ai_sdk.tool_parts import text_of
from holdfast.server.errors import Conflict, NotFound
from holdfast.server.http.finding import Asked, FoundTurn
from holdfast.server.operations import Answered, Operations

APPROVED: Final[Decision] = "approved"
DENIED: Final[Decision] = "denied-interactively-by-user"


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What became of them."""

    after: Position
    """Where the turn waited for them: what follows is what came of it."""
    answered: frozenset[RequestId]
    elsewhere: tuple[RequestId, ...]
    """Somebody else had answered these, or they were closed."""


async def give(operations: Operations, key: Key, turn: FoundTurn, answers: Answers, *, by: str) -> Given:
    """Apply each answer to what is open, in order; each that counts is durable on return. The same again changes
    nothing, and is told the same."""
    matched = list(_matched(turn, answers))
    if not matched:
        raise Conflict("nothing_to_answer", "There is nothing in this message that its turn waits for, or waited for.")
    after, waited_for = _last_wait(turn, {asked.request_id for asked, _ in matched})
    elsewhere: list[RequestId] = []
    answered = [(asked, answer) for asked, answer in matched if asked.request_id in waited_for]
    for asked, answer in answered:
        try:
            await _put(operations, key, asked, answer, by)
        except (Conflict, NotFound):
            elsewhere.append(asked.request_id)
    return Given(
        after=after,
        answered=frozenset(asked.request_id for asked, _ in answered),
        elsewhere=tuple(elsewhere),
    )


def _matched(turn: FoundTurn, answers: Answers) -> Iterator[tuple[Asked, Approval | Output]]:
    """The requests of the turn that are answered. A client also sends the results of tools that were run here."""
    approvals = {found.approval_id: found for found in answers.approvals}
    outputs = {found.tool_call_id: found for found in answers.outputs}
    for asked in reversed(turn.asked):
        given = approvals.get(asked.request_id) if asked.kind == "permission" else outputs.get(asked.tool_call_id)
        if given is not None:
            yield asked, given


def _last_wait(turn: FoundTurn, answered: set[RequestId]) -> tuple[Position, frozenset[RequestId]]:
    """The last time that the turn waited for any of them, and for what; if it did not come to that, where the last of
    them was asked."""
    for position, request_ids in turn.waits:
        if answered.intersection(request_ids):
            return position, frozenset(request_ids)
    return max(asked.position for asked in turn.asked if asked.request_id in answered), frozenset(answered)


def _put(operations: Operations, key: Key, asked: Asked, answer: Approval | Output, by: str) -> Awaitable[Answered]:
    match answer:
        case Approval(approved=approved, reason=reason):
            return operations.decide_permission(
                key,
                asked.request_id,
                APPROVED if approved else DENIED,
                feedback=reason,
                answer_id=_answer_id(str(approved), reason),
                answered_by=by,
            )
        case Output(output=output, error=error) if asked.kind == "question":
            text = error if error is not None else output if isinstance(output, str) else text_of(output)
            return operations.answer_question(
                key,
                asked.request_id,
                text,
                was_freeform=text not in asked.choices,
                failed=error is not None,
                answer_id=_answer_id(str(error is None), text),
                answered_by=by,
            )
        case Output(output=output, error=error):
            content = error if error is not None else text_of(output)
            return operations.answer_tool(
                key,
                asked.request_id,
                content,
                success=error is None,
                answer_id=_answer_id(str(error is None), content),
                answered_by=by,
            )


def _answer_id(*said: str) -> str:
    """The same answer has the same id, whoever sends it: these clients have none."""
    return hashlib.sha256("\0".join(said).encode()).hexdigest()[:32]
