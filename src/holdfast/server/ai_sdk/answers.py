"""Answers of AI SDK clients to the requests of a turn. Only ids, decisions and results are taken from the client."""

import hashlib
from collections.abc import Awaitable, Iterator
from typing import Final

import msgspec

from holdfast.events.ids import Key, Position, RequestId
from holdfast.events.request import Decision
from holdfast.protocol.request import Answered
from holdfast.server.ai_sdk.intent import Approval, ToolOutput, TurnAnswers
from holdfast.server.ai_sdk.tool_parts import text_of
from holdfast.server.errors import Conflict, NotFound
from holdfast.server.log_lookup import FoundTurn, TurnRequest
from holdfast.server.operations import Operations
from holdfast.server.operations.requests import LEAVES_OPEN

APPROVED: Final[Decision] = "approved"
DENIED: Final[Decision] = "denied-interactively-by-user"


class AppliedAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a client's answers."""

    after: Position
    """The position where the turn waited for the answers: everything that comes of them follows."""
    answered: frozenset[RequestId]
    elsewhere: tuple[RequestId, ...]
    """Requests that were answered by another client before, or closed."""


async def apply_answers(
    operations: Operations, key: Key, turn: FoundTurn, answers: TurnAnswers, *, by: str
) -> AppliedAnswers:
    """Answer the open requests in order; each accepted answer is durable on return. The same answers again change
    nothing, and have the same outcome. A refusal that leaves its request open is raised after all were put."""
    matched = list(_matched(turn, answers))
    if not matched:
        raise Conflict("nothing_to_answer", "There is nothing in this message that its turn waits for, or waited for.")
    after, waited_for = _last_wait(turn, {request.request_id for request, _ in matched})
    elsewhere: list[RequestId] = []
    refused: Conflict | NotFound | None = None
    answered = [(request, answer) for request, answer in matched if request.request_id in waited_for]
    for request, answer in answered:
        try:
            await _apply(operations, key, request, answer, by)
        except (Conflict, NotFound) as error:
            if error.code in LEAVES_OPEN:
                refused = refused or error
            else:
                elsewhere.append(request.request_id)
    if refused is not None:
        raise refused
    return AppliedAnswers(
        after=after,
        answered=frozenset(request.request_id for request, _ in answered),
        elsewhere=tuple(elsewhere),
    )


def _matched(turn: FoundTurn, answers: TurnAnswers) -> Iterator[tuple[TurnRequest, Approval | ToolOutput]]:
    """The requests of the turn that have an answer. A client also sends the results of the server's own tools."""
    approvals = {approval.approval_id: approval for approval in answers.approvals}
    outputs = {output.tool_call_id: output for output in answers.outputs}
    for request in reversed(turn.requests):
        is_permission = request.kind == "permission"
        answer = approvals.get(request.request_id) if is_permission else outputs.get(request.tool_call_id)
        if answer is not None:
            yield request, answer


def _last_wait(turn: FoundTurn, answered: set[RequestId]) -> tuple[Position, frozenset[RequestId]]:
    """The last wait of the turn for any of the requests, with all requests of that wait; before the turn has waited,
    the position of the last of the requests."""
    for position, request_ids in turn.waits:
        if answered.intersection(request_ids):
            return position, frozenset(request_ids)
    last = max(request.position for request in turn.requests if request.request_id in answered)
    return last, frozenset(answered)


def _apply(
    operations: Operations, key: Key, request: TurnRequest, answer: Approval | ToolOutput, by: str
) -> Awaitable[Answered]:
    match answer:
        case Approval(approved=approved, reason=reason):
            return operations.decide_permission(
                key,
                request.request_id,
                APPROVED if approved else DENIED,
                feedback=reason,
                answer_id=_answer_id(str(approved), reason),
                answered_by=by,
            )
        case ToolOutput(output=output, error=error) if request.kind == "question":
            text = error if error is not None else output if isinstance(output, str) else text_of(output)
            return operations.answer_question(
                key,
                request.request_id,
                text,
                was_freeform=text not in request.choices,
                failed=error is not None,
                answer_id=_answer_id(str(error is None), text),
                answered_by=by,
            )
        case ToolOutput(output=output, error=error):
            content = error if error is not None else text_of(output)
            return operations.answer_tool(
                key,
                request.request_id,
                content,
                success=error is None,
                answer_id=_answer_id(str(error is None), content),
                answered_by=by,
            )


def _answer_id(*content: str) -> str:
    """An id derived from the answer, as these clients send none: the same answer from any client has the same id."""
    return hashlib.sha256("\0".join(content).encode()).hexdigest()[:32]
