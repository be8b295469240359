"""The models that clients can choose, and the name that a session stores for each.

With a Copilot endpoint, the models are those that the endpoint lists, under its names. Without one, only the configured
model is listed, and clients may name other models of the same provider.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from holdfast.models.model import ModelError
from holdfast.server.errors import Conflict, Invalid

COPILOT: Final = "copilot/"
AUTO: Final = "auto"


class ModelNames:
    """Translates model names. `listed` asks the Copilot endpoint, and returns an empty list where none is
    configured."""

    def __init__(self, default: str, listed: Callable[[], Awaitable[list[dict[str, Any]]]]) -> None:
        self._default = default
        self._listed = listed

    async def listed(self) -> list[dict[str, Any]]:
        """The models in the form that `models.list` returns."""
        try:
            offered = await self._listed()
        except ModelError as error:
            raise Conflict("models_unavailable", error.message) from error
        return offered or [{"id": self._default, "name": self._default, "capabilities": {"supports": {}, "limits": {}}}]

    async def chosen(self, name: str | None) -> str:
        """The model that a session stores for a client's choice; None or "auto" chooses the first. Raises `Invalid`."""
        requested = None if name == AUTO else name
        try:
            offered = [model["id"] for model in await self._listed()]
        except ModelError as error:
            if requested is not None:
                return COPILOT + requested  # The first model call shows whether this model exists.
            raise Conflict("models_unavailable", error.message) from error
        if not offered:
            return self._configured(requested)
        if requested is None:
            return f"{COPILOT}{offered[0]}"
        if requested not in offered:
            raise _unavailable(requested, offered)
        return COPILOT + requested

    def _configured(self, requested: str | None) -> str:
        provider, _, model = self._default.partition("/")
        if requested is None or requested in (self._default, model):
            return self._default
        if not model:
            raise _unavailable(requested, [self._default])
        return requested if "/" in requested else f"{provider}/{requested}"


def _unavailable(requested: str, offered: list[str]) -> Invalid:
    return Invalid("model_unavailable", f"Model '{requested}' is not available. Available models: {', '.join(offered)}")
