"""The names of things, each its own type, so that one can't be passed where another is meant."""

from typing import NewType

import msgspec

Owner = NewType("Owner", str)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
MessageId = NewType("MessageId", str)
ToolCallId = NewType("ToolCallId", str)
RequestId = NewType("RequestId", str)
EventId = NewType("EventId", str)

Position = NewType("Position", int)
"""Where an event stands in its session's log: 1, 2, 3, … without gaps. 0 is before the first."""

Fence = NewType("Fence", int)
"""How many times a session was claimed. A write that carries an old one is refused."""


class Key(msgspec.Struct, frozen=True, order=True):
    """What names a session. A session of another owner is the same as none."""

    owner: Owner
    session: SessionId
