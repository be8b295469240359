"""Escapes text for PostgreSQL, which stores no NUL: a NUL is written as an escape sequence, and restored when read."""

from typing import Any, Final

_ESCAPE: Final = "\x1a"
_ESCAPED_NUL: Final = "\x1a0"
_ESCAPED_ESCAPE: Final = "\x1a1"

_NO_TEXT: Final = (int, bool, bytes, float)


def escaped(text: str) -> str:
    if "\0" not in text and _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE, _ESCAPED_ESCAPE).replace("\0", _ESCAPED_NUL)


def unescaped(text: str) -> str:
    if _ESCAPE not in text:
        return text
    return text.replace(_ESCAPED_NUL, "\0").replace(_ESCAPED_ESCAPE, _ESCAPE)


def to_parameter(value: Any) -> Any:
    """A parameter of a statement, escaped. It may be a list: most lists have nothing to escape, and are checked as a
    whole."""
    if type(value) is str:
        return escaped(value)
    if type(value) is not list or not any(value) or type(value[0]) in _NO_TEXT:
        return value
    try:
        whole = "".join(value)
    except TypeError:  # Some are None.
        return [escaped(each) if type(each) is str else each for each in value]
    return [escaped(each) for each in value] if "\0" in whole or _ESCAPE in whole else value


def from_column(value: Any) -> Any:
    """A value of a row, unescaped."""
    if type(value) is str:
        return unescaped(value)
    if type(value) is list:
        return [unescaped(each) if type(each) is str else each for each in value]
    return value
