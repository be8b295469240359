"""One session as the Copilot clients of this process see it: read once, told to each of them.

All of them get the same events under the same ids. What a client must not miss is durable and read again by anyone;
what is only told (idle, a changed queue) is derived here from what is durable, so that nobody waits for a worker that
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
from holdfast.live.live import Changed, Delta, Progress
from holdfast.server.copilot.peer import Peer, PeerGone, RpcError
from holdfast.server.copilot.projection import CopilotProjection, WireEvent, still_said
from holdfast.server.errors import NotFound, OperationError
from holdfast.server.operations import Operations
from holdfast.session.state import State
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreError
from holdfast.store.store import Cursor

log = logging.getLogger(__name__)

KEPT_EVENTS: Final = 1_000
KEPT_BYTES: Final = 512 * 1024
"""What may be read again of the events that were told, the passing ones included."""

LOOKED_BACK: Final = 200
"""How many events of a log are read to go on from its end."""

AFTER_FAILURE_SECONDS: Final = 1.0

STREAMED: Final = frozenset(
    {
        "assistant.message_start",
        "assistant.message_delta",
        "assistant.streaming_delta",
        "assistant.reasoning_delta",
    }
)
"""Told only to clients that asked for streaming."""


class Member:
    """A client of this process that is attached to the session."""

    def __init__(self, peer: Peer, *, attachment_id: str, streaming: bool, answers_questions: bool) -> None:
        self.peer = peer
        self.attachment_id = attachment_id
        self.streaming = streaming
        self.answers_questions = answers_questions
        self._held: list[Any] | None = []

    def tell(self, params: Any) -> None:
        if self._held is None:
            self.peer.notify("session.event", params)
        else:
            self._held.append(params)

    def begin(self) -> None:
        """The response that attached it is on its way: what happened meanwhile may follow."""
        held, self._held = self._held or [], None
        for params in held:
            self.peer.notify("session.event", params)


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended, for whoever waits for it."""

    turn_id: TurnId
    reason: turn.EndReason
    idle_id: str | None
    """The event that told that the session is idle; None: it was not, more was queued."""


class Over(msgspec.Struct, frozen=True):
    """The session was deleted, or no client of this process watches it any more: nothing else will be told."""


Watched = Event | TurnEnd | Changed | Over
Watcher = Callable[[Watched, tuple[WireEvent, ...]], None]


class Hub:
    """Follows one session from the moment its first client comes until its last one leaves."""

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
        """Names this following of the session: another one numbers what it tells anew."""
        self.position = Position(0)
        """All events of the log up to here were told, as far as they are told at all."""
        self.members: dict[str, Member] = {}
        self.kept: deque[tuple[int, WireEvent]] = deque()
        self._sizes: deque[int] = deque()
        self._kept_bytes = 0
        self.told = 0
        self.since = 1
        """The first of them that followed the last rewind: those before it may be of what was taken back."""
        self.grown = asyncio.Event()
        """Set, and replaced, with every event of the log and with whatever else is told."""
        self._operations = operations
        self._clock = clock
        self._instructions = instructions
        self._updated = updated
        self._projection = CopilotProjection(key.session, instructions)
        self._watchers: list[Watcher] = []
        self._mode: session.Mode = "interactive"
        self._ended: tuple[str, turn.TurnEnded] | None = None
        """The last turn's end and the id of that event, until it was told that the session is idle."""
        self._queue: tuple[int, int] | None = None
        """How far the inbox reached, and how many messages waited in it, when clients were last told."""
        self._tasks: dict[TaskId, tuple[str, bool]] = {}
        """What runs or ran in the background, and how that was when clients were last told."""
        self.is_over = False
        self.starting: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._unanswered: dict[RequestId, tuple[UserInputRequested, set[str], str]] = {}
        """Questions that a client could not ask anybody, with which clients those are and what the last one said."""
        self._asking: dict[RequestId, set[asyncio.Task[None]]] = {}

    async def start(self, position: Position, state: State | None) -> None:
        """Follow from there on. `state` is the session at that position, or None at its very beginning."""
        if state is not None:
            await self._go_on_from(position, state)
            self._tasks = await self._found_tasks()
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
        """Whoever waits learns that nothing will come."""
        self.is_over = True
        self._has_grown()
        self._watch(Over(), ())

    def join(self, member: Member) -> None:
        self.members[member.peer.id] = member

    def leave(self, member: Member) -> None:
        if self.members.get(member.peer.id) is member:
            del self.members[member.peer.id]
        for asked in list(self._unanswered.values()):
            self._give_up_if_nobody_can(*asked)

    @property
    def last_persisted(self) -> str | None:
        """The last event that was told and may be read again."""
        return self._projection.parent

    async def caught_up(self, position: Position) -> None:
        """Until all of the log up to there was told."""
        while self.position < position and not self.is_over:
            await self.grown.wait()

    @contextlib.contextmanager
    def watched_by(self, watcher: Watcher) -> Iterator[None]:
        """Within it, `watcher` is given all that happens, with what clients were told of it."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def tell(self, event_type: str, data: dict[str, Any], *, only: Member | None = None) -> WireEvent:
        """Tell something that is not in the log."""
        wire = self._projection.passing(event_type, data, self._clock.now_ms())
        self._tell(wire, only=only)
        return wire

    def ask(self, member: Member, asked: UserInputRequested) -> None:
        """Put a question to a client; its answer counts if it is the first."""
        task = asyncio.create_task(self._ask(member, asked), name="question")
        tasks = self._asking.setdefault(asked.request_id, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _go_on_from(self, position: Position, state: State) -> None:
        """The end of the log says what the next events refer to."""
        self._mode = state.mode
        first = Position(max(0, position - LOOKED_BACK))
        projection = CopilotProjection(self.key.session, self._instructions)
        while True:
            tail = await self._operations.store.events_after(self.key, first, limit=position - first)
            projection.start_from(state, still_said(tail))
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
                            self.tell("tool.execution_progress", {"toolCallId": call, "progressMessage": text})
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
            await self.look_at_tasks()  # Clients hear that it ended before they hear that the model was told.
        told = tuple(self._projection.project(event))
        for wire in told:
            self._tell(wire)
        self.position = event.position
        self._has_grown()
        self._watch(event, told)
        match event.body:
            case session.TitleChanged():
                await self._updated(self.key)
            case session.ModeChanged(new_mode=mode):
                self._mode = mode
            case session.Truncated():
                await self._rewound(event, event.body)
            case TaskStarted(task_id=task_id):
                self._tasks.pop(task_id, None)  # It is news also if its row was there when we came.
                await self.look_at_tasks()
            case turn.TurnStarted():
                self._ended = None
            case turn.TurnEnded() as ended:
                self._ended = (event.id, ended)
                await self._updated(self.key)
                await self._idle_if_so()
            case UserInputRequested() as asked:
                for member in list(self.members.values()):
                    if member.answers_questions:
                        self.ask(member, asked)
            case UserInputCompleted(request_id=request_id):
                self._unanswered.pop(request_id, None)
                for task in self._asking.pop(request_id, set()):
                    task.cancel()  # Somebody else answered, or the turn is over.
            case _:
                pass

    async def _rewound(self, event: Event, body: session.Truncated) -> None:
        """What comes next follows what was kept."""
        state = await self._operations.state(self.key)
        await self._go_on_from(body.kept, state)
        self.since = self.told + 1
        rewound = {"upToEventId": self._projection.parent or event.id, "eventsRemoved": event.position - 1 - body.kept}
        self._tell(self._projection.passing("session.snapshot_rewind", rewound, event.time, own_id=event.id))

    def _delta(self, delta: Delta) -> None:
        if any(member.streaming for member in self.members.values()):
            for wire in self._projection.delta(delta, self._clock.now_ms()):
                self._tell(wire)

    async def _changed(self, changed: Changed) -> None:
        if changed.tail is not None or changed.promoted or changed.queue:
            self.tell("pending_messages.modified", {})
        else:
            await self._look_at_the_queue()
        if any(status == "running" for status, _ in self._tasks.values()):
            await self.look_at_tasks()
        self._watch(changed, ())
        await self._idle_if_so()

    async def _look_at_the_queue(self) -> None:
        """Something was missed, or another process wrote: whether it was about the queue must be looked up."""
        row = await self._operations.store.row(self.key)
        queue = (row.inbox_tail, row.waiting_messages) if row is not None else None
        if self._queue is not None and queue != self._queue:
            self.tell("pending_messages.modified", {})
        self._queue = queue

    async def look_at_tasks(self) -> None:
        """Clients are told when a command in the background starts, ends or seems stuck, whoever noticed it: the model
        may be told only later."""
        tasks = await self._found_tasks()
        if tasks != self._tasks:
            self._tasks = tasks
            self.tell("session.background_tasks_changed", {})

    async def _found_tasks(self) -> dict[TaskId, tuple[str, bool]]:
        rows = await self._operations.store.tasks(self.key)
        return {row.task_id: (row.status, row.stalled) for row in rows if not row.foreground}

    async def _idle_if_so(self) -> None:
        """Told once after the last of the queued turns: whoever sent the next message meanwhile waits for that."""
        if self._ended is None:
            return
        event_id, ended = self._ended
        row = await self._operations.store.row(self.key)
        is_idle = row is not None and row.status == "idle"
        if is_idle:
            self._ended = None
            self._tell_idle(event_id, ended)
        self._watch(TurnEnd(turn_id=ended.turn_id, reason=ended.reason, idle_id=event_id if is_idle else None), ())

    def _tell_idle(self, event_id: str, ended: turn.TurnEnded) -> None:
        aborted = {"aborted": True} if ended.reason in ("stopped", "interrupted") else {}
        now = self._clock.now_ms()
        self._tell(self._projection.passing("assistant.idle", dict(aborted), now))
        self._tell(self._projection.passing("session.idle", {**aborted, "mode": self._mode}, now, own_id=event_id))

    def _tell(self, wire: WireEvent, *, only: Member | None = None) -> None:
        encoded = msgspec.json.encode({"sessionId": self.key.session, "event": wire})
        self._keep(wire, len(encoded))
        params = msgspec.Raw(encoded)
        for member in (only,) if only is not None else tuple(self.members.values()):
            if member.streaming or wire.type not in STREAMED:
                member.tell(params)
        self._has_grown()

    def _has_grown(self) -> None:
        self.grown.set()
        self.grown = asyncio.Event()

    def _keep(self, wire: WireEvent, size: int) -> None:
        self.told += 1
        self.kept.append((self.told, wire))
        self._sizes.append(size)
        self._kept_bytes += size
        while len(self.kept) > KEPT_EVENTS or (self._kept_bytes > KEPT_BYTES and len(self.kept) > 1):
            self.kept.popleft()
            self._kept_bytes -= self._sizes.popleft()

    def _watch(self, found: Watched, told: tuple[WireEvent, ...]) -> None:
        for watcher in tuple(self._watchers):
            watcher(found, told)

    async def _ask(self, member: Member, asked: UserInputRequested) -> None:
        question = {
            "sessionId": self.key.session,
            "question": asked.question,
            "choices": list(asked.choices),
            "allowFreeform": asked.allow_freeform,
        }
        try:
            answer = await member.peer.request("userInput.request", question)
            text, freeform = answer["answer"], bool(answer.get("wasFreeform", True))
            await self._operations.answer_question(self.key, asked.request_id, str(text), was_freeform=freeform)
        except RpcError as error:
            self._could_not_be_asked(member, asked, error.message)
        except (PeerGone, OperationError) as error:
            # The question stays: another client, or this one when it comes back, may answer it.
            log.info("a question of session %s was not answered: %s", self.key.session, error)
        except (KeyError, TypeError, AttributeError):
            self._could_not_be_asked(member, asked, "the client answered with no answer in it")

    def _could_not_be_asked(self, member: Member, asked: UserInputRequested, why: str) -> None:
        """The client says that it can't ask anybody. While another might, the question stays."""
        _, failed, _ = self._unanswered.get(asked.request_id, (asked, set[str](), ""))
        self._unanswered[asked.request_id] = (asked, failed | {member.peer.id}, why)
        self._give_up_if_nobody_can(*self._unanswered[asked.request_id])

    def _give_up_if_nobody_can(self, asked: UserInputRequested, failed: set[str], why: str) -> None:
        able = [found for found in self.members.values() if found.answers_questions and found.peer.id not in failed]
        if self.members and not able:
            task = asyncio.create_task(self._give_up(asked, why), name="no answer")
            tasks = self._asking.setdefault(asked.request_id, set())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _give_up(self, asked: UserInputRequested, why: str) -> None:
        with contextlib.suppress(OperationError):  # Somebody answered meanwhile.
            await self._operations.answer_question(self.key, asked.request_id, why, failed=True)
