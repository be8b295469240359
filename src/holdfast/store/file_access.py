"""Whether files and folders are for one user alone, and the command that makes them so."""

import os
import pwd
import shlex
import stat
from pathlib import Path

import msgspec


class AccessFault(msgspec.Struct, frozen=True):
    """Why a file or a folder is not for this user, or not for this user alone, and what to run."""

    what: str
    command: str
    is_exposed: bool = True
    """False: nobody else gets at it, but this user does not either."""


def access_fault(path: Path) -> AccessFault | None:
    """None if this user can use it, and nobody else."""
    found, user = path.stat(), os.geteuid()
    mode, is_folder = stat.S_IMODE(found.st_mode), path.is_dir()
    name, wanted = ("it" if is_folder else path.name), ("u=rwx" if is_folder else "u=rw")
    make_private = shlex.join(["chmod", f"{wanted},go=", str(path)])
    if found.st_uid != user:
        take = shlex.join(["sudo", "chown", str(user), str(path)])
        return AccessFault(f"{name} belongs to user {_user_name(found.st_uid)}", f"{take} && {make_private}")
    if mode & 0o022:
        return AccessFault(f"others may write to {name}", make_private)
    if mode & 0o055:
        return AccessFault(f"others may read {name}", make_private)
    if not os.access(path, os.R_OK | os.W_OK | (os.X_OK if is_folder else 0)):
        return AccessFault(f"{name} is not writable", make_private, is_exposed=False)
    return None


def database_files(path: Path) -> list[Path]:
    """Those of a database that are there."""
    return [file for end in ("", "-wal", "-shm") if (file := path.with_name(path.name + end)).exists()]


def make_private_folder(path: Path) -> None:
    """Make it and the folders above it that are missing, each for this user only. One that is there stays as it is."""
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
