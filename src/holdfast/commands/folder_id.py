"""Which folder of commands this is: a random name in it, given once by whoever asks first.

It says to which machine and folder a command belongs. A copy of the folder has the same name; there, what ran counts as
lost, because every command is written down with the folder that it was asked in (`identity_of`).
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
    """The name, which is on disk by then. Any number may ask at once, also from other processes."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (root / FOLDER_ID_FILE).exists():
            _create_id(root)
        # Also of another's making: whoever tells it to others must find it again.
        sync_directory(root)
        name = (root / FOLDER_ID_FILE).read_text("ascii").strip()
    except (OSError, UnicodeError) as error:
        raise FolderIdUnusable(f"the folder of commands has no name, and can't be given one: {error}") from error
    if not _NAME.fullmatch(name):
        raise FolderIdUnusable(f"{root / FOLDER_ID_FILE} was spoilt: there is no name in it")
    return name


def _create_id(root: Path) -> None:
    """The link is made only if there is none, with the whole name in it. A crash before it leaves a file aside that
    means nothing; after it, the folder has its name for good."""
    aside = root / f"{ASIDE}{FOLDER_ID_FILE}.{secrets.token_hex(8)}"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{secrets.token_hex(16)}\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(aside, root / FOLDER_ID_FILE)
    except FileExistsError:
        pass  # Another one was first.
    finally:
        aside.unlink(missing_ok=True)
