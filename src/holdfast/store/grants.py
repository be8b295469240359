"""Permission rules that people granted beyond one session."""

from typing import NamedTuple

import msgspec


class GrantOrigin(NamedTuple):
    """The session and the person that a grant came from. Grants of older releases have no origin."""

    session: str = ""
    granted_by: str = ""
    granted_at: int = 0
    """Milliseconds since 1970."""


GRANTED_SOMEWHERE = GrantOrigin()


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """One rule in one place, as granted in one session."""

    place: str
    """The directory; empty: everywhere."""
    rule: str
    origin: GrantOrigin = GRANTED_SOMEWHERE
