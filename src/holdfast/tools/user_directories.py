"""The folders in which sessions of people with the role `user` may work: each owner's own, and shared ones."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from holdfast.events.ids import Owner

OWNER: Final = "{owner}"
SHARED: Final = "shared:"

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_@+-][A-Za-z0-9_.@+-]{0,127}")
"""An owner with any other name has no folder: the name could match another owner's folder or lead out of it."""


class UserDirectories(msgspec.Struct, frozen=True):
    """Folders as configured: `{owner}` stands for the owner's name; a folder without it means the subfolder of that
    name. The prefix `shared:` opens a folder to all owners."""

    folders: tuple[str, ...] = ()

    def of(self, owner: Owner) -> Iterator[Path]:
        for folder in self.folders:
            if folder.startswith(SHARED):
                yield Path(folder.removeprefix(SHARED)).resolve()
            elif _PLAIN_NAME.fullmatch(owner):
                around, beginning, after = _parts(folder)
                yield around / f"{beginning}{owner}{after}"  # Not resolved from there on: a link could be the owner's.

    def contains(self, owner: Owner, real_path: str) -> bool:
        """Whether sessions of that owner may work there. Both paths are compared as real paths."""
        return any(Path(real_path).is_relative_to(root) for root in self.of(owner))

    def of_all_owners(self) -> Iterator[Path]:
        """Yields the folders that contain the folders of several owners: no owner may see another's."""
        for folder in self.folders:
            if not folder.startswith(SHARED):
                yield _parts(folder)[0]


def _parts(folder: str) -> tuple[Path, str, str]:
    """Returns the folder around those of the owners, and what their paths begin and end with below it."""
    template = folder if OWNER in folder else f"{folder.rstrip('/')}/{OWNER}"
    before, _, after = template.partition(OWNER)
    around, _, beginning = before.rpartition("/")
    return Path(around or "/").resolve(), beginning, after
