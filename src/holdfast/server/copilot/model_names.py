"""Which models there are for clients, and what each is called here.

With an endpoint of Copilot's the models are those that it lists; clients name them as it does. Otherwise the configured
model is the one there is, and others of the same provider can be asked for by their name.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from holdfast.models.model import ModelError
from holdfast.server.errors import Conflict, Invalid

COPILOT: Final = "copilot/"
AUTO: Final = "auto"


class ModelNames:
    """`listed` asks Copilot's endpoint, or gives nothing where there is none."""

    def __init__(self, default: str, listed: Callable[[], Awaitable[list[dict[str, Any]]]]) -> None:
        self._default = default
        self._listed = listed

    async def listed(self) -> list[dict[str, Any]]:
        """As `models.list` tells them."""
        try:
            offered = await self._listed()
        except ModelError as error:
            raise Conflict("models_unavailable", error.message) from error
        return offered or [{"id": self._default, "name": self._default, "capabilities": {"supports": {}, "limits": {}}}]

    async def chosen(self, name: str | None) -> str:
        """The session's model for what a client asked for; None is the first there is. Raises `Invalid`."""
        wanted = None if name == AUTO else name
        try:
            offered = [found["id"] for found in await self._listed()]
        except ModelError as error:
            if wanted is not None:
                return COPILOT + wanted  # Whether there is such a model will be seen when it is asked.
            raise Conflict("models_unavailable", error.message) from error
        if not offered:
            return self._configured(wanted)
        if wanted is None:
            return f"{COPILOT}{offered[0]}"
        if wanted not in offered:
            raise _unavailable(wanted, offered)
        return COPILOT + wanted

    def _configured(self, wanted: str | None) -> str:
        provider, _, model = self._default.partition("/")
        if wanted is None or wanted in (self._default, model):
            return self._default
        if not model:
            raise _unavailable(wanted, [self._default])
        return wanted if "/" in wanted else f"{provider}/{wanted}"


def _unavailable(wanted: str, offered: list[str]) -> Invalid:
    return Invalid("model_unavailable", f"Model '{wanted}' is not available. Available models: {', '.join(offered)}")
