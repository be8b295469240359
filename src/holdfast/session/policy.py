"""The rules in which sessions differ, by the conventions of the surface that created them.

The rest of the core reads these fields and does not know the surfaces' names.
"""

from typing import Final

import msgspec

from holdfast.events.session import Conventions


class SessionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How one session behaves where surfaces expect different things."""

    asks_always: bool = False
    """Every tool call asks for permission unless a rule allows it; there are no default permissions."""
    requests_visible_answer: bool = True
    """A model that ends a turn without text is called once more and asked to sum up."""
    explains_interruptions: bool = True
    """The result of an interrupted call says how far the call came, and by whose doing it ended."""
    shortens_title: bool = True
    """The first title is the first words of the first message, not all of it."""
    system_message_replaces_instructions: bool = True
    """A session's own system message stands in place of the product's instructions, not after them."""
    cold_resume_ends_pending_work: bool = False
    """A client that resumes the session in another process ends the pending turn, unless it asks to continue it."""


HOLDFAST: Final = SessionPolicy()

COPILOT: Final = SessionPolicy(
    asks_always=True,
    requests_visible_answer=False,
    explains_interruptions=False,
    shortens_title=False,
    system_message_replaces_instructions=False,
    cold_resume_ends_pending_work=True,
)

_POLICIES: Final[dict[Conventions, SessionPolicy]] = {"holdfast": HOLDFAST, "copilot": COPILOT}


def policy_of(conventions: Conventions) -> SessionPolicy:
    """The policy of sessions that are created with these conventions."""
    return _POLICIES[conventions]
