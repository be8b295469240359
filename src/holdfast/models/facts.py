"""The facts about a model from all sources: its family, the list of prices, its provider, the operator.

Each source beats those before it. What none of them says has the defaults of `ModelInfo`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from holdfast.models.address import host_of, is_private
from holdfast.models.families import family_of
from holdfast.models.info import UNKNOWN, ModelInfo
from holdfast.models.price_list import find_entry
from holdfast.models.stated_facts import StatedFacts

OPENROUTER: Final = "openrouter.ai"

NOTHING: Final = StatedFacts(model="")


def info_of(
    model: str, base_url: str, *, of_provider: StatedFacts = NOTHING, stated: StatedFacts = NOTHING
) -> ModelInfo:
    """The facts about the model that this address calls `model`. `of_provider` is what its provider says about it, and
    `stated` what the operator says.

    At a private address only its family is known: which window and which price a server of one's own has, only the
    operator can say.
    """
    found = _of_family(model, base_url)
    if not is_private(base_url):
        entry = find_entry(base_url, model, datetime.now(UTC).date())
        if entry is not None:
            found |= {"window": entry.window, "price": entry.price, "is_known": True}
    found |= _of_statement(of_provider) | _of_statement(stated)
    return _complete({name: fact for name, fact in found.items() if fact is not None})


def _of_family(model: str, base_url: str) -> dict[str, Any]:
    family = family_of(model)
    if family is None:
        return {}
    is_claude = model.lower().rpartition("/")[2].startswith("claude")
    return {
        "max_output": family.max_output,
        "takes_images": family.images,
        "takes_documents": family.documents,
        "takes_tools": family.tools,
        "takes_thinking": family.thinking,
        "takes_cache_marks": is_claude and host_of(base_url) == OPENROUTER,
    }


def _of_statement(stated: StatedFacts) -> dict[str, Any]:
    found = {
        "window": stated.window,
        "max_output": stated.max_output,
        "takes_images": stated.images,
        "takes_documents": stated.documents,
        "takes_tools": stated.tools,
        "takes_thinking": stated.thinking,
        "takes_cache_marks": stated.cache_marks,
        "price": stated.price,
        "is_known": True if stated.window is not None else None,
    }
    return {name: fact for name, fact in found.items() if fact is not None}


def _complete(found: Mapping[str, Any]) -> ModelInfo:
    info = msgspec.structs.replace(UNKNOWN, **found)
    if info.max_output is not None and info.max_output > info.window:
        return msgspec.structs.replace(info, max_output=info.window)
    return info
