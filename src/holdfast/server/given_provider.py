"""A session's own provider as its client gives it over HTTP or in Python: checked before anything is stored, and apart
from its key."""

from typing import Final, get_args

from holdfast.events.session import Provider
from holdfast.models.credentials import ProviderSecrets, Secrets, check_secrets
from holdfast.models.errors import ModelNotUsable
from holdfast.models.own_provider import check_provider
from holdfast.models.providers import Wire
from holdfast.protocol.provider import OwnProvider
from holdfast.server.errors import Invalid

WIRES: Final[tuple[str, ...]] = get_args(Wire)


def provider_given(given: OwnProvider) -> Provider:
    """The provider for the log. Raises `Invalid` for one that no call could be made with."""
    _check_wire(given)
    provider = Provider(
        base_url=given.base_url,
        type="anthropic" if given.wire == "messages" else given.type,
        model=given.model,
        wire_api="responses" if given.wire == "responses" else "completions",
        api_version=given.api_version,
        has_secrets=given.api_key is not None,
    )
    try:
        check_provider(provider)
        check_secrets(secrets_given(given) or Secrets())
    except ModelNotUsable as error:
        raise Invalid("model_not_usable", error.message) from error
    return provider


def secrets_given(given: OwnProvider) -> Secrets | None:
    """The key that came with the provider, for its URL and no other; None if none came."""
    if given.api_key is None:
        return None
    return Secrets(providers={given.base_url: ProviderSecrets(api_key=given.api_key)})


def _check_wire(given: OwnProvider) -> None:
    if given.wire not in WIRES:
        raise Invalid("wire_unknown", f"There is no wire {given.wire!r}. Possible are {', '.join(WIRES)}.")
    if given.wire == "messages" and given.type == "azure":
        raise Invalid(
            "wire_unknown",
            "A provider of the type azure speaks chat or responses. For messages at another URL leave the type out.",
        )
