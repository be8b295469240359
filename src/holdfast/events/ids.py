"""Ids, each a type of its own so that one can't be passed for another, and the generator of new ones."""

import os
import re
from typing import Final, NewType

import msgspec

Owner = NewType("Owner", str)
LOCAL_OWNER: Final = Owner("local")
"""The owner of the sessions of a process that names no other."""

SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
MessageId = NewType("MessageId", str)
ToolCallId = NewType("ToolCallId", str)
RequestId = NewType("RequestId", str)
TaskId = NewType("TaskId", str)
EventId = NewType("EventId", str)
CompactionId = NewType("CompactionId", str)
FileId = NewType("FileId", str)

Position = NewType("Position", int)
"""The position of an event in its session's log: 1, 2, 3, … without gaps. 0 is before the first."""

Fence = NewType("Fence", int)
"""The number of a session's latest claim; each claim raises it by a random step. A write with another number is
refused."""


class Key(msgspec.Struct, frozen=True, order=True):
    """The name of a session. A session of another owner counts as missing."""

    owner: Owner
    session: SessionId


CHOSEN_ID: Final = r"[A-Za-z0-9_:-][A-Za-z0-9_.:-]*"
"""The pattern of an id that a client may choose, for any kind of thing. Such an id needs no escaping in a URL, in a
header, as a file name or in any database. `CHOSEN_ID_RULE` states the pattern for people."""

CHOSEN_ID_RULE: Final = "letters (a to z, A to Z), digits, - _ : and, but for the first one, dots"

_CHOSEN_ID: Final = re.compile(CHOSEN_ID)


def may_be_chosen(id: str) -> bool:
    """Whether a client may choose this id. The callers bound its length."""
    return _CHOSEN_ID.fullmatch(id) is not None


_IDS_AT_ONCE: Final = 64
"""Ids per call of `os.urandom`: it releases the GIL, and getting that back costs more than the random bytes."""

_spare: list[str] = []
os.register_at_fork(after_in_child=_spare.clear)


def random_id() -> str:
    """A random UUID, unique and unguessable. Safe in any thread, and after a fork."""
    try:
        return _spare.pop()
    except IndexError:
        _spare.extend(_random_ids())
        return _random_ids(1)[0]


def _random_ids(count: int = _IDS_AT_ONCE) -> list[str]:
    digits = os.urandom(16 * count).hex()
    return [_uuid4(digits[start : start + 32]) for start in range(0, len(digits), 32)]


def _uuid4(digits: str) -> str:
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
