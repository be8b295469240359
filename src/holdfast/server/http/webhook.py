"""Signatures of webhooks, as Standard Webhooks has them: an HMAC over id, timestamp and body, under a secret that both
sides know. Pure."""

import base64
import hmac
from collections.abc import Mapping
from typing import Final

TOLERANCE_SECONDS: Final = 300
"""How far the clocks of two systems may differ, and how old a message may be."""

MAX_ID_CHARACTERS: Final = 128

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"

_PREFIX: Final = "whsec_"


class SignatureRefused(Exception):
    """The message is not one of a system with the secret, or it is too old or from the future."""


def key_of(secret: str) -> bytes:
    """The key that a secret stands for: the bytes in base64 after `whsec_`, or the text itself."""
    is_encoded = secret.startswith(_PREFIX)
    return base64.b64decode(secret.removeprefix(_PREFIX), validate=True) if is_encoded else secret.encode()


def signed_headers(key: bytes, message_id: str, body: bytes, *, now: float) -> dict[str, str]:
    """The headers of a message to another system."""
    timestamp = str(int(now))
    signature = _signature(key, message_id, timestamp, body)
    return {ID: message_id, TIMESTAMP: timestamp, SIGNATURE: f"v1,{signature}"}


def verified_id(key: bytes, headers: Mapping[str, str], body: bytes, *, now: float) -> str:
    """The id of a message, if it is signed and in time. Raises `SignatureRefused`."""
    message_id, timestamp = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    if not message_id.isprintable() or not 0 < len(message_id) <= MAX_ID_CHARACTERS:
        raise SignatureRefused(f"The header {ID} is missing, or has more than {MAX_ID_CHARACTERS} characters.")
    if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 12:
        raise SignatureRefused(f"The header {TIMESTAMP} is missing, or not a number of seconds.")
    expected = _signature(key, message_id, timestamp, body).encode()
    given = [each.removeprefix("v1,").encode() for each in headers.get(SIGNATURE, "").split(" ") if each[:3] == "v1,"]
    if not any(hmac.compare_digest(expected, each) for each in given):
        raise SignatureRefused(f"No signature in the header {SIGNATURE} is right.")
    if abs(now - int(timestamp)) > TOLERANCE_SECONDS:
        raise SignatureRefused(f"The message is more than {TOLERANCE_SECONDS} seconds old, or from the future.")
    return message_id


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    content = f"{message_id}.{timestamp}.".encode() + body
    return base64.b64encode(hmac.digest(key, content, "sha256")).decode()
