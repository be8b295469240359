"""What a session chose to be answered by, and what its row says of it, so that only a process that can run it tries."""

from typing import Final

import msgspec

from holdfast.events.ids import Key
from holdfast.events.session import Provider


class ModelChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Whose model it is, its name (None: the configured one), and the provider that the session brought along."""

    key: Key
    name: str | None = None
    provider: Provider | None = None


OWN_MODEL: Final = ""
"""What the row of a session says that is run with what its client gave to it. No client can give a model this name, so
that no process that lacks a model takes it for one of those."""


def row_model(name: str | None, provider: Provider | None, *, own_token: bool = False) -> str | None:
    """What the session's row is to say of its model. `own_token`: the client gave the session a token of its own."""
    return OWN_MODEL if provider is not None or own_token else name
