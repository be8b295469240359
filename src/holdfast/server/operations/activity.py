"""The activity of a session: whether it has come to rest, by its row and its inbox in one snapshot."""

from holdfast.events.ids import Key
from holdfast.events.inbox import Item, Message, TaskNews, UnknownItem
from holdfast.protocol.session import Activity
from holdfast.server.operations.session_access import SessionAccess
from holdfast.store.store import CaughtUp, Cursor


class ActivityVerbs(SessionAccess):
    async def activity(self, key: Key) -> Activity:
        """The head of a session, and whether it has come to rest. Raises `NotFound`."""
        head = (await self.session(key)).head
        caught = await self.store.catch_up(key, Cursor(head), limit=1)
        if caught is None:
            raise self._not_found(key)
        return Activity(head=caught.row.head, is_settled=is_settled(caught))


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
