"""Known defects that only several sessions, owners or processes show, for both stores. See `defects.py`."""

import asyncio
import itertools
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from holdfast.events.event import Event
from holdfast.events.ids import Key, Position
from holdfast.events.inbox import Stop
from holdfast.server.operations.settings import SettingsVerbs
from holdfast.store.postgres import order as postgres_order
from holdfast.store.postgres.connections import Link
from holdfast.store.postgres.flusher import Flusher
from holdfast.store.postgres.units import Group
from holdfast.store.sqlite import order as sqlite_order
from holdfast.store.sqlite.units import UnitJob, Units
from holdfast.store.store import Committed, Outcome
from holdfast.store.turn_limits import TurnLimits
from holdfast.turns import held_session
from holdfast.turns.activities import Activities
from holdfast.workers.lease_keeper import LeaseKeeper
from proof.crash.plant import replace
from proof.crash.stage import TOOL_NAMES

# The same on both stores


def notice_no_lost_lease() -> None:
    """For defects that show only if a holder writes after its lease: it would seldom come to that."""

    async def hear_nothing(self: LeaseKeeper) -> None:
        return None

    replace(LeaseKeeper, "listen", hear_nothing)
    replace(LeaseKeeper, "_lose_all", lambda self, why: None)


def forget_progress() -> None:
    replace(held_session, "_makes_progress", lambda bodies: False)


def let_go_of_what_still_runs() -> None:
    async def cancel(self: Activities) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    replace(Activities, "cancel", cancel)


def count_no_slots() -> None:
    for order in (sqlite_order.Order, postgres_order.Order):
        begin = order.__init__

        def without_limit(self: Any, limits: TurnLimits, begin: Any = begin) -> None:
            begin(self, TurnLimits(in_flight=limits.in_flight))

        replace(order, "__init__", without_limit)


def write_over_others() -> None:
    """Records are made of a state that may be over by the time they are written."""

    async def change(self: SettingsVerbs, key: Key, change: Any) -> Event | None:
        state = await self.state(key)
        bodies = await change(state)
        await asyncio.sleep(LATE_SECONDS)
        return await self._append(key, await self._checked(key, bodies), provider=state.provider) if bodies else None

    replace(SettingsVerbs, "change", change)


LATE_SECONDS: Final = 0.05


def stop_whatever_was_meant() -> None:
    replace(Stop, "comes_too_late", lambda self, running: False)


# Batches


def drop_from_sqlite_batches() -> None:
    """Units after another session's unit in a batch are acknowledged, but not written."""
    outcome = Units._outcome

    def dropped(self: Units, job: UnitJob) -> Outcome:
        session = self._sessions.get(job.key)
        is_first = not self._touched or job.key in self._touched
        if is_first or session is None or job.unit.fence is None:
            return outcome(self, job)
        return Committed(Position(session.head + len(job.unit.events)), session.tail)

    replace(Units, "_outcome", dropped)


def drop_from_postgres_batches() -> None:
    attempt = Flusher._try

    async def dropped(self: Flusher, groups: Sequence[Group]) -> BaseException | None:
        kept = [group for number, group in enumerate(groups) if number == 0 or group.unit.fence is None]
        error = await attempt(self, kept)
        for group in groups:
            if group not in kept and error is None:
                group.succeed(1_000_000, 1)
        return error

    replace(Flusher, "_try", dropped)


# Order and placement

_SQLITE_OWNERS: Final = """
SELECT owner FROM session WHERE runnable AND lease_holder IS NULL GROUP BY owner ORDER BY min(runnable_since) LIMIT ?
"""
_POSTGRES_OWNERS: Final = """
SELECT owner FROM holdfast.session WHERE runnable AND lease_holder IS NULL
 GROUP BY owner ORDER BY min(runnable_since) LIMIT $1::bigint
"""


def shut_out_on_sqlite() -> None:
    """Owners are cut to the free places before their sessions' needs are checked."""
    found_next = sqlite_order.Order.next

    def cut(self: Any, db: sqlite3.Connection, claimant: sqlite_order.Claimant, limit: int) -> list[tuple[str, str]]:
        owners = {owner for (owner,) in db.execute(_SQLITE_OWNERS, (limit,))}
        return [key for key in found_next(self, db, claimant, limit) if key[0] in owners]

    replace(sqlite_order.Order, "next", cut)


def shut_out_on_postgres() -> None:
    found_next = postgres_order.Order.next

    async def cut(self: Any, db: Link, claimant: postgres_order.Claimant, limit: int) -> list[tuple[str, str]]:
        owners = {owner for (owner,) in await db.ask(_POSTGRES_OWNERS, limit)}
        return [key for key in await found_next(self, db, claimant, limit) if key[0] in owners]

    replace(postgres_order.Order, "next", cut)


Changed = Callable[[Any], Any]


def _elsewhere(changed: Changed) -> None:
    """A process claims sessions as if it had the tools of another."""
    on_sqlite, on_postgres = sqlite_order.Order.next, postgres_order.Order.next

    def next_on_sqlite(self: Any, db: Any, claimant: Any, limit: int) -> list[tuple[str, str]]:
        return on_sqlite(self, db, changed(claimant), limit)

    async def next_on_postgres(self: Any, db: Any, claimant: Any, limit: int) -> list[tuple[str, str]]:
        return await on_postgres(self, db, changed(claimant), limit)

    replace(sqlite_order.Order, "next", next_on_sqlite)
    replace(postgres_order.Order, "next", next_on_postgres)


def run_without_files() -> None:
    """Every other claim is for sessions of the other node."""
    looks = itertools.count()

    def other(claimant: Any) -> Any:
        nodes = {"north": "south", "south": "north"}
        return msgspec.structs.replace(claimant, node=nodes[claimant.node]) if next(looks) % 2 else claimant

    _elsewhere(other)


def run_without_tools_on_sqlite() -> None:
    names = msgspec.json.encode(sorted(TOOL_NAMES)).decode()
    _elsewhere(lambda claimant: msgspec.structs.replace(claimant, tools=names))


def run_without_tools_on_postgres() -> None:
    _elsewhere(lambda claimant: msgspec.structs.replace(claimant, tools=sorted(TOOL_NAMES)))
