"""Turns failures of model calls into a `ModelError` that says what to do.

Text of the endpoint is redacted, made printable and cut short before it becomes part of a message.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from holdfast.models.context_limit import context_limit
from holdfast.models.model import ModelError

MAX_QUOTE_CHARACTERS = 500
"""Enough for a provider's sentence, short enough for a log line."""

_PASSING_STATUSES = frozenset({408, 425})
_REFUSING_CODES = (
    "bio_policy",
    "data_residency_mismatch",
    "empty_image_file",
    "failed_to_download_image",
    "image_content_policy_violation",
    "image_file_not_found",
    "image_file_too_large",
    "image_parse_error",
    "image_too_large",
    "image_too_small",
    "invalid_base64_image",
    "invalid_image",
    "invalid_image_format",
    "invalid_image_mode",
    "invalid_image_url",
    "invalid_prompt",
    "misalignment_policy_violation",
    "unsupported_image_media_type",
)
"""The codes of failed responses that fail again however often the call is made."""

_STATUS_OF_CODE = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "invalid_api_key": 401,
    "authentication_error": 401,
    "permission_error": 403,
    "billing_error": 402,
    "not_found_error": 404,
    "timeout_error": 504,
    "api_error": 500,
    "overloaded_error": 529,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "content_filter": 400,
    "server_error": 500,
    **dict.fromkeys(_REFUSING_CODES, 400),
}


MIN_SECRET_CHARACTERS = 4
"""Shorter secrets are not redacted: they protect nothing, and every other word contains them."""

API_NAMES: Final = {
    "/chat/completions": "chat completions",
    "/messages": "Anthropic's Messages",
    "/responses": "OpenAI's Responses",
}
"""The API at each path, in words for people."""

_NO_ROUTE: Final = re.compile(
    "not found|no route|invalid url|unexpected endpoint|unknown endpoint|method not allowed|cannot post",
    re.IGNORECASE,
)
"""The words of servers for a path that they don't have."""

_TRY_AGAIN: Final = re.compile(r"try again in (\d+(?:\.\d+)?) ?(ms|s)\b", re.IGNORECASE)
"""The backoff in a rate limit that arrives in the middle of an answer, where no header can carry it."""


class Origin(msgspec.Struct, frozen=True):
    """The settings that an endpoint's address and key come from: what to check when they are wrong."""

    url: str = "--model-base-url"
    key: str = "the provider's key variable, such as OPENAI_API_KEY or OPENROUTER_API_KEY"


class ModelEndpoint:
    """The endpoint of a call: its name for messages, and the secrets to redact from its responses."""

    def __init__(
        self, *, host: str, secrets: Iterable[str] = (), origin: Origin | None = None, path: str = "/chat/completions"
    ) -> None:
        self.host = host
        self.path = path
        self._origin = origin or Origin()
        self._secrets = sorted(_spellings(secrets), key=len, reverse=True)

    def hiding(self, secrets: Iterable[str]) -> "ModelEndpoint":
        """The same endpoint for a call that carries more secrets."""
        return ModelEndpoint(host=self.host, secrets=(*self._secrets, *secrets), origin=self._origin, path=self.path)

    def quote(self, text: str) -> str:
        """Text of the endpoint, redacted, printable and short."""
        for secret in self._secrets:
            text = text.replace(secret, "[redacted]")
        text = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
        return text if len(text) <= MAX_QUOTE_CHARACTERS else text[: MAX_QUOTE_CHARACTERS - 1] + "…"

    def unreachable(self, reason: str) -> ModelError:
        message = (
            f"Can't reach the model at {self.host} ({self.quote(reason)}): is it running? check {self._origin.url}."
        )
        return ModelError("model_unreachable", message, retryable=True)

    def connect_timeout(self, seconds: float) -> ModelError:
        message = f"The model at {self.host} did not accept a connection within {seconds:g} s."
        return ModelError("model_timeout", message, retryable=True)

    def first_byte_timeout(self, seconds: float) -> ModelError:
        message = (
            f"The model at {self.host} did not begin its answer within {seconds:g} s: a model that reads a long "
            f"conversation slowly needs a larger HOLDFAST_MODEL_FIRST_BYTE_SECONDS."
        )
        return ModelError("model_timeout", message, retryable=True)

    def silence(self, seconds: float) -> ModelError:
        message = (
            f"The model at {self.host} began its answer and then sent nothing for {seconds:g} s: a model that pauses "
            f"longer needs a larger HOLDFAST_MODEL_SILENCE_SECONDS."
        )
        return ModelError("model_timeout", message, retryable=True)

    def cut(self) -> ModelError:
        message = f"The connection to the model at {self.host} ended before its answer did."
        return ModelError("model_cut", message, retryable=True)

    def garbage(self, what: str, *, status: int | None = None) -> ModelError:
        message = f"The model at {self.host} answered with {what}: check that {self._origin.url} is the API's address."
        return ModelError("model_garbage", message, retryable=True, status=status)

    def other_api(self, path: str) -> ModelError:
        """The error for an answer of another API than the one that was called."""
        return self._wrong_api(f"answered as {API_NAMES[path]} would")

    def from_status(self, status: int, body: bytes, *, retry_after_seconds: float | None = None) -> ModelError:
        """The error for a response with this HTTP status and body."""
        error = _error_in(body)
        said = _plain_text(body) if error is None else error
        if status in (404, 405) and _means_no_route(_sentence_of(said)):
            return self._wrong_api(f"has nothing at {self.path}", status=status)
        return self._failure(status, said, code=_code_of(error), retry_after_seconds=retry_after_seconds)

    def from_error(self, error: Any) -> ModelError:
        """The error for an `error` object that arrives in place of (the rest of) an answer."""
        code = _code_of(error)
        return self._failure(_status_of(error, code), error, code=code, retry_after_seconds=_try_again_seconds(error))

    def _failure(self, status: int, error: Any, *, code: str, retry_after_seconds: float | None = None) -> ModelError:
        said = self.quote(_sentence_of(error))
        ending = f": {said}" if said else "."
        if status in (401, 403):
            return self._unauthorized(status)
        if 300 <= status < 400:
            return self._redirected(status)
        if status == 429:
            return ModelError(
                "model_rate_limited",
                f"The model at {self.host} is limiting how often it may be called{ending}",
                retryable=code != "insufficient_quota",
                status=status,
                retry_after_seconds=retry_after_seconds,
            )
        if (limit := context_limit(error)) is not None:
            message = f"The call is too long for the model at {self.host}{ending}"
            window = limit.window
            return ModelError("model_context_exceeded", message, retryable=False, status=status, window=window)
        if status >= 500 or status in _PASSING_STATUSES:
            message = f"The model at {self.host} is not available (status {status}){ending}"
            wait = retry_after_seconds
            return ModelError("model_unavailable", message, retryable=True, status=status, retry_after_seconds=wait)
        message = f"The model at {self.host} refused the call (status {status}){ending}"
        return ModelError("model_refused", message, retryable=False, status=status)

    def _unauthorized(self, status: int) -> ModelError:
        """Leaves out the provider's own message, which often quotes a part of the key."""
        message = f"The model at {self.host} does not accept the key (status {status}): check {self._origin.key}."
        return ModelError("model_unauthorized", message, retryable=False, status=status)

    def _wrong_api(self, what: str, *, status: int | None = None) -> ModelError:
        ending = f" (status {status})" if status else ""
        speaks = f"an API that speaks {API_NAMES[self.path]}" if self.path in API_NAMES else "the model's API"
        message = f"The model at {self.host} {what}{ending}: check that {self._origin.url} is the address of {speaks}."
        return ModelError("model_refused", message, retryable=False, status=status)

    def _redirected(self, status: int) -> ModelError:
        message = (
            f"The model at {self.host} redirects to another address (status {status}), which Holdfast does not follow "
            f"because it would send the key there: set {self._origin.url} to the final address."
        )
        return ModelError("model_refused", message, retryable=False, status=status)


def _spellings(secrets: Iterable[str]) -> set[str]:
    """Each secret in the forms that a response may quote: trimmed, without `Bearer`, and escaped as in JSON."""
    spellings = {secret.strip() for secret in secrets}
    spellings |= {secret.removeprefix("Bearer ").strip() for secret in spellings}
    spellings |= {json.dumps(secret)[1:-1] for secret in spellings}
    return {secret for secret in spellings if len(secret) >= MIN_SECRET_CHARACTERS}


def retry_after_seconds(headers: Mapping[str, str], *, now: float) -> float | None:
    """The backoff that the provider asks for: `Retry-After` in seconds or as a date, or OpenAI's `retry-after-ms`."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = headers.get("Retry-After")
    if value is None:
        return None
    if (seconds := _number(value)) is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "nan")
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None


def _error_in(body: bytes) -> Any:
    """The `error` of a JSON body, or the body itself when it is an object without one; None if it is not JSON."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        return value.get("error") or value
    return value


def _means_no_route(said: str) -> bool:
    """Whether a server says with a 404 that it lacks the path, and not the model or anything else."""
    return not said or ("model" not in said.lower() and _NO_ROUTE.search(said) is not None)


def _try_again_seconds(error: Any) -> float | None:
    match = _TRY_AGAIN.search(_sentence_of(error))
    return None if match is None else float(match[1]) / (1000 if match[2].lower() == "ms" else 1)


def _sentence_of(error: Any) -> str:
    match error:
        case str():
            return error
        case {"message": str(message), "metadata": {"raw": str(raw)}} if message and raw:  # OpenRouter
            return f"{message}: {raw}"
        case {"message": str(message)} if message:
            return message
        case {"detail": str(detail)}:
            return detail
        case dict() | list():
            return json.dumps(error, ensure_ascii=False)
        case _:
            return ""


def _code_of(error: Any) -> str:
    if not isinstance(error, dict):
        return ""
    named = (error.get("code"), error.get("type"))
    return next((name for name in named if isinstance(name, str) and name in _STATUS_OF_CODE), "")


def _status_of(error: Any, code: str) -> int:
    """The HTTP status of an error object; without one, an error in the middle of an answer counts as a 503."""
    match error:
        case {"code": int(status)} | {"status": int(status)} if 400 <= status < 600:
            return status
        case {"code": str(status)} if status.isdecimal() and 400 <= int(status[:4]) < 600:
            return int(status)
        case _:
            return _STATUS_OF_CODE.get(code, 503)


def _plain_text(body: bytes) -> str:
    """The text of a body that is not JSON; empty for a web page."""
    text = body.decode("utf-8", "replace").strip()
    return "" if text.startswith("<") else text
