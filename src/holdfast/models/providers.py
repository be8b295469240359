"""The providers that Holdfast knows by name: their addresses, the variables that configure them, their default models.

It imports nothing heavy: settings are read with it.
"""

from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

Wire = Literal["chat", "responses", "messages"]
"""The protocol of an API: chat completions, OpenAI's Responses or Anthropic's Messages."""

ANTHROPIC_DEFAULT: Final = "anthropic/claude-sonnet-5-5"
"""Anthropic's model of the middle tier, with a window of a million tokens: made for agents, at a quarter of the price
of the largest."""

OPENAI_DEFAULT: Final = "openai/gpt-6.1-sol"
"""OpenAI's newest general model for coding and professional work, at a fifth of the price of the largest."""

OPENROUTER_DEFAULT: Final = "openrouter/anthropic/claude-sonnet-5.5"
"""The same model as Anthropic's default, so that a key of either leads to the same answers."""


class KnownProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A known provider: its address, and the environment variables that configure it."""

    base_url: str
    key_variable: str
    default_model: str
    """Its model for those who set a key and choose no model."""
    base_url_variable: str | None = None
    wire: Wire = "chat"
    """Its protocol at its own address."""


PROVIDERS: Final = {
    "anthropic": KnownProvider(
        base_url="https://api.anthropic.com/v1",
        key_variable="ANTHROPIC_API_KEY",
        default_model=ANTHROPIC_DEFAULT,
        base_url_variable="ANTHROPIC_BASE_URL",
        wire="messages",
    ),
    "openai": KnownProvider(
        base_url="https://api.openai.com/v1",
        key_variable="OPENAI_API_KEY",
        default_model=OPENAI_DEFAULT,
        base_url_variable="OPENAI_BASE_URL",
        wire="responses",
    ),
    "openrouter": KnownProvider(
        base_url="https://openrouter.ai/api/v1",
        key_variable="OPENROUTER_API_KEY",
        default_model=OPENROUTER_DEFAULT,
    ),
}
"""In the order in which a key chooses the default model."""

POSSIBLE: Final = (
    "Possible are demo, anthropic/NAME, openai/NAME and openrouter/NAME (for example openrouter/anthropic/NAME)."
)


def base_url_of(provider: KnownProvider, environ: Mapping[str, str]) -> str | None:
    """The address in the provider's usual variable, if it is set."""
    url = environ.get(provider.base_url_variable or "", "").strip()
    if url and provider.wire == "messages":
        return with_version(url)
    return url or None


def with_version(url: str) -> str:
    """Anthropic's own clients are configured without the `/v1` that every path of the API begins with."""
    url = url.rstrip("/")
    return url if url.endswith("/v1") else f"{url}/v1"


def is_own_address(provider: KnownProvider, url: str) -> bool:
    """Whether the URL is at the provider's own host."""
    try:
        return urlsplit(url).hostname == urlsplit(provider.base_url).hostname
    except ValueError:
        return False


class KeyedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The default model of a provider whose key is in the environment."""

    model: str
    variable: str
    """The variable with the key that chose it."""
    others: tuple[str, ...] = ()
    """Variables with keys of further providers."""

    def explain(self) -> str:
        """A sentence that says why this model is taken, and how to choose another."""
        others = f"; {' and '.join(self.others)} could choose others" if self.others else ""
        return (
            f"No model is chosen, and {self.variable} is set: the model is {self.model}{others}. "
            f"Choose with --model or HOLDFAST_MODEL; `demo` needs no key."
        )


def keyed_model(environ: Mapping[str, str]) -> KeyedModel | None:
    """The default model of the first provider with a key. An `OPENAI_BASE_URL` elsewhere names a server whose models
    nobody knows, so that its key chooses none."""
    variables = [name for name, provider in PROVIDERS.items() if _has_key(provider, environ)]
    if not variables:
        return None
    first, *others = (PROVIDERS[name] for name in variables)
    return KeyedModel(
        model=first.default_model,
        variable=first.key_variable,
        others=tuple(other.key_variable for other in others),
    )


def _has_key(provider: KnownProvider, environ: Mapping[str, str]) -> bool:
    if not environ.get(provider.key_variable, "").strip():
        return False
    url = base_url_of(provider, environ)
    return url is None or provider.wire == "messages" or is_own_address(provider, url)
