"""Checks the options of a message against the server's models and the caller's role."""

from holdfast.events.ids import Key
from holdfast.events.message import PageContext
from holdfast.models.choice import OWN_MODEL
from holdfast.server.errors import Invalid
from holdfast.server.http.call import HttpCall
from holdfast.server.http.service import HttpService
from holdfast.server.message_options import MessageChoice, MessageOptions, Tier, thinking_tokens


async def choose(call: HttpCall, key: Key, options: MessageOptions) -> MessageChoice:
    """The options, if the server has the model and the role may choose it. The session's row is read only for a message
    that names a model."""
    page = options.context
    is_own = options.names_model and (await call.operations.session(key)).model == OWN_MODEL
    return MessageChoice(
        context=PageContext(url=page.url, content=page.content) if page and (page.url or page.content) else None,
        model=_model(call, options, is_own=is_own),
        thinking=thinking_tokens(options.thinking),
        agent_mode=options.mode or "",
    )


def model_of_tier(service: HttpService, tier: Tier) -> str:
    model = service.settings.model if tier == "standard" else service.settings.model_advanced
    if model is None:
        raise Invalid("tier_not_offered", f"This server has no model of the tier {tier}.")
    return model


def _model(call: HttpCall, options: MessageOptions, *, is_own: bool) -> str | None:
    if options.model is not None and options.tier is not None:
        raise Invalid("invalid", "Give a `model` or a `tier`, not both.")
    if is_own and options.tier is not None:
        raise Invalid("tier_not_offered", "This session has a provider of its own, which knows no tiers. Name a model.")
    if options.tier is not None:
        model: str | None = model_of_tier(call.service, options.tier)
    else:
        model = options.model
    if model is not None and not is_own:
        call.check_model(model)
    return model
