"""Events about turns (everything from a message to idle) and steps (one model call with its tools)."""

from typing import Literal

from holdfast.events.body import Body
from holdfast.events.ids import Fence, MessageId, RequestId, TurnId

EndReason = Literal["completed", "stopped", "error", "interrupted"]


class TurnStarted(Body, frozen=True, tag="holdfast.turn_started"):
    turn_id: TurnId
    unattended: bool = False
    """No person is present: every request to a person is denied."""
    woken: bool = False
    """News of a task started the turn, not a message."""
    prompt: str | None = None
    """The prompt that holds from this turn on, if it is another one than before: the digest of its content, which the
    store keeps."""


class TurnWaiting(Body, frozen=True, tag="holdfast.turn_waiting"):
    """The turn waits for answers or for an eligible worker, and the session is released."""

    turn_id: TurnId
    reason: Literal["requests", "no eligible worker"]
    request_ids: tuple[RequestId, ...] = ()


class TurnEnded(Body, frozen=True, tag="holdfast.turn_ended"):
    """The last event of a turn. For `error`, the `session.error` before it in the same unit says why; for `stopped`, an
    `abort` at the beginning of the unit, if a person or a message stopped the turn."""

    turn_id: TurnId
    reason: EndReason
    duration_ms: int = 0


class StepStarted(Body, frozen=True, tag="assistant.turn_start"):
    """A model call is about to start; its answer will be the message `message_id`."""

    turn_id: TurnId
    step: int
    message_id: MessageId
    last: bool = False
    """The turn has reached its limit of steps: this call has no tools, and asks for a summary."""


class StepEnded(Body, frozen=True, tag="assistant.turn_end"):
    """The step's message and all results of its tool calls are in the log."""

    turn_id: TurnId
    step: int


class FellBack(Body, frozen=True, tag="holdfast.model_fallback"):
    """The model can't be reached, or is overloaded, after all retries: the rest of the turn uses another one."""

    turn_id: TurnId
    from_model: str
    to_model: str
    error_code: str


class Claimed(Body, frozen=True, tag="holdfast.claimed"):
    """Another holder took over an unfinished turn."""

    fence: Fence
    node: str


class Aborted(Body, frozen=True, tag="abort"):
    reason: str
