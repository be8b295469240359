"""Errors of the HTTP surface: one JSON shape with a stable code and a sentence for people.

`ApiError` is a refusal of this surface itself: identity, origin, size, rate. Refusals of operations are in
`server/errors.py`; `api_error_of` is the one table that maps every error to a status. Handlers do not catch.
"""

import math
from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from holdfast.files.errors import FilesUnavailable
from holdfast.models.errors import ModelNotUsable
from holdfast.protocol.error import ErrorBody, Problem
from holdfast.server.errors import Conflict, Invalid, NotFound, OperationError
from holdfast.store.errors import StoreError

STORE_RETRY_SECONDS: Final = 1.0


class ApiError(Exception):
    """A request is refused. Nothing was stored."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        problem = Problem(code=self.code, message=self.message, retry_after=self.retry_after)
        return msgspec.json.encode(ErrorBody(error=problem))

    def response(self) -> Response:
        headers = dict(self.headers)
        if self.retry_after is not None:
            headers["retry-after"] = str(math.ceil(self.retry_after))
        return Response(self.body(), self.status, headers, media_type="application/json")


_STATUS_BY_CODE: Final[Mapping[str, int]] = {
    "queue_full": 429,
    "too_many_messages": 429,
    "too_many_turns": 429,
    "too_many_sessions": 403,
    "storage_full": 403,
    "too_many_permissions": 403,
    "too_many_webhooks": 403,
    "webhooks_off": 403,
    "too_many_tests": 429,
    "too_many_files": 403,
    "files_full": 403,
    "too_many_uploads": 429,
    "file_too_large": 413,
    "model_not_allowed": 403,
    "tier_unknown": 400,
    "reset_refused": 400,
}
"""Codes whose status does not follow from the kind of the error."""

_RETRY_BY_CODE: Final[Mapping[str, float]] = {"too_many_turns": 5.0}
"""Seconds after which a retry is worth while. When a turn ends is unknown; most end soon."""

_HTTP_CODES: Final[Mapping[int, tuple[str, str]]] = {
    404: ("not_found", "There is nothing at this address."),
    405: ("method_not_allowed", "This address does not know that method."),
}


def api_error_of(error: BaseException) -> ApiError:
    """The error as a client gets it. An unexpected exception gives away no detail."""
    match error:
        case ApiError():
            return error
        case OperationError():
            status, retry = _STATUS_BY_CODE.get(error.code, _status(error)), _RETRY_BY_CODE.get(error.code)
            return ApiError(status, error.code, error.message, retry_after=retry)
        case ModelNotUsable():
            return ApiError(422, "model_not_usable", error.message)
        case StoreError():
            # Its own message names files and disks: that is for the operator, in the log.
            message = "The database does not answer at the moment. Try again; what was accepted before is kept."
            return ApiError(503, error.code, message, retry_after=STORE_RETRY_SECONDS)
        case FilesUnavailable():
            message = "The files can't be reached at the moment. Try again; what was accepted before is kept."
            return ApiError(503, error.code, message, retry_after=STORE_RETRY_SECONDS)
        case HTTPException(status_code=status) if status in _HTTP_CODES:
            return ApiError(status, *_HTTP_CODES[status], headers=error.headers)
        case _:
            return ApiError(500, "internal_error", "Holdfast has a bug. What was accepted before is kept.")


def _status(error: OperationError) -> int:
    match error:
        case NotFound():
            return 404
        case Invalid():
            return 422
        case Conflict():
            return 409
        case _:
            return 400
