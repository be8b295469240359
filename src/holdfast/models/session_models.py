"""Opens the models that sessions chose: their own provider first, else a model by its name.

A client's secrets go only to the address that the client gave them for, and none of our keys ever goes to an address
that a client gave. Sessions with the same model and the same key share it; the least recently used models are closed.

It imports every kind of model, and with them aiohttp (a fifth of a second): import it only where a model is opened.
"""

import hashlib
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

import msgspec

from holdfast.events.session import Provider
from holdfast.models import own_provider
from holdfast.models.call_wait import STANDARD_PATIENCE, ModelPatience
from holdfast.models.catalogue import STANDARD, ModelSettings, open_model, thinking_field, wire_for
from holdfast.models.choice import ModelChoice
from holdfast.models.copilot_endpoint import PREFIX, CopilotEndpoint
from holdfast.models.credentials import Credentials, ProviderSecrets
from holdfast.models.errors import ModelNotUsable
from holdfast.models.facts import info_of
from holdfast.models.http_model import HttpModel
from holdfast.models.info import UNKNOWN, ModelInfo
from holdfast.models.model import Chunk, Model, ModelError, ModelRequest

MAX_OPEN: Final = 64
"""Models with open connections. Beyond that, the least recently used model loses its connections."""

_SALT: Final = os.urandom(16)


class SessionModels:
    """The models of one process. `default` is the model of a session that chose none; `base_url` and `api_key` are for
    models of its provider only, see `open_model`."""

    def __init__(
        self,
        *,
        default: str,
        base_url: str | None = None,
        api_key: str | None = None,
        environ: Mapping[str, str],
        settings: ModelSettings = STANDARD,
        fallback: str | None = None,
    ) -> None:
        self.copilot = CopilotEndpoint.from_environ(environ)
        self._default = default
        self._base_url = base_url
        self._api_key = api_key
        self._environ = environ
        self._settings = settings
        self._fallback = fallback
        self._open: OrderedDict[tuple[str, ...], Model] = OrderedDict()

    async def model(self, choice: ModelChoice, credentials: Credentials) -> Model:
        """The model of a session. Raises `ModelNotUsable` if this process can't use it, though another might."""
        if choice.provider is not None:
            return await self._own(choice, choice.provider, credentials)
        name = choice.name or self._default
        if name.startswith(f"{PREFIX}/") and self.copilot is not None:
            token = await credentials.github_token(choice.key)
            key = (name,) if token is None else (name, _fingerprint(token))
            return await self._opened(key, self._of_copilot(self.copilot, name, token))
        return await self._opened((name,), lambda: self._by_name(name))

    def info(self, name: str) -> ModelInfo:
        """The facts about a model, whose calls may never be made here. Raises `ModelNotUsable`."""
        opened = self._open.get((name,))
        return (self._by_name(name) if opened is None else opened).info

    def check_default(self) -> None:
        """Raises `ModelNotUsable` unless this process can use the configured models. It makes no call."""
        self._by_name(self._default)
        if self._fallback is not None:
            try:
                self._by_name(self._fallback)
            except ModelNotUsable as error:
                raise ModelNotUsable(f"HOLDFAST_MODEL_FALLBACK can't be used. {error.message}") from None

    async def list_models(self, *, token: str | None = None) -> list[dict[str, Any]]:
        """The models of Copilot's endpoint, the default first; empty without one. Raises `ModelError`."""
        return [] if self.copilot is None else await self.copilot.list_models(token=token)

    async def close(self) -> None:
        """Close every connection. Safe to repeat."""
        while self._open:
            _, model = self._open.popitem()
            await _close(model)

    def _by_name(self, name: str) -> Model:
        return open_model(
            name,
            configured=self._default,
            base_url=self._base_url,
            api_key=self._api_key,
            environ=self._environ,
            settings=self._settings,
        )

    def _of_copilot(self, copilot: CopilotEndpoint, name: str, token: str | None) -> Callable[[], Model]:
        model, settings = name.removeprefix(f"{PREFIX}/"), self._settings
        return lambda: copilot.open(model, token=token, patience=settings.patience, stated=settings.facts(name))

    async def _own(self, choice: ModelChoice, provider: Provider, credentials: Credentials) -> Model:
        secrets = await credentials.for_provider(choice.key, provider)
        name = choice.name or provider.model or ""
        identity = msgspec.json.encode(provider).decode()
        patience = self._settings.patience
        return await self._opened(
            (identity, name, _fingerprint(secrets)), lambda: open_own(provider, name, secrets, patience=patience)
        )

    async def _opened(self, key: tuple[str, ...], open_it: Callable[[], Model]) -> Model:
        model = self._open.get(key)
        if model is None:
            model = self._open[key] = open_it()
        self._open.move_to_end(key)
        if len(self._open) > MAX_OPEN:
            _, least_used = self._open.popitem(last=False)
            if isinstance(least_used, HttpModel):
                await least_used.retire()
        return model


def open_own(
    provider: Provider, name: str, secrets: ProviderSecrets, *, patience: ModelPatience = STANDARD_PATIENCE
) -> Model:
    """The model of a session's own provider. An unusable provider gives a model whose every call fails with the reason:
    no other process could run the session either, and its turns must end."""
    try:
        return _open_own(provider, name, secrets, patience)
    except ModelNotUsable as error:
        return RefusingModel(name, error.message)


def _open_own(provider: Provider, name: str, secrets: ProviderSecrets, patience: ModelPatience) -> Model:
    own_provider.check_provider(provider)
    model = provider.model or name
    if not model:
        raise ModelNotUsable("The session's own provider needs a model: name one when you create the session.")
    base_url = own_provider.base_url_of(provider, model)
    headers = dict(secrets.headers)
    if provider.type == "azure" and secrets.api_key and not secrets.bearer_token:
        headers["api-key"] = secrets.api_key
    info = info_of(model, base_url, of_provider=own_provider.facts_of(provider))
    wire = own_provider.wire_of(provider)
    return HttpModel(
        wire_for(wire, model, base_url, info, thinking=thinking_field(base_url)),
        base_url=base_url,
        name=name,
        info=info,
        api_key=secrets.bearer_token or (secrets.api_key if provider.type != "azure" else None),
        headers=headers,
        query=own_provider.query_of(provider),
        origin=own_provider.ORIGIN,
        patience=patience,
    )


class RefusingModel:
    """Stands for a model that can't be called: every call fails with the reason."""

    def __init__(self, name: str, message: str) -> None:
        self._name = name
        self._message = message

    @property
    def name(self) -> str:
        return self._name

    @property
    def reasoning_source(self) -> str:
        return ""

    @property
    def info(self) -> ModelInfo:
        return UNKNOWN

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        yield self._refused()

    def _refused(self) -> list[Chunk]:
        raise ModelError("model_refused", self._message, retryable=False)


async def _close(model: Model) -> None:
    closing = getattr(model, "close", None)
    if closing is not None:
        await closing()


def _fingerprint(secret: str | ProviderSecrets) -> str:
    """A keyed digest that distinguishes secrets without revealing them."""
    return hashlib.blake2b(msgspec.json.encode(secret), key=_SALT).hexdigest()
