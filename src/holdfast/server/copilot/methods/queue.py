"""Lists and edits queued messages, and offers further ways to send messages and stop turns."""

from typing import Any

from holdfast.events.ids import MessageId
from holdfast.events.inbox import Message
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.methods.messages import pending_items, send, send_and_wait, stop_turn
from holdfast.server.errors import Conflict, Invalid, NotFound


async def _waiting(call: RpcCall) -> list[Message]:
    queue = await call.service.operations.queue(call.attached().key)
    return [entry.item for entry in queue if isinstance(entry.item, Message)]


@method("session.queue.hasPending")
async def has_pending(call: RpcCall) -> Any:
    return {"hasPending": bool(await _waiting(call))}


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


@method("session.sendMessages")
async def send_messages(call: RpcCall) -> Any:
    """Send one message. A turn starts with one message, so a list of several is refused as a whole."""
    messages = call.param("messages", list[dict[str, Any]], [])
    if len(messages) != 1:
        raise Invalid("messages_invalid", "Send one message at a time: a turn is started by one message.")
    sending = RpcCall(call.service, call.connection, call.method, {**call.params, **messages[0]})
    if call.param("wait", bool, False):
        sent = await send_and_wait(sending)
    else:
        sent = await send(sending)
    return {"messageIds": [sent["messageId"]]}


@method("session.interruptMainTurn")
async def interrupt(call: RpcCall) -> Any:
    flush = call.param("flushQueued", bool, False)
    return {"interrupted": await stop_turn(call, "stopped", keep_queued=flush)}
