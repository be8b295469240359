"""The end of a turn for which there is no money left. Pure."""

from datetime import UTC, datetime
from typing import Final

from holdfast.events.budget import OverBudget, Scope

_USED_UP: Final[dict[Scope, str]] = {
    "day": "Today's budget is used up.",
    "week": "This week's budget is used up.",
    "session": "The budget of this session is used up.",
    "turn": "The budget of this turn is used up.",
    "tree": "The budget of this session and those it belongs to is used up.",
}


def sentence(over: OverBudget) -> str:
    """What a person reads."""
    if over.scope == "price":
        return (
            "The model was not called: you have a budget, and nobody told this server what the model costs. Choose "
            "another model, or ask an admin to state its price in HOLDFAST_MODELS."
        )
    used_up = _USED_UP[over.scope]
    if over.resets_at is not None:
        when = datetime.fromtimestamp(over.resets_at / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
        return f"{used_up} All work so far is kept. You can go on from {when}, or when an admin gives you more."
    if over.scope == "turn":
        return f"{used_up} All work so far is kept. Send another message to go on."
    return f"{used_up} All work so far is kept. Ask an admin for more."
