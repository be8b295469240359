"""The endpoint that Copilot's clients bring with them in `COPILOT_API_URL`: chat completions, and a list of models.

Models of it are named `copilot/NAME`. It is asked with the client's own token, and Holdfast's keys never go there.

It imports aiohttp (a fifth of a second): import it when a model is wanted.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import msgspec

from holdfast.models.chat_failure import Origin
from holdfast.models.model import ModelError
from holdfast.models.openai_compatible import OpenAICompatible

PREFIX: Final = "copilot"
URL_VARIABLE: Final = "COPILOT_API_URL"
TOKEN_VARIABLES: Final = ("COPILOT_SDK_AUTH_TOKEN", "GH_TOKEN", "GITHUB_TOKEN")
"""Where the token is looked for, in this order. The first is where Copilot's clients put theirs."""

ORIGIN: Final = Origin(url=URL_VARIABLE, key="the token that the client was given, or COPILOT_SDK_AUTH_TOKEN")

LIST_SECONDS: Final = 300.0
"""How long a list of models is taken to be true."""

MAX_LISTS: Final = 64
"""Lists that are kept: one for each token."""

LIST_TIMEOUT_SECONDS: Final = 10.0
"""Somebody waits for the list, and it is short."""


class CopilotEndpoint:
    """The endpoint of one process. Sessions with a token of their own are asked for with that."""

    def __init__(
        self, base_url: str, token: str | None = None, *, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._base_url = base_url
        self._token = token
        self._seconds = seconds
        self._lists: dict[bytes, tuple[float, list[dict[str, Any]]]] = {}

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self | None:
        """The endpoint that the environment names, if it does."""
        base_url = environ.get(URL_VARIABLE, "").strip()
        tokens = (environ.get(variable, "").strip() for variable in TOKEN_VARIABLES)
        return cls(base_url, next(filter(None, tokens), None)) if base_url else None

    def __repr__(self) -> str:
        return "CopilotEndpoint(***)"

    def open(self, model: str, *, token: str | None = None) -> OpenAICompatible:
        """Nothing is called yet. Raises `ModelNotUsable`."""
        return OpenAICompatible(
            base_url=self._base_url,
            model=model,
            name=f"{PREFIX}/{model}",
            api_key=token or self._token,
            origin=ORIGIN,
        )

    async def list_models(self, *, token: str | None = None) -> list[dict[str, Any]]:
        """What can be asked there, as the endpoint tells it, the default first. Each has an `id`, a `name`, and
        `capabilities` with `supports` and `limits`. Raises `ModelError`."""
        whose = hashlib.sha256((token or self._token or "").encode()).digest()
        until, listed = self._lists.get(whose, (0.0, []))
        if not listed or self._seconds() >= until:
            listed = await self._ask_for_list(token)
            self._keep(whose, listed)
        return list(listed)

    async def _ask_for_list(self, token: str | None) -> list[dict[str, Any]]:
        async with OpenAICompatible(
            base_url=self._base_url,
            model="",
            name=PREFIX,
            api_key=token or self._token,
            origin=ORIGIN,
            read_timeout_seconds=LIST_TIMEOUT_SECONDS,
        ) as endpoint:
            body = await endpoint.get("/models")
        try:
            return _listed(msgspec.json.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            message = f"The list of models is not JSON: check that {URL_VARIABLE} is the API's address."
            raise ModelError("model_garbage", message, retryable=True) from None

    def _keep(self, whose: bytes, listed: list[dict[str, Any]]) -> None:
        self._lists.pop(whose, None)
        self._lists[whose] = (self._seconds() + LIST_SECONDS, listed)
        if len(self._lists) > MAX_LISTS:
            del self._lists[next(iter(self._lists))]


def _listed(answer: Any) -> list[dict[str, Any]]:
    """The models of an answer; what is not one, or comes twice, is left out."""
    found = answer.get("data", answer.get("models")) if isinstance(answer, dict) else answer
    models: dict[str, dict[str, Any]] = {}
    for entry in found if isinstance(found, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("id"), str) and entry["id"]:
            models.setdefault(entry["id"], _whole(entry))
    return list(models.values())


def _whole(entry: dict[str, Any]) -> dict[str, Any]:
    """With all that clients rely on."""
    name = entry.get("name")
    told = _object(entry.get("capabilities"))
    capabilities = {**told, "supports": _object(told.get("supports")), "limits": _object(told.get("limits"))}
    return {**entry, "name": name if isinstance(name, str) and name else entry["id"], "capabilities": capabilities}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
