"""The model that a session chose, and how its row records that, so that only a process that can run it claims it."""

from typing import Final

import msgspec

from holdfast.events.ids import Key
from holdfast.events.session import Provider


class ModelChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The session, the name of its model (None for the configured one), and its own provider if it has one."""

    key: Key
    name: str | None = None
    provider: Provider | None = None


OWN_MODEL: Final = ""
"""The model in the row of a session that runs with its client's own provider or token. No model can have this name, so
no process lists it among the models that it can't use."""


def row_model(name: str | None, provider: Provider | None, *, own_token: bool = False) -> str | None:
    """The model to record in the session's row. `own_token`: the client gave the session a token of its own."""
    return OWN_MODEL if provider is not None or own_token else name
