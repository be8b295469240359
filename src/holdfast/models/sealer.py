"""Encrypts secrets for the store: only a process with the same key can decrypt them, and only for the same session.

It needs the package `cryptography`, which is optional: import it only where a key is set.
"""

import hashlib
import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.events.ids import Key

_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_NAME_BYTES: Final = 8


class Sealer:
    """Encrypts and decrypts under one key. `name` identifies the key without revealing anything about it."""

    def __init__(self, secret: str) -> None:
        # Slow on purpose, once per process: people choose keys that can be guessed.
        derived = hashlib.scrypt(secret.encode(), salt=b"holdfast", n=1 << 14, r=8, p=1, dklen=_KEY_BYTES + _NAME_BYTES)
        self.name = f"key:{derived[_KEY_BYTES:].hex()}"
        self._cipher = AESGCM(derived[:_KEY_BYTES])

    def __repr__(self) -> str:
        return f"Sealer({self.name})"

    def seal(self, key: Key, text: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, text, _associated_data(key))

    def unseal(self, key: Key, sealed: bytes) -> bytes | None:
        """The sealed text; None if it was sealed under another key or for another session, or is damaged."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _associated_data(key))
        except (InvalidTag, ValueError):
            return None


def _associated_data(key: Key) -> bytes:
    return f"{len(key.owner)}:{key.owner}{key.session}".encode()
