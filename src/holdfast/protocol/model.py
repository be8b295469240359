"""The models that sessions may name."""

import msgspec


class OfferedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a session may name."""

    name: str
    is_default: bool = False


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    models: tuple[OfferedModel, ...]
    """The models that the server knows by name. Its provider may have more."""
