"""Requests that a session makes of people and clients: listed, and answered once."""

from typing import Any, Final

from holdfast.events import codec, inbox
from holdfast.events.ids import Key, RequestId
from holdfast.events.inbox import PermissionAnswer, QuestionAnswer, ToolAnswer
from holdfast.events.message import Image
from holdfast.events.request import Decision, RequestKind
from holdfast.events.tool import MAX_ANSWER_BYTES, ToolError
from holdfast.protocol.request import Answered
from holdfast.server.errors import Conflict, Invalid
from holdfast.server.operations.messages import check_images
from holdfast.server.operations.session_access import EVERYWHERE, SessionAccess, check_size
from holdfast.server.operations.settings import check_rules
from holdfast.session.permissions import MAX_SESSION_RULES
from holdfast.store.audit import AuditEntry
from holdfast.store.grants import NewGrants
from holdfast.store.store import RequestRow, answer_key

NO_ROOM: Final = "storage_full"
"""The code of a refused answer that is too long for what is left of its owner's storage."""

LEAVES_OPEN: Final = frozenset({NO_ROOM, "too_many_permissions", "too_many_rules"})
"""Codes of refused answers whose request stays open: another answer, or the same one later, may be accepted."""

_Content = PermissionAnswer | ToolAnswer | QuestionAnswer

_REQUEST_KINDS: Final[dict[type[Any], RequestKind]] = {
    PermissionAnswer: "permission",
    ToolAnswer: "client_tool",
    QuestionAnswer: "question",
}


class RequestVerbs(SessionAccess):
    async def requests(self, key: Key) -> tuple[RequestRow, ...]:
        """The open requests, oldest first."""
        await self.session(key)
        return await self.store.requests(key)

    async def decide_permission(
        self,
        key: Key,
        request_id: RequestId,
        decision: Decision,
        *,
        feedback: str = "",
        rules: tuple[str, ...] = (),
        answer_id: str | None = None,
        answered_by: str = "",
    ) -> Answered:
        """Answer a permission request, for this call or for this session. An answer that grants more rules than a
        session may have is refused."""
        content = PermissionAnswer(decision=decision, feedback=feedback, rules=rules)
        return await self._decide(key, request_id, content, answer_id, answered_by)

    async def _decide(
        self,
        key: Key,
        request_id: RequestId,
        content: PermissionAnswer,
        answer_id: str | None,
        answered_by: str,
        grants: NewGrants | None = None,
    ) -> Answered:
        check_rules(content.rules)
        audit: AuditEntry | None = None
        if content.decision == "approved-for-session":
            if grants is None:
                granted = await self._check_room(key, request_id, content.rules)
                target, detail = str(key.session), f"in the session: {', '.join(granted)}"
            else:
                target, detail = grants.place or EVERYWHERE, f"{', '.join(grants.rules)}, in session {key.session}"
            audit = self._told("permission.granted", target, owner=key.owner, detail=detail)
        return await self._answer(key, request_id, content, answer_id, answered_by, grants, audit)

    async def answer_tool(
        self,
        key: Key,
        request_id: RequestId,
        content: str,
        *,
        success: bool = True,
        error: ToolError | None = None,
        images: tuple[Image, ...] = (),
        answer_id: str | None = None,
        answered_by: str = "",
    ) -> Answered:
        """Answer a call of a client's tool with its result. A long result is refused while the owner's storage is full;
        a failure with a short reason never is."""
        check_images(images, self._bounds)
        result = ToolAnswer(content=content, success=success, error=error, images=images)
        return await self._answer(key, request_id, result, answer_id, answered_by)

    async def answer_question(
        self,
        key: Key,
        request_id: RequestId,
        answer: str,
        *,
        was_freeform: bool = True,
        failed: bool = False,
        answer_id: str | None = None,
        answered_by: str = "",
    ) -> Answered:
        """Answer a question of the model. `failed`: no person can be asked, and `answer` gives the reason."""
        content = QuestionAnswer(answer=answer, was_freeform=was_freeform, failed=failed)
        return await self._answer(key, request_id, content, answer_id, answered_by)

    async def _answer(
        self,
        key: Key,
        request_id: RequestId,
        content: _Content,
        answer_id: str | None,
        answered_by: str,
        grants: NewGrants | None = None,
        audit: AuditEntry | None = None,
    ) -> Answered:
        chosen_id = self._new_id() if answer_id is None else answer_id
        self.check_id("answer", chosen_id)
        self._check_answer_size(content)
        check_size("A name", answered_by, self._bounds.max_name_characters)
        await self._check_kind(key, request_id, _REQUEST_KINDS[type(content)])
        item = inbox.Answer(request_id=request_id, answer_id=chosen_id, content=content, answered_by=answered_by)
        accepted = await self._put(key, item, answer_key(request_id), grants=grants, audit=audit)
        return Answered(request_id=request_id, answer_id=chosen_id, duplicate=accepted.duplicate)

    async def _check_room(self, key: Key, request_id: RequestId, rules: tuple[str, ...]) -> tuple[str, ...]:
        """The rules that an answer grants in its session. Raises `Conflict` if there is no room for them, beside those
        of answers that wait. Answers that are given at once may still pass together; the session then asks again about
        what had no room."""
        state = await self.state(key)
        opened = state.requests.get(request_id)
        granted = rules or ((opened.rule,) if opened else ())
        held = {*state.allow}
        for item in await self.store.waiting_items(key):
            if isinstance(item.item, inbox.Answer) and isinstance(item.item.content, PermissionAnswer):
                held.update(item.item.content.rules)
        if not set(granted) <= held and len({*held, *granted}) > MAX_SESSION_RULES:
            raise Conflict(
                "too_many_rules",
                f"A session has at most {MAX_SESSION_RULES} rules. Revoke some (holdfast permissions), or approve this "
                "call only.",
            )
        return granted

    async def _check_kind(self, key: Key, request_id: RequestId, kind: RequestKind) -> None:
        """Check open requests only: the store refuses an answer to a closed one, and knows how it was closed."""
        for request in await self.store.requests(key):
            if request.request_id == request_id and request.kind != kind:
                raise Invalid("wrong_answer", f"The request {request_id} is a {request.kind}; this answers a {kind}.")

    def _check_answer_size(self, content: _Content) -> None:
        """The text of an answer is bounded by itself, and with its images like a tool result."""
        with_images = self._bounds.max_tool_result_bytes
        text_limit, size = min(with_images, MAX_ANSWER_BYTES), _answer_bytes(content)
        images = sum(len(image.data) for image in content.images) if isinstance(content, ToolAnswer) else 0
        if size - images > text_limit:
            text = f"The text of an answer has at most {text_limit:,} bytes; this one has {size - images:,}."
            raise Invalid("answer_too_large", text)
        if size > with_images:
            text = f"An answer with images has at most {with_images:,} bytes; this one has {size:,}."
            raise Invalid("answer_too_large", text)


def _answer_bytes(content: _Content) -> int:
    match content:
        case PermissionAnswer():
            return codec.size_of(content.feedback)
        case QuestionAnswer():
            return codec.size_of(content.answer)
        case ToolAnswer():
            return codec.size_of(content.content) + sum(len(image.data) for image in content.images)
