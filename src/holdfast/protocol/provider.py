"""The provider that a session's client brings along."""

from typing import Any, Literal

import msgspec


class OwnProvider(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An API for the model calls of one session, with its client's key for it."""

    base_url: str
    type: Literal["openai", "azure"] = "openai"
    """`azure` is OpenAI at Azure, which has other URLs and sends the key in another header."""
    wire: str = "chat"
    """The protocol of the API: `chat` (chat completions), `responses` (OpenAI's Responses) or `messages` (Anthropic's
    Messages)."""
    model: str | None = None
    """The API's own name of the model, if it differs from the session's."""
    api_version: str | None = None
    """Azure's version of the API."""
    api_key: str | None = None
    """It is stored separately, never in the log."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={self.base_url!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("base_url", self.base_url)]
