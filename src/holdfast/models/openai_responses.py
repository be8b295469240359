"""The wire of OpenAI's Responses. The provider stores nothing: each call carries the whole conversation, with the
reasoning in the encrypted form in which it came."""

from collections.abc import Mapping

import msgspec

from holdfast.models.chat_failure import ModelEndpoint
from holdfast.models.info import UNKNOWN, ModelInfo
from holdfast.models.model import ModelRequest
from holdfast.models.responses_request import encode_request
from holdfast.models.responses_stream import ResponsesStream


class OpenAIResponses(msgspec.Struct, frozen=True):
    """The wire for one model."""

    model: str
    info: ModelInfo = UNKNOWN
    summary: str | None = "auto"
    """The kind of summary of the reasoning to ask for; None for no summary. Reasoning goes back without one as well."""

    @property
    def path(self) -> str:
        return "/responses"

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def encode(self, request: ModelRequest, *, reasoning_source: str) -> bytes:
        return encode_request(request, model=self.model, info=self.info, summary=self.summary, source=reasoning_source)

    def answer(self, endpoint: ModelEndpoint) -> ResponsesStream:
        return ResponsesStream(endpoint)
