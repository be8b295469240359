"""The wire of OpenAI's chat completions: OpenAI's older models, OpenRouter, Ollama, vLLM and many more."""

from collections.abc import Mapping

import msgspec

from holdfast.models.chat_failure import ModelEndpoint
from holdfast.models.chat_request import MaxTokensField, MessageForm, ThinkingField, encode_request
from holdfast.models.chat_stream import ChatStream
from holdfast.models.info import UNKNOWN, ModelInfo
from holdfast.models.model import ModelRequest


class ChatCompletions(msgspec.Struct, frozen=True):
    """The wire for one model."""

    model: str
    max_tokens_field: MaxTokensField = "max_tokens"
    thinking_field: ThinkingField = "reasoning_effort"
    info: ModelInfo = UNKNOWN

    @property
    def path(self) -> str:
        return "/chat/completions"

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def encode(self, request: ModelRequest, *, reasoning_source: str) -> bytes:
        return encode_request(
            request,
            model=self.model,
            max_tokens_field=self.max_tokens_field,
            thinking_field=self.thinking_field,
            form=MessageForm(
                reasoning_source=reasoning_source,
                takes_images=self.info.takes_images,
                takes_cache_marks=self.info.takes_cache_marks,
            ),
        )

    def answer(self, endpoint: ModelEndpoint) -> ChatStream:
        return ChatStream(endpoint)
