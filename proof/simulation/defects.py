"""Known defects that a simulation must be able to find, planted for as long as a control plays its seeds.

The defects of the runtime itself are the crash campaign's; those of its store are planted in the store in memory.
"""

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.events.inbox import InboxItem, Item, Stop, TaskNews
from holdfast.events.role import RoleBounds
from holdfast.events.task import TaskNotice
from holdfast.live.live import Advanced, Hint
from holdfast.server import presence
from holdfast.server.operations.session_access import SessionAccess
from holdfast.server.operations.settings import SettingsVerbs
from holdfast.server.reader import Reader, Reading
from holdfast.session import compaction, intake, interventions, model_step
from holdfast.store import admission
from holdfast.store.admission import Fact, Plan, Put, Rule, SessionFacts, StoredItem
from holdfast.store.errors import StoreUnavailable
from holdfast.store.store import Accepted, Claim, Key, Lease, Outcome, Refused, ReleaseKind, Unit
from holdfast.store.tasks import TaskEnding, TaskRow
from holdfast.store.turn_limits import TurnLimits
from holdfast.turns import held_session, loop, model_call, tool_call
from holdfast.turns.activities import Activities
from holdfast.turns.cancelled_tools import CancelledTools
from holdfast.turns.held_session import HeldSession
from holdfast.workers.claimer import Claimer
from holdfast.workers.holds import Hold, Holds
from holdfast.workers.lease_keeper import LeaseKeeper
from holdfast.workers.session_run import SessionRunner
from proof.crash import defects
from proof.simulation.memory import inbox, leases, tasks, units
from proof.simulation.memory.leases import Leases
from proof.simulation.memory.order import Order
from proof.simulation.memory.store import MemoryStore
from proof.simulation.memory.tables import Database, SessionRecord


class Defect(msgspec.Struct, frozen=True):
    name: str
    plant: Callable[[], None]


# Ownership


def _no_fence() -> None:
    _replace(units, "holds", lambda unit, session, process: True)


def _release_without_looking() -> None:
    _replace(Leases, "nothing_came", lambda self, session, seen_tail: True)


def _release_anybodys() -> None:
    release = Leases.release

    def freed(self: Leases, lease: Lease, seen_tail: int, how: ReleaseKind, now: int) -> Any:
        session = self._db.live(lease.key)
        if session is not None and session.fence != lease.fence:
            session.holder = None
            return True, "session"
        return release(self, lease, seen_tail, how, now)

    _replace(Leases, "release", freed)


def _ignore_live_holder() -> None:
    bury = Leases.bury

    def all_of_them(self: Leases) -> None:
        for token in self._db.processes:
            if token != self._me:
                self._free(token)
        bury(self)

    _replace(Leases, "bury", all_of_them)


def _trust_too_long() -> None:
    _replace(LeaseKeeper, "trusted", lambda self: True)
    _replace(LeaseKeeper, "_lose_all", lambda self, why: None)


def _claim_without_fence() -> None:
    take = Leases._take

    def same_fence(self: Leases, session: SessionRecord, *, eligible: bool, now: int) -> Claim:
        fence = session.fence
        claim = take(self, session, eligible=eligible, now=now)
        if not fence:
            return claim
        session.fence = fence
        return replace(claim, lease=Lease(session.key, fence))

    _replace(Leases, "_take", same_fence)


def _forget_unheard_claims() -> None:
    async def nothing(self: Claimer) -> None:
        return None

    _replace(Claimer, "_release_doubtful_claims", nothing)


def _tell_no_reader() -> None:
    _replace(SessionRunner, "_cut_off", lambda self, key: self._wakeup.set())


def _tell_no_reader_of_cancelled_runs() -> None:
    cut_off = SessionRunner._cut_off

    def unless_cancelled(self: SessionRunner, key: Key) -> None:
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            cut_off(self, key)

    _replace(SessionRunner, "_cut_off", unless_cancelled)


def _trust_from_the_answer() -> None:
    async def renew(self: LeaseKeeper) -> bool:
        try:
            alive = await self._store.renew(ttl_seconds=self._ttl)
        except Exception:
            return False
        if alive:
            self._trusted_until = self._clock.monotonic() + self._ttl - self._margin
        else:
            self._lose_all("another process declared this one dead")
        return alive

    _replace(LeaseKeeper, "renew", renew)


def _never_reset_the_count() -> None:
    _replace(held_session, "_makes_progress", lambda bodies: False)


def _release_over_running_tools() -> None:
    async def without_waiting(self: Activities) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def no_grace(self: CancelledTools, woken: asyncio.Event | None = None) -> bool:
        return True

    _replace(Activities, "cancel", without_waiting)
    _replace(CancelledTools, "wait_out", no_grace)


def _write_though_cancelled() -> None:
    _replace(model_call, "raise_if_cancelled", lambda: None)


def _run_anywhere() -> None:
    _replace(Leases, "_may_run", lambda self, session, without_models: True)


def _tell_nobody_of_the_wait() -> None:
    _replace(leases, "_is_unplaced", lambda session, now: False)


def _take_nothing_up() -> None:
    _replace(Leases, "_wake_left", lambda self, now: None)


def _drop_what_is_unknown() -> None:
    release = Leases.release

    def as_if_done(self: Leases, lease: Lease, seen_tail: int, how: ReleaseKind, now: int) -> Any:
        return release(self, lease, seen_tail, "done" if how == "for_newer" else how, now)

    _replace(Leases, "release", as_if_done)


def _count_slots_late() -> None:
    _replace(Order, "_slots", lambda self, owner: (1, 0))


def _forget_claims_not_given_back() -> None:
    ended = Holds._task_ended

    def forget(self: Holds, hold: Hold, task: asyncio.Task[None]) -> None:
        hold.release_kind = None
        ended(self, hold, task)

    _replace(Holds, "_task_ended", forget)


def _wait_for_no_earlier_claim() -> None:
    _replace(Holds, "tasks_of", lambda self, key: ())


# Accepting


def _acknowledge_first() -> None:
    put = MemoryStore.put

    async def put_later(self: MemoryStore, key: Key, item: Item, *, item_key: str, **rest: Any) -> Accepted | Refused:
        asyncio.create_task(_unheard(put(self, key, item, item_key=item_key, **rest)))  # noqa: RUF006
        receipt = InboxItem(
            sequence=0, key=item_key, state="accepted", outcome="", accepted_at=0, while_running=False, item=item
        )
        return Accepted(receipt)

    _replace(MemoryStore, "put", put_later)


async def _unheard(work: Any) -> None:
    try:
        await work
    except StoreUnavailable:
        pass  # No caller awaits it any more: that is the defect.


def _accept_twice() -> None:
    put = inbox.put

    def anew(db: Database, asked: Put) -> tuple[Accepted | Refused, str | None]:
        session = db.live(asked.key)
        found = session.inbox.pop(asked.item_key, None) if session else None
        if session is not None and found is not None:
            session.inbox[f"{asked.item_key} {session.tail}"] = found
        return put(db, asked)

    _replace(inbox, "put", anew)


def _accept_after_stop() -> None:
    _replace(inbox, "is_stopping", lambda session: False)


def _overwrite_answer() -> None:
    repeat = admission._repeat

    def overwritten(call: Put, session: SessionFacts, found: StoredItem) -> Rule:
        decision = yield from repeat(call, session, found)
        if isinstance(decision, Refused) and decision.code == "answered_already":
            return Accepted(replace(found.receipt, item=call.item))
        return decision

    _replace(admission, "_repeat", overwritten)


def _edit_in_place() -> None:
    edit = inbox.edit_item

    def unnoticed(
        db: Database, key: Key, item_key: str, text: str, limits: TurnLimits, bounds: RoleBounds | None
    ) -> tuple[Refused | None, str | None]:
        session = db.live(key)
        before = session.inbox[item_key].item.sequence if session and item_key in session.inbox else 0
        done = edit(db, key, item_key, text, limits, bounds)
        if session is not None and done[0] is None:
            session.inbox[item_key].item = replace(session.inbox[item_key].item, sequence=before)
        return done

    _replace(inbox, "edit_item", unnoticed)


def _wake_nobody() -> None:
    def only_if_idle(session: SessionRecord, now: int, since: int | None = None) -> None:
        if session.turn_id is None:
            wake(session, now, since)

    wake = inbox.wake
    _replace(inbox, "wake", only_if_idle)


def _clear_for_a_late_stop() -> None:
    stop = admission._stop

    def and_clear(session: SessionFacts, asked: Stop, item_key: str) -> Generator[Fact, Any, Plan]:
        plan = yield from stop(session, asked, item_key)
        if asked.keep_queued or not asked.comes_too_late(session.turn_id):
            return plan
        queued = yield Fact("queue")
        return replace(plan, removes=tuple(replace(item, state="removed", outcome="stopped") for item in queued))

    _replace(admission, "_stop", and_clear)


# Presence


def _overwrite_settings() -> None:
    append = SessionAccess._append

    async def over_what_came(self: SessionAccess, *given: Any, **named: Any) -> Any:
        return await append(self, *given, **{**named, "supposes_head": None})

    _replace(SessionAccess, "_append", over_what_came)


def _leave_what_was_declined() -> None:
    for looking in (interventions, presence):
        _replace(looking, "declined_by_all", lambda deciders: frozenset())


# Tasks


def _tell_of_no_end() -> None:
    _replace(tasks, "tell", lambda db, key, notice, now: None)


def _tell_of_every_end_again() -> None:
    def again(db: Database, key: Key, notice: TaskNotice, now: int) -> None:
        session = db.live(key)
        if session is not None:
            inbox.add(session, TaskNews(notice=notice), f"task:{session.tail}", now=now, wakes=True)

    end = tasks.end

    def twice(db: Database, row: TaskRow, ending: TaskEnding, notice: TaskNotice | None, **rest: Any) -> Any:
        db.tasks[row.key, row.task_id].settled = False
        return end(db, row, ending, notice, **rest)

    _replace(tasks, "tell", again)
    _replace(tasks, "end", twice)


# Writing


def _write_again() -> None:
    commit = MemoryStore.commit

    async def until_it_works(self: MemoryStore, unit: Unit) -> Outcome:
        try:
            return await commit(self, unit)
        except StoreUnavailable:
            return await commit(self, unit)

    _replace(MemoryStore, "commit", until_it_works)


def _end_over_a_write() -> None:
    async def at_once(self: HeldSession) -> None:
        return None

    _replace(HeldSession, "until_written", at_once)


def _forget_failures() -> None:
    writing = HeldSession._track_write

    @contextmanager
    def and_forgotten(self: HeldSession) -> Iterator[None]:
        try:
            with writing(self):
                yield
        except Exception as error:
            if _is_cancelled():
                raise asyncio.CancelledError from error
            raise
        finally:
            self._write_failure = None

    _replace(HeldSession, "_track_write", and_forgotten)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


# Reading


def _believe_hints() -> None:
    from_hint = Reader._from_hint

    def without_a_look(self: Reader, hint: Hint) -> list[Reading] | None:
        if isinstance(hint, Advanced):
            return [reading for event in hint.events for reading in self._event(event)]
        return from_hint(self, hint)

    _replace(Reader, "_from_hint", without_a_look)


def _believe_pieces() -> None:
    _replace(Reader, "_fits", lambda self, grown: True)


def _replace(owner: Any, name: str, value: Any) -> None:
    assert hasattr(owner, name), f"{owner} has no {name} to break"
    setattr(owner, name, value)


OF_THE_CAMPAIGN: Final = (
    "a promoted item is consumed before its events",
    "a promoted item is consumed after its events",
    "the end of a turn is a unit of its own",
    "segments outlive their message",
    "a snapshot is ahead of its log",
    "text is shown before it is committed",
    "text that was shown is thrown away",
    "a tool with an unknown outcome runs again",
    "an attempt is written after its effect",
    "a result is recorded twice",
    "a stop ends whatever turn runs when it is heard",
    "steering is consumed and not said",
    "a compaction starts beside another",
    "a compaction that a crash interrupted is left as it is",
    "a summary that failed cuts a conversation that still fits",
)

DEFECTS: tuple[Defect, ...] = (
    Defect("commits are not fenced", _no_fence),
    Defect("a claim does not raise the fence", _claim_without_fence),
    Defect("a session is released without a look at its inbox", _release_without_looking),
    Defect("a late release frees the lease of the next holder", _release_anybodys),
    Defect("a session is taken from a holder that lives", _ignore_live_holder),
    Defect("a lease is trusted past its expiry", _trust_too_long),
    Defect("a claim whose outcome was not heard is forgotten", _forget_unheard_claims),
    Defect("a claim that its task did not give back is forgotten", _forget_claims_not_given_back),
    Defect("a session that is claimed again does not wait for its earlier tools", _wait_for_no_earlier_claim),
    Defect("the readers of a run that is cut off are told nothing", _tell_no_reader),
    Defect("the readers of a run that is cancelled are told nothing", _tell_no_reader_of_cancelled_runs),
    Defect("trust is counted from the answer to a renewal", _trust_from_the_answer),
    Defect("progress never resets the count of claims", _never_reset_the_count),
    Defect("a lease is released before the cancelled tool has ended", _release_over_running_tools),
    Defect("a model that swallowed its cancellation goes on writing", _write_though_cancelled),
    Defect("the slots of an owner that are taken are not counted", _count_slots_late),
    Defect("a session is run where its files are not", _run_anywhere),
    Defect("nobody is told that a session can be run nowhere", _tell_nobody_of_the_wait),
    Defect("what an older release left is never taken up", _take_nothing_up),
    Defect("an item of a newer release is taken for done", _drop_what_is_unknown),
    Defect("a stop that is meant for a turn that ended empties the queue", _clear_for_a_late_stop),
    Defect("of two changes made at once one is lost", _overwrite_settings),
    Defect("a permission that everybody declined stays open", _leave_what_was_declined),
    Defect("nobody is told of the end of a task", _tell_of_no_end),
    Defect("the end of a task is told by everybody who sees it", _tell_of_every_end_again),
    Defect("a put is acknowledged before it is committed", _acknowledge_first),
    Defect("the same client id is accepted twice", _accept_twice),
    Defect("an answer is accepted after a stop", _accept_after_stop),
    Defect("a second answer is accepted over the first", _overwrite_answer),
    Defect("an edit is lost to a promotion that did not see it", _edit_in_place),
    Defect("an answer to a waiting turn wakes nobody", _wake_nobody),
    Defect("a write whose outcome is unknown is made again", _write_again),
    Defect("a turn is ended over a write that is under way", _end_over_a_write),
    Defect("a failed write is forgotten when its writer was cancelled", _forget_failures),
    Defect("a hint is believed although one is missing", _believe_hints),
    Defect("a piece of a message is believed although one is missing", _believe_pieces),
    *(Defect(name, defects.BY_NAME[name].plant) for name in OF_THE_CAMPAIGN),
)

BY_NAME: Final = {defect.name: defect for defect in DEFECTS}

_CLASSES: Final[tuple[Any, ...]] = (
    Activities,
    CancelledTools,
    Claimer,
    HeldSession,
    Holds,
    LeaseKeeper,
    Leases,
    MemoryStore,
    Order,
    Reader,
    SessionAccess,
    SessionRunner,
    SettingsVerbs,
)
_MODULES: Final[tuple[Any, ...]] = (
    admission,
    compaction,
    held_session,
    inbox,
    intake,
    interventions,
    leases,
    loop,
    model_call,
    model_step,
    presence,
    tasks,
    tool_call,
    units,
)
"""Everything that a defect may change."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Suffer from the defect of that name, and from none before and after. The empty name is none at all."""
    before = [(owner, dict(vars(owner))) for owner in (*_CLASSES, *_MODULES)]
    try:
        if name:
            BY_NAME[name].plant()
        yield
    finally:
        for owner, names in before:
            for changed, value in names.items():
                if vars(owner).get(changed) is not value:
                    setattr(owner, changed, value)
