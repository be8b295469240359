"""Random events and inbox items, generated from their types, so that a new event type is covered automatically."""

import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from holdfast.events import inbox
from holdfast.events.body import Body
from holdfast.events.event import PROGRESS, RECORDS

BODIES: tuple[type[Body], ...] = (*RECORDS, *PROGRESS)
ITEMS: tuple[type[inbox.Payload], ...] = (
    inbox.Message,
    inbox.Answer,
    inbox.Stop,
    inbox.Rewind,
    inbox.TaskNews,
    inbox.ToBackground,
    inbox.Compact,
    inbox.CancelCompaction,
)

TEXTS = st.text(max_size=20) | st.sampled_from(["", "\0", "\u2028\u2029", "𝄞 é", '{"a": 1}', "<user_follow_up>"])
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXTS,
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    bytes: st.binary(max_size=20),
    type(None): st.none(),
    msgspec.UnsetType: st.just(msgspec.UNSET),
    Any: TEXTS | st.integers(-9, 9) | st.none() | st.lists(TEXTS, max_size=2),
}


def built(kind: type[Any], texts: st.SearchStrategy[str] = TEXTS) -> st.SearchStrategy[Any]:
    """Values of a struct, with every field drawn from its type, and every default left out sometimes."""
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for field in msgspec.structs.fields(kind):
        (required if field.required else optional)[field.name] = of_type(field.type, texts)
    return st.fixed_dictionaries(required, optional=optional).map(lambda values: kind(**values))


def of_type(hint: Any, texts: st.SearchStrategy[str] = TEXTS) -> st.SearchStrategy[Any]:
    hint = getattr(hint, "__supertype__", hint)
    if hint is str:
        return texts
    if hint in PLAIN:
        return PLAIN[hint]
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return built(hint, texts)
    args = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Literal:
            return st.sampled_from(args)
        case types.UnionType | typing.Union:
            return st.one_of([of_type(arg, texts) for arg in args])
        case origin if origin is tuple:
            return st.lists(of_type(args[0], texts), max_size=3).map(tuple)
        case origin if origin is dict:
            return st.dictionaries(TEXTS, of_type(args[1], texts), max_size=2)
    raise AssertionError(f"a field of a kind that no event had before: {hint}")


def any_body(texts: st.SearchStrategy[str] = TEXTS) -> st.SearchStrategy[Body]:
    """Any event body. With few `texts` the ids of many events collide."""
    return st.one_of([built(kind, texts) for kind in BODIES])
