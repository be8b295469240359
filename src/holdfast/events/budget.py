"""The refusal of a model call for which there is no money."""

from typing import Final, Literal

import msgspec

OVER_BUDGET: Final = "over_budget"
"""The error code of a turn that such a refusal ended."""

Scope = Literal["day", "week", "session", "turn", "tree", "price"]
"""The limit that refuses a call; `price`: nobody knows what the call costs, so no limit could be held."""


class OverBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The call may not be made."""

    scope: Scope
    resets_at: int | None = None
    """When there is room again, in milliseconds; None: only after the limit is raised."""
