"""Permission rules that people granted beyond one session."""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec

MAX_GRANTS: Final = 1_000
"""The most grants of one owner. All are read for each list of them, and copied into each new session."""

MAX_GRANT_BYTES: Final = 200_000
"""The most bytes that the grants of one owner take up, in UTF-8."""


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

    @property
    def size(self) -> int:
        """How many bytes of its owner's it takes up."""
        texts = (self.place, self.rule, self.origin.session, self.origin.granted_by)
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


class NewGrants(msgspec.Struct, frozen=True, kw_only=True):
    """Rules that an answer grants in one place, written together with it."""

    place: str
    rules: tuple[str, ...]
    origin: GrantOrigin


class TooManyGrants(msgspec.Struct, frozen=True):
    """Nothing was granted: the owner has as many grants as one may have."""

    code: str = "too_many_permissions"
    message: str = (
        f"An owner has at most {MAX_GRANTS:,} permissions beyond single sessions, of {MAX_GRANT_BYTES:,} bytes "
        "together. Revoke some (holdfast permissions), or approve for this call or this session only."
    )


def admit_grants(
    held: Collection[Grant], place: str, rules: Sequence[str], origin: GrantOrigin
) -> tuple[Grant, ...] | TooManyGrants:
    """The new grants among these; none of them if an owner with the held ones would have too many. Grants that the
    owner has already are always admitted: repeating them is safe."""
    known = {(grant.place, grant.rule, grant.origin.session) for grant in held}
    new = tuple(
        Grant(place=place, rule=rule, origin=origin)
        for rule in dict.fromkeys(rules)
        if (place, rule, origin.session) not in known
    )
    is_over = len(held) + len(new) > MAX_GRANTS or sum(grant.size for grant in (*held, *new)) > MAX_GRANT_BYTES
    return TooManyGrants() if new and is_over else new
