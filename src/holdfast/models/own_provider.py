"""A session's own provider: which protocols Holdfast supports, and the URLs of its calls."""

from typing import Final
from urllib.parse import quote, urlsplit

from holdfast.events.session import Provider
from holdfast.models.address import host_of
from holdfast.models.chat_failure import Origin
from holdfast.models.errors import BadBaseUrl, ProviderUnsupported

ORIGIN: Final = Origin(url="the provider's base URL", key="the key that the session's client gave")

MAX_URL_CHARACTERS: Final = 2_000
"""The longest base URL: it is in the log, and part of every call."""


def check_provider(provider: Provider) -> None:
    """Raises `ProviderUnsupported` or `BadBaseUrl` for a provider that can never answer, before a turn needs it."""
    if provider.type == "anthropic":
        raise ProviderUnsupported(
            "A provider of the type anthropic is not supported yet: use an endpoint that speaks chat completions, "
            "with the type openai."
        )
    if provider.wire_api != "completions":
        raise ProviderUnsupported(
            f"The wire API {provider.wire_api} is not supported yet: give the provider the wire API completions."
        )
    if len(provider.base_url) > MAX_URL_CHARACTERS:
        raise BadBaseUrl(f"it has more than {MAX_URL_CHARACTERS:,} characters")
    host_of(provider.base_url)


def base_url_of(provider: Provider, model: str) -> str:
    """The base URL of its chat completions. Azure has one for each deployment, or, without a version, one for all."""
    base_url = provider.base_url.rstrip("/")
    if provider.type != "azure" or "/openai" in urlsplit(base_url).path:
        return base_url
    if provider.api_version is None:
        return f"{base_url}/openai/v1"
    return f"{base_url}/openai/deployments/{quote(model, safe='')}"


def query_of(provider: Provider) -> dict[str, str]:
    if provider.type != "azure" or provider.api_version is None:
        return {}
    return {"api-version": provider.api_version}
