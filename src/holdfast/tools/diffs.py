"""Shows a change to a file as a unified diff of one hunk, cheap and short whatever the texts are."""

import difflib
import io

CONTEXT_LINES = 3

MAX_COMPARED = 40_000
"""The bound on removed lines times added lines: matching up more of them takes too long."""

MAX_TEXT_CHARACTERS = 400_000
MAX_TEXT_LINES = 20_000
"""Bounds on both texts together. Longer texts get no diff: it would block the event loop."""

MAX_DIFF_CHARACTERS = 50_000
"""The diff is stored with the request and with the result, and people read its beginning."""


TOO_MUCH = "(too much to be shown: "
CUT = "\n(… and more)\n"
"""No line of a diff begins like one of these."""


def is_whole(diff: str) -> bool:
    """Whether a diff from `unified` shows the whole change."""
    return not (diff.startswith(TOO_MUCH) or diff.endswith(CUT))


def unified(before: str, after: str, name: str) -> str:
    """Returns a unified diff; empty if the texts are equal."""
    if before == after:
        return ""
    if len(before) + len(after) > MAX_TEXT_CHARACTERS or before.count("\n") + after.count("\n") > MAX_TEXT_LINES:
        return f"{TOO_MUCH}{len(before):,} characters become {len(after):,})"
    old, new = _lines(before), _lines(after)
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    first = max(0, start - CONTEXT_LINES)
    behind = min(end, CONTEXT_LINES)
    changed = [
        *(" " + line for line in old[first:start]),
        *_changes(old[start : len(old) - end], new[start : len(new) - end]),
        *(" " + line for line in old[len(old) - end : len(old) - end + behind]),
    ]
    old_count, new_count = len(old) - end + behind - first, len(new) - end + behind - first
    head = f"--- a/{name}\n+++ b/{name}\n@@ -{_range(first, old_count)} +{_range(first, new_count)} @@\n"
    return _shortened(head + "".join(map(_ended, changed)))


def _lines(text: str) -> list[str]:
    """Splits at line feeds only, as every tool that numbers lines does."""
    return list(io.StringIO(text, newline="\n"))


def _common(one: list[str], other: list[str]) -> int:
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _changes(old: list[str], new: list[str]) -> list[str]:
    if len(old) * len(new) > MAX_COMPARED:
        return ["-" + line for line in old] + ["+" + line for line in new]
    found: list[str] = []
    for kind, old_start, old_end, new_start, new_end in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        if kind == "equal":
            found += (" " + line for line in old[old_start:old_end])
        else:
            found += ("-" + line for line in old[old_start:old_end])
            found += ("+" + line for line in new[new_start:new_end])
    return found


def _range(first: int, count: int) -> str:
    """Formats a range as `patch` does: lines count from 1, and an empty range names the line before it."""
    return f"{first + 1 if count else first},{count}"


def _ended(line: str) -> str:
    return line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


def _shortened(diff: str) -> str:
    if len(diff) <= MAX_DIFF_CHARACTERS:
        return diff
    return f"{diff[:MAX_DIFF_CHARACTERS]}{CUT}"
