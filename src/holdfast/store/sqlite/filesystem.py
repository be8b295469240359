"""Finds the file system that a path is on, and refuses network file systems: SQLite's locks can't be trusted there."""

import re
from pathlib import Path
from typing import Final

from holdfast.store.errors import StoreUnusable

NETWORK: Final = frozenset(
    {
        "nfs",
        "nfs3",
        "nfs4",
        "cifs",
        "smb2",
        "smb3",
        "smbfs",
        "ncpfs",
        "9p",
        "afs",
        "auristorfs",
        "coda",
        "ceph",
        "glusterfs",
        "lustre",
        "gpfs",
        "beegfs",
        "orangefs",
        "pvfs2",
        "ocfs2",
        "gfs2",
        "fuse.sshfs",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.rclone",
        "fuse.gcsfuse",
        "fuse.juicefs",
        "fuse.davfs",
        "fuse.davfs2",
        "davfs",
    }
)

_OCTAL = re.compile(r"\\([0-7]{3})")


def refuse_network(path: Path, mounts: str | None = None) -> None:
    """Raise if `path` is on a network file system. If the mounts can't be read, nothing is refused."""
    text = _read_mounts() if mounts is None else mounts
    kind = kind_of(path, text)
    if kind in NETWORK:
        raise StoreUnusable(
            "store_network_filesystem",
            f"{path} is on a network file system ({kind}), where SQLite can lose data. "
            "Put the database on a local disk, or use PostgreSQL.",
        )


def kind_of(path: Path, mounts: str) -> str | None:
    """The type of the file system that `path` is on, from the text of /proc/self/mountinfo. A later mount over the
    same folder hides an earlier one."""
    found: tuple[int, str] | None = None
    for line in mounts.splitlines():
        before, dash, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if not dash or len(fields) < 5:
            continue
        place = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        if path.is_relative_to(place) and (found is None or len(place.parts) >= found[0]):
            found = (len(place.parts), kinds[0])
    return found[1] if found else None


def _read_mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return ""
