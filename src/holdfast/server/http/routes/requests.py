"""Requests that a session makes of people and clients: permissions, questions, calls of client tools. Each is answered
once."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from holdfast.events.ids import RequestId
from holdfast.events.request import Decision
from holdfast.events.tool import MAX_RESULT_JSON_BYTES
from holdfast.protocol.request import Answered, RequestList
from holdfast.server.chosen_id import ChosenId
from holdfast.server.http.call import HttpCall
from holdfast.server.http.endpoint import endpoint
from holdfast.server.http.errors import ApiError
from holdfast.server.http.wire import json_response
from holdfast.server.views.requests import details_of, request_views
from holdfast.session.permissions import MAX_RULE_CHARACTERS, MAX_RULES_GIVEN

DECISIONS: Final[dict[str, Decision]] = {
    "approve": "approved",
    "approve_for_session": "approved-for-session",
    "approve_always": "approved-for-session",
    "deny": "denied-interactively-by-user",
}


class AnswerBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `decision` (for a permission), `answer` (for a question) and `content` (for a client's tool). Its text has
    at most 5,000,000 bytes in UTF-8."""

    answer_id: ChosenId | None = None
    """The same answer under the same id again gets the same receipt. Once an answer was accepted, every other answer is
    refused: under another id as `answered_already`, under the same id as `id_reused`."""
    decision: Literal["approve", "approve_for_session", "approve_always", "deny"] | UnsetType = UNSET
    """`approve_always` holds for this and later sessions, while they work in the directory of this one."""
    everywhere: bool = False
    """With approve_always: for later sessions in every directory."""
    feedback: str = ""
    """With a decision: a text for the model."""
    rules: Annotated[
        tuple[Annotated[str, Meta(max_length=MAX_RULE_CHARACTERS)], ...], Meta(max_length=MAX_RULES_GIVEN)
    ] = ()
    """With approve_for_session and approve_always: the rules to grant instead of the one that the request names."""
    answer: str | UnsetType = UNSET
    was_freeform: bool = True
    content: str | UnsetType = UNSET
    success: bool = True


@endpoint(
    "GET",
    "/v1/sessions/{session_id}/requests",
    summary="The open requests of a session",
    result=RequestList,
)
async def list_requests(call: HttpCall) -> Response:
    return json_response(RequestList(requests=await request_views(call.operations, call.key)))


@endpoint(
    "POST",
    "/v1/sessions/{session_id}/requests/{request_id}",
    summary="Answer a request, once",
    body=AnswerBody,
    result=Answered,
)
async def answer(call: HttpCall) -> Response:
    body = await call.body(AnswerBody, limit=MAX_RESULT_JSON_BYTES)
    return json_response(await _answer(call, RequestId(call.path("request_id")), body))


async def _answer(call: HttpCall, request_id: RequestId, body: AnswerBody) -> Answered:
    call.policy.check_rules(body.rules)
    await call.check_use()
    match (body.decision, body.answer, body.content):
        case ("approve_always", UnsetType(), UnsetType()):
            return await _approve_always(call, request_id, body)
        case (str(decision), UnsetType(), UnsetType()):
            if decision == "approve_for_session":
                call.policy.check_rules(body.rules or await _rule_of(call, request_id))
            return await call.operations.decide_permission(
                call.key,
                request_id,
                DECISIONS[decision],
                feedback=body.feedback,
                rules=body.rules,
                answer_id=body.answer_id,
                answered_by=call.identity.name,
            )
        case (UnsetType(), str(text), UnsetType()):
            return await call.operations.answer_question(
                call.key,
                request_id,
                text,
                was_freeform=body.was_freeform,
                answer_id=body.answer_id,
                answered_by=call.identity.name,
            )
        case (UnsetType(), UnsetType(), str(content)):
            return await call.operations.answer_tool(
                call.key,
                request_id,
                content,
                success=body.success,
                answer_id=body.answer_id,
                answered_by=call.identity.name,
            )
        case _:
            raise ApiError(422, "invalid", "Give one of `decision`, `answer` and `content`.")


async def _approve_always(call: HttpCall, request_id: RequestId, body: AnswerBody) -> Answered:
    place = "" if body.everywhere else (await call.operations.state(call.key)).working_directory
    if place is None:
        raise ApiError(422, "no_directory", "This session works in no directory: say `everywhere`, or not always.")
    rules = body.rules or await _rule_of(call, request_id)
    call.policy.check_rules(rules)
    return await call.operations.approve_always(
        call.key,
        request_id,
        place,
        feedback=body.feedback,
        rules=body.rules,
        answer_id=body.answer_id,
        answered_by=call.identity.name,
    )


async def _rule_of(call: HttpCall, request_id: RequestId) -> tuple[str, ...]:
    """The rule that the request asks to be granted, also of a closed request: the same answer may come again."""
    rule = (await details_of(call.operations, call.key, {request_id})).get(request_id, {}).get("rule")
    return (rule,) if rule else ()
