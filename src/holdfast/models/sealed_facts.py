"""Facts that the scripted server gives to its callers in sealed form, and recognizes when they come back.

A provider encrypts or signs the reasoning that it wants back. Here it is only signed: that finds every change.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Final

import msgspec

_KEY: Final = b"the scripted model of holdfast"
"""Not a secret: each server has the same, so that a conversation may go on at another."""


def seal(*facts: str) -> str:
    body = urlsafe_b64encode(msgspec.json.encode(facts)).decode()
    return f"{body}.{_signature(body)}"


def sealed_facts(sealed: str) -> tuple[str, ...] | None:
    """The facts; None if the text was changed, or sealed by no scripted server."""
    body, _, signature = sealed.partition(".")
    if not hmac.compare_digest(signature.encode("utf-8", "replace"), _signature(body).encode()):
        return None
    return msgspec.json.decode(urlsafe_b64decode(body), type=tuple[str, ...])


def fingerprint(*facts: str) -> str:
    """A short text that is different for different facts."""
    return sha256(msgspec.json.encode(facts)).hexdigest()[:24]


def _signature(body: str) -> str:
    return hmac.digest(_KEY, body.encode("utf-8", "replace"), "sha256").hex()
