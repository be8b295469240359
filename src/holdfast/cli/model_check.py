"""The check of a model by `holdfast doctor`: one tiny call, and if it fails, what is wrong in words.

It imports every kind of model, and with them aiohttp: import it only where a model is checked.
"""

import difflib
import os
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from holdfast.cli.doctor_finding import Finding
from holdfast.cli.runtime import check_thinking, open_configured_model
from holdfast.config import Config
from holdfast.models.address import host_of
from holdfast.models.chat_failure import API_NAMES
from holdfast.models.copilot_endpoint import CopilotEndpoint
from holdfast.models.http_model import HttpModel
from holdfast.models.info import ModelInfo
from holdfast.models.model import ModelError, ModelRequest, UserText
from holdfast.models.providers import PROVIDERS, Wire, base_url_of, is_own_address

CALL_SECONDS: Final = 30.0
"""How long the call may take: a local server may have to load the model first."""

ANSWER_TOKENS: Final = 16
"""The longest answer: the least that every provider accepts."""

NEAR_NAMES: Final = 3

PATHS: Final[dict[Wire, str]] = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}

LISTS: Final = {"/messages": "/models?limit=1000"}
"""Where a protocol lists models, if not at /models: Anthropic's list has pages, and its first is short."""

TINY: Final = ModelRequest(messages=(UserText("Answer with one word: hello"),), max_tokens=ANSWER_TOKENS)

AWAY: Final = ("model_unreachable", "model_timeout")
BUSY: Final = ("model_rate_limited", "model_unavailable")


async def check_model(config: Config, name: str, *, title: str = "Model") -> Finding:
    """Whether the model answers. Raises `ModelNotUsable` if it can't even be called."""
    check_thinking(config)
    config = msgspec.structs.replace(config, model_first_byte_seconds=CALL_SECONDS, model_silence_seconds=CALL_SECONDS)
    model = open_configured_model(config, name)
    endpoint = CopilotEndpoint.from_environ(os.environ)
    if not isinstance(model, HttpModel):
        return Finding(name=title, ok=True, found=f"{name} (built in)")
    async with model:
        if name.startswith("copilot/") and endpoint is not None:
            return await _copilot_model(name, endpoint, title=title)
        error = await _failure_of(model)
        if error is None:
            return Finding(name=title, ok=True, found=f"{name} answers ({_facts(model.info)})")
        found, advice = await _Diagnosis(config, name, model).explain(error)
    return Finding(name=title, ok=False, found=f"{name}: {found}", advice=advice)


async def _failure_of(model: HttpModel) -> ModelError | None:
    try:
        async for _ in model.stream(TINY):
            pass
    except ModelError as error:
        return error
    return None


def _facts(info: ModelInfo) -> str:
    window = f"{info.window:,} tokens{'' if info.is_known else ', as is assumed of unknown models'}"
    return f"window: {window}; price: {'unknown' if info.price is None else 'known'}"


class _Diagnosis:
    """Finds out why a call failed, by asking the same address, with the same key, in other ways."""

    def __init__(self, config: Config, name: str, model: HttpModel) -> None:
        self._config = config
        self._name = name
        self._model = model
        prefix, _, self._model_name = name.partition("/")
        self._provider = PROVIDERS[prefix]
        self._is_configured = prefix == config.model.partition("/")[0]
        given = config.model_base_url if self._is_configured else None
        self._url = given or base_url_of(self._provider, os.environ) or self._provider.base_url
        self._host = host_of(self._url)

    async def explain(self, error: ModelError) -> tuple[str, str]:
        """What is wrong, and what to do."""
        if error.code in AWAY:
            return error.message, "Check the address and the network."
        if error.code in BUSY:
            return error.message, "Try again later."
        if error.code == "model_context_exceeded":
            return error.message, "Give the model a larger window, where it is served."
        wire = await self._spoken()
        if wire is not None:
            found = f"{self._host} speaks {API_NAMES[PATHS[wire]]}, and not {API_NAMES[self._model.path]}."
            return found, f"Set HOLDFAST_MODEL_WIRE={wire}."
        if error.code == "model_unauthorized":
            return self._about_key(error)
        if not self._is_about_model(error):
            return error.message, "Check the model's account and settings."
        listed = await self._listed()
        if listed and self._model_name not in listed:
            return f"{self._host} has no model {self._model_name}.", _near(self._model_name, listed)
        return error.message, "Check the model's name and the address."

    def _is_about_model(self, error: ModelError) -> bool:
        """Whether the model may be what the server refuses: others refuse a name that they have no list for."""
        if error.code == "model_garbage" or error.status in (404, 405):
            return True
        return error.status in (400, 422) and self._model_name.lower() in error.message.lower()

    def _about_key(self, error: ModelError) -> tuple[str, str]:
        variable = self._provider.key_variable
        is_configured = self._is_configured and self._config.model_api_key is not None
        if is_configured or os.environ.get(variable, "").strip():
            return error.message, "It must be a key of this provider."
        return f"{self._host} asks for a key, and none is set.", f"Set {variable}."

    async def _spoken(self) -> Wire | None:
        """Another protocol in which the server answers the call. A provider's own address is known to speak its own."""
        if not self._is_configured or is_own_address(self._provider, self._url):
            return None
        for wire, path in PATHS.items():
            if path == self._model.path:
                continue
            other = open_configured_model(msgspec.structs.replace(self._config, model_wire=wire), self._name)
            assert isinstance(other, HttpModel)
            async with other:
                if await _failure_of(other) is None:
                    return wire
        return None

    async def _listed(self) -> list[str]:
        """The names in the provider's list of models; empty if it has none."""
        try:
            body = await self._model.get(LISTS.get(self._model.path, "/models"))
            return list(_names_in(msgspec.json.decode(body)))
        except (ModelError, ValueError, RecursionError):
            return []


def _names_in(listing: Any) -> Iterable[str]:
    entries = listing.get("data", listing.get("models")) if isinstance(listing, dict) else listing
    for entry in entries if isinstance(entries, list) else ():
        name = entry.get("id", entry.get("name")) if isinstance(entry, dict) else entry
        if isinstance(name, str):
            yield name


def _near(name: str, listed: list[str]) -> str:
    near = difflib.get_close_matches(name, listed, n=NEAR_NAMES, cutoff=0.5)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    some = ", ".join(listed[:NEAR_NAMES])
    return f"It has {some}{f' and {len(listed) - NEAR_NAMES} more' if len(listed) > NEAR_NAMES else ''}."


async def _copilot_model(name: str, endpoint: CopilotEndpoint, *, title: str) -> Finding:
    advice = "Check COPILOT_API_URL, and the token in COPILOT_SDK_AUTH_TOKEN, GH_TOKEN or GITHUB_TOKEN."
    try:
        offered = [str(model["id"]) for model in await endpoint.list_models()]
    except ModelError as error:
        return Finding(name=title, ok=False, found=f"{name}: {error.message}", advice=advice)
    model = name.removeprefix("copilot/")
    if model not in offered:
        found = f"{name}: the endpoint in COPILOT_API_URL answers, but does not offer this model."
        near = f"Choose a model that it offers. {_near(model, offered)}"
        return Finding(name=title, ok=False, found=found, advice=near)
    return Finding(name=title, ok=True, found=f"{name}: the endpoint in COPILOT_API_URL offers it")
