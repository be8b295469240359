"""The path of the supervisor's socket, shortened through a link in /tmp if it is too long.

The system takes about a hundred bytes for the path of a socket. For a longer path, a link in /tmp leads to the folder;
the socket and all other files stay where they are, and any process that finds the link missing makes it again.
"""

import hashlib
import os
import stat
from pathlib import Path
from typing import Final

SOCKET: Final = "socket"

_MAX_BYTES: Final = 100
"""The limit is 103 bytes on macOS and 107 on Linux."""


class SocketPathUnusable(OSError):
    """The link's folder belongs to another user or is open to others, or the link leads elsewhere."""


def address(root: Path) -> str:
    """Returns the path to bind or to connect to."""
    direct = str(root / SOCKET)
    return direct if len(os.fsencode(direct)) <= _MAX_BYTES else str(_linked_folder(root) / SOCKET)


def _linked_folder(root: Path) -> Path:
    ours = Path("/tmp") / f"holdfast-{os.getuid()}"
    ours.mkdir(mode=0o700, exist_ok=True)

    status = ours.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise SocketPathUnusable(
            f"{ours} must be a folder that belongs to this user and is closed to others (mode 0700)"
        )
    link = ours / hashlib.sha256(os.fsencode(root)).hexdigest()[:24]
    try:
        link.symlink_to(root)
    except FileExistsError:
        if os.readlink(link) != str(root):
            raise SocketPathUnusable(f"{link} must be a link to {root}; remove it, and it is made again") from None
    return link
