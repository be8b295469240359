"""The messages that wait, looked at and changed before their turn; and messages and stops in other clothes."""

from typing import Any

from holdfast.events.ids import MessageId
from holdfast.events.inbox import Message
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.methods.messages import pending_items, send, send_and_wait, stop_turn
from holdfast.server.errors import Conflict, Invalid, NotFound


async def _waiting(call: RpcCall) -> list[Message]:
    queue = await call.service.operations.queue(call.attached().key)
    return [found.item for found in queue if isinstance(found.item, Message)]


@method("session.queue.hasPending")
async def has_pending(call: RpcCall) -> Any:
    return {"hasPending": bool(await _waiting(call))}


@method("session.queue.snapshot")
async def snapshot(call: RpcCall) -> Any:
    told = await pending_items(call)
    return {"items": told["items"], "steeringMessages": told["steeringMessages"]}


@method("session.queue.removeAt")
async def remove_at(call: RpcCall) -> Any:
    call.attached()
    return {"removed": await _removed(call, MessageId(call.text("id")))}


@method("session.queue.withdrawMessage")
async def withdraw(call: RpcCall) -> Any:
    """Taken out of the queue if it still says what was sent. One that was taken up is not taken back."""
    message_id, expected = MessageId(call.text("messageId")), call.text("expectedPrompt")
    waits = any(found.message_id == message_id and found.text == expected for found in await _waiting(call))
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
    """To a place among the queued ones. Those that steer the turn that runs keep theirs."""
    waiting = await _waiting(call)
    moved, place = MessageId(call.text("id")), call.param("toPosition", int, 0)
    queued = [found.message_id for found in waiting if found.delivery == "enqueue"]
    if moved not in queued:
        return {"changed": False}
    order = [found for found in queued if found != moved]
    order.insert(min(max(place, 0), len(order)), moved)
    if order == queued:
        return {"changed": False}
    following = iter(order)
    whole = [next(following) if found.delivery == "enqueue" else found.message_id for found in waiting]
    try:
        await call.service.operations.reorder_queue(call.key, whole)
    except Conflict:
        return {"changed": False}  # One of them was taken up meanwhile.
    return {"changed": True}


@method("session.sendMessages")
async def send_messages(call: RpcCall) -> Any:
    """One message is sent as any other is. Several are no single turn here, and are refused as a whole."""
    given = call.param("messages", list[dict[str, Any]], [])
    if len(given) != 1:
        raise Invalid("messages_invalid", "Send one message at a time: a turn is started by one message.")
    sending = RpcCall(call.service, call.connection, call.method, {**call.params, **given[0]})
    if call.param("wait", bool, False):
        sent = await send_and_wait(sending)
    else:
        sent = await send(sending)
    return {"messageIds": [sent["messageId"]]}


@method("session.interruptMainTurn")
async def interrupt(call: RpcCall) -> Any:
    flush = call.param("flushQueued", bool, False)
    return {"interrupted": await stop_turn(call, "stopped", keep_queued=flush)}
