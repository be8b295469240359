"""The token of one start of a local server: whoever has it is the one person that the server is for.

It is in a file that only this user can read, and in the link that `holdfast serve` prints; never in the environment of
a process that a tool starts. A cookie only ever lets somebody look: browsers send one to every port of a machine, and
so also to a server that an agent has started there.
"""

import hmac
import os
import secrets
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from holdfast.events.ids import Owner
from holdfast.server.http.identity import Identity, Shown


class StartToken:
    """Knows one person, by the token."""

    def __init__(self, owner: Owner, token: str, *, cookie_name: str) -> None:
        self.cookie_name = cookie_name
        self._token = token
        self._identity = Identity(owner=owner, role="admin", name=owner)

    def __repr__(self) -> str:
        return "StartToken(***)"

    async def identify(self, shown: Shown, *, changes: bool) -> Identity | None:
        if shown.bearer:
            return self._identity if self._is_token(shown.bearer) else None
        if changes or not shown.cookie:
            return None
        return self._identity if self._is_token(self._from_cookie(shown.cookie)) else None

    async def is_valid(self, identity: Identity) -> bool:
        return True

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _from_cookie(self, header: str) -> str:
        try:
            found = SimpleCookie(header).get(self.cookie_name)
        except CookieError:
            return ""
        return found.value if found is not None else ""


def new_token() -> str:
    return secrets.token_urlsafe(32)


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
