"""The token of one start of a local server: whoever has it is the one person that the server is for.

It is in a file that only this user can read, and in the link that `holdfast serve` prints; never in the environment of
a process that a tool starts. There is no cookie: browsers send those to every port of a machine, and so also to a
server that an agent has started there.
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
"""What `TOKEN_BYTES` random bytes look like."""


class StartToken:
    """Knows one person, by the token."""

    def __init__(self, owner: Owner, token: str) -> None:
        self._token = token
        self._identity = Identity(owner=owner, role="admin", name=owner)

    def __repr__(self) -> str:
        return "StartToken(***)"

    async def identify(self, bearer: str) -> Identity | None:
        return self._identity if hmac.compare_digest(bearer.encode(), self._token.encode()) else None

    def proof(self, nonce: str) -> str:
        """For a program that has read the token from its file: only the server that has it too can say this. So it is
        not shown to whatever else took the port since."""
        return hmac.new(self._token.encode(), f"holdfast-proof:{nonce}".encode(), "sha256").hexdigest()

    async def is_valid(self, identity: Identity) -> bool:
        return True


def token_for(path: Path) -> str:
    """A new one; but a server that was killed left its own behind, and the start after it goes on with that one, so
    that whoever had a page open need not come in again. A server that ends in peace takes it along."""
    return _left_behind(path) or secrets.token_urlsafe(TOKEN_BYTES)


def _left_behind(path: Path) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            return None  # Others could have written or read it.
        token = file.read(MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
    return token if _TOKEN.fullmatch(token) else None


def write_token(path: Path, token: str) -> None:
    """Put it where programs of this user find it. Whoever reads the file reads one token whole, or the one before."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    half_written = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(half_written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        os.fchmod(descriptor, 0o600)
        file.write(f"{token}\n")
    half_written.replace(path)


def remove_token(path: Path, token: str) -> None:
    """At the end of the server, unless another one has put its own there."""
    try:
        if path.read_text(encoding="ascii").strip() == token:
            path.unlink()
    except OSError:
        pass  # It is of no use to anybody any more.
