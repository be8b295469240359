"""JSON of a token or a key set, read strictly: what two readers could understand differently is refused."""

import json
from typing import Any, NoReturn


def strict_object(text: bytes) -> dict[str, Any]:
    """The JSON object. Raises `ValueError` for anything else, for a name that is given twice, for NaN and infinity, and
    for values that are nested too deeply."""
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_refused, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    return number if abs(number) < float("inf") else _refused(text)


def _refused(text: str) -> NoReturn:
    raise ValueError("a number has no value")
