"""Every durable write passes a named point just before and just after it is on disk.

Nothing happens there, unless a crash campaign installed a visitor: it may count the points, or kill the process
in one of them.
"""

from collections.abc import Callable
from typing import Final

VERBS: Final = (
    "commit",
    "keep_snapshot",
    "put",
    "claim",
    "release",
    "edit_item",
    "remove_item",
    "reorder_items",
    "see",
    "annotate",
    "attach",
    "detach",
    "decline",
    "grant",
    "revoke_grant",
    "keep_secret",
    "lose_secret",
    "drop_secret",
    "add_key",
    "revoke_key",
    "end_task",
    "stall_task",
    "ask_kill",
    "drop_task",
    "drop_old_tasks",
    "see_host",
    "renew",
    "delete",
    "register",
)
"""The store's writing methods, and `register`, which opening a store begins with. A campaign that does not visit one of
them has a hole."""

ONLY_POSTGRESQL: Final = ("show_life",)
"""Writes that SQLite has no need for: there the system itself knows which processes live."""

_visitor: Callable[[str], None] | None = None


def install(visitor: Callable[[str], None] | None) -> None:
    """From now on `visitor` is called in every point, on whatever thread the write takes place."""
    global _visitor
    _visitor = visitor


def reach(point: str) -> None:
    """Pass the point `verb:detail:before` or `verb:detail:after`."""
    if _visitor is not None:
        _visitor(point)


def watched() -> bool:
    """Whether anybody looks: naming a point in detail costs time."""
    return _visitor is not None
