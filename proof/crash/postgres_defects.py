"""The known defects of the store itself, as they would look on PostgreSQL. The defects above the store are the same."""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from holdfast.events import codec
from holdfast.events.ids import Key, Position
from holdfast.events.inbox import InboxItem, Item, TaskNews
from holdfast.events.task import TaskNotice
from holdfast.store import admission
from holdfast.store.admission import NewItem, Put, Rule, SessionFacts, StoredItem
from holdfast.store.audit import AuditEntry
from holdfast.store.keys import KeyRow
from holdfast.store.postgres import puts, task_rows
from holdfast.store.postgres.connections import Link
from holdfast.store.postgres.queries import SQL
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Accepted, Claim, Lease, Refused, ReleaseKind
from holdfast.store.tasks import TaskRow
from holdfast.turns import load
from holdfast.workers import session_run
from proof.crash import crowd_defects
from proof.crash.plant import altered, replace

LATE_SECONDS: Final = 0.02


def _alter(name: str, old: str, new: str) -> None:
    SQL[name] = altered(SQL[name], old, new)


# Ownership


def no_fence() -> None:
    """The store accepts a late write, whatever the holder and the fence are."""
    _alter("commit_units", "session.fence = locked.fence AND lease_holder = $1::text", "$1::text IS NOT NULL")
    crowd_defects.notice_no_lost_lease()


def _ignore_live_holder() -> None:
    _alter(
        "is_anything_to_claim",
        "$5::text\n                  AND (alive_until",
        "$5::text\n                  OR (alive_until",
    )
    SQL["gone"] = (
        "SELECT token, false FROM holdfast.process WHERE token <> $1"
        " AND EXISTS (SELECT 1 FROM holdfast.session WHERE lease_holder = token) FOR UPDATE SKIP LOCKED"
    )


def _release_without_looking() -> None:
    _alter("release", "AND inbox_tail = $5", "AND $5::bigint IS NOT NULL")
    release = PostgresStore.release

    async def late(self: PostgresStore, lease: Lease, *, seen_tail: int, how: ReleaseKind) -> bool:
        await asyncio.sleep(LATE_SECONDS)  # The look is long past.
        return await release(self, lease, seen_tail=seen_tail, how=how)

    replace(PostgresStore, "release", late)


def _count_after_the_load() -> None:
    _alter("take", ", claims = claims + 1", "")
    counted = "UPDATE holdfast.session SET claims = claims + 1 WHERE owner = $1 AND id = $2 RETURNING claims"
    load_claimed = load.load_claimed

    async def and_counted(store: PostgresStore, claim: Claim, **rest: Any) -> load.FoldedSession | None:
        found = await load_claimed(store, claim, **rest)
        key = claim.lease.key

        async def count(db: Link) -> tuple[Any, str]:
            return await db.ask(counted, key.owner, key.session), "sessions"

        await store._write("claim", count)
        return found

    replace(session_run, "load_claimed", and_counted)


def _forget_the_tombstone() -> None:
    SQL["delete_session"] = "DELETE FROM holdfast.session WHERE owner = $1 AND id = $2 AND $3::bigint IS NOT NULL"


def _wake_nobody_who_could_deny() -> None:
    _alter("wake_declined", "runnable = true", "runnable = runnable")


# Accepting


def _acknowledge_first() -> None:
    written: set[asyncio.Task[Any]] = set()
    put = PostgresStore.put

    async def put_later(self: PostgresStore, key: Key, item: Item, *, item_key: str, **rest: Any) -> Any:
        written.add(asyncio.create_task(put(self, key, item, item_key=item_key, **rest)))
        return Accepted(
            InboxItem(
                sequence=0, key=item_key, state="accepted", outcome="", accepted_at=0, while_running=False, item=item
            )
        )

    replace(PostgresStore, "put", put_later)


_RENAME: Final = "UPDATE holdfast.inbox SET item_key = $4 WHERE owner = $1 AND session = $2 AND item_key = $3"


def _accept_twice() -> None:
    put = puts.put

    async def anew(db: Link, asked: Put) -> tuple[Accepted | Refused, str | None]:
        await db.ask(_RENAME, asked.key.owner, asked.key.session, asked.item_key, f"{asked.item_key} {uuid.uuid4()}")
        return await put(db, asked)

    replace(puts, "put", anew)


def _accept_after_stop() -> None:
    SQL["is_stopping"] = "SELECT 1 WHERE $1::text IS NULL AND $2::text IS NULL"


def _overwrite_answer() -> None:
    repeat = admission._repeat

    def overwritten(call: Put, session: SessionFacts, found: StoredItem) -> Rule:
        decision = yield from repeat(call, session, found)
        if isinstance(decision, Refused) and decision.code == "answered_already":
            return Accepted(msgspec.structs.replace(found.receipt, item=call.item))
        return decision

    replace(admission, "_repeat", overwritten)


def _see_later() -> None:
    async def see(self: PostgresStore, key: Key, position: Position) -> Position:
        return position

    replace(PostgresStore, "see", see)


# Commands


def _put_news_later() -> None:
    end_task = PostgresStore.end_task

    async def in_two(self: PostgresStore, row: TaskRow, ending: Any, notice: TaskNotice | None, *, host: str) -> bool:
        done = await end_task(self, row, ending, None, host=host)
        if done and notice is not None:
            key = f"task:{notice.task_id}:{notice.kind}"
            await self.put(row.key, TaskNews(notice=notice), item_key=key, queue_limit=0)
        return done

    replace(PostgresStore, "end_task", in_two)


Tell = Callable[[Link, puts.Inbox, TaskNotice], Any]


def _tell_otherwise(tell: Tell) -> None:
    """Replace the function that puts news into an inbox by `tell`."""

    async def teller(db: Link, key: Key, notice: TaskNotice | None, now: int) -> Callable[[], Any]:
        inbox = await puts.locked(db, key, now=now)

        async def told() -> None:
            if notice is not None and inbox is not None:
                await tell(db, inbox, notice)

        return told

    replace(task_rows, "_teller", teller)


async def _put_news(inbox: puts.Inbox, notice: TaskNotice, item_key: str) -> None:
    item = TaskNews(notice=notice)
    await inbox.add(NewItem(item=item, key=item_key, payload=codec.encode_item(item)))


def _tell_whoever_asks() -> None:
    _alter("end_task", "AND NOT settled AND", "AND")

    async def tell(db: Link, inbox: puts.Inbox, notice: TaskNotice) -> None:
        await _put_news(inbox, notice, f"task:{uuid.uuid4()}")
        await inbox.wake()

    _tell_otherwise(tell)


def _tell_later() -> None:
    add_key = PostgresStore.add_key

    async def in_two(self: PostgresStore, row: KeyRow, *, audit: AuditEntry | None = None) -> None:
        await add_key(self, row)
        if audit is not None:
            await self.audit(audit)

    replace(PostgresStore, "add_key", in_two)


_KNOWN: Final = "SELECT 1 FROM holdfast.inbox WHERE owner = $1 AND session = $2 AND item_key LIKE $3"


def _tell_once_for_all() -> None:
    async def tell(db: Link, inbox: puts.Inbox, notice: TaskNotice) -> None:
        if not await db.ask(_KNOWN, *inbox.of, f"task:{notice.task_id}:%"):
            await _put_news(inbox, notice, f"task:{notice.task_id}:{notice.kind}")
            await inbox.wake()

    _tell_otherwise(tell)


def _wake_nobody() -> None:
    async def tell(db: Link, inbox: puts.Inbox, notice: TaskNotice) -> None:
        await _put_news(inbox, notice, f"task:{notice.task_id}:{notice.kind}")
        await inbox.raise_tail()

    _tell_otherwise(tell)


def _leave_commands() -> None:
    _alter("end_foreground_tasks", "'stop'", "''")


def _kill_without_a_wish() -> None:
    async def unasked(self: PostgresStore, key: Key, task_id: Any, by: Any) -> bool:
        return True

    replace(PostgresStore, "ask_kill", unasked)


def _forget_commands() -> None:
    SQL["delete_tasks"] = "DELETE FROM holdfast.task WHERE owner = $1 AND session = $2"


PLANTS: Final[Mapping[str, Callable[[], None]]] = {
    "commits are not fenced": no_fence,
    "a session is taken from a holder that lives": _ignore_live_holder,
    "a session is released without a look at its inbox": _release_without_looking,
    "a claim is counted after the load that it is for": _count_after_the_load,
    "a client that leaves a declined request wakes nobody": _wake_nobody_who_could_deny,
    "a deleted session leaves no trace": _forget_the_tombstone,
    "a put is acknowledged before it is committed": _acknowledge_first,
    "the same client id is accepted twice": _accept_twice,
    "an answer is accepted after a stop": _accept_after_stop,
    "a second answer is accepted over the first": _overwrite_answer,
    "what was seen is acknowledged and not kept": _see_later,
    "an act is told after it": _tell_later,
    "the end of a task and its news are two transactions": _put_news_later,
    "a second keeper tells the end of a task again": _tell_whoever_asks,
    "a stall uses up the news of the end": _tell_once_for_all,
    "the end of a task wakes nobody": _wake_nobody,
    "what a turn waits for is not ended with it": _leave_commands,
    "a task is killed without a wish": _kill_without_a_wish,
    "the commands of a deleted session are forgotten": _forget_commands,
    "a batch drops the units of all sessions but one": crowd_defects.drop_from_postgres_batches,
    "owners who can't be served here shut out the others": crowd_defects.shut_out_on_postgres,
    "a session is run by a process without its tools": crowd_defects.run_without_tools_on_postgres,
}
"""Keyed by the name of the defect."""
