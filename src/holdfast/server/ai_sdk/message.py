"""Messages as AI SDK clients hold them: what their own reducer makes of the chunks of a turn. Pure.

A conversation that is loaded is thus the one that was streamed. A message that its stream would still replay is left
out by whoever asks: an older client that has it already would show its parts twice.
"""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from holdfast.events.event import Event
from holdfast.events.message import UserMessage
from holdfast.events.turn import TurnStarted
from holdfast.server.ai_sdk import chunks
from holdfast.server.ai_sdk.chunks import Chunk
from holdfast.server.ai_sdk.projection import Projection
from holdfast.server.ai_sdk.telling import Whole
from holdfast.server.reader import as_read

Part = dict[str, Any]


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What clients call a UIMessage."""

    id: str
    role: Literal["user", "assistant"]
    parts: list[Part]
    metadata: dict[str, Any] = {}


class Reducer:
    """Chunks into one message."""

    def __init__(self) -> None:
        self.message: Message | None = None
        self._tools: dict[str, Part] = {}
        self._asked: dict[str, Part] = {}
        self._pieces: dict[str, tuple[Part, str, list[str]]] = {}
        """Texts that are still being told: the part, its field, and what came. To add each piece to those before it
        would take long for a long text."""

    def result(self) -> list[Message]:
        """The message, if there is anything in it."""
        for part, field, pieces in self._pieces.values():
            part[field] += "".join(pieces)
            pieces.clear()
        return [self.message] if self.message is not None and self.message.parts else []

    def take(self, chunk: Chunk) -> None:
        match chunk:
            case chunks.Start(message_id=message_id):
                if self.message is None:
                    self.message = Message(id=message_id, role="assistant", parts=[])
            case chunks.StartStep():
                self._add({"type": "step-start"})
            case chunks.TextStart(id=id):
                self._begin(id, self._add({"type": "text", "text": "", "state": "streaming"}), "text")
            case chunks.ReasoningStart(id=id):
                self._begin(id, self._add({"type": "reasoning", "text": "", "state": "streaming"}), "text")
            case chunks.TextDelta(id=id, delta=delta) | chunks.ReasoningDelta(id=id, delta=delta):
                self._pieces[id][2].append(delta)
            case chunks.TextEnd(id=id) | chunks.ReasoningEnd(id=id):
                self._join(id)["state"] = "done"
            case chunks.DataFollowUp() | chunks.DataInterrupted() | chunks.DataTask():
                self._add(chunks.plain(chunk))
            case _:
                self._about_tool(chunk)
        self._note_metadata(chunk)

    def _about_tool(self, chunk: Chunk) -> None:
        match chunk:
            case chunks.ToolInputStart(tool_call_id=id, tool_name=name):
                part = {"type": f"tool-{name}", "toolCallId": id, "state": "input-streaming", "rawInput": ""}
                self._tools[id] = self._add(part)
                self._begin(f"tool {id}", part, "rawInput")
            case chunks.ToolInputDelta(tool_call_id=id, input_text_delta=delta):
                self._pieces[f"tool {id}"][2].append(delta)
            case chunks.ToolInputAvailable(tool_call_id=id, input=whole, provider_executed=ours):
                self._pieces.pop(f"tool {id}", None)
                self._tools[id].pop("rawInput", None)
                self._change(id, ours, state="input-available", input=whole)
            case chunks.ToolApprovalRequest(tool_call_id=id, approval_id=approval):
                self._change(id, False, state="approval-requested", approval={"id": approval})
                self._asked[approval] = self._tools[id]
            case chunks.ToolApprovalResponse(approval_id=approval, approved=approved, reason=reason):
                self._decided(approval, approved, reason)
            case chunks.ToolOutputAvailable(tool_call_id=id, output=output, provider_executed=ours):
                self._change(id, ours, state="output-available", output=output)
            case chunks.ToolOutputError(tool_call_id=id, error_text=text, provider_executed=ours):
                self._change(id, ours, state="output-error", errorText=text)
            case chunks.ToolOutputDenied(tool_call_id=id):
                self._change(id, False, state="output-denied")
            case _:
                pass

    def _decided(self, approval: str, approved: bool, reason: str) -> None:
        if (part := self._asked.get(approval)) is not None:
            part["state"] = "approval-responded"
            part["approval"] = {"id": approval, "approved": approved, **({"reason": reason} if reason else {})}

    def _note_metadata(self, chunk: Chunk) -> None:
        match chunk:
            case chunks.Start() | chunks.MessageMetadata() | chunks.Finish():
                if self.message is not None and chunk.message_metadata is not None:
                    self.message.metadata = {**self.message.metadata, **chunk.message_metadata}
            case _:
                pass

    def _begin(self, id: str, part: Part, field: str) -> None:
        self._pieces[id] = (part, field, [])

    def _join(self, id: str) -> Part:
        part, field, pieces = self._pieces.pop(id)
        part[field] = str(part[field]) + "".join(pieces)
        return part

    def _add(self, part: Part) -> Part:
        assert self.message is not None, "a message starts before its parts"
        self.message.parts.append(part)
        return part

    def _change(self, id: str, ours: bool, **changes: Any) -> None:
        self._tools[id].update(changes, **({"providerExecuted": True} if ours else {}))


def conversation(events: Iterable[Event]) -> list[Message]:
    """The messages in a log, or in a part of one that begins with a turn."""
    growing = GrowingConversation()
    for event in events:
        growing.take(event)
    return growing.messages()


class GrowingConversation:
    """The same, event by event."""

    def __init__(self) -> None:
        self._said: list[Message] = []
        self._telling, self._reducer = Whole(Projection(7)), Reducer()

    def take(self, event: Event) -> None:
        match event.body:
            case TurnStarted():
                self._said += self._reducer.result()
                self._telling, self._reducer = Whole(Projection(7)), Reducer()
            case UserMessage(delivery="idle" | "queued") as sent:
                self._said.append(_person(sent, event.time))
            case _:
                pass
        for chunk in self._telling.take(as_read(event)):
            self._reducer.take(chunk)

    def messages(self) -> list[Message]:
        return [*self._said, *self._reducer.result()]


def _person(sent: UserMessage, time: int) -> Message:
    text = {"type": "text", "text": sent.content}
    return Message(id=sent.message_id, role="user", parts=[text], metadata={"createdAt": time})
