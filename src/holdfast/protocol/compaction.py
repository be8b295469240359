"""Compactions: their receipts, and how full a session's context is."""

from typing import Literal

import msgspec

from holdfast.events.compaction import CompactionError

CompactionOutcome = Literal["accepted", "compacting", "compacted", "failed"]
"""`accepted`: no process has begun it yet. `compacting`: the summary is being made. `failed`: the context stays as it
was; `error` and `message` say why."""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of a compaction that was asked for."""

    compaction_id: str
    """The same id again is the same compaction."""
    outcome: CompactionOutcome
    tokens_before: int = 0
    tokens_after: int = 0
    """An estimate, until the provider counts the next call."""
    removed: int = 0
    """How many messages the model is no longer sent."""
    summary: str = ""
    """What the model is sent in their place."""
    error: CompactionError = ""
    message: str = ""
    """The reason of a failure, for people."""


class CompactionCancelled(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of a cancellation: done, without effect because nothing was under way, or not yet carried out."""

    outcome: Literal["cancelled", "nothing_to_cancel", "accepted"]


class SessionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a session's model calls, compactions included. Calls whose provider reported nothing are not in the
    sums."""

    calls: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    """The part of the input that the provider read from its cache."""
    cache_write_tokens: int
    cache_share: float | None
    """Input read from the cache, as a fraction of the input; None if no input was reported."""


class ContextView(msgspec.Struct, frozen=True, kw_only=True):
    """How full the context of a session is: what its model is sent with the next call."""

    tokens: int | None
    """As the provider counted the last call, with an estimate of what came since; None until a call is counted."""
    window: int | None
    """The tokens that the session's model takes, as far as it is known; None if nothing is known of models here."""
    percent: int | None
    """The tokens as a percentage of the window; None if either is unknown."""
    compactions: int
    """How many compactions took effect."""
    is_compacting: bool
    """A compaction is under way."""
    pinned: tuple[str, ...]
    """The ids of the pinned messages."""
    usage: SessionUsage | None = None
    """None if it was not asked for: it is summed up from all model calls of the session."""
