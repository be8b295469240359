"""Named crash points: every durable write passes one just before and one just after it is on disk.

A point does nothing unless a crash campaign has installed a visitor, which may count the points or kill the process at
one of them.
"""

from collections.abc import Callable
from typing import Final

VERBS: Final = (
    "commit",
    "keep_snapshot",
    "index_logs",
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
    "edit_budget",
    "settle_left",
    "audit",
    "trim_audit",
    "end_task",
    "stall_task",
    "ask_kill",
    "drop_task",
    "drop_old_tasks",
    "add_file",
    "keep_file",
    "delete_file",
    "use_files",
    "doom_contents",
    "drop_content",
    "file_home",
    "see_host",
    "add_webhook",
    "change_webhook",
    "delete_webhook",
    "test_webhook",
    "send_again",
    "claim_deliveries",
    "end_delivery",
    "drop_old_deliveries",
    "renew",
    "delete",
    "register",
)
"""The store's writing methods, and `register`, the first write of opening a store. A campaign that does not visit one
of them has a gap."""

COMMAND_VERBS: Final = ("start_command", "forget_command")
"""Requests to the supervisor of commands: what it writes is as durable as a write of the store."""

RECEIVER_VERBS: Final = ("post_event",)
"""Requests to the receivers of webhooks: what a receiver accepted is as durable as a write of the store."""
OBJECT_VERBS: Final = ("store_object", "remove_object")
"""Writes of the file store, which holds the objects of files."""

ONLY_POSTGRESQL: Final = ("show_life",)
"""Writes that SQLite does not need: there the operating system knows which processes live."""

_visitor: Callable[[str], None] | None = None


def install(visitor: Callable[[str], None] | None) -> None:
    """From now on `visitor` is called at every point, on the thread that writes."""
    global _visitor
    _visitor = visitor


def reach(point: str) -> None:
    """Pass the point `verb:detail:before` or `verb:detail:after`."""
    if _visitor is not None:
        _visitor(point)


def watched() -> bool:
    """Whether a visitor is installed: naming a point in detail costs time."""
    return _visitor is not None
