"""Finds in a session's log what a client names by id: a message with its turn, a turn with its requests.

Reads from the end, and no further than needed. Events that a rewind took back are not found.
"""

from contextlib import aclosing

import msgspec

from holdfast.events.body import Body
from holdfast.events.compaction import CompactionEnded, CompactionStarted
from holdfast.events.event import Event
from holdfast.events.ids import CompactionId, Key, Position, RequestId, ToolCallId, TurnId
from holdfast.events.message import AssistantMessage, UserMessage
from holdfast.events.request import ExternalToolRequested, PermissionRequested, RequestKind, UserInputRequested
from holdfast.events.session import Truncated
from holdfast.events.turn import TurnStarted, TurnWaiting
from holdfast.server.log_tail import events_backwards
from holdfast.store.store import Store


class FoundMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a person sent."""

    said: UserMessage
    position: Position
    started: Position
    """The position where its turn starts."""
    is_last: bool
    """No turn follows the message's turn."""

    @property
    def before(self) -> Position:
        """The last position that stays when the message is taken back. Events between the start of its turn and the
        message, such as news of tasks, do not belong to the message."""
        return Position((self.started if self.position == self.started + 1 else self.position) - 1)


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a turn, open or closed."""

    request_id: RequestId
    kind: RequestKind
    tool_call_id: ToolCallId
    position: Position
    choices: tuple[str, ...] = ()


class FoundTurn(msgspec.Struct, frozen=True, kw_only=True):
    turn_id: TurnId
    started: Position
    requests: tuple[TurnRequest, ...]
    """The newest first."""
    waits: tuple[tuple[Position, tuple[RequestId, ...]], ...]
    """The positions where the turn waited, each with the requests that it waited for; the newest first."""


async def find_message(store: Store, key: Key, head: Position, message_id: str) -> FoundMessage | None:
    found: tuple[UserMessage, Position] | None = None
    is_last = True
    async with aclosing(events_backwards(store, key, head)) as events:
        async for event in events:
            match event.body:
                case UserMessage() as said if found is None and said.message_id == message_id:
                    found = said, event.position
                case TurnStarted() if found is not None:
                    return FoundMessage(said=found[0], position=found[1], started=event.position, is_last=is_last)
                case TurnStarted():
                    is_last = False
                case _:
                    pass
    return None


async def find_said(store: Store, key: Key, head: Position, message_id: str) -> Event | None:
    """The event of a message that a person or the model said."""
    async with aclosing(events_backwards(store, key, head)) as events:
        async for event in events:
            if isinstance(event.body, UserMessage | AssistantMessage) and event.body.message_id == message_id:
                return event
    return None


async def find_compaction(
    store: Store, key: Key, head: Position, compaction_id: CompactionId
) -> CompactionStarted | CompactionEnded | None:
    """The end of a compaction; its last start, if it is under way."""
    async with aclosing(events_backwards(store, key, head)) as events:
        async for event in events:
            match event.body:
                case CompactionStarted() | CompactionEnded() as found if found.compaction_id == compaction_id:
                    return found
                case _:
                    pass
    return None


async def find_turn(store: Store, key: Key, head: Position, turn_id: str) -> FoundTurn | None:
    requests: list[TurnRequest] = []
    waits: list[tuple[Position, tuple[RequestId, ...]]] = []
    async with aclosing(events_backwards(store, key, head)) as events:
        async for event in events:
            match event.body:
                case TurnStarted() as started if started.turn_id == turn_id:
                    return FoundTurn(
                        turn_id=started.turn_id, started=event.position, requests=tuple(requests), waits=tuple(waits)
                    )
                case TurnStarted():
                    requests, waits = [], []  # They belong to a later turn.
                case TurnWaiting(reason="requests", request_ids=request_ids):
                    waits.append((event.position, request_ids))
                case body if request := _turn_request(body, event.position):
                    requests.append(request)
                case _:
                    pass
    return None


async def replaced_turn(store: Store, key: Key, started: Position) -> TurnId | None:
    """The turn that was taken back for the turn that starts at `started`; None if that turn replaced none."""
    before = await store.events_after(key, Position(started - 2), limit=1) if started > 1 else ()
    match before:
        case (event,) if isinstance(event.body, Truncated):
            (first,) = await store.events_after(key, event.body.kept, limit=1)
            return first.body.turn_id if isinstance(first.body, TurnStarted | UserMessage) else None
        case _:
            return None


def _turn_request(body: Body, position: Position) -> TurnRequest | None:
    kind: RequestKind
    choices: tuple[str, ...] = ()
    match body:
        case PermissionRequested():
            kind = "permission"
        case ExternalToolRequested():
            kind = "client_tool"
        case UserInputRequested():
            kind, choices = "question", body.choices
        case _:
            return None
    return TurnRequest(
        request_id=body.request_id, kind=kind, tool_call_id=body.tool_call_id, position=position, choices=choices
    )
