"""Sends messages, waits for their turns, and stops turns."""

import asyncio
from typing import Any

from holdfast.events.event import Event
from holdfast.events.ids import MessageId, TurnId, random_id
from holdfast.events.inbox import StopCause
from holdfast.events.message import UserMessage
from holdfast.events.session import SessionError
from holdfast.live.live import Changed
from holdfast.protocol.message import Sent
from holdfast.server.copilot.attachments import gathered
from holdfast.server.copilot.call import RpcCall, method
from holdfast.server.copilot.connection import Attached
from holdfast.server.copilot.hub import HubClosed, HubEvent, TurnEnd
from holdfast.server.copilot.projection import WireEvent, iso
from holdfast.server.errors import Invalid, NotFound
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


async def _sent(call: RpcCall, attached: Attached) -> Sent:
    mode = call.param("mode", str, "") or None
    if mode not in MODES:
        raise Invalid("mode_invalid", f"{mode} is no mode of sending. Use enqueue or immediate.")
    if call.params.get("responseFormat") is not None:
        raise Invalid(
            "response_format_unsupported",
            "Response formats are not supported by this runtime. Leave responseFormat out.",
        )
    prompt, shown = call.text("prompt"), call.param("displayPrompt", str, "")
    attachments = call.param("attachments", list[dict[str, Any]], [])
    state = await call.service.operations.state(attached.key) if attachments else None
    added = await gathered(attachments, state.working_directory if state else None)
    headers = call.param("requestHeaders", dict[str, str], {})
    message_id = MessageId(random_id())
    if headers:
        call.service.credentials.add_headers(attached.key, message_id, headers)
    call.service.observer.link_traceparent(attached.key, call.param("traceparent", str, ""))
    return await call.service.operations.send(
        attached.key,
        shown or prompt,
        model_text=prompt if shown else "",
        message_id=message_id,
        delivery="steer" if MODES[mode] == "steer" else "enqueue",
        added="\n\n".join((f"<current_datetime>{iso(call.service.clock.now_ms())}</current_datetime>", *added.texts)),
        unattended=not await _can_ask_permission(call, attached),
        images=added.images,
        attachments=added.described,
        agent_mode=call.param("agentMode", str, ""),
    )


async def _can_ask_permission(call: RpcCall, attached: Attached) -> bool:
    """Whether this client, or another one that is attached, answers permission requests."""
    if attached.answers_permissions:
        return True
    attachments = await call.service.operations.store.attachments(attached.key)
    return any(ANSWERS_PERMISSIONS in attachment.capabilities for attachment in attachments)


class _Waiting:
    """Waits for the end of the turn that one message starts or joins."""

    def __init__(self, call: RpcCall, attached: Attached) -> None:
        self._call = call
        self._attached = attached
        self._message_id: MessageId | None = None
        self._turn_id: TurnId | None = None
        self._response: WireEvent | None = None
        self._error: tuple[SessionError, str] | None = None
        self._removal_check: asyncio.Future[None] | None = None
        self._early: list[tuple[HubEvent, tuple[WireEvent, ...]]] = []
        self._ended: asyncio.Future[TurnEnd | None] = asyncio.get_running_loop().create_future()

    def sent(self, sent: Sent) -> None:
        self._message_id = sent.message_id
        for event, wires in self._early:
            self._take(event, wires)
        self._early.clear()

    def watch(self, event: HubEvent, wires: tuple[WireEvent, ...]) -> None:
        """Take an event, or keep it until the message's id is known: earlier events may already be about it."""
        if self._message_id is None:
            self._early.append((event, wires))
        else:
            self._take(event, wires)

    def _take(self, event: HubEvent, wires: tuple[WireEvent, ...]) -> None:
        match event:
            case Event(body=UserMessage(message_id=message_id, turn_id=turn_id)) if message_id == self._message_id:
                self._turn_id = turn_id
                self._response = None
            case Event(body=SessionError() as error) if self._turn_id is not None:
                self._error = (error, wires[0].id)
            case Event() if self._turn_id is not None:
                self._response = next((wire for wire in wires if wire.type == "assistant.message"), self._response)
            case TurnEnd(turn_id=turn_id) if turn_id == self._turn_id and not self._ended.done():
                self._ended.set_result(event)
            case HubClosed() if not self._ended.done():
                self._ended.set_exception(self._call.failed("The session was closed before the turn ended."))
            case Changed() if self._turn_id is None:
                self._removal_check = asyncio.ensure_future(self._check_removal())
            case _:
                pass

    async def _check_removal(self) -> None:
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
        result: dict[str, Any] = {
            "messageId": self._message_id,
            "aborted": ended is None or ended.reason in ("stopped", "interrupted"),
        }
        if ended is not None and ended.idle_id is not None:
            result["completionEventId"] = ended.idle_id
        if self._response is not None:
            result["response"] = self._response
        return result


@method("session.abort")
async def abort(call: RpcCall) -> Any:
    await stop_turn(call, "stopped")
    return {"success": True}


@method("session.suspend")
async def suspend(call: RpcCall) -> Any:
    await stop_turn(call, "suspended")
    return None


@method("session.interruptMainTurn")
async def interrupt(call: RpcCall) -> Any:
    flush = call.param("flushQueued", bool, False)
    return {"interrupted": await stop_turn(call, "stopped", keep_queued=flush)}


async def stop_turn(call: RpcCall, cause: StopCause, *, keep_queued: bool = True) -> bool:
    """Stop the turn, wait until it has ended, and return whether one ran: the next message meets an idle session. With
    `keep_queued`, queued messages stay queued, since there is no way to hand them back."""
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
