"""Refusals of calls that are too long, in the words of many servers."""

import json
from typing import Any

import pytest

from holdfast.models.chat_failure import ModelEndpoint
from holdfast.models.context_limit import ContextLimit, context_limit

ENDPOINT = ModelEndpoint(host="model.test")


def said(message: str, **more: Any) -> dict[str, Any]:
    return {"message": message, "type": "invalid_request_error", **more}


TOO_LONG = [
    (said("This model's maximum context length is 128000 tokens. However, your messages resulted in 130000."), 128_000),
    (said("Your input exceeds the context window of this model.", code="context_length_exceeded"), None),
    (said("This endpoint's maximum context length is 200,000 tokens. However, you requested about 250000."), 200_000),
    (said("'max_tokens' is too large: 900. This model's maximum context length is 4096 tokens and so on."), 4096),
    (said("You passed 4097 input tokens. However, the model's context length is only 4096 tokens."), 4096),
    ({"message": "The request exceeds the available context size.", "n_prompt_tokens": 9000, "n_ctx": 8192}, 8192),
    (said("request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it"), 8192),
    ({"type": "exceed_context_size_error", "message": "no room"}, None),
    (said("prompt is too long: 205000 tokens > 200000 maximum"), 200_000),
    (
        said("prompt token count of 140652 exceeds the limit of 128000", code="model_max_prompt_tokens_exceeded"),
        128_000,
    ),
    (said("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."), 1_048_576),
    (said("Prompt contains 40000 tokens, too large for model with 32768 maximum context length"), 32_768),
    (said("Input is too long for requested model."), None),
    (said("Please reduce the length of the messages or completion."), None),
    (said("Provider returned error", metadata={"raw": '{"message":"maximum context length is 9000 tokens"}'}), 9000),
    ("The prompt exceeds this model's maximum context length of 512 tokens", 512),
    ("maximum context length is 7 tokens", None),
]


@pytest.mark.parametrize(("error", "window"), TOO_LONG)
def test_too_long_call_is_recognized_with_its_window(error: Any, window: int | None) -> None:
    assert context_limit(error) == ContextLimit(window)
    refused = ENDPOINT.from_status(400, json.dumps({"error": error}).encode())
    assert (refused.code, refused.retryable, refused.window) == ("model_context_exceeded", False, window)
    in_stream = ENDPOINT.from_error(error)
    assert (in_stream.code, in_stream.window) == ("model_context_exceeded", window)


@pytest.mark.parametrize(
    "error",
    [
        None,
        5,
        [],
        {},
        said("max_tokens is too large: 99999. This model supports at most 16384 completion tokens."),
        said("Unsupported parameter: 'context_window'."),
        said("Request too large: limit 30000 tokens per minute, requested 40000."),
        said("The tool name is too long."),
        {"message": 3, "code": 400, "metadata": {"raw": None}},
    ],
)
def test_other_refusals_are_not_taken_for_too_long_calls(error: Any) -> None:
    assert context_limit(error) is None


@pytest.mark.parametrize(("status", "code"), [(429, "model_rate_limited"), (401, "model_unauthorized")])
def test_status_decides_before_the_words(status: int, code: str) -> None:
    body = json.dumps({"error": said("Please reduce the length of the messages.")}).encode()
    assert ENDPOINT.from_status(status, body).code == code


def test_refusal_through_a_router_quotes_the_provider_behind_it() -> None:
    body = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": "no such tool"}}}
    assert ENDPOINT.from_status(400, json.dumps(body).encode()).message.endswith(
        "Provider returned error: no such tool"
    )
