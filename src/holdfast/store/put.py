"""The encoded arguments of one `put` call, the same for every store."""

from typing import Any, Final

import msgspec

from holdfast.events import codec
from holdfast.events.inbox import Item, Stop, UnknownItem
from holdfast.store.grants import NewGrants
from holdfast.store.store import Key, Refused
from holdfast.store.turn_limits import TurnLimits

REUSED: Final = Refused("id_reused", "This id was already used for something else. Use a new one.")
"""The refusal of a put that reuses an id with other content: nothing is stored."""


class Put(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of one `put` call, encoded."""

    key: Key
    item: Item
    item_key: str
    payload: bytes
    queue_limit: int
    only_if_idle: bool
    stop_first: str | None
    limits: TurnLimits
    now: int
    grants: NewGrants | None = None


def encode_put(key: Key, item: Item, **rest: Any) -> Put:
    """Encode a put on its sender's side of the call. A sender does not choose the turn that a stop ends, so the stop's
    turn id is cleared."""
    if isinstance(item, Stop):
        item = msgspec.structs.replace(item, turn_id=None)
    payload = codec.encode_item(item)
    stored = codec.decode_item(payload)
    assert not isinstance(stored, UnknownItem), f"an item that this release can't read back: {item}"
    return Put(key=key, item=stored, payload=payload, **rest)
