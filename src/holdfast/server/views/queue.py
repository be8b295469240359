"""The messages that wait for their turn, as clients see them."""

from holdfast.events.inbox import InboxItem, Message
from holdfast.protocol.queue import QueuedView
from holdfast.server.views.files import message_files


def queued_views(items: tuple[InboxItem, ...]) -> tuple[QueuedView, ...]:
    return tuple(
        QueuedView(
            message_id=found.item.message_id,
            text=found.item.text,
            delivery=found.item.delivery,
            accepted_at=found.accepted_at,
            context=found.item.context,
            mode=found.item.agent_mode,
            model=found.item.model,
            thinking=found.item.thinking,
            files=message_files(found.item.files),
        )
        for found in items
        if isinstance(found.item, Message)
    )
