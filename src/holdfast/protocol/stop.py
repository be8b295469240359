"""The receipts of stops."""

from typing import Literal

import msgspec

from holdfast.protocol.message import Returned

StopOutcome = Literal["stopping", "stopped", "dequeued", "nothing_running", "turn_ended_before"]


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of a stop: the turn is `stopping`, or there was nothing to stop, or only messages were taken back."""

    stop_id: str
    outcome: StopOutcome
    returned: tuple[str, ...] = ()
    """Texts of queued messages that the stop removed."""
    returned_messages: tuple[Returned, ...] = ()
    """The same messages, with their options."""
