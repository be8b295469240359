"""The presence of clients: they attach to a session, come back to it, and leave it.

A client's tools and capabilities belong to its attachment, which ends with its connection or its process. Requests to
clients belong to the session: they stay, and the next client may answer them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from holdfast.events.body import Body
from holdfast.events.ids import Key, RequestId
from holdfast.events.inbox import Stop
from holdfast.events.session import ClientTool, SessionResumed, SettingsChanged, ToolDelivered
from holdfast.live.live import Changed
from holdfast.server.errors import Conflict, NotFound, OperationError
from holdfast.server.operations import Operations
from holdfast.session.interventions import declined_by_all
from holdfast.session.permissions import ANSWERS_PERMISSIONS, NOBODY_COULD
from holdfast.session.state import OpenRequest, State, ToolCall
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreError
from holdfast.store.store import Attachment, Store, declined_by_each

log = logging.getLogger(__name__)

A_YEAR_SECONDS: Final = 365 * 86_400.0
"""An attachment needs no renewal while this process watches its connection: it ends with the connection, or with the
process."""

ANSWERS_QUESTIONS = "question"
"""The capability of a client with a person who answers questions of the model."""

RESTORE_EVERY_SECONDS: Final = 5.0
"""How often a process restores missing attachments: the store may have declared the process dead, or lost them."""

DECLINE_TRIES: Final = 3
"""How often a decline is tried; each retry follows a restored attachment."""


SettingsOf = Callable[[State], Awaitable[SettingsChanged]]
"""From a session's state to the settings, beside its tools, that an arriving client changes. May be called again with a
newer state."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A client with its tools and capabilities."""

    attachment_id: str
    tools: tuple[ClientTool, ...] = ()
    capabilities: tuple[str, ...] = ()


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """The session as the client that came back to it found it."""

    state: State
    """The state before the client's return changed anything."""
    was_active: bool
    already_in_use: bool
    interrupted: bool
    """The pending work was ended, not continued."""
    event: SessionResumed


class _Client:
    """A client that is connected to this process, with the content of its attachment."""

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.declined: set[RequestId] = set()


class Presence:
    """The clients of one process, over the same store as the operations.

    The store declares a silent process dead, and ends its attachments, although its clients may still be connected. So
    the process regularly compares its clients with the store's attachments, and attaches the missing ones again."""

    def __init__(self, operations: Operations, store: Store, clock: Clock) -> None:
        self._operations = operations
        self._store = store
        self._clock = clock
        self._clients: dict[tuple[Key, str], _Client] = {}
        self._restoring: asyncio.Task[None] | None = None
        self._resuming: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._untidy: set[Key] = set()
        """Sessions that still offer tools of a client that left in the middle of a call."""

    async def arrive(self, key: Key, arrival: Arrival) -> None:
        """Attach a client to a session that it just created. Raises `Conflict` if another client runs a tool of the
        same name."""
        await self._attach(key, arrival)

    async def resume(
        self, key: Key, arrival: Arrival, *, continue_pending_work: bool | None, settings: SettingsOf
    ) -> Resumed:
        """Attach a client that came back, and record its return with the settings that it changed.

        If the session is resumed in another process, and the client does not continue the pending work, that work is
        ended first: a crash in between leaves it ended, and the client to resume again."""
        # Clients of this process resume one after the other; clients of other processes may resume at the same moment.
        async with self._resuming.setdefault(key, asyncio.Lock()):
            return await self._resume(key, arrival, continue_pending_work, settings)

    async def _resume(
        self, key: Key, arrival: Arrival, continue_pending_work: bool | None, settings: SettingsOf
    ) -> Resumed:
        is_warm = await self._is_warm(key)
        # Attached before the check: of clients that resume at the same moment, all but one see another and leave its
        # work.
        others = await self._attach(key, arrival)
        state = await self._operations.state(key)
        interrupts = bool(state.requests) and not (is_warm or continue_pending_work or others)
        interrupts = interrupts and state.policy.cold_resume_ends_pending_work
        if interrupts and state.turn is not None:
            turn_id = state.turn.turn_id
            await self._operations.stop(key, keep_queued=True, cause="not continued", meant_for=turn_id)
        elsewhere = is_warm and state.attached_process != self._store.process
        resumed = SessionResumed(
            resume_time=self._clock.now_ms(),
            event_count=state.head,
            process=self._store.process,
            continue_pending_work=continue_pending_work,
            session_was_active=is_warm and state.turn is not None,
            already_in_use=elsewhere and bool(others),
        )

        async def written(now: State) -> list[Body]:
            changed = await settings(now)
            return [resumed, msgspec.structs.replace(changed, client_tools=await self._tools_with(key, now, arrival))]

        await self._operations.change(key, written)
        return Resumed(
            state=state,
            was_active=resumed.session_was_active,
            already_in_use=resumed.already_in_use,
            interrupted=interrupts,
            event=resumed,
        )

    async def offer(self, key: Key, arrival: Arrival, settings: SettingsOf | None = None) -> None:
        """Offer a client's tools to the model beside the tools of the other present clients."""

        async def offered(state: State) -> list[Body]:
            tools = await self._tools_with(key, state, arrival)
            if settings is None:
                if records := _offering(state, tools):
                    await self._operations.check_storage(key.owner)
                return records
            return [msgspec.structs.replace(await settings(state), client_tools=tools)]

        await self._operations.change(key, offered)

    async def _tools_with(self, key: Key, state: State, arrival: Arrival) -> tuple[ClientTool, ...]:
        """The session's client tools with this client: the tools of all present clients, and its own. Clients attach
        before they record their tools, so every client in the state is among the attachments, which are read after
        it."""
        present = {name for found in await self._others(key, arrival.attachment_id) for name in found.tools}
        own = {found.name for found in arrival.tools}
        kept = (found for found in state.client_tools if found.name in present - own)
        return (*kept, *arrival.tools)

    async def replace_tools(self, key: Key, arrival: Arrival) -> None:
        """Replace the tools of a present client."""
        await self._attach(key, arrival)
        await self.offer(key, arrival)

    async def leave(self, key: Key, attachment_id: str) -> bool:
        """Detach a client and withdraw its tools. The tools of the last client stay on offer: the next client runs the
        calls made meanwhile. Returns whether it was the last."""
        self._clients.pop((key, attachment_id), None)
        left = await self._store.detach(key, attachment_id)
        if not left:
            return left is not None
        self._operations.live.publish(key, Changed())
        try:
            await self._keep_only(key, left)
        except NotFound:
            pass  # The session was deleted meanwhile.
        except Conflict:
            self._untidy.add(key)
        return False

    async def tidy(self, key: Key) -> None:
        """Withdraw the tools that stayed only because of a call, when the call is done."""
        if key in self._untidy:
            self._untidy.discard(key)
            if left := await self._store.attachments(key):
                await self._keep_only(key, left)

    async def _keep_only(self, key: Key, left: Sequence[Attachment]) -> None:
        """Withdraw the tools that no present client runs. `left` are the attachments that remained when the client
        left: if they have ended since, the tools of the last one stay."""

        async def kept(state: State) -> list[Body]:
            now = await self._store.attachments(key) or left
            present = {name for found in now for name in found.tools}
            offered = present | _called(state)
            if offered != present:
                self._untidy.add(key)
            return _offering(state, tuple(tool for tool in state.client_tools if tool.name in offered))

        await self._operations.change(key, kept)

    async def forget(self, key: Key, attachment_id: str) -> None:
        """Detach a client whose request was refused."""
        await self.leave(key, attachment_id)

    async def decline(self, key: Key, attachment_id: str, request_id: RequestId) -> bool:
        """Record that no person at this client can decide. If no other client can, the request is denied when this
        returns; otherwise it stays open, and the session's holder checks again whenever an attachment ends. Returns
        whether the request was open."""
        state = await self._operations.state(key)
        if request_id not in state.requests:
            return False
        client = self._clients.get((key, attachment_id))
        if client is not None:
            client.declined = {*(client.declined & state.requests.keys()), request_id}
        for _ in range(DECLINE_TRIES):
            if await self._store.decline(key, attachment_id, request_id):
                break
            if client is None or self._clients.get((key, attachment_id)) is not client:
                break  # The client has left.
            await self._restore(key, client)
        self._operations.live.publish(key, Changed())
        deciders = declined_by_each(await self._store.attachments(key), ANSWERS_PERMISSIONS)
        if state.requests[request_id].kind == "permission" and request_id in declined_by_all(deciders):
            with suppress(OperationError):  # It was answered meanwhile, or the turn is over.
                await self._operations.decide_permission(key, request_id, NOBODY_COULD)
        return True

    # Attachments that the store lost

    async def close(self) -> None:
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.gather(self._restoring, return_exceptions=True)

    async def restore(self) -> None:
        """Attach the clients of this process that the store has no attachment of."""
        known = dict(self._clients)
        noted = await self._store.attached()
        for place, client in known.items():
            if place not in noted and self._clients.get(place) is client:
                with suppress(OperationError):  # The session was deleted.
                    await self._restore(place[0], client)

    async def _restore(self, key: Key, client: _Client) -> None:
        """Attach the client again, without the tools that another client has attached meanwhile. A client that leaves
        in between is detached again."""
        arrival = client.arrival
        taken = {name for found in await self._others(key, arrival.attachment_id) for name in found.tools}
        left = tuple(found for found in arrival.tools if found.name not in taken)
        client.arrival = msgspec.structs.replace(arrival, tools=left)
        log.warning("client %s of session %s was not noted any more, and is again", arrival.attachment_id, key.session)
        await self._note(key, client)
        if self._clients.get((key, arrival.attachment_id)) is not client:
            await self._store.detach(key, arrival.attachment_id)
        else:
            await self.offer(key, client.arrival)

    async def _keep_restoring(self) -> None:
        while self._clients:
            await self._clock.sleep(RESTORE_EVERY_SECONDS)
            try:
                await self.restore()
            except StoreError as error:
                log.warning("could not look whether all clients are noted: %s", error.message)
            except Exception:
                log.exception("could not look whether all clients are noted")

    async def deliverable(self, key: Key, tools: Sequence[ClientTool]) -> tuple[tuple[OpenRequest, ToolCall], ...]:
        """The unanswered calls of these tools, and unanswered questions: they may be delivered to a client once
        more."""
        again = {found.name for found in tools if not found.delivered_once}
        state = await self._operations.state(key)
        if any(isinstance(found.item, Stop) for found in await self._store.waiting_items(key)):
            return ()
        unanswered = {found.request_id for found in await self._store.requests(key)}
        reply = state.reply()
        pending = [(request, reply.call(request.tool_call_id)) for request in state.requests.values()] if reply else []
        return tuple(
            (request, call)
            for request, call in pending
            if call is not None
            and request.request_id in unanswered
            and (request.kind == "question" or (request.kind == "client_tool" and call.name in again))
        )

    async def deliver_again(self, key: Key, request: OpenRequest) -> None:
        """Record that a pending call is delivered to a client once more; called before the delivery."""
        delivered = ToolDelivered(request_id=request.request_id, tool_call_id=request.tool_call_id)
        await self._operations.record(key, delivered)

    async def _is_warm(self, key: Key) -> bool:
        process = (await self._operations.state(key)).attached_process
        return bool(process) and await self._store.is_alive(process)

    async def _attach(self, key: Key, arrival: Arrival) -> tuple[Attachment, ...]:
        """Attach the client, and keep it attached until it leaves."""
        place = (key, arrival.attachment_id)
        before, client = self._clients.get(place), _Client(arrival)
        if before is not None:
            client.declined = before.declined
        others = await self._note(key, client)
        self._clients[place] = client
        if self._restoring is None or self._restoring.done():
            self._restoring = asyncio.create_task(self._keep_restoring(), name="holdfast-presence")
        return others

    async def _note(self, key: Key, client: _Client) -> tuple[Attachment, ...]:
        return await self._operations.attach(
            key,
            client.arrival.attachment_id,
            tools=tuple(found.name for found in client.arrival.tools),
            capabilities=client.arrival.capabilities,
            declined=tuple(sorted(client.declined)),
            ttl_seconds=A_YEAR_SECONDS,
        )

    async def _others(self, key: Key, attachment_id: str) -> tuple[Attachment, ...]:
        return tuple(found for found in await self._store.attachments(key) if found.attachment_id != attachment_id)


def _offering(state: State, tools: tuple[ClientTool, ...]) -> list[Body]:
    """The record that sets these client tools; none if the session has them."""
    return [SettingsChanged(client_tools=tools)] if tools != state.client_tools else []


def _called(state: State) -> set[str]:
    """The tools of unfinished calls: they stay on offer until their step ends, whichever client leaves."""
    reply = state.reply()
    return {call.name for call in reply.unfinished()} if reply else set()
