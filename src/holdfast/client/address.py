"""Where a server is, and with what a program shows who it is for.

The token of a local server is given to nobody but that server: it is sent to 127.0.0.1 alone, and only to who has
proved to know it. At any other address of this machine, or at that one when the server has ended, somebody else may
listen, also a program that an agent started.
"""

import hmac
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from holdfast.client.errors import AddressInvalid
from holdfast.config import Secret

LOCAL: Final = "127.0.0.1"

LOCAL_NAMES: Final = frozenset({LOCAL, "localhost"})

MAX_TOKEN_BYTES: Final = 1_000


class Key(NamedTuple):
    secret: Secret
    is_token: bool
    """It was found in the data directory of a local server, and is for that server alone."""

    def proof(self, nonce: str) -> str:
        """What only somebody says who has the same."""
        return hmac.new(self.secret.reveal().encode(), f"holdfast-proof:{nonce}".encode(), "sha256").hexdigest()


KeySource = Callable[[], Key | None]
"""Asked again when the server no longer knows the key: the token of a local server changes with each start."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A server's address, without anything secret in it."""

    url: str
    """Without a slash at its end."""
    is_local: bool
    """It is on this machine, at the address that a local server listens on unless it is told otherwise."""
    port: int


def parse_url(given: str) -> tuple[Address, Secret | None]:
    """The address, and the token if it was the link that `holdfast serve` prints. Raises `AddressInvalid`."""
    try:
        parts = urlsplit(given.strip())
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        raise AddressInvalid("That is no URL. Give one such as http://127.0.0.1:8787.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressInvalid("A server's URL begins with http:// or https://, such as http://127.0.0.1:8787.")
    if parts.username is not None or parts.password is not None:
        raise AddressInvalid("A server's URL holds no user and no password. Give the key with --key or HOLDFAST_KEY.")
    tokens = parse_qs(parts.fragment or parts.query).get("token", [])
    if (parts.fragment and parts.query) or ((parts.fragment or parts.query) and len(tokens) != 1):
        raise AddressInvalid("A server's URL has nothing behind its path, such as http://127.0.0.1:8787.")
    is_local = parts.scheme == "http" and parts.hostname.lower().rstrip(".") in LOCAL_NAMES
    # By its number: a name may stand for several addresses, of which only one is the server's.
    host = LOCAL if is_local else f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    at = f"{host}:{parts.port}" if parts.port is not None else host
    path = parts.path.rstrip("/")
    token = Secret(tokens[0]) if tokens else None
    return Address(url=f"{parts.scheme}://{at}{path}", is_local=is_local, port=port), token


def key_source(address: Address, key: str | Secret | None, data_dir: Path | None) -> KeySource:
    """What is shown to the server: the key, or for a server on this machine the token of its start."""
    if key:
        given = Key(key if isinstance(key, Secret) else Secret(key), is_token=False)
        return lambda: given
    if not address.is_local or data_dir is None:
        return lambda: None

    def found() -> Key | None:
        token = start_token(data_dir, address.port)
        return Key(token, is_token=True) if token is not None else None

    return found


def start_token(data_dir: Path, port: int) -> Secret | None:
    """The token that a local server of this user left in its data directory, if it did. A file that is somebody else's,
    or that others could have written, is not believed."""
    try:
        descriptor = os.open(data_dir / f"serve-{port}.token", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if about.st_uid != os.getuid() or about.st_mode & 0o022:
            return None
        token = file.read(MAX_TOKEN_BYTES).strip()
    return Secret(token.decode("ascii")) if token and token.isascii() else None
