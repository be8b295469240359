"""What people say: sent, waited for, queued, taken back, stopped."""

import asyncio
from typing import Any

from holdfast.events.event import Event
from holdfast.events.ids import MessageId, TurnId, random_id
from holdfast.events.inbox import InboxItem, Message, StopCause
from holdfast.events.message import UserMessage
from holdfast.events.session import SessionError
from holdfast.live.live import Changed
from holdfast.server.copilot.attachments import gathered
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.connection import Attached
from holdfast.server.copilot.hub import HubClosed, HubEvent, TurnEnd
from holdfast.server.copilot.projection import WireEvent, iso
from holdfast.server.errors import Invalid, NotFound
from holdfast.server.operations import Sent
from holdfast.session.permissions import ANSWERS_PERMISSIONS

MODES = {None: "enqueue", "enqueue": "enqueue", "immediate": "steer"}


@method("session.send")
async def send(call: RpcCall) -> Any:
    sent = await _sent(call, call.attached())
    return {"messageId": sent.message_id}


@method("session.sendAndWait")
async def send_and_wait(call: RpcCall) -> Any:
    attached = call.attached()
    waiting = _Waiting(call, attached)
    with attached.hub.watched_by(waiting.watch):
        waiting.sent(await _sent(call, attached))
        with call.connection.peer.waiting():
            return await waiting.outcome()


async def _sent(call: RpcCall, attached: Attached) -> Sent:
    mode = call.param("mode", str, "") or None
    if mode not in MODES:
        raise Invalid("mode_invalid", f"{mode} is no way to send; enqueue and immediate are.")
    if call.params.get("responseFormat") is not None:
        raise Invalid("response_format_unsupported", "A response in a given format can't be asked for here.")
    prompt, shown = call.text("prompt"), call.param("displayPrompt", str, "")
    given = call.param("attachments", list[dict[str, Any]], [])
    state = await call.service.operations.state(attached.key) if given else None
    added = await gathered(given, state.working_directory if state else None)
    headers = call.param("requestHeaders", dict[str, str], {})
    message_id = MessageId(random_id())
    if headers:
        call.service.credentials.add_headers(attached.key, message_id, headers)
    call.service.observer.came(attached.key, call.param("traceparent", str, ""))
    return await call.service.operations.send(
        attached.key,
        shown or prompt,
        model_text=prompt if shown else "",
        message_id=message_id,
        delivery="steer" if MODES[mode] == "steer" else "enqueue",
        added="\n\n".join((f"<current_datetime>{iso(call.service.clock.now_ms())}</current_datetime>", *added.texts)),
        unattended=not await _anybody_decides(call, attached),
        images=added.images,
        attachments=added.described,
        agent_mode=call.param("agentMode", str, ""),
    )


async def _anybody_decides(call: RpcCall, attached: Attached) -> bool:
    """Whether a permission could be asked of this client, or of another one that is present."""
    if attached.answers_permissions:
        return True
    present = await call.service.operations.store.attachments(attached.key)
    return any(ANSWERS_PERMISSIONS in found.capabilities for found in present)


class _Waiting:
    """Waits for what became of one message."""

    def __init__(self, call: RpcCall, attached: Attached) -> None:
        self._call = call
        self._attached = attached
        self._message_id: MessageId | None = None
        self._turn_id: TurnId | None = None
        self._response: WireEvent | None = None
        self._error: tuple[SessionError, str] | None = None
        self._looking: asyncio.Future[None] | None = None
        self._early: list[tuple[HubEvent, tuple[WireEvent, ...]]] = []
        self._ended: asyncio.Future[TurnEnd | None] = asyncio.get_running_loop().create_future()

    def sent(self, sent: Sent) -> None:
        self._message_id = sent.message_id
        for found, told in self._early:
            self._take(found, told)
        self._early.clear()

    def watch(self, found: HubEvent, told: tuple[WireEvent, ...]) -> None:
        """What happens before the message is known to be accepted may already be about it."""
        if self._message_id is None:
            self._early.append((found, told))
        else:
            self._take(found, told)

    def _take(self, found: HubEvent, told: tuple[WireEvent, ...]) -> None:
        match found:
            case Event(body=UserMessage(message_id=message_id, turn_id=turn_id)) if message_id == self._message_id:
                self._turn_id = turn_id
                self._response = None
            case Event(body=SessionError() as error) if self._turn_id is not None:
                self._error = (error, told[0].id)
            case Event() if self._turn_id is not None:
                self._response = next((wire for wire in told if wire.type == "assistant.message"), self._response)
            case TurnEnd(turn_id=turn_id) if turn_id == self._turn_id and not self._ended.done():
                self._ended.set_result(found)
            case HubClosed() if not self._ended.done():
                self._ended.set_exception(self._call.failed("The session was closed before the turn ended."))
            case Changed() if self._turn_id is None:
                self._looking = asyncio.ensure_future(self._look_for_removal())
            case _:
                pass

    async def _look_for_removal(self) -> None:
        assert self._message_id is not None
        try:
            receipt = await self._call.service.operations.receipt(self._attached.key, self._message_id)
            gone = receipt.state in ("removed", "refused")
        except NotFound:
            gone = True
        if gone and not self._ended.done():
            self._ended.set_result(None)

    async def outcome(self) -> dict[str, Any]:
        try:
            self._attached.waits.add(self._ended)
            ended = await self._ended
        except asyncio.CancelledError:
            if not self._ended.cancelled():
                raise
            raise self._call.failed("The session was closed here before the turn ended.") from None
        finally:
            self._attached.waits.discard(self._ended)
        if self._error is not None:
            error, event_id = self._error
            raise self._call.failed(f"Session error: {error.message}", {"completionEventId": event_id})
        told: dict[str, Any] = {
            "messageId": self._message_id,
            "aborted": ended is None or ended.reason in ("stopped", "interrupted"),
        }
        if ended is not None and ended.idle_id is not None:
            told["completionEventId"] = ended.idle_id
        if self._response is not None:
            told["response"] = self._response
        return told


@method("session.abort")
async def abort(call: RpcCall) -> Any:
    await stop_turn(call, "stopped")
    return {"success": True}


@method("session.suspend")
async def suspend(call: RpcCall) -> Any:
    await stop_turn(call, "suspended")
    return None


async def stop_turn(call: RpcCall, cause: StopCause, *, keep_queued: bool = True) -> bool:
    """Answered when it has taken effect: what is sent next meets an idle session. What was queued stays queued, since
    there is no way to give it back. Whether anything ran."""
    attached = call.attached()
    stopped = await call.service.operations.stop(attached.key, keep_queued=keep_queued, cause=cause)
    with call.connection.peer.waiting():
        while stopped.outcome == "stopping" and not attached.hub.is_closed:
            activity = attached.hub.activity
            receipt = await call.service.operations.store.receipt(attached.key, f"stop:{stopped.stop_id}")
            if receipt is None or receipt.state != "accepted":
                return receipt is not None and receipt.outcome == "stopped"
            await activity.wait()
    return False


@method("session.queue.pendingItems")
async def pending_items(call: RpcCall) -> Any:
    queue = await call.service.operations.queue(call.attached().key)
    return {
        "items": [_item(found, found.item) for found in queue if _is_queued(found)],
        "steeringMessages": [
            found.item.text for found in queue if isinstance(found.item, Message) and not _is_queued(found)
        ],
        "inFlightSteeringCount": 0,
    }


def _is_queued(found: InboxItem) -> bool:
    return isinstance(found.item, Message) and found.item.delivery == "enqueue"


def _item(found: InboxItem, item: Any) -> dict[str, Any]:
    return {
        "id": item.message_id,
        "kind": "message",
        "displayText": item.text,
        "agentMode": item.agent_mode or "interactive",
    }


@method("session.queue.removeMostRecent")
async def remove_most_recent(call: RpcCall) -> Any:
    key = call.attached().key
    for found in reversed(await call.service.operations.queue(key)):
        assert isinstance(found.item, Message)
        try:
            await call.service.operations.remove_queued(key, found.item.message_id)
        except NotFound:
            continue  # It was taken up meanwhile.
        return {"removed": True}
    return {"removed": False}


@method("session.queue.clear")
async def clear(call: RpcCall) -> Any:
    key = call.attached().key
    for found in await call.service.operations.queue(key):
        assert isinstance(found.item, Message)
        try:
            await call.service.operations.remove_queued(key, found.item.message_id)
        except NotFound:
            continue
    return None
