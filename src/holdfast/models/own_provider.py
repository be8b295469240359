"""A session's own provider: its protocol, the URLs of its calls, and what its client says about the model."""

from typing import Final
from urllib.parse import quote, urlsplit

from holdfast.events.session import Provider
from holdfast.models.address import host_of
from holdfast.models.chat_failure import Origin
from holdfast.models.errors import BadBaseUrl
from holdfast.models.providers import Wire, with_version
from holdfast.models.stated_facts import StatedFacts

ORIGIN: Final = Origin(url="the provider's base URL", key="the key that the session's client gave")

MAX_URL_CHARACTERS: Final = 2_000
"""The longest base URL: it is in the log, and part of every call."""


def check_provider(provider: Provider) -> None:
    """Raises `BadBaseUrl` for a provider that can never answer, before a turn needs it."""
    if len(provider.base_url) > MAX_URL_CHARACTERS:
        raise BadBaseUrl(f"it has more than {MAX_URL_CHARACTERS:,} characters")
    host_of(provider.base_url)


def wire_of(provider: Provider) -> Wire:
    """The protocol that its client chose."""
    if provider.type == "anthropic":
        return "messages"
    return "responses" if provider.wire_api == "responses" else "chat"


def facts_of(provider: Provider) -> StatedFacts:
    """What its client says about the model."""
    return StatedFacts(model=provider.model or "", window=provider.max_window, max_output=provider.max_output)


def base_url_of(provider: Provider, model: str) -> str:
    """The base URL of its calls. Azure has one for the chat completions of each deployment, or, without a version, one
    for all."""
    base_url = provider.base_url.rstrip("/")
    if provider.type == "anthropic":
        return with_version(base_url)
    if provider.type != "azure" or "/openai" in urlsplit(base_url).path:
        return base_url
    if provider.api_version is None:
        return f"{base_url}/openai/v1"
    if provider.wire_api == "responses":
        return f"{base_url}/openai"
    return f"{base_url}/openai/deployments/{quote(model, safe='')}"


def query_of(provider: Provider) -> dict[str, str]:
    if provider.type != "azure" or provider.api_version is None:
        return {}
    return {"api-version": provider.api_version}
