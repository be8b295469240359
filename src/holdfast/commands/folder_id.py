"""The id of a commands folder: a random name, written once by the first process that needs it.

It tells to which machine and folder a command belongs. A copy of the folder has the same id. Commands that ran in the
original count as lost in the copy, because each record also names the identity of its folder (`identity_of`).
"""

import os
import re
import secrets
from pathlib import Path
from typing import Final

from holdfast.commands.errors import FolderIdUnusable
from holdfast.commands.folder import ASIDE, sync_directory

FOLDER_ID_FILE: Final = "place"

_NAME: Final = re.compile("[0-9a-f]{32}")


def folder_id_of(root: Path) -> str:
    """Returns the id, which is then on disk. Any number of processes may call this at once."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (root / FOLDER_ID_FILE).exists():
            _create_id(root)
        # Sync also when another process wrote the file: a caller that passes the id on must find it again after a power
        # loss.
        sync_directory(root)
        name = (root / FOLDER_ID_FILE).read_text("ascii").strip()
    except (OSError, UnicodeError) as error:
        raise FolderIdUnusable(f"the commands folder {root} has no id, and none can be written: {error}") from error
    if not _NAME.fullmatch(name):
        raise FolderIdUnusable(f"{root / FOLDER_ID_FILE} is damaged: it holds no id. Restore it from a backup")
    return name


def _create_id(root: Path) -> None:
    """Writes a new id. The link is made only if there is none, with the whole id in it. A crash before it leaves a
    temporary file that means nothing; after it, the folder keeps this id for good."""
    aside = root / f"{ASIDE}{FOLDER_ID_FILE}.{secrets.token_hex(8)}"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{secrets.token_hex(16)}\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(aside, root / FOLDER_ID_FILE)
    except FileExistsError:
        pass  # Another process was first.
    finally:
        aside.unlink(missing_ok=True)
