"""The endpoint that Copilot's clients name in `COPILOT_API_URL`: chat completions, and a list of models.

Its models are named `copilot/NAME`. Calls carry the client's own token; Holdfast's keys never go there.

It imports aiohttp (a fifth of a second): import it only where a model is opened.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import msgspec

from holdfast.models.address import host_of
from holdfast.models.call_wait import STANDARD_PATIENCE, ModelPatience
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.chat_failure import Origin
from holdfast.models.facts import NOTHING, info_of
from holdfast.models.http_model import HttpModel
from holdfast.models.model import ModelError
from holdfast.models.stated_facts import StatedFacts, tokens_in, window_of

PREFIX: Final = "copilot"
URL_VARIABLE: Final = "COPILOT_API_URL"
TOKEN_VARIABLES: Final = ("COPILOT_SDK_AUTH_TOKEN", "GH_TOKEN", "GITHUB_TOKEN")
"""The environment variables that may hold the token, in this order. Copilot's clients set the first."""

ORIGIN: Final = Origin(url=URL_VARIABLE, key="the token that the client was given, or COPILOT_SDK_AUTH_TOKEN")

LIST_SECONDS: Final = 300.0
"""How long a list of models stays cached."""

MAX_LISTS: Final = 64
"""Cached lists, one for each token."""

LIST_TIMEOUT_SECONDS: Final = 10.0
"""The timeout for the list, which is short and has a caller waiting for it."""


class CopilotEndpoint:
    """The endpoint of one process. A session with its own token uses that token."""

    def __init__(
        self, base_url: str, token: str | None = None, *, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._base_url = base_url
        self._token = token
        self._seconds = seconds
        self._lists: dict[bytes, tuple[float, list[dict[str, Any]]]] = {}

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self | None:
        """The endpoint that the environment names, if any."""
        base_url = environ.get(URL_VARIABLE, "").strip()
        tokens = (environ.get(variable, "").strip() for variable in TOKEN_VARIABLES)
        return cls(base_url, next(filter(None, tokens), None)) if base_url else None

    def __repr__(self) -> str:
        return "CopilotEndpoint(***)"

    def open(
        self,
        model: str,
        *,
        token: str | None = None,
        patience: ModelPatience = STANDARD_PATIENCE,
        stated: StatedFacts = NOTHING,
    ) -> HttpModel:
        """The model, without calling it yet. Raises `ModelNotUsable`."""
        host_of(self._base_url)
        info = info_of(model, self._base_url, of_provider=self._said_of(model, token), stated=stated)
        return HttpModel(
            ChatCompletions(model, info=info),
            base_url=self._base_url,
            name=f"{PREFIX}/{model}",
            info=info,
            api_key=token or self._token,
            origin=ORIGIN,
            patience=patience,
        )

    async def list_models(self, *, token: str | None = None) -> list[dict[str, Any]]:
        """The endpoint's models in its own order, the default first. Each has an `id`, a `name`, and `capabilities`
        with `supports` and `limits`. Raises `ModelError`."""
        token_digest = self._digest(token)
        until, models = self._lists.get(token_digest, (0.0, []))
        if not models or self._seconds() >= until:
            models = await self._fetch_list(token)
            self._keep(token_digest, models)
        return list(models)

    def _said_of(self, model: str, token: str | None) -> StatedFacts:
        """The facts about a model in the list of models, if this process has read it."""
        _, models = self._lists.get(self._digest(token), (0.0, []))
        entry = next((entry for entry in models if entry["id"] == model), None)
        return NOTHING if entry is None else _facts_in(entry)

    def _digest(self, token: str | None) -> bytes:
        return hashlib.sha256((token or self._token or "").encode()).digest()

    async def _fetch_list(self, token: str | None) -> list[dict[str, Any]]:
        async with HttpModel(
            ChatCompletions(""),
            base_url=self._base_url,
            name=PREFIX,
            api_key=token or self._token,
            origin=ORIGIN,
            patience=ModelPatience(first_byte_seconds=LIST_TIMEOUT_SECONDS, silence_seconds=LIST_TIMEOUT_SECONDS),
        ) as endpoint:
            body = await endpoint.get("/models")
        try:
            return _models_in(msgspec.json.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            message = f"The list of models is not JSON: check that {URL_VARIABLE} is the API's address."
            raise ModelError("model_garbage", message, retryable=True) from None

    def _keep(self, token_digest: bytes, models: list[dict[str, Any]]) -> None:
        self._lists.pop(token_digest, None)
        self._lists[token_digest] = (self._seconds() + LIST_SECONDS, models)
        if len(self._lists) > MAX_LISTS:
            del self._lists[next(iter(self._lists))]


def _models_in(response: Any) -> list[dict[str, Any]]:
    """The models of a response, without malformed entries and duplicates."""
    entries = response.get("data", response.get("models")) if isinstance(response, dict) else response
    models: dict[str, dict[str, Any]] = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("id"), str) and entry["id"]:
            models.setdefault(entry["id"], _completed(entry))
    return list(models.values())


def _completed(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry with all the fields that clients rely on."""
    name = entry.get("name")
    stated = _object(entry.get("capabilities"))
    capabilities = {**stated, "supports": _object(stated.get("supports")), "limits": _object(stated.get("limits"))}
    return {**entry, "name": name if isinstance(name, str) and name else entry["id"], "capabilities": capabilities}


def _facts_in(entry: dict[str, Any]) -> StatedFacts:
    supports, limits = entry["capabilities"]["supports"], entry["capabilities"]["limits"]
    context, prompt, output = (
        tokens_in(limits.get(name)) for name in ("max_context_window_tokens", "max_prompt_tokens", "max_output_tokens")
    )
    return StatedFacts(
        model=entry["id"],
        window=window_of(context, prompt, output),
        max_output=output,
        images=_switch(supports.get("vision")),
        tools=_switch(supports.get("tool_calls")),
    )


def _switch(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
