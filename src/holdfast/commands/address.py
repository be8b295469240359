"""Where the supervisor listens: a socket in its folder, reached by a short way if the path of that is too long.

The system takes about a hundred bytes for the path of a socket. Then a link in /tmp leads to the folder; the socket and
everything else stay where they are, and the link is made anew by whoever misses it.
"""

import hashlib
import os
import stat
from pathlib import Path
from typing import Final

SOCKET: Final = "socket"

_MAX_BYTES: Final = 100
"""macOS takes 103, Linux 107."""


class SocketPathUnusable(OSError):
    """The short way is somebody else's, or open to others."""


def address(root: Path) -> str:
    """The path to bind or to connect to."""
    direct = str(root / SOCKET)
    return direct if len(os.fsencode(direct)) <= _MAX_BYTES else str(_short_way(root) / SOCKET)


def _short_way(root: Path) -> Path:
    ours = Path("/tmp") / f"holdfast-{os.getuid()}"
    ours.mkdir(mode=0o700, exist_ok=True)
    found = ours.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SocketPathUnusable(f"{ours} must be a folder of this user that is closed to others")
    link = ours / hashlib.sha256(os.fsencode(root)).hexdigest()[:24]
    try:
        link.symlink_to(root)
    except FileExistsError:
        if os.readlink(link) != str(root):
            raise SocketPathUnusable(f"{link} must lead to {root}") from None
    return link
