"""Whether a session has come to rest: by its row and its inbox as one snapshot has them. Pure."""

from holdfast.events.inbox import Item, Message, TaskNews, UnknownItem
from holdfast.store.store import CaughtUp


def is_settled(caught: CaughtUp) -> bool:
    """Whether nothing happens any more until somebody does something: by log and inbox of one snapshot. Tasks that run
    may make something happen at any time, and count as nothing here."""
    match caught.row.status:
        case "idle":
            held = caught.row.held_by is not None
            return all(_stays(item.item, held=held) for item in caught.inbox)
        case "waiting":
            return all(isinstance(item.item, Message | TaskNews | UnknownItem) for item in caught.inbox)
        case "queued" | "running":
            return False


def _stays(item: Item | UnknownItem, *, held: bool) -> bool:
    """News that the model knows already starts no turn; nor does news that a holder left: it waits for a person. An
    item that a newer release put changes nothing until a process of that release comes."""
    if isinstance(item, UnknownItem):
        return True
    return isinstance(item, TaskNews) and (item.notice.silent or not held)
