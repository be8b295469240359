"""Resolves the model that a client names: the name that the session stores, and the provider that serves it.

A name means one model. A name that could mean models of two providers is refused, so that no text and no key goes to
the wrong one.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.events.body import Body
from holdfast.events.session import ModelChanged, Provider, SettingsChanged
from holdfast.server.copilot.model_names import ModelNames
from holdfast.server.copilot.options import NamedModel, SessionParams
from holdfast.server.errors import Invalid
from holdfast.session.state import State


async def choose(
    models: ModelNames, params: SessionParams, state: State | None, name: str | None
) -> tuple[str, Provider | UnsetType | None]:
    """The model's name and its provider: UNSET keeps the current provider, None means the runtime's own. `state` is
    that of an existing session. Raises `Invalid`."""
    brought = params.provider or params.provider_of(name or "")
    if brought is not None:
        return _named(name or brought.model_id or brought.wire_model), brought.provider()
    before = state.provider if state is not None else None
    if before is not None and not before.name:
        return _named(name), msgspec.structs.replace(before, model=None)
    if before is not None and (name or "").startswith(f"{before.name}/"):
        raise Invalid("model_unknown", f"To choose among the models of {before.name}, resume the session with it.")
    own = await _offered(models, params.models or (), name)
    return own, None if before is not None else UNSET


async def _offered(models: ModelNames, others: Sequence[NamedModel], name: str | None) -> str:
    """A model of the runtime. Refuses the bare id of a client provider's model unless the runtime lists the same id."""
    same = [f"{model.provider}/{model.id}" for model in others if model.id == name]
    if same and all(listed["id"] != name for listed in await models.listed()):
        raise Invalid("model_unknown", f"Name the model with its provider: {' or '.join(same)}.")
    return await models.chosen(name)


def _named(name: str | None) -> str:
    if name is None:
        raise Invalid("model_missing", "With a provider of your own, name the model to use: set `model`.")
    return name


def changes(state: State, model: str | None, settings: SettingsChanged) -> list[Body]:
    """The records of a change, to be written in one unit so that no step runs with only half of them."""
    bodies: list[Body] = [settings] if settings != SettingsChanged() else []
    if model is not None and (model != state.model or settings.provider is None):
        bodies.append(ModelChanged(new_model=model, previous_model=state.model))
    return bodies
