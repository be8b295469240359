"""The models that sessions may name."""

import msgspec


class OfferedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a session may name, with what is known about it. Null: the server does not know it."""

    name: str
    is_default: bool = False
    window: int | None = None
    """Input and output of a call together have at most this many tokens."""
    is_known: bool = False
    """The window is that of this model, and not the one that is assumed of unknown models."""
    max_output: int | None = None
    """The longest answer in tokens."""
    images: bool | None = None
    """It takes images."""
    tools: bool | None = None
    """It calls tools."""
    thinking: bool | None = None
    """It takes a thinking budget."""


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    models: tuple[OfferedModel, ...]
    """The models that the server knows by name. Its provider may have more."""
