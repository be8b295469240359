"""The catalogue of models by name: it knows what each needs and opens it.

It imports every kind of model, and with them aiohttp (a fifth of a second): import it only where a model is opened.
"""

from collections.abc import Mapping

import msgspec

from holdfast.models.address import host_of
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.chat_request import MaxTokensField, ThinkingField
from holdfast.models.copilot_endpoint import PREFIX, URL_VARIABLE, CopilotEndpoint
from holdfast.models.demo import demo_model
from holdfast.models.errors import ModelKeyMissing, UnknownModel
from holdfast.models.http_model import HttpModel
from holdfast.models.scripted import ScriptedModel


class ProviderInfo(msgspec.Struct, frozen=True):
    """A known provider: its address and the environment variables that configure it."""

    base_url: str
    key_variable: str
    base_url_variable: str | None = None
    thinking_field: ThinkingField = "reasoning_effort"


PROVIDERS = {
    "openai": ProviderInfo("https://api.openai.com/v1", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
    "openrouter": ProviderInfo("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", thinking_field="reasoning"),
}

_POSSIBLE = "Possible are demo, openai/NAME and openrouter/NAME (for example openrouter/anthropic/NAME)."


def open_model(
    name: str, *, configured: str, base_url: str | None, api_key: str | None, environ: Mapping[str, str]
) -> HttpModel | ScriptedModel:
    """The model of this name. `base_url` and `api_key` are only for models of the same provider as `configured`, the
    name of the configured model. Another provider's address and key, and those that are not given, come from its usual
    variables in `environ`.

    If `configured` names no provider, as `demo` does, `base_url` is for `openai/NAME`, and `api_key` is sent only to
    `base_url`: without a URL, nothing says which provider issued the key.

    It makes no call yet. Raises `ModelNotUsable` with a sentence that says what to change.
    """
    if name == "demo":
        return demo_model()
    prefix, _, model = name.partition("/")
    if prefix == PREFIX and model:
        return _open_copilot(name, model, environ)
    provider = PROVIDERS.get(prefix)
    if provider is None or not model:
        raise UnknownModel(name, _why_unknown(name, prefix, model))
    if _is_for(prefix, configured, base_url):
        return _open(name, model, provider, base_url=base_url, api_key=api_key, environ=environ)
    try:
        return _open(name, model, provider, base_url=None, api_key=None, environ=environ)
    except ModelKeyMissing as error:
        raise ModelKeyMissing(name, error.variable, of_another_provider=bool(base_url or api_key)) from None


def _is_for(prefix: str, configured: str, base_url: str | None) -> bool:
    """Whether the configured URL and key are for models with this prefix."""
    configured_prefix = configured.partition("/")[0]
    if configured_prefix in PROVIDERS:
        return prefix == configured_prefix
    return prefix == "openai" and bool(base_url)


def _open(
    name: str,
    model: str,
    provider: ProviderInfo,
    *,
    base_url: str | None,
    api_key: str | None,
    environ: Mapping[str, str],
) -> HttpModel:
    if not base_url and provider.base_url_variable is not None:
        base_url = environ.get(provider.base_url_variable)
    api_key = (api_key or environ.get(provider.key_variable) or "").strip()
    if not api_key and not base_url:
        raise ModelKeyMissing(name, provider.key_variable)
    url = base_url or provider.base_url
    return HttpModel(
        ChatCompletions(model, max_tokens_field(url), provider.thinking_field),
        base_url=url,
        name=name,
        api_key=api_key or None,
    )


def _open_copilot(name: str, model: str, environ: Mapping[str, str]) -> HttpModel:
    endpoint = CopilotEndpoint.from_environ(environ)
    if endpoint is None:
        raise UnknownModel(name, f"The model {name} needs {URL_VARIABLE}, which is not set. {_POSSIBLE}")
    return endpoint.open(model)


def max_tokens_field(base_url: str) -> MaxTokensField:
    """The name of the field for the token limit: OpenAI's newer models refuse the one that all others accept."""
    return "max_completion_tokens" if base_url.startswith("https://api.openai.com/") else "max_tokens"


def thinking_field(base_url: str) -> ThinkingField:
    """The field in which a client's own endpoint takes the thinking budget."""
    return "reasoning" if host_of(base_url) == "openrouter.ai" else "reasoning_effort"


def _why_unknown(name: str, prefix: str, model: str) -> str:
    if prefix == "anthropic" and model:
        return f"Anthropic's own API is not supported yet: use openrouter/anthropic/{model} for {name}. {_POSSIBLE}"
    if prefix in PROVIDERS:
        return f"{name!r} does not say which model: write {prefix}/NAME. {_POSSIBLE}"
    return f"There is no model {name!r}. {_POSSIBLE}"
