"""The signatures of the scripted server's thinking: they prove that what comes back is what went out.

A signature follows from the text and from nothing else, so that another server, or the same one after a restart, knows
it too.
"""

import base64
import hmac
from hashlib import sha256
from typing import Final

_KEY: Final = b"the scripted model's thinking"


def signature_of(thinking: str) -> str:
    return base64.b64encode(_digest(thinking)).decode()


def is_signed(thinking: str, signature: str) -> bool:
    return hmac.compare_digest(signature_of(thinking).encode(), signature.encode("utf-8", "replace"))


def sealed(hidden: str) -> str:
    """Reasoning that nobody can read, in the form in which it is sent."""
    return base64.b64encode(_digest(hidden) + hidden.encode()).decode()


def is_sealed(data: str) -> bool:
    try:
        raw = base64.b64decode(data, validate=True)
        return hmac.compare_digest(_digest(raw[32:].decode()), raw[:32])
    except ValueError:
        return False


def _digest(text: str) -> bytes:
    return hmac.new(_KEY, text.encode("utf-8", "surrogatepass"), sha256).digest()
