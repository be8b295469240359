"""The outcome of the turn of a message, computed from the log. Pure."""

from typing import Literal

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import TurnId
from holdfast.events.message import AssistantMessage, TextBlock, UserMessage
from holdfast.events.session import SessionError
from holdfast.events.turn import TurnEnded, TurnWaiting
from holdfast.protocol.request import RequestView

TurnReason = Literal["completed", "stopped", "error", "interrupted", "waiting", "removed"]
"""How a turn ended, or `waiting`. `removed`: the message was taken out of the queue before it had a turn."""


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a turn: it ended, or it waits until its requests are answered."""

    turn_id: TurnId
    reason: TurnReason
    text: str
    """The model's last message."""
    error: SessionError | None = None
    requests: tuple[RequestView, ...] = ()


class TurnOutcome:
    """Follows a log until the turn of one message ends or waits."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        self.turn_id: TurnId | None = None
        self.text = ""
        self.error: SessionError | None = None
        self.reason: TurnReason = "waiting"

    def take(self, event: Event) -> bool:
        """Take the next event. True: the turn has ended, or waits."""
        match event.body:
            case UserMessage(message_id=message_id, turn_id=turn_id) if message_id == self.message_id:
                self.turn_id = turn_id
            case AssistantMessage(blocks=blocks) if self.turn_id:
                self.text = "".join(block.text for block in blocks if isinstance(block, TextBlock)) or self.text
            case SessionError() as error if self.turn_id:
                self.error = error
            case TurnWaiting(turn_id=turn_id, reason="requests") if turn_id == self.turn_id:
                self.reason = "waiting"
                return True
            case TurnEnded(turn_id=turn_id, reason=reason) if turn_id == self.turn_id:
                self.reason = reason
                return True
            case _:
                pass
        return False

    def result(self, requests: tuple[RequestView, ...] = ()) -> TurnResult:
        return TurnResult(
            turn_id=self.turn_id or TurnId(""),
            reason=self.reason,
            text=self.text,
            error=self.error,
            requests=requests,
        )
