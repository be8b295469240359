"""The queue of a session: lists, edits, moves and removes the messages that wait for their turn."""

from typing import Any

from holdfast.events.ids import MessageId
from holdfast.events.inbox import InboxItem, Message
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.errors import Conflict, NotFound


async def _waiting(call: RpcCall) -> list[Message]:
    queue = await call.service.operations.queue(call.attached().key)
    return [entry.item for entry in queue if isinstance(entry.item, Message)]


@method("session.queue.hasPending")
async def has_pending(call: RpcCall) -> Any:
    return {"hasPending": bool(await _waiting(call))}


@method("session.queue.pendingItems")
async def pending_items(call: RpcCall) -> Any:
    queue = await call.service.operations.queue(call.attached().key)
    return {
        "items": [_item(entry.item) for entry in queue if _is_queued(entry)],
        "steeringMessages": [
            entry.item.text for entry in queue if isinstance(entry.item, Message) and not _is_queued(entry)
        ],
        "inFlightSteeringCount": 0,
    }


def _is_queued(entry: InboxItem) -> bool:
    return isinstance(entry.item, Message) and entry.item.delivery == "enqueue"


def _item(item: Any) -> dict[str, Any]:
    return {
        "id": item.message_id,
        "kind": "message",
        "displayText": item.text,
        "agentMode": item.agent_mode or "interactive",
    }


@method("session.queue.snapshot")
async def snapshot(call: RpcCall) -> Any:
    pending = await pending_items(call)
    return {"items": pending["items"], "steeringMessages": pending["steeringMessages"]}


@method("session.queue.removeAt")
async def remove_at(call: RpcCall) -> Any:
    call.attached()
    return {"removed": await _removed(call, MessageId(call.text("id")))}


@method("session.queue.withdrawMessage")
async def withdraw(call: RpcCall) -> Any:
    """Remove a message from the queue if its text is still the expected one. A promoted message stays."""
    message_id, expected = MessageId(call.text("messageId")), call.text("expectedPrompt")
    waits = any(item.message_id == message_id and item.text == expected for item in await _waiting(call))
    return {"removed": waits and await _removed(call, message_id), "interrupted": False}


async def _removed(call: RpcCall, message_id: MessageId) -> bool:
    try:
        await call.service.operations.remove_queued(call.key, message_id)
    except NotFound:
        return False
    return True


@method("session.queue.updateText")
async def update_text(call: RpcCall) -> Any:
    call.attached()
    try:
        await call.service.operations.edit_queued(call.key, MessageId(call.text("id")), call.text("prompt"))
    except NotFound:
        return {"updated": False}
    return {"updated": True}


@method("session.queue.moveItem")
async def move_item(call: RpcCall) -> Any:
    """Move a message to a place among the queued ones. Steering messages keep their places."""
    waiting = await _waiting(call)
    moved, place = MessageId(call.text("id")), call.param("toPosition", int, 0)
    queued = [item.message_id for item in waiting if item.delivery == "enqueue"]
    if moved not in queued:
        return {"changed": False}
    order = [message_id for message_id in queued if message_id != moved]
    order.insert(min(max(place, 0), len(order)), moved)
    if order == queued:
        return {"changed": False}
    following = iter(order)
    whole = [next(following) if item.delivery == "enqueue" else item.message_id for item in waiting]
    try:
        await call.service.operations.reorder_queue(call.key, whole)
    except Conflict:
        return {"changed": False}  # One of the messages was promoted meanwhile.
    return {"changed": True}


@method("session.queue.removeMostRecent")
async def remove_most_recent(call: RpcCall) -> Any:
    key = call.attached().key
    for entry in reversed(await call.service.operations.queue(key)):
        assert isinstance(entry.item, Message)
        try:
            await call.service.operations.remove_queued(key, entry.item.message_id)
        except NotFound:
            continue  # The message was promoted meanwhile.
        return {"removed": True}
    return {"removed": False}


@method("session.queue.clear")
async def clear(call: RpcCall) -> Any:
    key = call.attached().key
    for entry in await call.service.operations.queue(key):
        assert isinstance(entry.item, Message)
        try:
            await call.service.operations.remove_queued(key, entry.item.message_id)
        except NotFound:
            continue
    return None
