"""Whether a session has come to rest, by its row and its inbox in one snapshot. Pure."""

from holdfast.events.inbox import Item, Message, TaskNews, UnknownItem
from holdfast.store.store import CaughtUp


def is_settled(caught: CaughtUp) -> bool:
    """Whether nothing happens in the session until a client sends, answers or stops something. Running tasks are
    ignored, although their end may start a turn at any time."""
    match caught.row.status:
        case "idle":
            is_held = caught.row.held_by is not None
            return all(_stays(item.item, is_held=is_held) for item in caught.inbox)
        case "waiting":
            return all(isinstance(item.item, Message | TaskNews | UnknownItem) for item in caught.inbox)
        case "queued" | "running":
            return False


def _stays(item: Item | UnknownItem, *, is_held: bool) -> bool:
    """Whether the item stays in the inbox of an idle session. Silent news starts no turn, nor does news that a holder
    left: it waits for a person's message. An item of a newer release waits for a process of that release."""
    if isinstance(item, UnknownItem):
        return True
    return isinstance(item, TaskNews) and (item.notice.silent or not is_held)
