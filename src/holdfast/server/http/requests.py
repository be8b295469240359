"""What a session asks of people and clients: permissions, questions, clients' tools. Each is answered once."""

from contextlib import aclosing
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.events.body import Body
from holdfast.events.ids import Key, RequestId
from holdfast.events.request import Decision, ExternalToolRequested, PermissionRequested, UserInputRequested
from holdfast.events.tool import MAX_RESULT_JSON_BYTES
from holdfast.events.turn import TurnStarted
from holdfast.server.http.endpoint import ChosenId, Endpoint, routes_of
from holdfast.server.http.errors import ApiError
from holdfast.server.http.identity import Identity
from holdfast.server.http.service import Service
from holdfast.server.http.views import RequestView
from holdfast.server.http.visible import backwards
from holdfast.server.http.wire import answer, read_body
from holdfast.server.operations import Answered
from holdfast.store.store import RequestRow

DECISIONS: Final[dict[str, Decision]] = {
    "approve": "approved",
    "approve_for_session": "approved-for-session",
    "approve_always": "approved-for-session",
    "deny": "denied-interactively-by-user",
}


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest first."""

    requests: tuple[RequestView, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `decision` (for a permission), `answer` (for a question) and `content` (for a client's tool). Its text has
    at most 5,000,000 bytes in UTF-8."""

    answer_id: ChosenId | None = None
    """The same answer under the same id again gets the same receipt. Anything else is refused once one was accepted:
    under another id as `answered_already`, under the same one as `id_reused`."""
    decision: Literal["approve", "approve_for_session", "approve_always", "deny"] | UnsetType = UNSET
    """`approve_always` holds for this session, and for those that are made later in its working directory."""
    everywhere: bool = False
    """With approve_always: in whatever directory they are made."""
    feedback: str = ""
    """With a decision: what the model is told of it."""
    rules: Annotated[tuple[Annotated[str, Meta(max_length=1_000)], ...], Meta(max_length=100)] = ()
    """With approve_for_session and approve_always: what is granted, if not the rule that the request names."""
    answer: str | UnsetType = UNSET
    was_freeform: bool = True
    content: str | UnsetType = UNSET
    success: bool = True


def routes(service: Service) -> list[Route]:
    return routes_of(RequestRoutes(service).endpoints())


class RequestRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._operations = service.operations

    def endpoints(self) -> list[Endpoint]:
        path = "/v1/sessions/{session_id}/requests"
        return [
            Endpoint(
                method="GET",
                path=path,
                handler=self.list_all,
                summary="What a session waits to be answered",
                answers={200: Requests},
            ),
            Endpoint(
                method="POST",
                path=f"{path}/{{request_id}}",
                handler=self.give_answer,
                summary="Answer a request, once",
                body=Answer,
                answers={200: Answered},
            ),
        ]

    async def list_all(self, request: Request) -> Response:
        key = self._service.key(request)
        rows = await self._operations.requests(key)
        details = await self._details(key, {row.request_id for row in rows})
        return answer(Requests(requests=tuple(_view(row, details.get(row.request_id, {})) for row in rows)))

    async def _details(self, key: Key, wanted: set[RequestId]) -> dict[RequestId, dict[str, Any]]:
        """What each of them asks. They all belong to the turn that is unfinished, so no more than that is read."""
        found: dict[RequestId, dict[str, Any]] = {}
        head = (await self._operations.session(key)).head
        async with aclosing(backwards(self._operations.store, key, head)) as events:
            async for event in events:
                if len(found) == len(wanted) or isinstance(event.body, TurnStarted):
                    break
                asked = _asked(event.body)
                if asked is not None and asked[0] in wanted:
                    found[asked[0]] = asked[1]
        return found

    async def give_answer(self, request: Request) -> Response:
        identity = self._service.identity(request)
        key = self._service.key(request)
        given = await read_body(request, Answer, limit=MAX_RESULT_JSON_BYTES)
        request_id = RequestId(request.path_params["request_id"])
        return answer(await self._answered(identity, key, request_id, given))

    async def _answered(self, identity: Identity, key: Key, request_id: RequestId, given: Answer) -> Answered:
        self._service.policy(identity).check_rules(given.rules)
        await self._service.check_use(identity, key)
        match (given.decision, given.answer, given.content):
            case ("approve_always", UnsetType(), UnsetType()):
                return await self._approved_always(identity, key, request_id, given)
            case (str(decision), UnsetType(), UnsetType()):
                if decision == "approve_for_session":
                    self._service.policy(identity).check_rules(given.rules or await self._rule_of(key, request_id))
                return await self._operations.decide_permission(
                    key,
                    request_id,
                    DECISIONS[decision],
                    feedback=given.feedback,
                    rules=given.rules,
                    answer_id=given.answer_id,
                    answered_by=identity.name,
                )
            case (UnsetType(), str(text), UnsetType()):
                return await self._operations.answer_question(
                    key,
                    request_id,
                    text,
                    was_freeform=given.was_freeform,
                    answer_id=given.answer_id,
                    answered_by=identity.name,
                )
            case (UnsetType(), UnsetType(), str(content)):
                return await self._operations.answer_tool(
                    key,
                    request_id,
                    content,
                    success=given.success,
                    answer_id=given.answer_id,
                    answered_by=identity.name,
                )
            case _:
                raise ApiError(422, "invalid", "Give one of `decision`, `answer` and `content`.")

    async def _approved_always(self, identity: Identity, key: Key, request_id: RequestId, given: Answer) -> Answered:
        place = "" if given.everywhere else (await self._operations.state(key)).working_directory
        if place is None:
            raise ApiError(422, "no_directory", "This session works in no directory: say `everywhere`, or not always.")
        rules = given.rules or await self._rule_of(key, request_id)
        self._service.policy(identity).check_rules(rules)
        answered = await self._operations.decide_permission(
            key,
            request_id,
            DECISIONS["approve_always"],
            feedback=given.feedback,
            rules=given.rules,
            place=place,
            answer_id=given.answer_id,
            answered_by=identity.name,
        )
        # Only now: somebody else may have said no. After a crash before this the session has what was allowed, and the
        # same answer again, under the same id, brings the rest.
        await self._operations.grant(key, place, rules, granted_by=identity.name)
        return answered

    async def _rule_of(self, key: Key, request_id: RequestId) -> tuple[str, ...]:
        """What the request asks to be granted, also when it is closed: the same answer may come again."""
        rule = (await self._details(key, {request_id})).get(request_id, {}).get("rule")
        return (rule,) if rule else ()


def _asked(body: Body) -> tuple[RequestId, dict[str, Any]] | None:
    match body:
        case PermissionRequested():
            return body.request_id, {
                "tool_name": body.tool_name,
                "permission": body.kind,
                "subject": body.subject,
                "rule": body.rule,
                "shown": body.details,
            }
        case ExternalToolRequested():
            return body.request_id, {"tool_name": body.tool_name, "arguments": body.arguments}
        case UserInputRequested():
            return body.request_id, {
                "question": body.question,
                "choices": body.choices,
                "allow_freeform": body.allow_freeform,
            }
        case _:
            return None


def _view(row: RequestRow, details: dict[str, Any]) -> RequestView:
    return RequestView(
        id=row.request_id,
        kind=row.kind,
        title=row.title,
        turn_id=row.turn_id,
        tool_call_id=row.tool_call_id,
        opened_at=row.opened_at,
        details=details,
    )
