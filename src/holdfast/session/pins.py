"""Whether a message may be pinned. Pinned messages are sent with every call, for good, so there are few. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.session.bounds import Bounds
from holdfast.session.compaction import pinned_tokens
from holdfast.session.fold import MAX_PINNED
from holdfast.session.state import Person, State, people_in


class PinRefusal(NamedTuple):
    code: str
    message: str


def refusal_of_pin(state: State, wanted: Person, bounds: Bounds) -> PinRefusal | None:
    """Why this message of a person may not be pinned as well; None: it may. `state` has its history."""
    others: Sequence[str] = [pinned for pinned in state.pinned if pinned != wanted.message_id]
    if len(others) >= MAX_PINNED:
        return PinRefusal("too_many_pins", f"{MAX_PINNED} messages are pinned already. Unpin one of them first.")
    size, taken = wanted.tokens(), pinned_tokens(people_in(state.history), others)
    if taken + size > bounds.max_pinned_tokens:
        return PinRefusal(
            "pins_too_long",
            f"Pinned messages have at most {bounds.max_pinned_tokens:,} tokens together, because they are sent with "
            f"every call. This one has about {size:,}, the others {taken:,}. Unpin one, or send a shorter message.",
        )
    return None
