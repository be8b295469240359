"""What a session calls the model that its client names, and where it is asked: at its own provider, or the runtime's.

A name means one model. What could be a model of two places is refused, so that no words and no key go to the wrong one.
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
    """The model's name, and the provider that is to be asked: UNSET where that stays, None for the runtime's own.
    `state`: of a session that is there already. Raises `Invalid`."""
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
    """A model of the runtime's own. The bare id of a provider's model is none, unless the runtime lists the same."""
    same = [f"{found.provider}/{found.id}" for found in others if found.id == name]
    if same and all(found["id"] != name for found in await models.listed()):
        raise Invalid("model_unknown", f"Name the model with its provider: {' or '.join(same)}.")
    return await models.chosen(name)


def _named(name: str | None) -> str:
    if name is None:
        raise Invalid("model_missing", "With a provider of your own, say which model to ask for.")
    return name


def changes(state: State, model: str | None, settings: SettingsChanged) -> list[Body]:
    """Records to be written together: no step is made with a half of them."""
    bodies: list[Body] = [settings] if settings != SettingsChanged() else []
    if model is not None and (model != state.model or settings.provider is None):
        bodies.append(ModelChanged(new_model=model, previous_model=state.model))
    return bodies
