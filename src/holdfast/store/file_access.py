"""Checks that files and folders are private to one user, and names the command that makes them so."""

import os
import pwd
import shlex
import stat
from pathlib import Path

import msgspec


class AccessFault(msgspec.Struct, frozen=True):
    """Why a file or folder is unusable for this user or exposed to other users, and the command that repairs it."""

    what: str
    command: str
    is_exposed: bool = True
    """False: it is not exposed to other users, but this user can't use it either."""


def access_fault(path: Path) -> AccessFault | None:
    """None if this user can use it and no other user can."""
    status, user = path.stat(), os.geteuid()
    mode, is_folder = stat.S_IMODE(status.st_mode), path.is_dir()
    name, user_mode = ("it" if is_folder else path.name), ("u=rwx" if is_folder else "u=rw")
    make_private = shlex.join(["chmod", f"{user_mode},go=", str(path)])
    if status.st_uid != user:
        take = shlex.join(["sudo", "chown", str(user), str(path)])
        return AccessFault(f"{name} belongs to user {_user_name(status.st_uid)}", f"{take} && {make_private}")
    if mode & 0o022:
        return AccessFault(f"others may write to {name}", make_private)
    if mode & 0o055:
        return AccessFault(f"others may read {name}", make_private)
    if not os.access(path, os.R_OK | os.W_OK | (os.X_OK if is_folder else 0)):
        return AccessFault(f"{name} is not writable", make_private, is_exposed=False)
    return None


def database_files(path: Path) -> list[Path]:
    """The existing files of a database: the file itself, its write-ahead log and the index of that log."""
    return [file for end in ("", "-wal", "-shm") if (file := path.with_name(path.name + end)).exists()]


def make_private_folder(path: Path) -> None:
    """Make the folder and its missing parents, each for this user only. A folder that exists stays as it is."""
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
