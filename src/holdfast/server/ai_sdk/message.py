"""Messages as AI SDK clients hold them, reduced from the chunks of a turn as the clients do it. Pure.

A loaded conversation is therefore the same as the streamed one. The caller leaves out a message that its stream would
still replay: an older client that has it already would show its parts twice.
"""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from holdfast.events.event import Event
from holdfast.events.message import UserMessage
from holdfast.events.turn import TurnStarted
from holdfast.server.ai_sdk import chunks
from holdfast.server.ai_sdk.chunks import UiChunk
from holdfast.server.ai_sdk.file_parts import content_url
from holdfast.server.ai_sdk.leg import WholeTurn
from holdfast.server.ai_sdk.projection import UiProjection
from holdfast.server.reader import as_read

Part = dict[str, Any]


class UiMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A `UIMessage` of the AI SDK."""

    id: str
    role: Literal["user", "assistant"]
    parts: list[Part]
    metadata: dict[str, Any] = {}


class Reducer:
    """Reduces chunks to one message."""

    def __init__(self) -> None:
        self.message: UiMessage | None = None
        self._tools: dict[str, Part] = {}
        self._asked: dict[str, Part] = {}
        self._pieces: dict[str, tuple[Part, str, list[str]]] = {}
        """Texts that still grow: the part, its field, and the pieces so far. Appending each piece to the text
        would take quadratic time."""

    def result(self) -> list[UiMessage]:
        """The message, if it has any part."""
        for part, field, pieces in self._pieces.values():
            part[field] += "".join(pieces)
            pieces.clear()
        return [self.message] if self.message is not None and self.message.parts else []

    def take(self, chunk: UiChunk) -> None:
        match chunk:
            case chunks.StartChunk(message_id=message_id):
                if self.message is None:
                    self.message = UiMessage(id=message_id, role="assistant", parts=[])
            case chunks.StartStepChunk():
                self._add({"type": "step-start"})
            case chunks.TextStartChunk(id=id):
                self._begin(id, self._add({"type": "text", "text": "", "state": "streaming"}), "text")
            case chunks.ReasoningStartChunk(id=id):
                self._begin(id, self._add({"type": "reasoning", "text": "", "state": "streaming"}), "text")
            case chunks.TextDeltaChunk(id=id, delta=delta) | chunks.ReasoningDeltaChunk(id=id, delta=delta):
                self._pieces[id][2].append(delta)
            case chunks.TextEndChunk(id=id) | chunks.ReasoningEndChunk(id=id):
                self._join(id)["state"] = "done"
            case chunks.DataFollowUpChunk() | chunks.DataInterruptedChunk() | chunks.DataTaskChunk():
                self._add(chunks.plain(chunk))
            case _:
                self._about_tool(chunk)
        self._note_metadata(chunk)

    def _about_tool(self, chunk: UiChunk) -> None:
        match chunk:
            case chunks.ToolInputStartChunk(tool_call_id=id, tool_name=name):
                part = {"type": f"tool-{name}", "toolCallId": id, "state": "input-streaming", "rawInput": ""}
                self._tools[id] = self._add(part)
                self._begin(f"tool {id}", part, "rawInput")
            case chunks.ToolInputDeltaChunk(tool_call_id=id, input_text_delta=delta):
                self._pieces[f"tool {id}"][2].append(delta)
            case chunks.ToolInputAvailableChunk(tool_call_id=id, input=whole, provider_executed=ours):
                self._pieces.pop(f"tool {id}", None)
                self._tools[id].pop("rawInput", None)
                self._change(id, ours, state="input-available", input=whole)
            case chunks.ToolApprovalRequestChunk(tool_call_id=id, approval_id=approval):
                self._change(id, False, state="approval-requested", approval={"id": approval})
                self._asked[approval] = self._tools[id]
            case chunks.ToolApprovalResponseChunk(approval_id=approval, approved=approved, reason=reason):
                self._decided(approval, approved, reason)
            case chunks.ToolOutputAvailableChunk(tool_call_id=id, output=output, provider_executed=ours):
                self._change(id, ours, state="output-available", output=output)
            case chunks.ToolOutputErrorChunk(tool_call_id=id, error_text=text, provider_executed=ours):
                self._change(id, ours, state="output-error", errorText=text)
            case chunks.ToolOutputDeniedChunk(tool_call_id=id):
                self._change(id, False, state="output-denied")
            case _:
                pass

    def _decided(self, approval: str, approved: bool, reason: str) -> None:
        if (part := self._asked.get(approval)) is not None:
            part["state"] = "approval-responded"
            part["approval"] = {"id": approval, "approved": approved, **({"reason": reason} if reason else {})}

    def _note_metadata(self, chunk: UiChunk) -> None:
        match chunk:
            case chunks.StartChunk() | chunks.MessageMetadataChunk() | chunks.FinishChunk():
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


def conversation(events: Iterable[Event]) -> list[UiMessage]:
    """The messages of a log, or of a part of one that begins with a turn."""
    growing = GrowingConversation()
    for event in events:
        growing.take(event)
    return growing.messages()


class GrowingConversation:
    """Builds the messages of a log event by event."""

    def __init__(self) -> None:
        self._messages: list[UiMessage] = []
        self._turn, self._reducer = WholeTurn(UiProjection(7)), Reducer()

    def take(self, event: Event) -> None:
        match event.body:
            case TurnStarted():
                self._messages += self._reducer.result()
                self._turn, self._reducer = WholeTurn(UiProjection(7)), Reducer()
            case UserMessage(delivery="idle" | "queued") as sent:
                self._messages.append(_person(sent, event.time))
            case _:
                pass
        for chunk in self._turn.take(as_read(event)):
            self._reducer.take(chunk)

    def messages(self) -> list[UiMessage]:
        return [*self._messages, *self._reducer.result()]


def _person(sent: UserMessage, time: int) -> UiMessage:
    parts: list[Part] = [{"type": "text", "text": sent.content}] if sent.content or not sent.files else []
    parts += [
        {"type": "file", "mediaType": file.media_type, "filename": file.name, "url": content_url(file.file_id)}
        for file in sent.files
    ]
    return UiMessage(id=sent.message_id, role="user", parts=parts, metadata={"createdAt": time})
