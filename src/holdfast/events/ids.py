"""The names of things, each its own type, so that one can't be passed where another is meant; and new ones."""

import os
import re
from typing import Final, NewType

import msgspec

Owner = NewType("Owner", str)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
MessageId = NewType("MessageId", str)
ToolCallId = NewType("ToolCallId", str)
RequestId = NewType("RequestId", str)
TaskId = NewType("TaskId", str)
EventId = NewType("EventId", str)

Position = NewType("Position", int)
"""Where an event stands in its session's log: 1, 2, 3, … without gaps. 0 is before the first."""

Fence = NewType("Fence", int)
"""How many times a session was claimed. A write that carries an old one is refused."""


class Key(msgspec.Struct, frozen=True, order=True):
    """What names a session. A session of another owner is the same as none."""

    owner: Owner
    session: SessionId


CHOSEN_ID: Final = r"[A-Za-z0-9_:-][A-Za-z0-9_.:-]*"
"""What an id looks like that a client chose, whatever it names. It is the same in an address, in a header, as the
name of a file and in every database; `CHOSEN_ID_RULE` says so to people."""

CHOSEN_ID_RULE: Final = "letters (a to z, A to Z), digits, - _ : and, but for the first one, dots"

_CHOSEN_ID: Final = re.compile(CHOSEN_ID)


def may_be_chosen(found: str) -> bool:
    """Whether a client may give something this id. How long it may be is for others to say."""
    return _CHOSEN_ID.fullmatch(found) is not None


_IDS_AT_ONCE: Final = 64
"""Asking the system for randomness lets another thread run first, which costs more than the randomness."""

_spare: list[str] = []
os.register_at_fork(after_in_child=_spare.clear)


def random_id() -> str:
    """A random UUID that nobody else has, nor can guess. Safe in any thread, and after a fork."""
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
