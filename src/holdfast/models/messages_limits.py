"""How long an answer in Anthropic's Messages may be, and how much of it may be thinking."""

import re
from typing import Any, Final

from holdfast.models.info import ModelInfo
from holdfast.models.model import ModelRequest

DEFAULT_MAX_TOKENS: Final = 32_000
"""The longest answer of a model whose limit nobody knows: every model of Anthropic's since 4 can write as much."""

MOST_MAX_TOKENS: Final = 64_000
"""The longest answer that is asked for: the provider counts it toward the window before anything is written."""

LEAST_MAX_TOKENS: Final = 4_096
"""What is asked for in a window that is nearly full, unless that is much of the window."""

LEAST_SHARE: Final = 8
"""In a small window, this part of it is asked for instead."""

MISSED_SHARE: Final = 50
"""This part of the window is left free, for tokens that an estimate misses."""

LEAST_BUDGET: Final = 1_024
"""The smallest thinking budget that the provider takes."""

ROOM_FOR_ANSWER: Final = 4_096
"""What an answer needs beside its thinking, at the least."""

EFFORTS: Final = ((4_000, "low"), (16_000, "medium"))
"""The effort for a budget of up to this many tokens, where a model decides itself how long it thinks; above it is
`high`."""

BUDGETS: Final = {"none": 0, "minimal": LEAST_BUDGET, "low": 4_000, "medium": 16_000, "high": 32_000, "xhigh": 48_000}
"""The thinking budget for an effort."""

BYTES_PER_TOKEN: Final = 4

_VERSION: Final = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?![\d])")
_LAST_WITH_BUDGET: Final = (4, 6)
_ALWAYS_THINKS: Final = re.compile(r"claude-mythos")
_WITHOUT_VERSION: Final = re.compile(r"claude-[a-z]+-(?:preview|latest)")


def takes_budget(model: str) -> bool:
    """Whether the model takes a thinking budget. Anthropic's models after 4.6 decide themselves how long they think."""
    name = model.lower()
    if found := _VERSION.search(name):
        return (int(found[1]), int(found[2] or 0)) <= _LAST_WITH_BUDGET
    return _WITHOUT_VERSION.search(name) is None


def output_settings(
    request: ModelRequest, *, model: str, info: ModelInfo, sent_bytes: int, may_think: bool
) -> dict[str, Any]:
    """The fields for the longest answer and the thinking. `sent_bytes` are what the call sends for the model to read;
    without `may_think` the provider would refuse a budget."""
    room = _room(request.window or info.window, max(request.tokens, sent_bytes // BYTES_PER_TOKEN))
    limit = min(info.max_output or MOST_MAX_TOKENS, max(room, request.max_tokens or 0))
    wanted = request.max_tokens or min(info.max_output or DEFAULT_MAX_TOKENS, MOST_MAX_TOKENS, limit)
    budget = _budget(request) if info.takes_thinking else None
    if budget == 0 and not _ALWAYS_THINKS.search(model.lower()):
        return {"max_tokens": min(wanted, limit), "thinking": {"type": "disabled"}}
    if not budget:
        return {"max_tokens": min(wanted, limit)}
    if not takes_budget(model):
        effort = next((effort for most, effort in EFFORTS if budget <= most), "high")
        # Without it, models that think by themselves show nothing of their thinking.
        thinking = {"type": "adaptive", "display": "summarized"}
        return {"max_tokens": min(wanted, limit), "thinking": thinking, "output_config": {"effort": effort}}
    budget = _fitting(budget, room)
    longest = min(max(wanted, budget + ROOM_FOR_ANSWER), limit)
    budget = min(max(budget, LEAST_BUDGET), longest - min(ROOM_FOR_ANSWER, longest // 2))
    if budget < LEAST_BUDGET or not may_think:
        return {"max_tokens": min(wanted, limit)}
    return {"max_tokens": longest, "thinking": {"type": "enabled", "budget_tokens": budget}}


def _budget(request: ModelRequest) -> int | None:
    if request.thinking is not None:
        return request.thinking
    return BUDGETS.get(request.reasoning_effort or "")


def _fitting(budget: int, room: int) -> int:
    """The budget, halved as often as it takes to leave the answer some room. It changes seldom: each time the provider
    reads the conversation anew."""
    while budget > LEAST_BUDGET and budget + ROOM_FOR_ANSWER > room:
        budget = max(budget // 2, LEAST_BUDGET)
    return budget


def _room(window: int, sent_tokens: int) -> int:
    """What the window leaves for the answer, as far as it can be estimated."""
    return max(window - sent_tokens - window // MISSED_SHARE, min(LEAST_MAX_TOKENS, window // LEAST_SHARE))
