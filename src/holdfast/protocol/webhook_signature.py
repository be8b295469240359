"""Signs and verifies the requests of webhooks, by the convention of Standard Webhooks (https://www.standardwebhooks.com).

The signature covers the id, the time and the body, so none of them can be changed, and an old request can't be used
again for long.
"""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.events.webhook import Report

ID_HEADER: Final = "webhook-id"
TIME_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"

SECRET_PREFIX: Final = "whsec_"

TOLERANCE_SECONDS: Final = 300.0
"""How far the clocks of the server and the receiver may differ, and how old a request may be."""


MAX_ID_CHARACTERS: Final = 128
"""Ids are kept, to recognise a repeat."""


class WebhookNotVerified(Exception):
    """The request is not one of this webhook, or it is too old. Answer with status 400 or 401, and do not act on it."""


def secret_text(secret: bytes) -> str:
    """The secret as an owner sees it."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def signed_headers(message_id: str, body: bytes, secrets: Sequence[bytes], *, seconds: int) -> dict[str, str]:
    """The headers of a request, signed with each of the secrets."""
    return {
        ID_HEADER: message_id,
        TIME_HEADER: str(seconds),
        SIGNATURE_HEADER: " ".join(_signature(secret, message_id, str(seconds), body) for secret in secrets),
    }


def verified_id(
    key: bytes,
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: float,
    tolerance_seconds: float = TOLERANCE_SECONDS,
) -> str:
    """The id of a request that is signed with this key and in time. Raises `WebhookNotVerified`."""
    given = {name.lower(): value for name, value in headers.items()}
    message_id, sent, signatures = (given.get(name, "") for name in (ID_HEADER, TIME_HEADER, SIGNATURE_HEADER))
    if not (message_id and sent and signatures):
        raise WebhookNotVerified("The request lacks one of the headers webhook-id, -timestamp and -signature.")
    if not message_id.isprintable() or len(message_id) > MAX_ID_CHARACTERS:
        raise WebhookNotVerified(f"The header webhook-id has more than {MAX_ID_CHARACTERS} characters, or odd ones.")
    if not (sent.isascii() and sent.isdigit() and len(sent) <= 12):
        raise WebhookNotVerified("The header webhook-timestamp is not a number.")
    if abs(now - int(sent)) > tolerance_seconds:
        raise WebhookNotVerified("The request is too old, or the clocks differ too much.")
    expected = _signature(key, message_id, sent, body).encode()
    matches = [hmac.compare_digest(expected, given.encode("utf-8", "replace")) for given in signatures.split(" ")]
    if not any(matches):
        raise WebhookNotVerified("No signature of the request is one of this secret.")
    return message_id


def verify_webhook(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_seconds: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> Report:
    """The report of a request, once its signature is verified. `body` are the bytes as they came. `now` is the time in
    seconds since 1970. A receiver that has seen the report's `id` before drops the repeat. Raises
    `WebhookNotVerified`."""
    at = time.time() if now is None else now
    verified_id(_secret_bytes(secret), headers, body, now=at, tolerance_seconds=tolerance_seconds)
    try:
        return msgspec.json.decode(body, type=Report)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise WebhookNotVerified("The body is not a report of a webhook.") from None


def key_of(secret: str) -> bytes:
    """The key that a secret of another system stands for: the bytes in base64 after `whsec_`, or the text itself."""
    return _secret_bytes(secret) if secret.startswith(SECRET_PREFIX) else secret.encode()


def _signature(secret: bytes, message_id: str, sent: str, body: bytes) -> str:
    digest = hmac.new(secret, f"{message_id}.{sent}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def _secret_bytes(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise WebhookNotVerified("The secret is not one of a webhook: it looks like whsec_ and base64.") from None
