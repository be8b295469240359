"""Events about turns (everything from a message to idle) and steps (one model call with its tools)."""

from typing import Literal

from holdfast.events.body import Body
from holdfast.events.ids import Fence, MessageId, RequestId, TurnId

EndReason = Literal["completed", "stopped", "error", "interrupted"]


class TurnStarted(Body, frozen=True, tag="holdfast.turn_started"):
    turn_id: TurnId
    unattended: bool = False
    """Nobody is there to be asked: what would ask is denied."""
    woken: bool = False
    """Nobody wrote: it was started to tell the model of its tasks."""


class TurnWaiting(Body, frozen=True, tag="holdfast.turn_waiting"):
    """Nothing is left to do until somebody answers. The session is released."""

    turn_id: TurnId
    reason: Literal["requests", "no eligible worker"]
    request_ids: tuple[RequestId, ...] = ()


class TurnEnded(Body, frozen=True, tag="holdfast.turn_ended"):
    turn_id: TurnId
    reason: EndReason
    duration_ms: int = 0


class StepStarted(Body, frozen=True, tag="assistant.turn_start"):
    """A model call is about to be made; its answer will be the message `message_id`."""

    turn_id: TurnId
    step: int
    message_id: MessageId
    last: bool = False
    """The limit of rounds is reached: this call is made without tools, to sum up."""


class StepEnded(Body, frozen=True, tag="assistant.turn_end"):
    """The step's message and all results of its tool calls are in the log."""

    turn_id: TurnId
    step: int


class Claimed(Body, frozen=True, tag="holdfast.claimed"):
    """Another holder took over an unfinished turn."""

    fence: Fence
    node: str


class Aborted(Body, frozen=True, tag="abort"):
    reason: str
