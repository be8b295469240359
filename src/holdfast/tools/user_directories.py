"""The folders in which sessions of people with the role `user` may work: each owner's own, and those for all."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from holdfast.events.ids import Owner

OWNER: Final = "{owner}"
SHARED: Final = "shared:"

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_@+-][A-Za-z0-9_.@+-]{0,127}")
"""An owner whose name is anything else has no folder: it could be the name of another one's, or lead out of it."""


class UserDirectories(msgspec.Struct, frozen=True):
    """`folders` as they are configured: `{owner}` stands for the owner's name, and a folder without it for the one of
    that name below it. `shared:` before a folder makes it everybody's."""

    folders: tuple[str, ...] = ()

    def of(self, owner: Owner) -> Iterator[Path]:
        for folder in self.folders:
            if folder.startswith(SHARED):
                yield Path(folder.removeprefix(SHARED)).resolve()
            elif _PLAIN_NAME.fullmatch(owner):
                around, beginning, after = _parts(folder)
                yield around / f"{beginning}{owner}{after}"  # No link is followed from there on: it may be the owner's.

    def contains(self, owner: Owner, real_path: str) -> bool:
        """Whether sessions of that owner may work there. Both sides of it are real paths."""
        return any(Path(real_path).is_relative_to(root) for root in self.of(owner))

    def of_all_owners(self) -> Iterator[Path]:
        """What holds the folders of several owners: none of them is to see another's."""
        for folder in self.folders:
            if not folder.startswith(SHARED):
                yield _parts(folder)[0]


def _parts(folder: str) -> tuple[Path, str, str]:
    """The folder around those of the owners, and what their paths begin and end with below it."""
    template = folder if OWNER in folder else f"{folder.rstrip('/')}/{OWNER}"
    before, _, after = template.partition(OWNER)
    around, _, beginning = before.rpartition("/")
    return Path(around or "/").resolve(), beginning, after
