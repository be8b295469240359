"""Known defects that a crash campaign must be able to catch, planted one at a time in a forked process.

None of this ever runs in a product: `plant` changes the code of its own process, which is about to be killed.
"""

import asyncio
import math
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.commands.command import CommandKey, Spec
from holdfast.commands.commands import AlreadyThere, Commands, Started
from holdfast.commands.used_keys import USED
from holdfast.events import tool, turn
from holdfast.events.ids import Key, Position
from holdfast.events.inbox import InboxItem, Item, Message, Stop, TaskNews
from holdfast.events.message import Block
from holdfast.events.request import PermissionCompleted
from holdfast.events.session import Truncated
from holdfast.events.task import TaskNotice
from holdfast.server.operations.session_access import SessionAccess
from holdfast.session import fold, intake, interventions, model_step, turn_start
from holdfast.session.actions import Append
from holdfast.session.inputs import CallFacts, Inputs
from holdfast.session.state import State
from holdfast.store import admission
from holdfast.store.admission import Put, Rule, SessionFacts, StoredItem
from holdfast.store.audit import AuditEntry
from holdfast.store.grants import NewGrants
from holdfast.store.keys import KeyRow
from holdfast.store.sqlite import puts, task_rows
from holdfast.store.sqlite.leases import Leases
from holdfast.store.sqlite.queries import SQL
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.sqlite.units import SessionNow, UnitJob, Units
from holdfast.store.store import (
    Accepted,
    Claim,
    FenceMissed,
    LedgerEntry,
    Outcome,
    Refused,
    Rejected,
    Segment,
    Snapshot,
    Unit,
)
from holdfast.store.tasks import TaskRow
from holdfast.turns import load, loop, tool_call
from holdfast.turns.held_session import HeldSession
from holdfast.turns.titles import Titles
from holdfast.turns.tool_call import facts_of
from holdfast.workers import session_run
from proof.crash import (
    budget_defects,
    compaction_defects,
    crowd_defects,
    file_defects,
    postgres_defects,
    webhook_defects,
)
from proof.crash.plant import altered
from proof.crash.plant import replace as _replace
from proof.crash.trial import Database, Kind


class Defect(msgspec.Struct, frozen=True, kw_only=True):
    """One defect: its description, the code that plants it, and the scenarios that must reveal it."""

    name: str
    plant: Callable[[], None]
    scenarios: tuple[str, ...]
    kinds: tuple[Kind, ...] = ("kill",)
    near: str = ""
    """A part of the names of the crash points around which it shows."""
    databases: tuple[Database, ...] = ("sqlite", "postgresql")
    """The stores on which it can be shown."""


def plant(name: str, database: Database = "sqlite") -> None:
    """Plant the defect of that name in this process, in the variant for its database."""
    if name:
        own = postgres_defects.PLANTS if database == "postgresql" else {}
        own.get(name, BY_NAME[name].plant)()


# Ownership


def _no_fence() -> None:
    def refusal(self: Units, job: UnitJob, session: SessionNow | None) -> Outcome | None:
        if session is None or session.is_deleted:
            return FenceMissed()
        for promotion in job.unit.promotes:
            if self._db.execute(SQL["is_waiting"], (*job.key, promotion.sequence)).fetchone() is None:
                return Rejected("no longer waits")
        return None

    _replace(Units, "_refusal", refusal)
    crowd_defects.notice_no_lost_lease()


def _ignore_live_holder() -> None:
    def gone(self: Leases, db: sqlite3.Connection) -> list[tuple[str, bool]]:
        return [(token, False) for token, _, _ in self._others(db)]

    _replace(Leases, "_gone", gone)


def _release_without_looking() -> None:
    SQL["release"] = SQL["release"].replace("AND inbox_tail = ?5", "AND ?5 IS NOT NULL")


def _count_after_the_load() -> None:
    """A claim is an attempt only once its session is in memory."""
    SQL["take"] = altered(SQL["take"], "claims = claims + 1,", "")
    counted = "UPDATE session SET claims = claims + 1 WHERE owner = ? AND id = ?"
    load_claimed = load.load_claimed

    async def and_counted(store: SqliteStore, claim: Claim, **rest: Any) -> load.FoldedSession | None:
        found = await load_claimed(store, claim, **rest)
        key = claim.lease.key
        await store._write("claim", lambda db: (db.execute(counted, (key.owner, key.session)), "sessions"))
        return found

    _replace(session_run, "load_claimed", and_counted)


def _forget_the_tombstone() -> None:
    SQL["delete_session"] = "DELETE FROM session WHERE owner = ?1 AND id = ?2 AND ?3 IS NOT NULL"


# Accepting


def _acknowledge_first() -> None:
    written: set[asyncio.Future[Any]] = set()
    put = SqliteStore.put

    async def put_later(self: SqliteStore, key: Any, item: Item, *, item_key: str, **rest: Any) -> Accepted | Refused:
        written.add(asyncio.ensure_future(put(self, key, item, item_key=item_key, **rest)))
        receipt = InboxItem(
            sequence=0, key=item_key, state="accepted", outcome="", accepted_at=0, while_running=False, item=item
        )
        return Accepted(receipt)

    _replace(SqliteStore, "put", put_later)


def _accept_twice() -> None:
    put = puts.put

    def anew(db: sqlite3.Connection, asked: Put) -> tuple[Accepted | Refused, str | None]:
        old = (f"{asked.item_key} {uuid.uuid4()}", asked.key.owner, asked.key.session, asked.item_key)
        db.execute("UPDATE inbox SET item_key = ? WHERE owner = ? AND session = ? AND item_key = ?", old)
        return put(db, asked)

    _replace(puts, "put", anew)


def _accept_after_stop() -> None:
    SQL["is_stopping"] = "SELECT 1 WHERE ?1 IS NULL AND ?2 IS NULL"


def _overwrite_answer() -> None:
    repeat = admission._repeat

    def overwritten(call: Put, session: SessionFacts, found: StoredItem) -> Rule:
        decision = yield from repeat(call, session, found)
        if isinstance(decision, Refused) and decision.code == "answered_already":
            return Accepted(msgspec.structs.replace(found.receipt, item=call.item))
        return decision

    _replace(admission, "_repeat", overwritten)


def _wake_nobody_who_could_deny() -> None:
    SQL["wake_declined"] = altered(SQL["wake_declined"], "runnable = 1\n", "runnable = runnable\n")


# Promotion and units


def _split(first: Callable[[Append], Append | None], rest: Callable[[Append], Append]) -> None:
    """Commit a part of each decision on its own, and then the rest."""
    commit = HeldSession.commit

    async def in_two(self: HeldSession, append: Append, **tasks: Any) -> bool:
        part = first(append)
        if part is None:
            return await commit(self, append, **tasks)
        return await commit(self, part) and await commit(self, rest(append), **tasks)

    _replace(HeldSession, "commit", in_two)


def _consume_first() -> None:
    _split(
        lambda append: Append(promotes=append.promotes) if append.promotes and append.events else None,
        lambda append: _changed(append, promotes=[]),
    )


def _consume_last() -> None:
    _split(
        lambda append: _changed(append, promotes=[]) if append.promotes and append.events else None,
        lambda append: Append(promotes=append.promotes),
    )


def _split_the_end() -> None:
    _split(
        lambda append: _changed(append, events=append.events[:-1]) if _ends_turn(append) else None,
        lambda append: Append(events=append.events[-1:]),
    )


def _take_back_first() -> None:
    _split(
        lambda append: _changed(append, events=append.events[:1]) if _replaces(append) else None,
        lambda append: Append(events=append.events[1:]),
    )


def _replaces(append: Append) -> bool:
    return len(append.events) > 1 and isinstance(append.events[0], Truncated)


def _ends_turn(append: Append) -> bool:
    return len(append.events) > 1 and isinstance(append.events[-1], turn.TurnEnded)


def _changed(append: Append, **changes: Any) -> Append:
    return msgspec.structs.replace(append, **changes)


def _keep_segments() -> None:
    unit = HeldSession._unit

    def keeping(self: HeldSession, append: Append, events: Any, says: Any) -> Unit:
        return msgspec.structs.replace(unit(self, append, events, says), drops_segments=False)

    _replace(HeldSession, "_unit", keeping)


def _snapshot_ahead() -> None:
    due = HeldSession._snapshot_if_due

    def ahead(self: HeldSession) -> Snapshot | None:
        kept = due(self)
        return kept and Snapshot(kept.fold_version, Position(kept.position + 1), kept.state)

    _replace(HeldSession, "_snapshot_if_due", ahead)


def _book_twice() -> None:
    booked = HeldSession._ledger

    def twice(self: HeldSession, bodies: Any) -> Iterable[LedgerEntry]:
        for entry in booked(self, bodies):
            yield entry
            yield msgspec.structs.replace(entry, attempt=entry.attempt + 100)

    _replace(HeldSession, "_ledger", twice)


def _name_over_names() -> None:
    async def whatever(self: Titles, key: Key, head: Position) -> Position | None:
        while events := await self._store.events_after(key, head, limit=100):
            head = events[-1].position
        return head

    _replace(Titles, "_head_if_untitled", whatever)


def _see_later() -> None:
    def see(self: SqliteStore, key: Key, position: Position) -> Any:
        async def acknowledged() -> Position:
            return position

        return acknowledged()

    _replace(SqliteStore, "see", see)


def _tell_later() -> None:
    add_key = SqliteStore.add_key

    async def in_two(self: SqliteStore, row: KeyRow, *, audit: AuditEntry | None = None) -> None:
        await add_key(self, row)
        if audit is not None:
            await self.audit(audit)

    _replace(SqliteStore, "add_key", in_two)


# Streaming


def _show_first() -> None:
    commit_segments = HeldSession.commit_segments

    async def shown_first(self: HeldSession, segments: list[Segment]) -> None:
        self._show(segments, self.state.head)
        await asyncio.sleep(0.002)  # Long enough for a reader to see it.
        await commit_segments(self, segments)

    _replace(HeldSession, "commit_segments", shown_first)


def _throw_away_shown() -> None:
    def nothing(self: HeldSession) -> tuple[Block, ...]:
        return ()

    _replace(HeldSession, "shown", nothing)


# Tools, answers, stops


def _repeat_unknown() -> None:
    async def all_repeatable(*given: Any, **named: Any) -> dict[Any, CallFacts]:
        found = await facts_of(*given, **named)
        return {call: msgspec.structs.replace(facts, repeatable=True) for call, facts in found.items()}

    _replace(loop, "facts_of", all_repeatable)


def _attempt_after_effect() -> None:
    commit = HeldSession.commit
    held_back: list[Any] = []

    async def late(self: HeldSession, append: Append, **tasks: Any) -> bool:
        if append.events and isinstance(append.events[0], tool.ToolAttempted):
            held_back.extend(append.events)
            return True
        if any(isinstance(body, tool.ToolCompleted) for body in append.events):
            append = _changed(append, events=[*held_back, *append.events])
            held_back.clear()
        return await commit(self, append, **tasks)

    _replace(HeldSession, "commit", late)


def _record_results_twice() -> None:
    commit = HeldSession.commit

    async def twice(self: HeldSession, append: Append, **tasks: Any) -> bool:
        results = [body for body in append.events if isinstance(body, tool.ToolCompleted)]
        done = await commit(self, append, **tasks)
        if done and results and len(append.events) == 1:
            await commit(self, Append(events=list(results)))
        return done

    _replace(HeldSession, "commit", twice)


def _stop_whatever_runs() -> None:
    stop = interventions.stop

    def any_turn(state: Any, inputs: Inputs) -> Any:
        if state.turn is not None:
            items = [_aimed(item, state.turn.turn_id) for item in inputs.inbox]
            inputs = msgspec.structs.replace(inputs, inbox=tuple(items))
        elif any(isinstance(item.item, Message) for item in inputs.inbox):
            return None
        return stop(state, inputs)

    _replace(interventions, "stop", any_turn)


def _aimed(item: InboxItem, turn_id: Any) -> InboxItem:
    if not isinstance(item.item, Stop):
        return item
    return msgspec.structs.replace(item, item=msgspec.structs.replace(item.item, turn_id=turn_id))


def _lose_steering() -> None:
    _replace(model_step, "next_step", lambda _state, inputs, current: model_step.step(inputs, current))


# Commands


def _put_news_later() -> None:
    end_task = SqliteStore.end_task

    async def in_two(self: SqliteStore, row: TaskRow, ending: Any, notice: TaskNotice | None, *, host: str) -> bool:
        done = await end_task(self, row, ending, None, host=host)
        if done and notice is not None:
            key = f"task:{notice.task_id}:{notice.kind}"
            await self.put(row.key, TaskNews(notice=notice), item_key=key, queue_limit=0)
        return done

    _replace(SqliteStore, "end_task", in_two)


def _tell_whoever_asks() -> None:
    SQL["end_task"] = SQL["end_task"].replace("AND settled = 0", "AND ?8 IS NOT NULL")
    tell = task_rows._tell

    def again(db: sqlite3.Connection, key: Any, notice: TaskNotice, now: int) -> None:
        old = (f"{uuid.uuid4()}", key.owner, key.session, f"task:{notice.task_id}:{notice.kind}")
        db.execute("UPDATE inbox SET item_key = ? WHERE owner = ? AND session = ? AND item_key = ?", old)
        tell(db, key, notice, now)

    _replace(task_rows, "_tell", again)


def _tell_once_for_all() -> None:
    tell = task_rows._tell

    def once(db: sqlite3.Connection, key: Any, notice: TaskNotice, now: int) -> None:
        like = (key.owner, key.session, f"task:{notice.task_id}:%")
        known = db.execute("SELECT 1 FROM inbox WHERE owner = ? AND session = ? AND item_key LIKE ?", like).fetchone()
        if known is None:
            tell(db, key, notice, now)

    _replace(task_rows, "_tell", once)


def _wake_nobody() -> None:
    def asleep(self: puts.Inbox, since: int | None = None) -> None:
        self.raise_tail()

    tell = task_rows._tell

    def quietly(db: sqlite3.Connection, key: Any, notice: TaskNotice, now: int) -> None:
        wake, puts.Inbox.wake = puts.Inbox.wake, asleep  # type: ignore[method-assign]
        try:
            tell(db, key, notice, now)
        finally:
            puts.Inbox.wake = wake  # type: ignore[method-assign]

    _replace(task_rows, "_tell", quietly)


def _leave_commands() -> None:
    SQL["end_foreground_tasks"] = SQL["end_foreground_tasks"].replace("'stop'", "''")


def _start_anew() -> None:
    key = tool_call._call_key
    _replace(tool_call, "_call_key", lambda reply, call: f"{key(reply, call)}:{call.attempts}")


def _kill_without_a_wish() -> None:
    async def unasked(self: SqliteStore, key: Any, task_id: Any, by: Any) -> bool:
        return True

    _replace(SqliteStore, "ask_kill", unasked)


def _grant_afterwards() -> None:
    """What an answer grants is a write of its own, which is repeated with the answer."""
    put = SessionAccess._put

    async def granting(
        self: SessionAccess, key: Key, item: Item, item_key: str, *, grants: NewGrants | None = None, **rest: Any
    ) -> Accepted:
        accepted = await put(self, key, item, item_key, **rest)
        if grants is not None:
            await self.store.grant(key.owner, grants.place, grants.rules, origin=grants.origin)
        return accepted

    _replace(SessionAccess, "_put", granting)


def _keep_lasting_rules() -> None:
    """What is approved for always is a rule of the session too, whatever becomes of the grant."""
    take_rules = fold._take_rules

    def taken(state: State, body: PermissionCompleted, rules: Sequence[str]) -> None:
        take_rules(state, msgspec.structs.replace(body, place=None), rules)

    _replace(fold, "_take_rules", taken)


def _widen_queued_messages() -> None:
    """A session keeps what it got while a message waited that may not use it."""
    _replace(turn_start, "narrowing", lambda state, *bounds: [])


def _forget_commands() -> None:
    SQL["delete_tasks"] = "DELETE FROM task WHERE owner = ?1 AND session = ?2"


def _start_however_late() -> None:
    """A removed command leaves its key free, and a request to start it never comes too late."""
    start, forget = Commands.start, Commands.forget

    async def started(
        self: Commands, key: CommandKey, spec: Spec, *, start_before: float = math.inf
    ) -> Started | AlreadyThere:
        return await start(self, key, spec)

    async def forgotten(self: Commands, key: CommandKey) -> None:
        await forget(self, key)
        (self.session_folder(key.owner, key.session).parents[1] / USED / key.name).unlink()

    _replace(Commands, "start", started)
    _replace(Commands, "forget", forgotten)


def _lose_news() -> None:
    _replace(intake, "news", lambda inputs: [])


DEFECTS: tuple[Defect, ...] = (
    Defect(
        name="commits are not fenced", plant=_no_fence, scenarios=("tools", "streaming", "plain"), kinds=("freeze",)
    ),
    Defect(
        name="a session is taken from a holder that lives",
        plant=_ignore_live_holder,
        scenarios=("streaming", "follow-ups"),
        kinds=("pair",),
    ),
    Defect(
        name="a session is released without a look at its inbox",
        plant=_release_without_looking,
        scenarios=("late-follow-up",),
        kinds=("calm",),
    ),
    Defect(
        name="a claim is counted after the load that it is for",
        plant=_count_after_the_load,
        scenarios=("deadly-load",),
        kinds=("calm",),
    ),
    Defect(
        name="a client that leaves a declined request wakes nobody",
        plant=_wake_nobody_who_could_deny,
        scenarios=("declined-by-the-rest",),
        kinds=("calm",),
    ),
    Defect(name="a deleted session leaves no trace", plant=_forget_the_tombstone, scenarios=("delete",)),
    Defect(
        name="a put is acknowledged before it is committed",
        plant=_acknowledge_first,
        scenarios=("plain",),
        near="put:",
    ),
    Defect(name="the same client id is accepted twice", plant=_accept_twice, scenarios=("plain",), near="put:"),
    Defect(
        name="an answer is accepted after a stop",
        plant=_accept_after_stop,
        scenarios=("stop-waiting",),
        kinds=("calm",),
    ),
    Defect(
        name="a second answer is accepted over the first",
        plant=_overwrite_answer,
        scenarios=("permission", "client-tool"),
        kinds=("calm",),
    ),
    Defect(
        name="an answer that is sent again grants again what was revoked",
        plant=_grant_afterwards,
        scenarios=("lasting-permission",),
        kinds=("calm",),
    ),
    Defect(
        name="a revoked approval for always stays in its session",
        plant=_keep_lasting_rules,
        scenarios=("lasting-permission",),
        kinds=("calm",),
    ),
    Defect(
        name="a message runs with what its session got while it waited",
        plant=_widen_queued_messages,
        scenarios=("bounded-message",),
        kinds=("calm",),
    ),
    Defect(
        name="a promoted item is consumed before its events",
        plant=_consume_first,
        scenarios=("plain", "follow-ups"),
    ),
    Defect(
        name="a promoted item is consumed after its events",
        plant=_consume_last,
        scenarios=("plain", "follow-ups"),
    ),
    Defect(name="the end of a turn is a unit of its own", plant=_split_the_end, scenarios=("plain", "tools")),
    Defect(
        name="what is replaced is taken back in a unit of its own",
        plant=_take_back_first,
        scenarios=("replaced",),
        near="truncated",
    ),
    Defect(name="segments outlive their message", plant=_keep_segments, scenarios=("streaming",), kinds=("calm",)),
    Defect(name="a snapshot is ahead of its log", plant=_snapshot_ahead, scenarios=("tools",), kinds=("calm",)),
    Defect(name="an attempt is booked twice", plant=_book_twice, scenarios=("plain",), kinds=("calm",)),
    Defect(name="text is shown before it is committed", plant=_show_first, scenarios=("streaming",), near="segments"),
    Defect(
        name="text that was shown is thrown away", plant=_throw_away_shown, scenarios=("streaming",), near="segments"
    ),
    Defect(name="a tool with an unknown outcome runs again", plant=_repeat_unknown, scenarios=("tools",), near="tool"),
    Defect(
        name="an attempt is written after its effect", plant=_attempt_after_effect, scenarios=("tools",), near="tool"
    ),
    Defect(name="a result is recorded twice", plant=_record_results_twice, scenarios=("tools",), kinds=("calm",)),
    Defect(
        name="a stop ends whatever turn runs when it is heard",
        plant=_stop_whatever_runs,
        scenarios=("stop-late",),
        kinds=("calm",),
    ),
    Defect(
        name="steering is consumed and not said",
        plant=_lose_steering,
        scenarios=("follow-ups",),
        kinds=("calm",),
    ),
    Defect(
        name="a title that a model made replaces a chosen one",
        plant=_name_over_names,
        scenarios=("renamed",),
    ),
    Defect(
        name="what was seen is acknowledged and not kept", plant=_see_later, scenarios=("records",), kinds=("calm",)
    ),
    Defect(name="an act is told after it", plant=_tell_later, scenarios=("entrusted",), near="add_key:"),
    Defect(
        name="the end of a task and its news are two transactions",
        plant=_put_news_later,
        scenarios=("task-idle", "task-alone"),
        near="end_task",
    ),
    Defect(
        name="a second keeper tells the end of a task again",
        plant=_tell_whoever_asks,
        scenarios=("task-idle", "task-mid-turn", "task-alone"),
        kinds=("pair",),
    ),
    Defect(
        name="a stall uses up the news of the end",
        plant=_tell_once_for_all,
        scenarios=("task-stuck",),
        kinds=("calm",),
    ),
    Defect(name="the end of a task wakes nobody", plant=_wake_nobody, scenarios=("task-idle",), kinds=("calm",)),
    Defect(
        name="what a turn waits for is not ended with it",
        plant=_leave_commands,
        scenarios=("task-stop",),
        near="put:stop",
    ),
    Defect(
        name="each attempt starts a command of its own",
        plant=_start_anew,
        scenarios=("task-flip", "task-idle"),
        near="tool_attempt",
    ),
    Defect(
        name="a task is killed without a wish",
        plant=_kill_without_a_wish,
        scenarios=("task-kill",),
        kinds=("calm",),
    ),
    Defect(
        name="the commands of a deleted session are forgotten",
        plant=_forget_commands,
        scenarios=("task-delete",),
        kinds=("calm",),
    ),
    Defect(
        name="a process that wakes late starts a removed command",
        plant=_start_however_late,
        scenarios=("task-delete",),
        kinds=("freeze",),
        near="start_command:command:before",
        databases=("postgresql",),
    ),
    Defect(
        name="news is consumed and not told",
        plant=_lose_news,
        scenarios=("task-mid-turn",),
        kinds=("calm",),
    ),
    Defect(
        name="progress does not reset the count of claims",
        plant=crowd_defects.forget_progress,
        scenarios=("deadly-steps",),
        kinds=("calm",),
    ),
    Defect(
        name="a session is let go of while a cancelled tool still runs",
        plant=crowd_defects.let_go_of_what_still_runs,
        scenarios=("stop-late-tool",),
        kinds=("calm",),
    ),
    Defect(
        name="records of two processes replace each other",
        plant=crowd_defects.write_over_others,
        scenarios=("two-clients",),
        kinds=("calm",),
    ),
    Defect(
        name="a stop of a turn that has ended takes the queue",
        plant=crowd_defects.stop_whatever_was_meant,
        scenarios=("stop-ended",),
        kinds=("calm",),
    ),
    Defect(
        name="a batch drops the units of all sessions but one",
        plant=crowd_defects.drop_from_sqlite_batches,
        scenarios=("crowd", "slots"),
        kinds=("calm",),
    ),
    Defect(
        name="owners who can't be served here shut out the others",
        plant=crowd_defects.shut_out_on_sqlite,
        scenarios=("renamed-node",),
        kinds=("calm",),
    ),
    Defect(
        name="an owner has more turns running than slots",
        plant=crowd_defects.count_no_slots,
        scenarios=("slots",),
        kinds=("calm",),
    ),
    Defect(
        name="a session is run on a node without its files",
        plant=crowd_defects.run_without_files,
        scenarios=("two-nodes",),
        near="put:message",
    ),
    Defect(
        name="a session is run by a process without its tools",
        plant=crowd_defects.run_without_tools_on_sqlite,
        scenarios=("two-nodes",),
        kinds=("calm",),
    ),
    Defect(
        name="a compaction starts beside another",
        plant=compaction_defects.start_beside_another,
        scenarios=("compaction",),
        near="compaction",
    ),
    Defect(
        name="a compaction that a crash interrupted is left as it is",
        plant=compaction_defects.leave_what_another_began,
        scenarios=("compaction",),
        near="compaction",
    ),
    Defect(
        name="a stop waits for a compaction",
        plant=compaction_defects.keep_a_stop_waiting,
        scenarios=("compaction-stopped",),
        kinds=("calm",),
    ),
    Defect(
        name="a compaction leaves out the current message",
        plant=compaction_defects.leave_out_the_current_message,
        scenarios=("compaction",),
        kinds=("calm",),
    ),
    Defect(
        name="a compaction leaves out a pinned message",
        plant=compaction_defects.forget_pins,
        scenarios=("compaction-by-hand",),
        kinds=("calm",),
    ),
    Defect(
        name="a summary that failed cuts a conversation that still fits",
        plant=compaction_defects.leave_out_without_need,
        scenarios=("compaction-without-summary",),
        kinds=("calm",),
    ),
    Defect(
        name="the list of running tasks stands before the conversation",
        plant=compaction_defects.list_tasks_in_front,
        scenarios=("task-idle",),
        kinds=("calm",),
    ),
    Defect(
        name="a call that is refused as too long ends the turn",
        plant=compaction_defects.give_up_when_refused,
        scenarios=("compaction-after-refusal",),
        kinds=("calm",),
    ),
    Defect(
        name="the window that a provider named is forgotten",
        plant=compaction_defects.forget_the_window,
        scenarios=("compaction-after-refusal",),
        kinds=("calm",),
    ),
    Defect(
        name="the call for a summary is not on the books",
        plant=compaction_defects.book_no_summary,
        scenarios=("compaction",),
        kinds=("calm",),
    ),
    Defect(
        name="a budget is checked after the call",
        plant=budget_defects.check_after_the_call,
        scenarios=("budget",),
        kinds=("calm",),
    ),
    Defect(
        name="the attempt of a dead holder is not charged",
        plant=budget_defects.forget_the_dead,
        scenarios=("budget",),
        near="segments",
    ),
    Defect(
        name="a reservation is settled twice",
        plant=budget_defects.settle_twice,
        scenarios=("budget",),
        kinds=("calm",),
    ),
    Defect(
        name="a delivery is recorded before its request",
        plant=webhook_defects.record_before_the_request,
        scenarios=("webhook",),
        near="post_event",
    ),
    Defect(
        name="an event overtakes the one before it",
        plant=webhook_defects.overtake,
        scenarios=("webhook",),
        near="claim_deliveries",
    ),
    Defect(
        name="an event is put into the outbox after its commit",
        plant=webhook_defects.report_after_the_commit,
        scenarios=("webhook",),
        near="commit:",
        databases=("sqlite",),
    ),
    Defect(
        name="nothing is compacted",
        plant=compaction_defects.summarise_never,
        scenarios=("compaction",),
        kinds=("calm",),
    ),
    Defect(
        name="a file is there before its object",
        plant=file_defects.add_a_file_before_its_object,
        scenarios=("files",),
        near="add_file:file",
    ),
    Defect(
        name="the row of a content goes before its object",
        plant=file_defects.drop_a_content_before_its_object,
        scenarios=("files",),
        near="drop_content",
    ),
    Defect(
        name="an object is stored before its row",
        plant=file_defects.store_an_object_without_its_row,
        scenarios=("files",),
        near="add_file:content:before",
    ),
    Defect(
        name="the contents of deleted files stay",
        plant=file_defects.keep_the_contents_of_deleted_files,
        scenarios=("files-delete",),
        kinds=("calm",),
    ),
)

NONE = Defect(name="none at all", plant=lambda: None, scenarios=("plain",), near="put:")
"""For the control's own control: this one must not be caught."""

BY_NAME = {defect.name: defect for defect in (*DEFECTS, NONE)}
