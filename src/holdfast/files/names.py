"""The names of files: one line that is safe to show, to send in a header, and to save under."""

import unicodedata
from typing import Final

from holdfast.files.errors import FileRefused

MAX_NAME_BYTES: Final = 255
"""As long as a name may be on most disks."""

_FORBIDDEN: Final = frozenset("/\\")

_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control characters, marks of direction and the like: with them, a name looks like another one."""


def check_name(name: str) -> None:
    """Raise `FileRefused` for a name that no file may have. Nothing is changed silently: the sender knows better."""
    problem = _problem(name)
    if problem:
        raise FileRefused("file_name_invalid", f"The name of a file {problem}.")


def _problem(name: str) -> str:
    if not name.strip() or name in (".", ".."):
        return "can't be empty, a dot or two dots"
    if _FORBIDDEN & set(name):
        return "has no slashes: give the name alone, without folders"
    if any(unicodedata.category(character) in _INVISIBLE for character in name):
        return "has no control characters or other invisible ones"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"has at most {MAX_NAME_BYTES} bytes"
    return ""
