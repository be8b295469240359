"""A session's context in a line each: compactions, pinned messages, and how full it is. Pure."""

from typing import Final

from holdfast.cli.escapes import visible
from holdfast.events.compaction import CompactionEnded, CompactionStarted, MessagePinned
from holdfast.protocol.compaction import Compacted, CompactionCancelled, ContextView

_STARTS: Final = {
    "full": "The context is nearly full: the turn waits while its older part is summarised.",
    "too_long": "The context is too long for the model: its older part is summarised, then the model is asked again.",
    "manual": "The older part of the conversation is being summarised.",
}
"""Starts that people wait for. One beside a turn is shown only when it has ended."""

MAX_PINNED_CHARACTERS: Final = 80


def start_line(body: CompactionStarted) -> str | None:
    """None: the start is not shown."""
    line = _STARTS.get(body.trigger)
    return None if line is None or body.attempt > 1 else f"· {line}"


def end_line(body: CompactionEnded) -> str | None:
    """None: the end is not shown, because the conversation was rewound, and that is."""
    if body.success and body.method == "summary":
        return f"· Context summarised: {_change(body.tokens_before, body.tokens_after)}."
    if body.success:
        why = f" {_words(body.message)}" if body.message else ""
        return f"· The older part of the context was left out: {_change(body.tokens_before, body.tokens_after)}.{why}"
    match body.error:
        case "cancelled":
            return "· The compaction was cancelled. The context stays as it is."
        case "rewound":
            return None
        case _:
            return f"· No summary was made, so the context stays as it is. {_words(body.message)}".rstrip()


def outcome_line(compacted: Compacted) -> str:
    """How a compaction that was asked for stands."""
    match compacted.outcome:
        case "compacted":
            return f"Context summarised: {_change(compacted.tokens_before, compacted.tokens_after)}."
        case "failed":
            return f"No summary was made, so the context stays as it is. {_words(compacted.message)}".rstrip()
        case "compacting":
            return "The summary is still being made. The session goes on with the old context meanwhile."
        case "accepted":
            return "The compaction is accepted. It starts when a process runs the session."


def cancel_line(cancelled: CompactionCancelled) -> str:
    """What became of a wish to cancel a compaction."""
    match cancelled.outcome:
        case "cancelled":
            return "The compaction was cancelled. The context stays as it is."
        case "nothing_to_cancel":
            return "No summary is being made."
        case "accepted":
            return "The compaction is given up once a process runs the session."


def pin_line(body: MessagePinned) -> str:
    if not body.pinned:
        return "· A message was unpinned."
    return f"· Pinned: “{_words(body.content, MAX_PINNED_CHARACTERS)}”"


def context_line(context: ContextView | None) -> str:
    """How full the context is, as far as it is known."""
    parts: list[str] = []
    if context is None:
        return ""
    if context.tokens is not None:
        of = f" of {context.window:,} ({context.percent} %)" if context.window else ""
        parts.append(f"{context.tokens:,} tokens{of} in the context")
    if context.compactions:
        parts.append(f"{context.compactions} compaction{'s' if context.compactions > 1 else ''}")
    if context.pinned:
        parts.append(f"{len(context.pinned)} pinned message{'s' if len(context.pinned) > 1 else ''}")
    if context.is_compacting:
        parts.append("a summary is being made")
    return ", ".join(parts)


def _change(before: int, after: int) -> str:
    return f"{before:,} -> {after:,} tokens" if after else f"{before:,} tokens before"


def _words(text: str, limit: int = 200) -> str:
    words = " ".join(visible(text).split())
    return words if len(words) <= limit else words[: limit - 1] + "…"
