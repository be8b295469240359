"""Any text can be kept, though PostgreSQL takes no NUL: what has one is written with an escape, and read without."""

from typing import Any, Final

_ESCAPE: Final = "\x1a"
_ESCAPED_NUL: Final = "\x1a0"
_ESCAPED_ESCAPE: Final = "\x1a1"

_NO_TEXT: Final = (int, bool, bytes, float)


def stored(text: str) -> str:
    if "\0" not in text and _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE, _ESCAPED_ESCAPE).replace("\0", _ESCAPED_NUL)


def told(text: str) -> str:
    if _ESCAPE not in text:
        return text
    return text.replace(_ESCAPED_NUL, "\0").replace(_ESCAPED_ESCAPE, _ESCAPE)


def to_store(value: Any) -> Any:
    """The same for a parameter of a statement, which may be a list: most have nothing to escape, and are looked at as a
    whole."""
    if type(value) is str:
        return stored(value)
    if type(value) is not list or not any(value) or type(value[0]) in _NO_TEXT:
        return value
    try:
        whole = "".join(value)
    except TypeError:  # Some are None.
        return [stored(each) if type(each) is str else each for each in value]
    return [stored(each) for each in value] if "\0" in whole or _ESCAPE in whole else value


def to_tell(value: Any) -> Any:
    """The same for a value of a row."""
    if type(value) is str:
        return told(value)
    if type(value) is list:
        return [told(each) if type(each) is str else each for each in value]
    return value
