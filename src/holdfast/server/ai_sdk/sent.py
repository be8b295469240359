"""What AI SDK clients send, as what they mean by it. Pure.

A client sends its whole conversation each time, and may send anything in it. Of all that, only what is new is looked
at: the words of one message, or ids with decisions and results beside them. What was said before, which tool was asked
about and with what input is known from the log, and never taken from here.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.server.errors import Conflict, Invalid

Trigger = Literal["submit-message", "regenerate-message"]

Id = Annotated[str, Meta(max_length=256)]
"""Of anything that a client names. It may have made it up, so errors may repeat it."""

_RESPONDED: Final = "approval-responded"
_GIVEN: Final = "output-available"
_FAILED: Final = "output-error"


class UiMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as a client has it. Its parts are read only where they matter."""

    role: str
    id: Id = ""
    parts: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"[]"))


class _PartApproval(msgspec.Struct, frozen=True):
    id: str
    approved: bool | None = None
    reason: str | None = None


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """As much of a part as is ever looked at."""

    type: str
    text: str = ""
    state: str | None = None
    tool_call_id: str = ""
    approval: _PartApproval | None = None
    output: Any = None
    error_text: str | None = None


class Words(msgspec.Struct, frozen=True):
    """A person wrote something; `is_edit`: in place of what the message of that id said before."""

    message_id: str
    text: str
    is_edit: bool = False


class Again(msgspec.Struct, frozen=True):
    """The message of that id is to be answered once more, instead of as in `answer_id`, if that is known."""

    message_id: str
    answer_id: str | None


class Approval(msgspec.Struct, frozen=True):
    approval_id: str
    approved: bool
    reason: str = ""


class Output(msgspec.Struct, frozen=True):
    """What a client's tool gave, or a person answered; or why there is nothing."""

    tool_call_id: str
    output: Any = None
    error: str | None = None


class Answers(msgspec.Struct, frozen=True):
    """What a turn waited for."""

    turn_id: str
    approvals: tuple[Approval, ...]
    outputs: tuple[Output, ...]


Meant = Words | Again | Answers


def meant(messages: tuple[UiMessage, ...], trigger: Trigger, message_id: str | None) -> Meant:
    """What a client means by a request."""
    if not messages:
        raise Invalid("messages_empty", "`messages` has to have the message that is sent.")
    last = messages[-1]
    if trigger == "regenerate-message":
        return _again(last, message_id)
    named = next((found for found in messages if message_id is not None and found.id == message_id), None)
    if message_id is not None and named is None:
        raise Invalid("message_not_given", f"`messageId` is {message_id}, and `messages` has no such message.")
    if named is not None and named.role == "assistant":
        return _answers(named)
    match last.role:
        case "user":
            return Words(last.id, _text(last), is_edit=named is not None)
        case "assistant":
            return _answers(last)
        case _:
            raise Invalid("role_invalid", "Only messages of people, and answers to what a turn waits for, can be sent.")


def _again(last: UiMessage, message_id: str | None) -> Again:
    if last.role != "user":
        raise Conflict("nothing_to_answer", "There is no message of a person that this would answer.")
    return Again(last.id, None if message_id == last.id else message_id)


def _text(message: UiMessage) -> str:
    parts = _parts(message)
    if any(part.type == "file" for part in parts):
        raise Invalid("files_unsupported", "Files can't be sent along with a message here.")
    return "\n".join(part.text for part in parts if part.type == "text")


def _answers(message: UiMessage) -> Answers:
    tools = [part for part in _parts(message) if part.type.startswith("tool-") or part.type == "dynamic-tool"]
    approvals = tuple(
        Approval(part.approval.id, part.approval.approved, part.approval.reason or "")
        for part in tools
        if part.state == _RESPONDED and part.approval is not None and part.approval.approved is not None
    )
    outputs = tuple(
        Output(part.tool_call_id, part.output, None if part.state == _GIVEN else part.error_text or "It failed.")
        for part in tools
        if part.state in (_GIVEN, _FAILED)
    )
    return Answers(message.id, approvals, outputs)


def _parts(message: UiMessage) -> list[_Part]:
    try:
        return msgspec.json.decode(message.parts, type=list[_Part])
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid("parts_invalid", f"The parts of the message {message.id} can't be read: {error}.") from error
