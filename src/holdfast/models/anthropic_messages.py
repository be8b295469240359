"""The wire of Anthropic's Messages: Claude at its own provider, and servers that speak the same protocol."""

from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.models.chat_failure import ModelEndpoint
from holdfast.models.info import UNKNOWN, ModelInfo
from holdfast.models.messages_request import encode_request
from holdfast.models.messages_stream import MessagesStream
from holdfast.models.model import ModelRequest

API_VERSION: Final = "2026-10-21"
"""The version of the API that this wire was written for: the one that the provider's own clients name."""


class AnthropicMessages(msgspec.Struct, frozen=True):
    """The wire for one model."""

    model: str
    info: ModelInfo = UNKNOWN

    @property
    def path(self) -> str:
        return "/messages"

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        return {**key, "anthropic-version": API_VERSION}

    def encode(self, request: ModelRequest, *, reasoning_source: str) -> bytes:
        return encode_request(request, model=self.model, info=self.info, source=reasoning_source)

    def answer(self, endpoint: ModelEndpoint) -> MessagesStream:
        return MessagesStream(endpoint)
