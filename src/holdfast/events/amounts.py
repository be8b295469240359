"""Amounts of money in events, which not every reader may see. Pure."""

from typing import Any, Final

import msgspec

from holdfast.events.body import Body
from holdfast.events.event import PROGRESS, RECORDS, Unknown


def _is_amount(field: str) -> bool:
    """Whether a field has an amount, by the end of its name, in Python or on the wire."""
    return field.lower().endswith("microdollars")


_AMOUNTS: Final = {kind: dict.fromkeys(filter(_is_amount, kind.__struct_fields__)) for kind in (*RECORDS, *PROGRESS)}
"""The fields with amounts of each type of event. All of them may be None, which is an unknown amount."""


def without_amounts(body: Body) -> Body:
    """The event as if nothing were known of what it cost; also an event that only a newer release knows."""
    if isinstance(body, Unknown):
        return msgspec.structs.replace(
            body, data=msgspec.Raw(msgspec.json.encode(_without(msgspec.json.decode(body.data))))
        )
    fields = _AMOUNTS.get(type(body))
    return msgspec.structs.replace(body, **fields) if fields else body


def _without(value: Any) -> Any:
    match value:
        case dict():
            return {name: _without(each) for name, each in value.items() if not _is_amount(name)}
        case list():
            return [_without(each) for each in value]
        case _:
            return value
