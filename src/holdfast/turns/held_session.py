"""A session that this process holds: its folded state, its inbox, and the only way to write to it.

The state never runs ahead of the log: an event is folded in after its commit, together with any records that other
processes appended before it.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any

import msgspec

from holdfast.events import message, session, tool, turn
from holdfast.events.body import Body
from holdfast.events.compaction import CompactionEnded, CompactionStarted, call_of
from holdfast.events.event import Event
from holdfast.events.ids import EventId, FileId, Key, MessageId, Owner, Position, RequestId, ToolCallId, TurnId
from holdfast.events.inbox import Answer, InboxItem, Message, PermissionAnswer, Stop
from holdfast.events.message import AttachedFile, Block, Image, shown_files
from holdfast.files.errors import FileMissing
from holdfast.files.files import Files
from holdfast.live.live import Advanced, Changed, Delta, Grown, Hint, Live
from holdfast.observability.observer import Observer
from holdfast.session.actions import Append
from holdfast.session.bounds import Bounds
from holdfast.session.fold import FOLD_VERSION, apply, dump, fold
from holdfast.session.history import files_in
from holdfast.session.inputs import InterruptedCall
from holdfast.session.permissions import ANSWERS_PERMISSIONS, NOBODY_COULD
from holdfast.session.prompt import Prompt
from holdfast.session.state import HistoryItem, Phase, State, next_phase
from holdfast.store.budget import Ask
from holdfast.store.clock import Clock
from holdfast.store.errors import StoreError
from holdfast.store.store import (
    Committed,
    FenceMissed,
    Lease,
    LedgerEntry,
    Outcome,
    Promotion,
    PromptRow,
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
from holdfast.turns.answer_buffer import blocks_of
from holdfast.turns.cancelled_tools import CancelledTools
from holdfast.turns.deferral import defer_cancellation
from holdfast.turns.errors import LeaseLost
from holdfast.turns.load import FoldedSession
from holdfast.turns.prompts import Prompts
from holdfast.turns.reservations import Reservations

log = logging.getLogger(__name__)

MISSED_EVENTS = 1_000
"""How many events the holder reads after a rejected unit, to fold in records that other processes appended. It reads
the rest with its next commits."""

NOT_ANSWERED = frozenset(("model_unreachable", "model_rate_limited", "model_unavailable"))
"""The failures of attempts that the provider did not take up: they cost nothing."""

SNAPSHOT_BYTES_PER_EVENT = 4096
"""Bytes of snapshots that a session may write for each of its events, on average."""

MayWorkIn = Callable[[Owner, str], bool]
"""Whether a session of this owner, whose folder was restricted when it was chosen, may work below this real path."""


def nowhere(owner: Owner, path: str) -> bool:
    """The policy where no folders are configured: owners whose folders are restricted may work in none."""
    return False


_STATUS: dict[Phase, Status] = {Phase.IDLE: "idle", Phase.WAITING: "waiting"}


class HeldSession:
    """One held session. When the outcome of a write is unknown it is dropped, and the session is loaded again."""

    def __init__(
        self,
        *,
        store: Store,
        live: Live,
        clock: Clock,
        bounds: Bounds,
        new_id: Callable[[], str],
        lease: Lease,
        folded: FoldedSession,
        claiming: asyncio.Future[Any] | None = None,
        shell: Shell | None = None,
        files: Files | None = None,
        observer: Observer | None = None,
        orphans: set[asyncio.Task[Any]] | None = None,
        may_work_in: MayWorkIn = nowhere,
        identify: Identify = identity_of,
        lease_seconds_left: Callable[[], float] = lambda: math.inf,
        prompts: Prompts | None = None,
    ) -> None:
        """`claiming` is the pending claim, if it is not yet committed. `orphans` are the tools of this process that
        were cancelled and outlived their session's run. `lease_seconds_left` tells for how long this process may trust
        the lease."""
        self.store = store
        self.live = live
        self.clock = clock
        self.bounds = bounds
        self.new_id = new_id
        self.lease = lease
        self.lease_seconds_left = lease_seconds_left
        self.prompts = prompts or Prompts(store, Prompt())
        self.shell = shell
        self.files = files
        self._shown: dict[FileId, Image | None] = {}
        """The files that the model is shown, as they were read; None: the file was deleted before."""
        self.is_interrupting = False
        """Activities are being ended because the turn ends, and not because this process releases the session."""
        self.interrupted: dict[ToolCallId, Callable[[], InterruptedCall]] = {}
        """For each call that was interrupted to end its turn: a function that tells how far the call got."""
        self.state = folded.state
        self.is_partial = folded.is_partial
        """The state can only be used to end the turn: see `FoldedSession`."""
        self.inbox: tuple[InboxItem, ...] = folded.inbox
        self.woken = asyncio.Event()
        """Makes the loop look at the inbox and decide again."""
        self.others_changed = asyncio.Event()
        """Another session of the same owner may have become runnable."""
        self.reservations = Reservations()
        self.call_in_flight: tuple[MessageId, int] | None = None
        """The message and the attempt of the model call that is under way and not yet recorded."""
        self.to_background: dict[ToolCallId, asyncio.Event] = {}
        """For each running call: set when a client wants the call's command to continue in the background."""
        self.cancelled_tools = CancelledTools(bounds.cancelled_tool_seconds, set() if orphans is None else orphans)
        self.answer_begun = asyncio.Event()
        """Set once a part of an answer was shown, or once none will be."""
        self.deciders: tuple[frozenset[RequestId], ...] = ()
        """For each present client that can decide permissions, the requests that it declined. Read while a permission
        is open, and again with the inbox: every change to it raises the tail."""
        self._deciders_stale = True
        self.denying: frozenset[RequestId] = frozenset()
        """Requests whose denial this holder has put into the inbox."""
        self._may_work_in = may_work_in
        self._identify = identify
        self._row_status = (folded.row.status, folded.row.turn_id)
        """The status and the turn in the session's row."""
        self._row_status_at = folded.row.head
        """The head after the last unit that changed `_row_status`."""
        self._tail_seen = folded.row.inbox_tail
        self._inbox_stale = False
        self._refresh_lock = asyncio.Lock()
        self._writes_in_flight = 0
        self._writes_finished = asyncio.Event()
        self._write_failure: BaseException | None = None
        """The first write whose outcome is unknown: after it, every further write raises this error."""
        self._segments: list[Segment] = list(folded.segments)
        self._snapshot_at = folded.snapshot_at
        self._snapshot_bytes = folded.snapshot_bytes
        self._snapshot_task: asyncio.Task[None] | None = None
        self._claiming = claiming
        self.observed = (observer or Observer(clock)).held(self.key, lease.fence, self.redacted)

    @property
    def key(self) -> Key:
        return self.lease.key

    @cached_property
    def readable(self) -> tuple[str, ...]:
        """The rules that let this session read the output of its own commands."""
        return (self.shell.readable(self.key),) if self.shell is not None else ()

    @property
    def tail_seen(self) -> int:
        """The inbox tail up to which every item is in `inbox`, or was promoted."""
        return self._tail_seen

    async def shown_files(self, history: Iterable[HistoryItem], *, takes_documents: bool) -> dict[FileId, Image]:
        """The content of the files that a model is shown with this history. Each is read once. Raises
        `FilesUnavailable`."""
        wanted = {file.file_id for file in files_in(history) if takes_documents or file.is_picture}
        for file_id in wanted - self._shown.keys():
            self._shown[file_id] = await self._read_shown(file_id)
        return {file_id: image for file_id in wanted if (image := self._shown[file_id]) is not None}

    async def _read_shown(self, file_id: FileId) -> Image | None:
        if self.files is None:
            return None
        try:
            row = await self.files.find(self.key.owner, file_id)
        except FileMissing:
            return None
        # A log that was imported may say anything of a file.
        file = AttachedFile(file_id=file_id, name=row.name, media_type=row.media_type, size=row.size)
        if not shown_files((file,)):
            return None
        return Image(media_type=row.media_type, data=await self.files.read_whole(row))

    def directory(self) -> WorkingDirectory | None:
        """The folder that the session's tools work in, pinned to its identity once `fix_directory` has recorded it."""
        state = self.state
        if not state.working_directory:
            return None
        identity = state.directory_identity
        policy = partial(self._may_work_in, self.key.owner) if identity is not None and identity.limited else None
        return WorkingDirectory.of(state.working_directory, identity, policy, is_real=state.client_name == "http")

    async def fix_directory(self) -> None:
        """Record the identity of the session's folder, before its first use. Sessions that were created where the
        folder was not visible, or by an earlier release, come without an identity. For sessions from HTTP, links were
        resolved at creation, so a link on the path now is not theirs and is not followed. After a crash before this
        write the next holder does it."""
        state = self.state
        if not state.working_directory or state.directory_identity is not None or not _waits_for_tools(state):
            return
        came_by_http = state.client_name == "http"
        identity = self._identify(state.working_directory, follow_links=not came_by_http)
        if identity is None:
            return  # The folder is not usable: each tool call reports that.
        if came_by_http and self._may_work_in(self.key.owner, identity.path):
            identity = msgspec.structs.replace(identity, limited=True)
        await self.until_claimed()
        await self.commit(Append(events=[session.SettingsChanged(directory_identity=identity)]))

    def shown(self) -> tuple[Block, ...]:
        """The durable blocks of the message in flight."""
        return blocks_of(self._segments) if self._segments else ()

    def has_stop(self) -> bool:
        """Whether a stop was accepted: the next decision ends the turn."""
        return any(isinstance(item.item, Stop) for item in self.inbox)

    def redacted(self, text: str) -> str:
        """Remove the secrets that this runtime knows from the text of a tool."""
        return self.shell.desk.redaction.text(text) if self.shell else text

    def foreground_calls(self) -> frozenset[str]:
        """Running calls that could continue in the background, and were not asked to."""
        return frozenset(call for call, requested in self.to_background.items() if not requested.is_set())

    def wake(self) -> None:
        """Have the loop read the inbox before it decides again: an item may have been put."""
        self._inbox_stale = True
        self.woken.set()

    def note_tail(self, tail: int | None) -> None:
        """Take the current inbox tail, and wake the loop if it is new. None: the inbox changed in another way."""
        if tail is None or tail > self._tail_seen:
            self.wake()

    @property
    def is_claimed(self) -> bool:
        """Whether the claim is known to be committed; before that, the database may not show it."""
        return self._claiming is None or self._claiming.done()

    async def until_claimed(self) -> None:
        """Wait until the claim is committed. Writes need not: the store refuses them without the claim. Everything else
        waits here first."""
        if self._claiming is not None:
            await asyncio.shield(self._claiming)
            self._claiming = None

    async def blocks_another_turn(self) -> bool:
        """Whether another turn of the same owner could run at once if this session were released."""
        limit = self.store.limits.running_of(self.key.owner)
        if limit is None:
            return False
        turns = await self.store.turns(self.key.owner)
        return turns.queued > 0 and turns.slots >= limit

    async def refresh_inbox(self) -> None:
        """Read the inbox again if it may have changed. The loop and the model call both do this: the second one waits
        for the first, or it would decide on the old inbox."""
        if not (self._inbox_stale or self.state.requests or self._refresh_lock.locked()):
            return
        async with self._refresh_lock:
            if self._inbox_stale:
                self._inbox_stale, self._deciders_stale = False, True
                try:
                    await self._read_inbox()
                except BaseException:
                    self._inbox_stale = True
                    raise
            if self._deciders_stale and any(request.kind == "permission" for request in self.state.requests.values()):
                await self._read_deciders()

    async def _read_deciders(self) -> None:
        """Read after the tail: a change that this read misses raises the tail, and so the session is not released over
        it."""
        await self.until_claimed()
        self.deciders = declined_by_each(await self.store.attachments(self.key), ANSWERS_PERMISSIONS)
        self._deciders_stale = False

    async def deny(self, request_ids: Iterable[RequestId]) -> None:
        """Put the denial of permissions that every present client declined. A denial is an answer like any other: an
        answer that was accepted before it counts. After a crash the next holder promotes it."""
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
        self,
        append: Append,
        *,
        opens_task: TaskRow | None = None,
        changes_task: TaskChange | None = None,
        reserves: Ask | None = None,
    ) -> bool:
        """Write one decision as a unit. False: the inbox has changed; read it and decide again.

        Cancellation is deferred until the write completes: a write whose outcome is not awaited would leave the state
        behind the log."""
        events = tuple(self._event(body) for body in append.events)
        row_status = self._row_after(append)
        unit = self._unit(append, events, row_status)
        if reserves is not None:
            unit = msgspec.structs.replace(unit, reserves=reserves)
        if opens_task is not None or changes_task is not None:
            opens, changes = (opens_task,) if opens_task else (), (changes_task,) if changes_task else ()
            unit = msgspec.structs.replace(unit, opens_tasks=opens, changes_tasks=changes)
        with self._track_write():
            started = self.clock.monotonic()
            outcome, cancelled = await defer_cancellation(self.store.commit(unit))
            self.reservations.note(unit, outcome)
            is_done = self._check_outcome(outcome)
            if isinstance(outcome, Committed):
                self.observed.committed(unit, name_of=self._tool_of, seconds=self.clock.monotonic() - started)
                missed = outcome.head - len(events) - self.state.head
            else:
                missed = MISSED_EVENTS
            if missed > 0:
                others, meanwhile = await defer_cancellation(
                    self.store.events_after(self.key, self.state.head, limit=missed)
                )
                cancelled = cancelled or meanwhile
                fold(others, self.state)
            if isinstance(outcome, Committed):
                self._apply_committed(append, unit, outcome, row_status)
                if self.shell is not None and (changes_task is not None or append.ends_commands):
                    self.shell.look()
        if cancelled is not None:
            raise cancelled
        return is_done

    def _apply_committed(
        self, append: Append, unit: Unit, outcome: Committed, row_status: tuple[Status, TurnId | None]
    ) -> None:
        if (
            unit.status is not None and outcome.head >= self._row_status_at
        ):  # Outcomes may arrive in another order than units.
            self._row_status, self._row_status_at = row_status, outcome.head
        self.prompts.is_stored |= unit.prompt is not None
        if append.drops_segments:
            self._segments.clear()
            self.answer_begun.set()
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

    async def reserve(self) -> bool:
        """Have money reserved for the call that is decided on, unless it is already. False: decide again."""
        current = self.state.turn
        asked = self.reservations.needed(current.message_id, current.attempts + 1) if current is not None else None
        return asked is None or await self.commit(Append(), reserves=asked)

    async def reserve_beside(self, asked: Ask) -> bool:
        """Have money reserved for a call beside the turn. False: there is none."""
        unit = Unit(key=self.key, fence=self.lease.fence, reserves=asked)
        with self._track_write():
            outcome, cancelled = await defer_cancellation(self.store.commit(unit))
            if isinstance(outcome, FenceMissed):
                raise LeaseLost(self.key)
        if cancelled is not None:
            raise cancelled
        return isinstance(outcome, Committed)

    async def until_written(self) -> None:
        """Wait for all writes in flight, and raise if any failed. The end of a turn needs this: a segment or a tool
        result that is written after the end would be taken for the next turn's."""
        while self._writes_in_flight:
            self._writes_finished.clear()
            await self._writes_finished.wait()
        if self._write_failure is not None:
            raise self._write_failure

    @contextlib.contextmanager
    def _track_write(self) -> Iterator[None]:
        """Count a write in flight. After a write whose outcome is unknown the state may be behind the log: every
        further write fails, also when the writer was cancelled and so never sees the error."""
        if self._write_failure is not None:
            raise self._write_failure
        self._writes_in_flight += 1
        try:
            yield
        except BaseException as error:
            self._write_failure = error
            raise
        finally:
            self._writes_in_flight -= 1
            if not self._writes_in_flight:
                self._writes_finished.set()

    async def commit_segments(self, segments: list[Segment]) -> None:
        """Commit segments of the message in flight, and then publish them. Cancellation is deferred until then."""
        unit = Unit(key=self.key, fence=self.lease.fence, segments=tuple(segments))
        with self._track_write():
            started = self.clock.monotonic()
            outcome, cancelled = await defer_cancellation(self.store.commit(unit))
            self._check_outcome(outcome)
            assert isinstance(outcome, Committed)
            self._show(segments, outcome.head)
            self.observed.shown(segments[0].message_id, self.clock.monotonic() - started)
            self._segments.extend(segments)
            self.answer_begun.set()
        if cancelled is not None:
            raise cancelled

    def _show(self, segments: list[Segment], head: Position) -> None:
        last = self._segments[-1] if self._segments else None
        follows = (last.block, last.offset + len(last.text.encode())) if last else (0, 0)
        self._publish(Grown(head, follows, tuple(_as_delta(segment) for segment in segments)))

    def _check_outcome(self, outcome: Outcome) -> bool:
        """True: the unit was committed. False: it was rejected, and the inbox must be read again."""
        match outcome:
            case Committed(inbox_tail=tail):
                self.note_tail(tail)
                return True
            case FenceMissed():
                raise LeaseLost(self.key)
            case Rejected():
                self._inbox_stale = True
                return False

    def _tool_of(self, tool_call_id: ToolCallId) -> str:
        """The name of the tool of a call; empty if the state does not know the call."""
        reply = self.state.reply()
        call = reply.call(tool_call_id) if reply is not None else None
        return call.name if call is not None else ""

    def _publish(self, hint: Hint) -> None:
        self.live.publish(self.key, hint)

    def _event(self, body: Body) -> Event:
        return Event(Position(0), EventId(self.new_id()), self.clock.now_ms(), body)

    def _unit(self, append: Append, events: tuple[Event, ...], row_status: tuple[Status, TurnId | None]) -> Unit:
        title = next((body.title for body in append.events if isinstance(body, session.TitleChanged)), None)
        model = next((body.new_model for body in append.events if isinstance(body, session.ModelChanged)), None)
        unit = Unit(
            key=self.key,
            fence=self.lease.fence,
            events=events,
            promotes=tuple(Promotion(each.sequence, each.outcome, each.refused) for each in append.promotes),
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
            # Also when a turn ends normally: a call that was refused after a crash may have left its command running.
            ends_commands=self.shell is not None and _ends_turn(append.events),
            ledger=tuple(self._ledger(append.events)),
            prompt=self._new_prompt(append.events),
            supposes_head=self.state.head if append.supposes_head else None,
            status=None if row_status == self._row_status else row_status[0],
            turn_id=row_status[1],
            title=title,
            model=model,
            makes_progress=_makes_progress(append.events),
        )
        return self.reservations.added_to(unit, append.events, self.state, self._phase_after(append.events))

    def _row_after(self, append: Append) -> tuple[Status, TurnId | None]:
        """The status and the turn in the session's row after this unit."""
        status = _STATUS.get(self._phase_after(append.events), "running")
        if status == "idle" and self._messages_wait_after(append):
            status = "queued"
        return status, self._turn_after(append.events)

    def _messages_wait_after(self, append: Append) -> bool:
        promoted = {promotion.sequence for promotion in append.promotes}
        return any(isinstance(item.item, Message) and item.sequence not in promoted for item in self.inbox)

    def _phase_after(self, bodies: Iterable[Body]) -> Phase:
        """Walk the transition table, so that an illegal event raises here and is never written to a log."""
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

    def _new_prompt(self, bodies: Iterable[Body]) -> PromptRow | None:
        """The content of a prompt that the events refer to, unless this process knows that the store has it."""
        current = self.prompts.current
        if self.prompts.is_stored or all(getattr(body, "prompt", None) != current.digest for body in bodies):
            return None
        return PromptRow(current.digest, current.content)

    def _ledger(self, bodies: Iterable[Body]) -> Iterable[LedgerEntry]:
        """An entry for every attempt at a model call; an attempt that did not report its usage is unknown, not free."""
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
                        cache_write_tokens=body.cache_write_tokens,
                        cost_microdollars=body.cost_microdollars,
                        time=self.clock.now_ms(),
                    )
                case message.CallFailed():
                    refused = body.status_code is not None or body.error_code in NOT_ANSWERED
                    yield msgspec.structs.replace(self._unknown_use(body.message_id, body.attempt), refused=refused)
                case turn.Claimed() if self.state.turn is not None and self.state.phase is Phase.CALLING_MODEL:
                    yield self._unknown_use(self.state.turn.message_id, self.state.turn.attempts + 1)
                case CompactionStarted(attempt=attempt) if attempt > 1:
                    yield self._unknown_use(call_of(body.compaction_id), attempt - 1)
                case CompactionEnded() if body.is_called and not body.model:
                    yield self._unknown_use(call_of(body.compaction_id), body.attempt)
                case CompactionEnded() if body.is_called:
                    yield LedgerEntry(
                        message_id=call_of(body.compaction_id),
                        attempt=body.attempt,
                        model=body.model,
                        input_tokens=body.input_tokens,
                        output_tokens=body.output_tokens,
                        cache_read_tokens=body.cache_read_tokens,
                        cache_write_tokens=body.cache_write_tokens,
                        cost_microdollars=body.cost_microdollars,
                        time=self.clock.now_ms(),
                    )
                case message.AssistantMessage(interrupted=True):
                    # If the provider cut the answer, this attempt is already in the ledger, and stays there once.
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
            cache_write_tokens=None,
            cost_microdollars=None,
            time=self.clock.now_ms(),
        )

    def _keep_snapshot(self) -> None:
        """Store a snapshot if one is due, beside the writes of the turn; one at a time."""
        if self._snapshot_task is not None and not self._snapshot_task.done():
            return
        snapshot = self._snapshot_if_due()
        if snapshot is not None:
            self._snapshot_at, self._snapshot_bytes = snapshot.position, len(snapshot.state)
            self._snapshot_task = asyncio.create_task(
                self._store_snapshot(snapshot), name=f"snapshot of {self.key.session}"
            )

    async def _store_snapshot(self, snapshot: Snapshot) -> None:
        try:
            await self.store.keep_snapshot(self.lease, snapshot)
        except StoreError as error:
            log.info("no snapshot of session %s was kept: %s", self.key.session, error.message)
            return
        with contextlib.suppress(StoreError):  # Whatever searches brings the index up to date first.
            await self.store.index_logs([self.key])

    async def until_snapshot_kept(self) -> None:
        """Wait for a snapshot that is being written: after the release the store would refuse it."""
        if self._snapshot_task is not None:
            await asyncio.wait([self._snapshot_task])

    def _snapshot_if_due(self) -> Snapshot | None:
        """Make a snapshot if one is due. A snapshot is as large as the state, so large states get one less often: over
        a session's life the snapshots cost no more than a fixed number of bytes for each event. A state that lacks a
        part of the conversation is not worth one: every load would read the whole log."""
        every = max(self.bounds.snapshot_every_events, self._snapshot_bytes // SNAPSHOT_BYTES_PER_EVENT)
        if self.is_partial or self.state.is_behind or self.state.head - self._snapshot_at < every:
            return None
        try:
            return Snapshot(FOLD_VERSION, self.state.head, dump(self.state))
        except (OverflowError, TypeError, ValueError, RecursionError):
            # A snapshot is only a cache: without one, the state is folded from its events.
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
    """Whether events count as progress: a finished step or a recorded result does, sealing a message after a crash does
    not."""
    if any(isinstance(body, message.Sealed) for body in bodies):
        return False
    return any(isinstance(body, (turn.StepEnded, tool.ToolCompleted)) for body in bodies)
