"""A hub reads one session once and sends its events to all Copilot clients of this process.

All clients get the same events under the same ids. Events that a client must not miss are durable and can be read
again. Ephemeral events (idle, a changed queue) are derived from durable ones, so that no client waits for a worker that
died.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import msgspec

from holdfast.events import session, turn
from holdfast.events.event import Event
from holdfast.events.ids import Key, Position, RequestId, TaskId, TurnId, random_id
from holdfast.events.request import UserInputCompleted, UserInputRequested
from holdfast.events.task import TaskNotified, TaskStarted
from holdfast.live.live import Changed, Delta, Progress, WaitStatus
from holdfast.server.copilot.context_meter import ContextMeter
from holdfast.server.copilot.peer import Peer, PeerGone, RpcError
from holdfast.server.copilot.projection import CopilotProjection, WireEvent, without_rewound
from holdfast.server.errors import NotFound, OperationError
from holdfast.server.operations import Operations
from holdfast.server.operations.requests import LEAVES_OPEN
from holdfast.session.state import State
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreError
from holdfast.store.store import Cursor

log = logging.getLogger(__name__)

KEPT_EVENTS: Final = 1_000
KEPT_BYTES: Final = 512 * 1024
"""Bounds on the sent events, ephemeral ones included, that a hub keeps for reading again."""

LOOKED_BACK: Final = 200
"""Events at the end of a log that are read first to restore the projection."""

AFTER_FAILURE_SECONDS: Final = 1.0

STREAMED: Final = frozenset(
    {
        "assistant.message_start",
        "assistant.message_delta",
        "assistant.streaming_delta",
        "assistant.reasoning_delta",
    }
)
"""Event types sent only to clients that asked for streaming."""


class Member:
    """A client of this process that is attached to the session. Events are held back until `begin`."""

    def __init__(self, peer: Peer, *, attachment_id: str, streaming: bool, answers_questions: bool) -> None:
        self.peer = peer
        self.attachment_id = attachment_id
        self.streaming = streaming
        self.answers_questions = answers_questions
        self._held: list[Any] | None = []

    def send(self, params: Any) -> None:
        if self._held is None:
            self.peer.notify("session.event", params)
        else:
            self._held.append(params)

    def begin(self) -> None:
        """Send the events held back so far: the response that attached this client is now queued before them."""
        held, self._held = self._held or [], None
        for params in held:
            self.peer.notify("session.event", params)


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended, for requests that wait for its end."""

    turn_id: TurnId
    reason: turn.EndReason
    idle_id: str | None
    """Id of the `session.idle` event; None if more messages were queued and the session was not idle."""


class HubClosed(msgspec.Struct, frozen=True):
    """The session was deleted, or its last client of this process left: the hub sends nothing more."""


HubEvent = Event | TurnEnd | Changed | HubClosed
Watcher = Callable[[HubEvent, tuple[WireEvent, ...]], None]


class Hub:
    """Follows one session from the arrival of its first client until the last one leaves."""

    def __init__(
        self,
        key: Key,
        operations: Operations,
        clock: Clock,
        instructions: str,
        updated: Callable[[Key], Awaitable[None]],
    ) -> None:
        self.key = key
        self.id = random_id()
        """Names this hub in cursors: another hub of the session numbers its events from 1 again."""
        self.position = Position(0)
        """All events of the log up to this position are projected and sent."""
        self.members: dict[str, Member] = {}
        self.kept: deque[tuple[int, WireEvent]] = deque()
        self._sizes: deque[int] = deque()
        self._kept_bytes = 0
        self.last_number = 0
        """Number of the last event sent; the first is 1."""
        self.first_after_rewind = 1
        """Number of the first event sent after the last rewind. Earlier events may have been taken back by it."""
        self.activity = asyncio.Event()
        """Set and replaced with every event of the log and every event sent."""
        self._operations = operations
        self._clock = clock
        self._instructions = instructions
        self._updated = updated
        self._projection = CopilotProjection(key.session, instructions)
        self._meter = ContextMeter(operations, key)
        self._watchers: list[Watcher] = []
        self._mode: session.Mode = "interactive"
        self._ended: tuple[str, turn.TurnEnded] | None = None
        """The last turn's end with its event id, until the idle event is sent."""
        self._queue: tuple[int, int] | None = None
        """Inbox tail and number of waiting messages when clients were last notified."""
        self._tasks: dict[TaskId, tuple[str, bool]] = {}
        """Status of each background task, and whether it stalled, when clients were last notified."""
        self.is_closed = False
        self.starting: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._unanswered: dict[RequestId, tuple[UserInputRequested, set[str], str]] = {}
        """Questions that clients failed to ask, with the peer ids of those clients and the last error."""
        self._asking: dict[RequestId, set[asyncio.Task[None]]] = {}

    async def start(self, position: Position, state: State | None) -> None:
        """Follow the session from `position` on. `state` is folded up to there; None for a new session."""
        if state is not None:
            await self._restore_projection(position, state)
            self._tasks = await self._background_tasks()
        self.position = position
        self._following = asyncio.create_task(self._follow(Cursor(position)), name=f"hub {self.key.session}")

    async def stop(self) -> None:
        tasks = [task for tasks in self._asking.values() for task in tasks]
        if self._following is not None:
            tasks.append(self._following)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._end()

    def _end(self) -> None:
        """Wake all waiting requests: the hub sends nothing more."""
        self.is_closed = True
        self._signal_activity()
        self._notify_watchers(HubClosed(), ())

    def join(self, member: Member) -> None:
        self.members[member.peer.id] = member

    def leave(self, member: Member) -> None:
        if self.members.get(member.peer.id) is member:
            del self.members[member.peer.id]
        for unanswered in list(self._unanswered.values()):
            self._give_up_if_no_client_can_ask(*unanswered)

    @property
    def last_persisted(self) -> str | None:
        """Id of the last persisted event sent."""
        return self._projection.parent

    async def caught_up(self, position: Position) -> None:
        """Wait until the log up to `position` is sent."""
        while self.position < position and not self.is_closed:
            await self.activity.wait()

    @contextlib.contextmanager
    def watched_by(self, watcher: Watcher) -> Iterator[None]:
        """Pass every hub event to `watcher` inside this block, with the wire events made of it."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def publish(self, event_type: str, data: dict[str, Any], *, only: Member | None = None) -> WireEvent:
        """Send an ephemeral event, which is not in the log, to all members or to one."""
        wire = self._projection.ephemeral_event(event_type, data, self._clock.now_ms())
        self._send(wire, only=only)
        return wire

    def ask(self, member: Member, question: UserInputRequested) -> None:
        """Send a question to a client. The first answer of any client counts."""
        task = asyncio.create_task(self._ask(member, question), name="question")
        tasks = self._asking.setdefault(question.request_id, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _restore_projection(self, position: Position, state: State) -> None:
        """Replay the end of the log up to `position` into a new projection, for what the next events refer to."""
        self._mode = state.mode
        first = Position(max(0, position - LOOKED_BACK))
        projection = CopilotProjection(self.key.session, self._instructions)
        while True:
            tail = await self._operations.store.events_after(self.key, first, limit=position - first)
            projection.start_from(state, without_rewound(tail))
            if projection.parent is not None or first == 0:
                break
            first = Position(max(0, first - 10 * LOOKED_BACK))
        self._projection = projection

    async def _follow(self, cursor: Cursor) -> None:
        reader = self._operations.read(self.key, cursor)
        while True:
            try:
                async for reading in reader.follow():
                    match reading:
                        case Event():
                            await self._event(reading)
                        case Delta():
                            self._delta(reading)
                        case Progress(tool_call_id=call, text=text):
                            self.publish("tool.execution_progress", {"toolCallId": call, "progressMessage": text})
                        case WaitStatus():
                            pass  # The protocol has no event that a later one replaces.
                        case Changed():
                            await self._changed(reading)
            except NotFound:
                self._end()
                return  # Deleted.
            except StoreError as error:
                log.warning("session %s can't be read: %s", self.key.session, error)
                await self._clock.sleep(AFTER_FAILURE_SECONDS)
            except Exception:
                log.exception("an event of session %s could not be told", self.key.session)
            reader = self._operations.read(self.key, reader.cursor)

    async def _event(self, event: Event) -> None:
        if isinstance(event.body, TaskNotified):
            await self.refresh_tasks()  # Clients learn that a task ended before they see the model's notice.
        sent = tuple(self._projection.project(event))
        for wire in sent:
            self._send(wire)
        self.position = event.position
        self._signal_activity()
        self._notify_watchers(event, sent)
        if (measured := await self._meter.take(event)) is not None:
            self.publish("session.usage_info", measured)
        match event.body:
            case session.TitleChanged():
                await self._updated(self.key)
            case session.ModeChanged(new_mode=mode):
                self._mode = mode
            case session.Truncated():
                await self._rewound(event, event.body)
            case TaskStarted(task_id=task_id):
                self._tasks.pop(task_id, None)  # Notify clients even if the row existed when the hub started.
                await self.refresh_tasks()
            case turn.TurnStarted():
                self._ended = None
            case turn.TurnEnded() as ended:
                self._ended = (event.id, ended)
                await self._updated(self.key)
                await self._check_idle()
            case UserInputRequested() as question:
                for member in list(self.members.values()):
                    if member.answers_questions:
                        self.ask(member, question)
            case UserInputCompleted(request_id=request_id):
                self._unanswered.pop(request_id, None)
                for task in self._asking.pop(request_id, set()):
                    task.cancel()  # Another client answered, or the turn ended.
            case _:
                pass

    async def _rewound(self, event: Event, body: session.Truncated) -> None:
        """Continue the projection from the end of what the rewind kept, and announce the rewind."""
        state = await self._operations.state(self.key)
        await self._restore_projection(body.kept, state)
        self.first_after_rewind = self.last_number + 1
        rewound = {"upToEventId": self._projection.parent or event.id, "eventsRemoved": event.position - 1 - body.kept}
        self._send(self._projection.ephemeral_event("session.snapshot_rewind", rewound, event.time, own_id=event.id))

    def _delta(self, delta: Delta) -> None:
        if any(member.streaming for member in self.members.values()):
            for wire in self._projection.delta(delta, self._clock.now_ms()):
                self._send(wire)

    async def _changed(self, changed: Changed) -> None:
        if changed.tail is not None or changed.promoted or changed.queue:
            self.publish("pending_messages.modified", {})
        else:
            await self._refresh_queue()
        if any(status == "running" for status, _ in self._tasks.values()):
            await self.refresh_tasks()
        self._notify_watchers(changed, ())
        await self._check_idle()

    async def _refresh_queue(self) -> None:
        """Compare the queue with the last known one: a hint was lost or another process wrote, and it may be about
        it."""
        row = await self._operations.store.row(self.key)
        queue = (row.inbox_tail, row.waiting_messages) if row is not None else None
        if self._queue is not None and queue != self._queue:
            self.publish("pending_messages.modified", {})
        self._queue = queue

    async def refresh_tasks(self) -> None:
        """Notify clients if a background command started, ended or stalled. The model may learn of it only later."""
        tasks = await self._background_tasks()
        if tasks != self._tasks:
            self._tasks = tasks
            self.publish("session.background_tasks_changed", {})

    async def _background_tasks(self) -> dict[TaskId, tuple[str, bool]]:
        rows = await self._operations.store.tasks(self.key)
        return {row.task_id: (row.status, row.stalled) for row in rows if not row.foreground}

    async def _check_idle(self) -> None:
        """Announce idle once, after the last of the queued turns: senders of later messages wait for that."""
        if self._ended is None:
            return
        event_id, ended = self._ended
        row = await self._operations.store.row(self.key)
        is_idle = row is not None and row.status == "idle"
        if is_idle:
            self._ended = None
            self._publish_idle(event_id, ended)
        self._notify_watchers(
            TurnEnd(turn_id=ended.turn_id, reason=ended.reason, idle_id=event_id if is_idle else None), ()
        )

    def _publish_idle(self, event_id: str, ended: turn.TurnEnded) -> None:
        aborted = {"aborted": True} if ended.reason in ("stopped", "interrupted") else {}
        now = self._clock.now_ms()
        self._send(self._projection.ephemeral_event("assistant.idle", dict(aborted), now))
        idle = {**aborted, "mode": self._mode}
        self._send(self._projection.ephemeral_event("session.idle", idle, now, own_id=event_id))

    def _send(self, wire: WireEvent, *, only: Member | None = None) -> None:
        encoded = msgspec.json.encode({"sessionId": self.key.session, "event": wire})
        self._keep(wire, len(encoded))
        params = msgspec.Raw(encoded)
        for member in (only,) if only is not None else tuple(self.members.values()):
            if member.streaming or wire.type not in STREAMED:
                member.send(params)
        self._signal_activity()

    def _signal_activity(self) -> None:
        self.activity.set()
        self.activity = asyncio.Event()

    def _keep(self, wire: WireEvent, size: int) -> None:
        self.last_number += 1
        self.kept.append((self.last_number, wire))
        self._sizes.append(size)
        self._kept_bytes += size
        while len(self.kept) > KEPT_EVENTS or (self._kept_bytes > KEPT_BYTES and len(self.kept) > 1):
            self.kept.popleft()
            self._kept_bytes -= self._sizes.popleft()

    def _notify_watchers(self, event: HubEvent, sent: tuple[WireEvent, ...]) -> None:
        for watcher in tuple(self._watchers):
            watcher(event, sent)

    async def _ask(self, member: Member, question: UserInputRequested) -> None:
        params = {
            "sessionId": self.key.session,
            "question": question.question,
            "choices": list(question.choices),
            "allowFreeform": question.allow_freeform,
        }
        try:
            answer = await member.peer.request("userInput.request", params)
            text, freeform = answer["answer"], bool(answer.get("wasFreeform", True))
            await self._operations.answer_question(self.key, question.request_id, str(text), was_freeform=freeform)
        except RpcError as error:
            self._ask_failed(member, question, error.message)
        except (PeerGone, OperationError) as error:
            if isinstance(error, OperationError) and error.code in LEAVES_OPEN:
                self._ask_failed(member, question, error.message)  # A client is asked once.
                return
            # The question stays open: another client, or this one after a reconnect, may answer it.
            log.info("a question of session %s was not answered: %s", self.key.session, error)
        except (KeyError, TypeError, AttributeError):
            self._ask_failed(member, question, "the client answered with no answer in it")

    def _ask_failed(self, member: Member, question: UserInputRequested, why: str) -> None:
        """Note that a client can't ask a person. The question stays open while another client might."""
        _, failed, _ = self._unanswered.get(question.request_id, (question, set[str](), ""))
        self._unanswered[question.request_id] = (question, failed | {member.peer.id}, why)
        self._give_up_if_no_client_can_ask(*self._unanswered[question.request_id])

    def _give_up_if_no_client_can_ask(self, question: UserInputRequested, failed: set[str], why: str) -> None:
        able = [member for member in self.members.values() if member.answers_questions and member.peer.id not in failed]
        if self.members and not able:
            task = asyncio.create_task(self._give_up(question, why), name="no answer")
            tasks = self._asking.setdefault(question.request_id, set())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _give_up(self, question: UserInputRequested, why: str) -> None:
        with contextlib.suppress(OperationError):  # A client answered meanwhile.
            await self._operations.answer_question(self.key, question.request_id, why, failed=True)
