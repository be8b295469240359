"""Who asks: the owner whose sessions they see, and the role that says how much they may choose."""

from typing import Literal, Protocol

import msgspec

from holdfast.events.ids import Owner

Role = Literal["user", "admin"]


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    owner: Owner
    role: Role
    name: str
    """What others are told of who answered or stopped something."""
    key_id: str = ""
    """The API key that they came with, if it was one."""


class Identities(Protocol):
    """How this server knows people: by its token of this start, or by API keys."""

    async def identify(self, bearer: str) -> Identity | None:
        """Who shows this; None: nobody we know."""
        ...

    async def is_valid(self, identity: Identity) -> bool:
        """Whether somebody who was let in still would be."""
        ...
