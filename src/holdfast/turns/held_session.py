"""A session that this process holds: its folded state, what waits in its inbox, and the one way to write to it.

The state never runs ahead of the log: an event is folded in after it was committed, together with any records that
other processes appended before it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from holdfast.events import message, session, tool, turn
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import EventId, Key, MessageId, Owner, Position, RequestId, ToolCallId, TurnId
from holdfast.events.inbox import Answer, InboxItem, Message, PermissionAnswer, Stop
from holdfast.events.message import Block
from holdfast.live.live import Advanced, Changed, Delta, Grown, Hint, Live
from holdfast.observability.observer import Observer
from holdfast.session.actions import Append
from holdfast.session.bounds import Bounds
from holdfast.session.fold import FOLD_VERSION, apply, dump, fold
from holdfast.session.inputs import InterruptedCall
from holdfast.session.permissions import ANSWERS_PERMISSIONS, NOBODY_COULD
from holdfast.session.state import Phase, State, next_phase
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreError
from holdfast.store.store import (
    Committed,
    FenceMissed,
    Lease,
    LedgerEntry,
    Outcome,
    Promotion,
    Rejected,
    RequestRow,
    Segment,
    Snapshot,
    Status,
    Store,
    Unit,
    declined_by_each,
)
from holdfast.store.tasks import TaskChange, TaskRow
from holdfast.tasks.shell import Shell
from holdfast.tools.working_directory import Identify, WorkingDirectory, identity_of
from holdfast.turns.cancelled_tools import CancelledTools
from holdfast.turns.deferral import completed
from holdfast.turns.errors import LeaseLost
from holdfast.turns.load import Folded
from holdfast.turns.segments import blocks_of

log = logging.getLogger(__name__)

MISSED_EVENTS = 1_000
"""Records that others appended since this holder last wrote; more are folded in one by one as it goes on."""

SNAPSHOT_BYTES_PER_EVENT = 4096
"""What the snapshots of a session may cost for each of its events, on average."""

MayWorkIn = Callable[[Owner, str], bool]
"""Whether a session of that owner whose folder was bounded when it was chosen may work below that real path."""


def nowhere(owner: Owner, path: str) -> bool:
    """Where no folders are configured for those whose folders are bounded."""
    return False


_STATUS: dict[Phase, Status] = {Phase.IDLE: "idle", Phase.WAITING: "waiting"}


class HeldSession:
    """Everything about one held session. Dropped, and folded anew, whenever a write's outcome is unknown."""

    def __init__(
        self,
        *,
        store: Store,
        live: Live,
        clock: Clock,
        bounds: Bounds,
        new_id: Callable[[], str],
        lease: Lease,
        folded: Folded,
        claiming: asyncio.Future[Any] | None = None,
        shell: Shell | None = None,
        observer: Observer | None = None,
        orphans: set[asyncio.Task[Any]] | None = None,
        may_work_in: MayWorkIn = nowhere,
        identify: Identify = identity_of,
    ) -> None:
        """`claiming` is the claim itself, where that was told before it was committed. `orphans` are the process's
        tools that were cancelled and outlived their session."""
        self.store = store
        self.live = live
        self.clock = clock
        self.bounds = bounds
        self.new_id = new_id
        self.lease = lease
        self.shell = shell
        self.readable = (shell.readable(self.key),) if shell is not None else ()
        """The rules under which this session may read what its own commands wrote."""
        self.is_interrupting = False
        """What runs is being ended because the turn is, and not because this process lets go of the session."""
        self.interrupted: dict[ToolCallId, Callable[[], InterruptedCall]] = {}
        """For each call that was interrupted to end its turn: how far it has come."""
        self.state = folded.state
        self.is_partial = folded.is_partial
        """The state is only good for ending the turn: see `Folded`."""
        self.inbox: tuple[InboxItem, ...] = folded.inbox
        self.woken = asyncio.Event()
        self.others_changed = asyncio.Event()
        """Another session of the same owner may want to run."""
        self.call_in_flight: tuple[MessageId, int] | None = None
        """The message and the attempt of the model call that is being made, and has not been recorded."""
        self.to_background: dict[ToolCallId, asyncio.Event] = {}
        """For each running call: somebody wants what it started to go on in the background."""
        self.cancelled_tools = CancelledTools(bounds.cancelled_tool_seconds, set() if orphans is None else orphans)
        self.has_spoken = asyncio.Event()
        """Something of an answer was shown, or will not be."""
        self.deciders: tuple[frozenset[RequestId], ...] = ()
        """For each present client that can decide permissions, the requests that it declined. Read while a permission
        is open, and again with the inbox: whatever changes it raises the tail."""
        self._deciders_stale = True
        self.denying: frozenset[RequestId] = frozenset()
        """Requests whose denial was put here."""
        self._may_work_in = may_work_in
        self._identify = identify
        self._row_says = (folded.row.status, folded.row.turn_id)
        self._said_at = folded.row.head
        """The head that the last unit left which changed what the row says."""
        self._tail_seen = folded.row.inbox_tail
        self._inbox_stale = False
        self._refreshing = asyncio.Lock()
        self._writes = 0
        self._is_written = asyncio.Event()
        self._failed: BaseException | None = None
        self._segments: list[Segment] = list(folded.segments)
        self._snapshot_at = folded.snapshot_at
        self._snapshot_bytes = folded.snapshot_bytes
        self._keeping: asyncio.Task[None] | None = None
        self._claiming = claiming
        self.observed = (observer or Observer(clock)).held(self.key, lease.fence, self.redacted)

    @property
    def key(self) -> Key:
        return self.lease.key

    @property
    def tail_seen(self) -> int:
        """Everything put up to here is in `inbox`, or was promoted."""
        return self._tail_seen

    def directory(self) -> WorkingDirectory | None:
        """Where the session's tools work: one certain folder, once that is fixed."""
        state = self.state
        if not state.working_directory:
            return None
        identity = state.directory_identity
        policy = partial(self._may_work_in, self.key.owner) if identity is not None and identity.limited else None
        return WorkingDirectory.of(state.working_directory, identity, policy, is_real=state.client_name == "http")

    async def fix_directory(self) -> None:
        """Fix which folder the session works in, before its first use. Sessions that were made where the folder could
        not be seen, or by an earlier release, come without. Those from HTTP had their links followed when they were
        made, so a link on the way is none of theirs. A crash before this leaves it to the next holder."""
        state = self.state
        if not state.working_directory or state.directory_identity is not None or not _waits_for_tools(state):
            return
        came_by_http = state.client_name == "http"
        identity = self._identify(state.working_directory, follow_links=not came_by_http)
        if identity is None:
            return  # The tools will say so.
        if came_by_http and self._may_work_in(self.key.owner, identity.path):
            identity = msgspec.structs.replace(identity, limited=True)
        await self.until_claimed()
        await self.commit(Append(events=[session.SettingsChanged(directory_identity=identity)]))

    def shown(self) -> tuple[Block, ...]:
        """The blocks of the message in flight that are durable."""
        return blocks_of(self._segments) if self._segments else ()

    def stopping(self) -> bool:
        """A stop was accepted: the next decision ends the turn."""
        return any(isinstance(item.item, Stop) for item in self.inbox)

    def redacted(self, text: str) -> str:
        """What a tool gave, without the secrets that this runtime knows."""
        return self.shell.desk.redaction.text(text) if self.shell else text

    def waited_for(self) -> frozenset[str]:
        """Running calls that can be asked, and were not yet, to go on in the background."""
        return frozenset(call for call, asked in self.to_background.items() if not asked.is_set())

    def wake(self) -> None:
        """Something may have been put: look before deciding again."""
        self._inbox_stale = True
        self.woken.set()

    def heard_tail(self, tail: int | None) -> None:
        """The inbox reaches to here now; None: it changed otherwise."""
        if tail is None or tail > self._tail_seen:
            self.wake()

    @property
    def is_claimed(self) -> bool:
        """Whether the claim is known to have taken place; before that, the database may say otherwise."""
        return self._claiming is None or self._claiming.done()

    async def until_claimed(self) -> None:
        """What is written is refused unless the claim took place. Whatever else is done waits for it here."""
        if self._claiming is not None:
            await asyncio.shield(self._claiming)
            self._claiming = None

    async def is_in_the_way(self) -> bool:
        """Whether a turn of the same owner would run at once if this session were not held."""
        limit = self.store.limits.running_of(self.key.owner)
        if limit is None:
            return False
        turns = await self.store.turns(self.key.owner)
        return turns.queued > 0 and turns.slots >= limit

    async def refresh_inbox(self) -> None:
        """Read the inbox again if anything may have changed in it. The loop and the model call both do: whoever comes
        second waits for the first, or it would decide on what was there before."""
        async with self._refreshing:
            if self._inbox_stale:
                self._inbox_stale, self._deciders_stale = False, True
                try:
                    await self._read_inbox()
                except BaseException:
                    self._inbox_stale = True
                    raise
            if self._deciders_stale and any(found.kind == "permission" for found in self.state.requests.values()):
                await self._read_deciders()

    async def _read_deciders(self) -> None:
        """After the tail was read: a change that this read misses has raised it, and is not released over."""
        await self.until_claimed()
        self.deciders = declined_by_each(await self.store.attachments(self.key), ANSWERS_PERMISSIONS)
        self._deciders_stale = False

    async def deny(self, request_ids: Iterable[RequestId]) -> None:
        """Put the denial of permissions that every present client declined. It is an answer like any other: whatever
        was accepted before it counts. A crash after it leaves it to the next holder to take in."""
        for request_id in request_ids:
            self.denying |= {request_id}
            content = PermissionAnswer(decision=NOBODY_COULD)
            denial = Answer(request_id=request_id, answer_id=f"declined:{request_id}", content=content)
            item_key, limit = f"answer:{request_id}", self.bounds.max_waiting_messages
            await self.store.put(self.key, denial, item_key=item_key, queue_limit=limit)
        self.wake()

    async def _read_inbox(self) -> None:
        await self.until_claimed()
        tail = (await self.store.tails([self.key])).get(self.key)
        if tail is None or tail[0] != self.lease.fence:
            raise LeaseLost(self.key)
        self.inbox = await self.store.waiting_items(self.key)
        self._tail_seen = max(self._tail_seen, tail[1])

    async def commit(
        self, append: Append, *, opens_task: TaskRow | None = None, changes_task: TaskChange | None = None
    ) -> bool:
        """Write one decision. False: the inbox is not what it was; look again and decide again.

        Whoever is cancelled meanwhile is so afterwards: a write whose outcome nobody waited for would leave the state
        behind the log."""
        events = tuple(self._event(body) for body in append.events)
        says = self._row_after(append)
        unit = self._unit(append, events, says)
        if opens_task is not None or changes_task is not None:
            opens, changes = (opens_task,) if opens_task else (), (changes_task,) if changes_task else ()
            unit = msgspec.structs.replace(unit, opens_tasks=opens, changes_tasks=changes)
        with self._writing():
            started = self.clock.monotonic()
            outcome, cancelled = await completed(self.store.commit(unit))
            is_done = self._committed(outcome)
            if isinstance(outcome, Committed):
                self.observed.committed(unit, name_of=self._tool_of, seconds=self.clock.monotonic() - started)
                missed = outcome.head - len(events) - self.state.head
            else:
                missed = MISSED_EVENTS
            if missed > 0:
                others, meanwhile = await completed(self.store.events_after(self.key, self.state.head, limit=missed))
                cancelled = cancelled or meanwhile
                fold(others, self.state)
            if isinstance(outcome, Committed):
                self._took_place(append, unit, outcome, says)
                if self.shell is not None and (changes_task is not None or append.ends_commands):
                    self.shell.look()
        if cancelled is not None:
            raise cancelled
        return is_done

    def _took_place(self, append: Append, unit: Unit, outcome: Committed, says: tuple[Status, TurnId | None]) -> None:
        if unit.status is not None and outcome.head >= self._said_at:  # Answers may come in another order than units.
            self._row_says, self._said_at = says, outcome.head
        if append.drops_segments:
            self._segments.clear()
            self.has_spoken.set()
        promoted = {promotion.sequence for promotion in append.promotes}
        self.inbox = tuple(item for item in self.inbox if item.sequence not in promoted)
        first = outcome.head - len(unit.events) + 1
        placed = tuple(event.at(Position(first + index)) for index, event in enumerate(unit.events))
        for event in placed:
            apply(self.state, event)
        if placed:
            self._publish(Advanced(placed))
        if promoted:
            self._publish(Changed(promoted=True))
        self._keep_snapshot()

    async def until_written(self) -> None:
        """Wait for all that was handed to the store, and raise if any of it failed. Whoever ends a turn must know: a
        piece of a message, or the result of a call, that is written behind the end would be taken for the next turn's.
        """
        while self._writes:
            self._is_written.clear()
            await self._is_written.wait()
        if self._failed is not None:
            raise self._failed

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """After a write whose outcome is unknown the state may be behind the log: nothing more is decided on it, also
        when whoever wrote was cancelled and so hears of nothing."""
        if self._failed is not None:
            raise self._failed
        self._writes += 1
        try:
            yield
        except BaseException as error:
            self._failed = error
            raise
        finally:
            self._writes -= 1
            if not self._writes:
                self._is_written.set()

    async def commit_segments(self, segments: list[Segment]) -> None:
        """Make a piece of the message in flight durable, and then show it. Whoever is cancelled is so afterwards."""
        unit = Unit(key=self.key, fence=self.lease.fence, segments=tuple(segments))
        with self._writing():
            started = self.clock.monotonic()
            outcome, cancelled = await completed(self.store.commit(unit))
            self._committed(outcome)
            assert isinstance(outcome, Committed)
            self._show(segments, outcome.head)
            self.observed.shown(segments[0].message_id, self.clock.monotonic() - started)
            self._segments.extend(segments)
            self.has_spoken.set()
        if cancelled is not None:
            raise cancelled

    def _show(self, segments: list[Segment], head: Position) -> None:
        last = self._segments[-1] if self._segments else None
        follows = (last.block, last.offset + len(last.text.encode())) if last else (0, 0)
        self._publish(Grown(head, follows, tuple(_as_delta(segment) for segment in segments)))

    def _committed(self, outcome: Outcome) -> bool:
        match outcome:
            case Committed(inbox_tail=tail):
                self.heard_tail(tail)
                return True
            case FenceMissed():
                raise LeaseLost(self.key)
            case Rejected():
                self._inbox_stale = True
                return False

    def _tool_of(self, tool_call_id: ToolCallId) -> str:
        """The tool that a call asked for, as far as the state knows."""
        reply = self.state.reply()
        call = reply.call(tool_call_id) if reply is not None else None
        return call.name if call is not None else ""

    def _publish(self, hint: Hint) -> None:
        self.live.publish(self.key, hint)

    def _event(self, body: Body) -> Event:
        return Event(Position(0), EventId(self.new_id()), self.clock.now_ms(), body)

    def _unit(self, append: Append, events: tuple[Event, ...], says: tuple[Status, TurnId | None]) -> Unit:
        title = next((body.title for body in append.events if isinstance(body, session.TitleChanged)), None)
        return Unit(
            key=self.key,
            fence=self.lease.fence,
            events=events,
            promotes=tuple(Promotion(found.sequence, found.outcome, found.refused) for found in append.promotes),
            opens=tuple(
                RequestRow(
                    request_id=opened.request_id,
                    kind=opened.kind,
                    turn_id=self.state.turn.turn_id if self.state.turn else TurnId(""),
                    tool_call_id=opened.tool_call_id,
                    title=opened.title,
                    opened_at=self.clock.now_ms(),
                )
                for opened in append.opens
            ),
            closes=tuple(append.closes),
            drops_segments=append.drops_segments,
            # Also where a turn ends as it should: a call that was refused after a crash may have left its command.
            ends_commands=self.shell is not None and _ends_turn(append.events),
            ledger=tuple(self._ledger(append.events)),
            supposes_head=self.state.head if append.supposes_head else None,
            status=None if says == self._row_says else says[0],
            turn_id=says[1],
            title=title,
            makes_progress=_makes_progress(append.events),
        )

    def _row_after(self, append: Append) -> tuple[Status, TurnId | None]:
        """What the session's row says after this."""
        status = _STATUS.get(self._phase_after(append.events), "running")
        if status == "idle" and self._waits_after(append):
            status = "queued"
        return status, self._turn_after(append.events)

    def _waits_after(self, append: Append) -> bool:
        promoted = {promotion.sequence for promotion in append.promotes}
        return any(isinstance(item.item, Message) and item.sequence not in promoted for item in self.inbox)

    def _phase_after(self, bodies: Iterable[Body]) -> Phase:
        """Walk the table, so that an illegal event is our exception and not somebody's log."""
        phase = self.state.phase
        for body in bodies:
            phase = next_phase(phase, body)
        return phase

    def _turn_after(self, bodies: Iterable[Body]) -> TurnId | None:
        current = self.state.turn.turn_id if self.state.turn else None
        for body in bodies:
            if isinstance(body, turn.TurnStarted):
                current = body.turn_id
            elif isinstance(body, turn.TurnEnded):
                current = None
        return current

    def _ledger(self, bodies: Iterable[Body]) -> Iterable[LedgerEntry]:
        """Every attempt at a model call is on the books; one that did not report what it used is unknown, not free."""
        for body in bodies:
            match body:
                case message.Usage():
                    yield LedgerEntry(
                        message_id=body.message_id,
                        attempt=body.attempt,
                        model=body.model,
                        input_tokens=body.input_tokens,
                        output_tokens=body.output_tokens,
                        cache_read_tokens=body.cache_read_tokens,
                        cost_microdollars=body.cost_microdollars,
                        time=self.clock.now_ms(),
                    )
                case message.CallFailed():
                    yield self._unknown_use(body.message_id, body.attempt)
                case message.AssistantMessage(interrupted=True):
                    # When the provider itself cut it, this attempt is on the books already, and stays there once.
                    yield self._unknown_use(body.message_id, self._segments[-1].attempt if self._segments else 1)
                case turn.TurnEnded() if self.call_in_flight:
                    yield self._unknown_use(*self.call_in_flight)
                case _:
                    pass

    def _unknown_use(self, message_id: MessageId, attempt: int) -> LedgerEntry:
        return LedgerEntry(
            message_id=message_id,
            attempt=attempt,
            model=self.state.model_now() or "",
            input_tokens=None,
            output_tokens=None,
            cache_read_tokens=None,
            cost_microdollars=None,
            time=self.clock.now_ms(),
        )

    def _keep_snapshot(self) -> None:
        """Beside what the turn goes on to write; one at a time."""
        if self._keeping is not None and not self._keeping.done():
            return
        kept = self._snapshot_if_due()
        if kept is not None:
            self._snapshot_at, self._snapshot_bytes = kept.position, len(kept.state)
            self._keeping = asyncio.create_task(self._keep(kept), name=f"snapshot of {self.key.session}")

    async def _keep(self, kept: Snapshot) -> None:
        try:
            await self.store.keep_snapshot(self.lease, kept)
        except StoreError as error:
            log.info("no snapshot of session %s was kept: %s", self.key.session, error.message)

    async def until_kept(self) -> None:
        """Wait for a snapshot that is under way: once the session is let go of it would be refused."""
        if self._keeping is not None:
            await asyncio.wait([self._keeping])

    def _snapshot_if_due(self) -> Snapshot | None:
        """A snapshot of the whole state costs as much as the state is large, so that a large one is due more rarely:
        over a session's life no more is written for each event than a fixed number of bytes."""
        every = max(self.bounds.snapshot_every_events, self._snapshot_bytes // SNAPSHOT_BYTES_PER_EVENT)
        if self.is_partial or self.state.head - self._snapshot_at < every:
            return None
        try:
            return Snapshot(FOLD_VERSION, self.state.head, dump(self.state))
        except (OverflowError, TypeError, ValueError, RecursionError):
            # Only a cache: a state that can't be kept is folded from its events.
            log.exception("no snapshot of session %s could be made", self.key.session)
            return None


def _as_delta(segment: Segment) -> Delta:
    return Delta(
        message_id=segment.message_id,
        block=segment.block,
        kind=segment.kind,
        offset=segment.offset,
        text=segment.text,
        tool_call_id=segment.tool_call_id,
        name=segment.name,
    )


def _waits_for_tools(state: State) -> bool:
    reply = state.reply()
    return reply is not None and bool(reply.unfinished())


def _ends_turn(bodies: list[Body]) -> bool:
    return any(isinstance(body, turn.TurnEnded) for body in bodies)


def _makes_progress(bodies: list[Body]) -> bool:
    """A finished step or a recorded result does; closing a message that a crash cut does not."""
    if any(isinstance(body, message.Sealed) for body in bodies):
        return False
    return any(isinstance(body, (turn.StepEnded, tool.ToolCompleted)) for body in bodies)
