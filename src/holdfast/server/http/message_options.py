"""What may be chosen with a message: where its writer is, who answers it, and how long that one may think first.

Each is taken from the message, and where that says nothing from the session, and where that does not either, from the
server's configuration.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.events.ids import Key
from holdfast.events.message import PageContext
from holdfast.events.session import Mode
from holdfast.models.choice import OWN_MODEL
from holdfast.server.errors import Invalid
from holdfast.server.http.identity import Identity
from holdfast.server.http.service import Service

MAX_THINKING_TOKENS: Final = 1_000_000
"""More than any model thinks for."""

ModelName = Annotated[str, Meta(min_length=1, max_length=200)]
Thinking = Literal["off"] | Annotated[int, Meta(ge=0, le=MAX_THINKING_TOKENS)]
"""Tokens that the model may think for; 0 is `off`."""
Tier = Literal["standard", "advanced"]


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Where the person is who writes: the model is told, people are not shown it."""

    url: Annotated[str, Meta(max_length=2_000)] = ""
    content: Annotated[str, Meta(max_length=32_000)] = ""


class MessageOptions(msgspec.Struct, frozen=True, kw_only=True):
    context: Context | None = None
    model: ModelName | None = None
    """Who answers in this message's turn."""
    tier: Tier | None = None
    """The same by what the server offers, instead of a name."""
    thinking: Thinking | None = None
    mode: Mode | None = None

    @property
    def names_model(self) -> bool:
        return self.model is not None or self.tier is not None


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """What of it `Operations.send` is given, under the same names."""

    context: PageContext | None = None
    model: str | None = None
    thinking: int | None = None
    agent_mode: str = ""

    def as_arguments(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)


async def chosen(service: Service, identity: Identity, key: Key, options: MessageOptions) -> Chosen:
    """The options, as far as there is what they name and the role goes. What the session itself has counts only for a
    model: nothing is looked up for a message that names none."""
    page = options.context
    is_own = options.names_model and (await service.operations.session(key)).model == OWN_MODEL
    return Chosen(
        context=PageContext(url=page.url, content=page.content) if page and (page.url or page.content) else None,
        model=_model(service, identity, options, is_own=is_own),
        thinking=budget(options.thinking),
        agent_mode=options.mode or "",
    )


def budget(thinking: Thinking | None) -> int | None:
    return 0 if thinking == "off" else thinking


def model_of_tier(service: Service, tier: Tier) -> str:
    found = service.settings.model if tier == "standard" else service.settings.model_advanced
    if found is None:
        raise Invalid("tier_not_offered", f"This server has no model of the tier {tier}.")
    return found


def _model(service: Service, identity: Identity, options: MessageOptions, *, is_own: bool) -> str | None:
    if options.model is not None and options.tier is not None:
        raise Invalid("invalid", "Give a `model` or a `tier`, not both.")
    if is_own and options.tier is not None:
        raise Invalid("tier_not_offered", "This session has a provider of its own, which knows no tiers. Name a model.")
    if options.tier is not None:
        model: str | None = model_of_tier(service, options.tier)
    else:
        model = options.model
    if model is not None and not is_own:
        service.check_model(identity, model)
    return model
