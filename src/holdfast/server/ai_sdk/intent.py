"""The intent of a request of an AI SDK client: a new message, a regeneration, or answers. Pure.

A client sends its whole conversation each time, and may send anything in it. Only the new part is read: the text of one
message, or ids with decisions and results. Earlier messages, and the tools and inputs of calls, are taken from the log,
never from the request.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.server.ai_sdk.file_parts import FilePart
from holdfast.server.errors import Conflict, Invalid

Trigger = Literal["submit-message", "regenerate-message"]

Id = Annotated[str, Meta(max_length=256)]
"""An id in the request. The client may have made it up, so errors may repeat it."""

_RESPONDED: Final = "approval-responded"
_SUCCEEDED: Final = "output-available"
_FAILED: Final = "output-error"


class ClientMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a client has it. Its parts are parsed only where needed."""

    role: str
    id: Id = ""
    parts: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"[]"))


class _PartApproval(msgspec.Struct, frozen=True):
    id: str
    approved: bool | None = None
    reason: str | None = None


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a part that are ever read."""

    type: str
    text: str = ""
    state: str | None = None
    tool_call_id: str = ""
    approval: _PartApproval | None = None
    output: Any = None
    error_text: str | None = None
    url: str = ""
    media_type: str = ""
    filename: str = ""


class ChatText(msgspec.Struct, frozen=True):
    """A message of a person; with `is_edit`, a new text for the message of that id."""

    message_id: str
    text: str
    is_edit: bool = False
    files: tuple[FilePart, ...] | None = None
    """None: the request says nothing of files."""


class Regeneration(msgspec.Struct, frozen=True):
    """A new answer to the message of that id, in place of the answer `answer_id`, if the client names that."""

    message_id: str
    answer_id: str | None


class Approval(msgspec.Struct, frozen=True):
    approval_id: str
    approved: bool
    reason: str = ""


class ToolOutput(msgspec.Struct, frozen=True):
    """The result of a client's tool, or a person's answer to a question; or the error in its place."""

    tool_call_id: str
    output: Any = None
    error: str | None = None


class TurnAnswers(msgspec.Struct, frozen=True):
    """Answers to requests of a turn."""

    turn_id: str
    approvals: tuple[Approval, ...]
    outputs: tuple[ToolOutput, ...]


Intent = ChatText | Regeneration | TurnAnswers


def intent_of(messages: tuple[ClientMessage, ...], trigger: Trigger, message_id: str | None) -> Intent:
    if not messages:
        raise Invalid("messages_empty", "`messages` has to have the message that is sent.")
    last = messages[-1]
    if trigger == "regenerate-message":
        return _regeneration(last, message_id)
    named = next((message for message in messages if message_id is not None and message.id == message_id), None)
    if message_id is not None and named is None:
        raise Invalid("message_not_given", f"`messageId` is {message_id}, and `messages` has no such message.")
    if named is not None and named.role == "assistant":
        return _answers(named)
    match last.role:
        case "user":
            return _chat_text(last, is_edit=named is not None)
        case "assistant":
            return _answers(last)
        case _:
            raise Invalid("role_invalid", "Only messages of people, and answers to what a turn waits for, can be sent.")


def _regeneration(last: ClientMessage, message_id: str | None) -> Regeneration:
    if last.role != "user":
        raise Conflict("nothing_to_answer", "There is no message of a person that this would answer.")
    return Regeneration(last.id, None if message_id == last.id else message_id)


def _chat_text(message: ClientMessage, *, is_edit: bool) -> ChatText:
    parts = _parts(message)
    text = "\n".join(part.text for part in parts if part.type == "text")
    files = tuple(FilePart(part.url, part.media_type, part.filename) for part in parts if part.type == "file")
    return ChatText(message.id, text, is_edit=is_edit, files=files)


def _answers(message: ClientMessage) -> TurnAnswers:
    tools = [part for part in _parts(message) if part.type.startswith("tool-") or part.type == "dynamic-tool"]
    approvals = tuple(
        Approval(part.approval.id, part.approval.approved, part.approval.reason or "")
        for part in tools
        if part.state == _RESPONDED and part.approval is not None and part.approval.approved is not None
    )
    outputs = tuple(
        ToolOutput(
            part.tool_call_id, part.output, None if part.state == _SUCCEEDED else part.error_text or "It failed."
        )
        for part in tools
        if part.state in (_SUCCEEDED, _FAILED)
    )
    return TurnAnswers(message.id, approvals, outputs)


def _parts(message: ClientMessage) -> list[_Part]:
    try:
        return msgspec.json.decode(message.parts, type=list[_Part])
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid("parts_invalid", f"The parts of the message {message.id} can't be read: {error}.") from error
