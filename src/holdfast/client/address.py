"""The address of a server, and the key that a program authenticates with.

The token of a local server is sent to that server only: to 127.0.0.1, after the server has proved that it knows the
token. Another program may listen at any other address of this machine, or at this one once the server has ended; even
a program that an agent started.
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


class ClientKey(NamedTuple):
    secret: Secret
    is_token: bool
    """The key is the token from the data directory of a local server, and is valid for that server only."""

    def proof(self, nonce: str) -> str:
        """HMAC proving that both sides hold the same key."""
        return hmac.new(self.secret.reveal().encode(), f"holdfast-proof:{nonce}".encode(), "sha256").hexdigest()


KeySource = Callable[[], ClientKey | None]
"""Returns the current key. Called again when the server refuses the key: a local server has a new token each start."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a server, without secrets."""

    url: str
    """The URL, without a trailing slash."""
    is_local: bool
    """The address is the one on this machine that a server listens on by default."""
    port: int


def parse_url(given: str) -> tuple[Address, Secret | None]:
    """The address, and the token if the URL is the link that `holdfast serve` prints. Raises `AddressInvalid`."""
    try:
        parts = urlsplit(given.strip())
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        raise AddressInvalid("This is not a URL. Give one such as http://127.0.0.1:8787.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressInvalid("A server's URL begins with http:// or https://, such as http://127.0.0.1:8787.")
    if parts.username is not None or parts.password is not None:
        raise AddressInvalid("A server's URL holds no user and no password. Give the key with --key or HOLDFAST_KEY.")
    tokens = parse_qs(parts.fragment or parts.query).get("token", [])
    if (parts.fragment and parts.query) or ((parts.fragment or parts.query) and len(tokens) != 1):
        raise AddressInvalid("A server's URL has no query and no fragment. Give one such as http://127.0.0.1:8787.")
    is_local = parts.scheme == "http" and parts.hostname.lower().rstrip(".") in LOCAL_NAMES
    # Use the number: a host name may have several addresses, and the server listens at only one of them.
    host = LOCAL if is_local else f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    at = f"{host}:{parts.port}" if parts.port is not None else host
    path = parts.path.rstrip("/")
    token = Secret(tokens[0]) if tokens else None
    return Address(url=f"{parts.scheme}://{at}{path}", is_local=is_local, port=port), token


def key_source(address: Address, key: str | Secret | None, data_dir: Path | None) -> KeySource:
    """The source of the key: the given key, or the token of a server on this machine."""
    if key:
        given = ClientKey(key if isinstance(key, Secret) else Secret(key), is_token=False)
        return lambda: given
    if not address.is_local or data_dir is None:
        return lambda: None

    def found() -> ClientKey | None:
        token = start_token(data_dir, address.port)
        return ClientKey(token, is_token=True) if token is not None else None

    return found


def start_token(data_dir: Path, port: int) -> Secret | None:
    """The token that a local server of this user wrote to its data directory; None if there is none. A file that
    another user owns, or could have written, is ignored."""
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
