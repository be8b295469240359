"""The catalogue of models by name: it knows what each needs and opens it.

It imports aiohttp (a fifth of a second): import it only where a model is opened. It imports the wires, the demo and the
scripted model only when one of them is opened: each is some hundred kilobytes of code.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import msgspec

from holdfast.models.address import host_of
from holdfast.models.call_wait import STANDARD_PATIENCE, ModelPatience
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.chat_failure import Origin
from holdfast.models.chat_request import MaxTokensField, ThinkingField
from holdfast.models.copilot_endpoint import PREFIX, URL_VARIABLE, CopilotEndpoint
from holdfast.models.errors import ModelKeyMissing, UnknownModel
from holdfast.models.facts import NOTHING, OPENROUTER, info_of
from holdfast.models.http_model import HttpModel, ModelWire
from holdfast.models.info import ModelInfo
from holdfast.models.providers import POSSIBLE, PROVIDERS, KnownProvider, Wire, base_url_of, is_own_address
from holdfast.models.stated_facts import StatedFacts

OPENAI_HOST: Final = "api.openai.com"

if TYPE_CHECKING:
    from holdfast.models.scripted import ScriptedModel


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How models are opened, beside their addresses and keys."""

    wire: Wire | Literal["auto"] = "auto"
    """The protocol of models of the same provider as the configured one."""
    stated: tuple[StatedFacts, ...] = ()
    patience: ModelPatience = STANDARD_PATIENCE

    def facts(self, name: str) -> StatedFacts:
        return next((facts for facts in self.stated if facts.model == name), NOTHING)


STANDARD: Final = ModelSettings()


def open_model(
    name: str,
    *,
    configured: str,
    base_url: str | None,
    api_key: str | None,
    environ: Mapping[str, str],
    settings: ModelSettings = STANDARD,
) -> "HttpModel | ScriptedModel":
    """The model of this name. `base_url`, `api_key` and the wire of the settings are only for models of the same
    provider as `configured`, the name of the configured model. Another provider's address and key, and those that are
    not given, come from its usual variables in `environ`.

    If `configured` names no provider, as `demo` does, `base_url` is for `openai/NAME`, and `api_key` is sent only to
    `base_url`: without a URL, nothing says which provider issued the key.

    It makes no call yet. Raises `ModelNotUsable` with a sentence that says what to change.
    """
    if name == "demo":
        from holdfast.models.demo import demo_model

        return demo_model()
    prefix, _, model = name.partition("/")
    if prefix == PREFIX and model:
        return _open_copilot(name, model, environ, settings)
    provider = PROVIDERS.get(prefix)
    if provider is None or not model:
        raise UnknownModel(name, _why_unknown(name, prefix, model))
    if _is_for(prefix, configured, base_url):
        return _open(name, provider, base_url=base_url, api_key=api_key, environ=environ, settings=settings)
    others = msgspec.structs.replace(settings, wire="auto")
    try:
        return _open(name, provider, base_url=None, api_key=None, environ=environ, settings=others)
    except ModelKeyMissing as error:
        raise ModelKeyMissing(name, error.variable, of_another_provider=bool(base_url or api_key)) from None


def _is_for(prefix: str, configured: str, base_url: str | None) -> bool:
    """Whether the configured URL, key and wire are for models with this prefix."""
    configured_prefix = configured.partition("/")[0]
    if configured_prefix in PROVIDERS:
        return prefix == configured_prefix
    return prefix == "openai" and bool(base_url)


def _open(
    name: str,
    provider: KnownProvider,
    *,
    base_url: str | None,
    api_key: str | None,
    environ: Mapping[str, str],
    settings: ModelSettings,
) -> HttpModel:
    given_url = base_url or base_url_of(provider, environ)
    key = (api_key or environ.get(provider.key_variable) or "").strip()
    if not key and not given_url:
        raise ModelKeyMissing(name, provider.key_variable)
    url = given_url or provider.base_url
    host_of(url)
    model = name.partition("/")[2]
    info = info_of(model, url, stated=settings.facts(name))
    wire = _wire_of(provider, url) if settings.wire == "auto" else settings.wire
    return HttpModel(
        wire_for(wire, model, url, info, thinking=_thinking_field(provider)),
        base_url=url,
        name=name,
        info=info,
        api_key=key or None,
        origin=Origin(
            url=(given_url and not base_url and provider.base_url_variable) or "--model-base-url",
            key="HOLDFAST_MODEL_API_KEY" if api_key else provider.key_variable,
        ),
        patience=settings.patience,
    )


def _wire_of(provider: KnownProvider, url: str) -> Wire:
    """The protocol at this address. Messages are spoken by whatever stands in for Anthropic; Responses are not yet by
    most servers that stand in for OpenAI."""
    if provider.wire == "responses" and not is_own_address(provider, url):
        return "chat"
    return provider.wire


def wire_for(
    wire: Wire, model: str, base_url: str, info: ModelInfo, *, thinking: ThinkingField = "reasoning_effort"
) -> ModelWire:
    """The protocol for one model. `thinking`: the field of chat completions for the thinking budget."""
    match wire:
        case "chat":
            return ChatCompletions(model, max_tokens_field(base_url), thinking, info)
        case "responses":
            from holdfast.models.openai_responses import OpenAIResponses

            return OpenAIResponses(model=model, info=info)
        case "messages":
            from holdfast.models.anthropic_messages import AnthropicMessages

            return AnthropicMessages(model=model, info=info)


def _open_copilot(name: str, model: str, environ: Mapping[str, str], settings: ModelSettings) -> HttpModel:
    endpoint = CopilotEndpoint.from_environ(environ)
    if endpoint is None:
        raise UnknownModel(name, f"The model {name} needs {URL_VARIABLE}, which is not set. {POSSIBLE}")
    return endpoint.open(model, patience=settings.patience, stated=settings.facts(name))


def max_tokens_field(base_url: str) -> MaxTokensField:
    """The name of the field for the token limit: OpenAI's newer models refuse the one that all others accept."""
    return "max_completion_tokens" if urlsplit(base_url).hostname == OPENAI_HOST else "max_tokens"


def thinking_field(base_url: str) -> ThinkingField:
    """The field in which a client's own endpoint takes the thinking budget."""
    return "reasoning" if host_of(base_url) == OPENROUTER else "reasoning_effort"


def _thinking_field(provider: KnownProvider) -> ThinkingField:
    return "reasoning" if provider is PROVIDERS["openrouter"] else "reasoning_effort"


def _why_unknown(name: str, prefix: str, model: str) -> str:
    if prefix in PROVIDERS:
        return f"{name!r} does not say which model: write {prefix}/NAME. {POSSIBLE}"
    return f"There is no model {name!r}. {POSSIBLE}"
