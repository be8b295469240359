"""The tool calls of a step as parts of a message: their input as it grows, where they run, how they ended. Pure.

The event that follows a call in the log shows where it runs, so its whole input is announced only then: an attempt or a
refusal means that the server runs it, a request that a client or a person does. A call that waits for a permission is
not announced as running on the server: a client that continues automatically when its own calls are done must see that
one call is not done.
"""

from typing import Any, Final, Literal

import msgspec

from holdfast.events import codec, message, request, tool
from holdfast.events.body import Body
from holdfast.events.ids import RequestId, ToolCallId
from holdfast.live.live import Delta
from holdfast.server.ai_sdk import chunks
from holdfast.server.ai_sdk.chunks import UiChunk
from holdfast.session.fold import INTERRUPTED
from holdfast.session.tool_results import UNKNOWN_OUTCOME

Release = Literal[6, 7]
"""The client's release of the AI SDK; 6 gets the chunks that 6 and 7 have in common."""

_DENIALS: Final = ("denied", "rejected")


class _Call(msgspec.Struct):
    tool_call_id: str
    name: str
    arguments: str = ""
    is_cut: bool = False
    """Its message was interrupted: the rest of its input is unknown."""
    is_announced: bool = False
    runs_here: bool = True
    was_asked: bool = False
    """A permission was requested for it."""
    was_attempted: bool = False
    has_ended: bool = False
    answer: str | None = None
    """The person's answer, if the call was a question."""


class ToolParts:
    """The calls of the current step."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._calls: dict[str, _Call] = {}
        self._questions: dict[RequestId, _Call] = {}

    def start_step(self) -> None:
        self._calls.clear()
        self._questions.clear()

    def end_step(self) -> list[UiChunk]:
        """Close the calls that have no result when their step ends: the turn was ended by a process that could not read
        the log, and so did not know of the calls."""
        return [
            chunk
            for call in list(self._calls.values())
            if not call.has_ended
            for chunk in self._completed(call, _without_result(call))
        ]

    def hold_client_calls(self) -> bool:
        """Whether the step has calls that a client ran or answered."""
        return any(not call.runs_here for call in self._calls.values())

    def grow(self, delta: Delta) -> list[UiChunk]:
        grown: list[UiChunk] = []
        if delta.offset == 0:
            self._calls[delta.tool_call_id] = _Call(delta.tool_call_id, delta.name)
            grown.append(chunks.ToolInputStartChunk(delta.tool_call_id, delta.name))
        if delta.text:
            grown.append(chunks.ToolInputDeltaChunk(delta.tool_call_id, delta.text))
        return grown

    def complete_input(self, body: message.AssistantMessage) -> None:
        """Take the final arguments of each call from the message, which is complete or was cut."""
        for block in body.blocks:
            if isinstance(block, message.ToolCallBlock) and (call := self._calls.get(block.tool_call_id)):
                call.arguments, call.is_cut = block.arguments, body.interrupted

    def take(self, body: Body) -> list[UiChunk]:
        match body:
            case tool.ToolAttempted(tool_call_id=found):
                if attempted := self._calls.get(found):
                    attempted.was_attempted = True
                return self._announced(self._calls.get(found))
            case request.PermissionRequested(tool_call_id=found):
                return self._asked(self._calls.get(found), body)
            case request.PermissionCompleted():
                return self._decided(body)
            case request.ExternalToolRequested(tool_call_id=found):
                return self._handed_out(self._calls.get(found))
            case request.UserInputRequested(tool_call_id=found, request_id=request_id):
                if call := self._calls.get(found):
                    self._questions[request_id] = call
                return self._handed_out(self._calls.get(found))
            case request.UserInputCompleted(cancelled=False, request_id=request_id):
                if question := self._questions.get(request_id):
                    question.answer = body.answer
            case tool.ToolCompleted(tool_call_id=found):
                return self._completed(self._calls.get(found), body)
            case _:
                pass
        return []

    def _announced(self, call: _Call | None) -> list[UiChunk]:
        """Announce the whole input, once."""
        if call is None or call.is_announced or call.is_cut:
            return []
        call.is_announced = True
        whole = codec.arguments(call.arguments)
        runs_here = call.runs_here and not call.was_asked
        return [chunks.ToolInputAvailableChunk(call.tool_call_id, call.name, whole, runs_here)]

    def _asked(self, call: _Call | None, body: request.PermissionRequested) -> list[UiChunk]:
        if call is None:
            return []
        call.was_asked = True
        return [*self._announced(call), chunks.ToolApprovalRequestChunk(body.request_id, call.tool_call_id)]

    def _decided(self, body: request.PermissionCompleted) -> list[UiChunk]:
        if self._release < 7 or body.decision == "cancelled" or body.tool_call_id not in self._calls:
            return []
        approved = body.decision in ("approved", "approved-for-session")
        return [chunks.ToolApprovalResponseChunk(body.request_id, approved, body.feedback)]

    def _handed_out(self, call: _Call | None) -> list[UiChunk]:
        """Hand the call to a client. A call that waited for a permission is announced again: now it may run."""
        if call is None:
            return []
        call.runs_here = call.is_announced = False
        return self._announced(call)

    def _completed(self, call: _Call | None, body: tool.ToolCompleted) -> list[UiChunk]:
        if call is None:
            return []
        call.has_ended = True
        if call.was_asked and body.error in _DENIALS:
            return [chunks.ToolOutputDeniedChunk(call.tool_call_id)]
        before = self._announced(call)
        if not body.success:
            return [*before, chunks.ToolOutputErrorChunk(call.tool_call_id, body.content, call.runs_here)]
        return [*before, chunks.ToolOutputAvailableChunk(call.tool_call_id, _output(call, body), call.runs_here)]


def _without_result(call: _Call) -> tool.ToolCompleted:
    content = UNKNOWN_OUTCOME if call.was_attempted else INTERRUPTED
    return tool.ToolCompleted(
        tool_call_id=ToolCallId(call.tool_call_id), success=False, content=content, error="interrupted"
    )


def _output(call: _Call, body: tool.ToolCompleted) -> Any:
    """The result of a client's tool comes back as the value that the client sent; a long result of a server tool as the
    preview that the model got."""
    if call.answer is not None:
        return call.answer
    if call.runs_here:
        return body.content if body.preview is None else body.preview
    return output_of(body.content)


def text_of(output: Any) -> str:
    """A client's result as the log stores it: text, or else JSON. `output_of` gives the same value back."""
    if isinstance(output, str) and output_of(output) == output:
        return output
    return codec.to_bytes(output).decode()


def output_of(content: str) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return content
