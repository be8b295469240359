"""The start token of a local server: its bearer is the one user of the server.

The token is in a file that only this user can read, and in the link that `holdfast serve` prints; never in the
environment of a process that a tool starts. It is no cookie: browsers send cookies to every port of a machine, and so
also to a server that an agent has started there.
"""

import hmac
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final

from holdfast.events.ids import Owner
from holdfast.server.http.identity import Identity

TOKEN_BYTES: Final = 32

MAX_TOKEN_BYTES: Final = 100

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")
"""`TOKEN_BYTES` random bytes in URL-safe base64."""


class StartToken:
    """Identifies one user, by the token."""

    def __init__(self, owner: Owner, token: str) -> None:
        self._token = token
        self._identity = Identity(owner=owner, role="admin", name=owner)

    def __repr__(self) -> str:
        return "StartToken(***)"

    async def identify(self, bearer: str) -> Identity | None:
        return self._identity if hmac.compare_digest(bearer.encode(), self._token.encode()) else None

    def proof(self, nonce: str) -> str:
        """HMAC that proves that this server holds the token. A program that has read the token from its file checks the
        proof before it sends the token, and so never sends it to another process that took the port."""
        return hmac.new(self._token.encode(), f"holdfast-proof:{nonce}".encode(), "sha256").hexdigest()

    async def is_valid(self, identity: Identity) -> bool:
        return True


def token_for(path: Path) -> str:
    """A new token; or the token that a killed server left in its file, so that open pages stay signed in after a
    restart. A server that drains removes its token."""
    return _leftover(path) or secrets.token_urlsafe(TOKEN_BYTES)


def _leftover(path: Path) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            return None  # Other users could have written or read it.
        token = file.read(MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
    return token if _TOKEN.fullmatch(token) else None


def write_token(path: Path, token: str) -> None:
    """Write the token where programs of this user find it. The replacement is atomic: a reader gets the whole new token
    or the whole old one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(descriptor, 0o600)
        file.write(f"{token}\n")
    temporary.replace(path)


def remove_token(path: Path, token: str) -> None:
    """Remove the token when the server ends, unless another server has written its own."""
    try:
        if path.read_text(encoding="ascii").strip() == token:
            path.unlink()
    except OSError:
        pass  # The token is no longer valid.
