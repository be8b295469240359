"""Leases: which process runs which session. A lease is held under the random token of a process and lasts as long as
that process renews itself; a process that has ended is detected by its lock, one that only stopped by its expiry.

The holder of a session always has a row in `process`: leases are freed in the transaction that removes that row.
"""

import json
import sqlite3
from collections.abc import Callable
from typing import Any, Final

from holdfast.events.ids import Fence, Owner, SessionId
from holdfast.events.inbox import INBOX_VERSION
from holdfast.store.fences import FenceStep, random_step
from holdfast.store.sqlite.attachment_rows import AttachmentRows
from holdfast.store.sqlite.liveness import Liveness, boot_id, boottime_ms
from holdfast.store.sqlite.order import Claimant, Order
from holdfast.store.sqlite.queries import SQL
from holdfast.store.store import Claim, Key, Lease, ReleaseKind, Snapshot
from holdfast.store.survey import NO_DESCRIPTION, ProcessDescription
from holdfast.store.turn_limits import TurnLimits

UNPLACED_MS: Final = 60_000
"""A session that no process could run for this long is given to any process, which records that in its log."""

FIRST_TTL_SECONDS: Final = 30.0
"""How long a process that just opened the store counts as alive before its first renewal."""


class Leases:
    """The lease writes of one process. Every method runs on the writer's thread, inside its transaction."""

    def __init__(
        self,
        liveness: Liveness,
        *,
        node: str,
        tools: frozenset[str],
        secret_key: str,
        limits: TurnLimits,
        now_ms: Callable[[], int],
        about: ProcessDescription = NO_DESCRIPTION,
        fence_step: FenceStep = random_step,
        inbox_version: int = INBOX_VERSION,
    ) -> None:
        self.limits = limits
        self._about = (about.role, about.version, about.started_at, about.max_sessions)
        self._order = Order(limits)
        self._liveness = liveness
        self._me = liveness.token
        self._node = node
        self._tools = json.dumps(sorted(tools))
        self._secret_key = secret_key or self._me
        self._now_ms = now_ms
        self.fence_step = fence_step
        self._inbox_version = inbox_version
        self._boot = boot_id()
        self.attachments = AttachmentRows(liveness, now_ms=now_ms)
        self._left_some = False
        """The last claim left sessions without a holder: they wait for a slot, or for another process."""

    # The process

    def register(self, db: sqlite3.Connection, ttl_seconds: float) -> None:
        self._liveness.begin_again_if_lost()
        lives = (self._me, self._node, self._boot, _until(ttl_seconds), boottime_ms())
        db.execute(SQL["register"], (*lives, *self._about))

    def renew(self, db: sqlite3.Connection, ttl_seconds: float) -> tuple[bool, str]:
        """Once the expiry has passed, or the row is gone, the leases are gone too: a process that slept that long
        starts over, as a new process would."""
        alive = (self._me, self._boot, boottime_ms())
        if db.execute(SQL["renew"], (*alive, _until(ttl_seconds))).rowcount == 1:
            return True, "process"
        db.execute(SQL["free_leases"], (self._me,))
        self.register(db, ttl_seconds)
        return False, "process"

    def leave(self, db: sqlite3.Connection) -> tuple[None, str]:
        """A clean end: the sessions that this process held can be claimed at once."""
        self.attachments.end_of(db, self._me)
        db.execute(SQL["free_leases"], (self._me,))
        db.execute(SQL["forget_process"], (self._me,))
        return None, "process"

    def bury_strangers(self, db: sqlite3.Connection) -> None:
        """Remove the lock files of processes that died before their row was written, or after it was removed."""
        known = {self._me, *(token for token, _, _ in self._others(db))}
        for token in self._liveness.left_behind():
            if token not in known and self._liveness.is_dead(token):
                self._liveness.bury(token)

    # Claiming

    def has_nothing_to_claim(self, db: sqlite3.Connection, without: str) -> tuple[bool, list[Claim]]:
        """A look before the transaction: most looks find nothing to claim, and so cost no transaction."""
        if (
            self._gone(db)
            or self.attachments.has_expired(db)
            or db.execute(SQL["is_due"], (self._now_ms(),)).fetchone() is not None
        ):
            return False, []
        if db.execute(SQL["is_left"], self._left(without)).fetchone() is not None:
            return False, []
        if not self._has_unheld(db):
            return True, []
        if not self._left_some:
            return False, []  # Most likely this process may run it: then the transaction looks for it once, not twice.
        return not (self._claimable(db, 1, without) or self._claimable_to_end(db, 1)), []

    def claim(self, db: sqlite3.Connection, limit: int, without: str) -> tuple[list[Claim], str | None]:
        for token, is_dead in self._gone(db):
            db.execute(SQL["free_leases"], (token,))
            if is_dead:
                self.attachments.end_of(db, token)
                db.execute(SQL["forget_process"], (token,))
                self._liveness.bury(token)
        self.attachments.end_expired(db)
        if db.execute(SQL["is_alive"], (self._me, self._boot, boottime_ms())).fetchone() is None:
            return [], None
        db.execute(SQL["wake_due"], (self._now_ms(),))
        db.execute(SQL["wake_left"], (*self._left(without), self._now_ms()))
        claims = [self._take(db, found, eligible=True) for found in self._claimable(db, limit, without)]
        self._left_some = self._has_unheld(db)
        if self._left_some and len(claims) < limit:
            left = self._claimable_to_end(db, limit - len(claims))
            claims += [self._take(db, found, eligible=False) for found in left]
        return claims, "sessions" if claims else None

    def _left(self, without: str) -> tuple[int | str, ...]:
        """This process's abilities, as parameters for sessions that were left for a newer release."""
        return self._inbox_version, self._node, self._tools, without, self._me, self._secret_key

    def held(self, db: sqlite3.Connection) -> tuple[Lease, ...]:
        found = db.execute(SQL["held"], (self._me,)).fetchall()
        return tuple(Lease(Key(owner, id), Fence(fence)) for owner, id, fence in found)

    def release(
        self, db: sqlite3.Connection, lease: Lease, seen_tail: int, how: ReleaseKind
    ) -> tuple[bool, str | None]:
        held = (lease.key.owner, lease.key.session, lease.fence, self._me)
        if how in ("done", "for_newer"):
            needs_inbox = self._inbox_version + 1 if how == "for_newer" else None
            released = db.execute(SQL["release"], (*held, seen_tail, needs_inbox)).rowcount == 1
        else:
            now = self._now_ms()
            since = self._end_of_line(db, lease.key.owner, now) if how == "gave_way" else None
            released = db.execute(SQL["hand_over"], (*held, how, now, since)).rowcount == 1
        return released, "session" if released else None

    def _end_of_line(self, db: sqlite3.Connection, owner: Owner, now: int) -> int:
        """A waiting-since time after all other sessions of the owner, even if the clock was set back."""
        ((last,),) = db.execute(SQL["last_in_line"], (owner,))
        return now if last is None else max(now, last + 1)

    def has_next(self, db: sqlite3.Connection, without: str) -> bool:
        return bool(self._claimable(db, 1, without))

    def keep_snapshot(self, db: sqlite3.Connection, lease: Lease, kept: Snapshot) -> tuple[bool, str | None]:
        held = (lease.key.owner, lease.key.session, lease.fence, self._me)
        is_kept = db.execute(SQL["keep_snapshot"], (*held, kept.fold_version, kept.position, kept.state)).rowcount == 1
        return is_kept, "snapshot" if is_kept else None

    def _take(self, db: sqlite3.Connection, found: tuple[str, str], *, eligible: bool) -> Claim:
        fence, claims = db.execute(SQL["take"], (*found, self._me, self._now_ms(), self.fence_step())).fetchone()
        key = Key(Owner(found[0]), SessionId(found[1]))
        return Claim(lease=Lease(key, Fence(fence)), claims_without_progress=claims, eligible=eligible)

    def _has_unheld(self, db: sqlite3.Connection) -> bool:
        return db.execute(SQL["has_unheld"]).fetchone() is not None

    def _claimable(self, db: sqlite3.Connection, limit: int, without: str) -> list[tuple[str, str]]:
        claimant = Claimant(
            node=self._node,
            tools=self._tools,
            without_models=without,
            process=self._me,
            secret_key=self._secret_key,
        )
        return self._order.next(db, claimant, limit)

    def _claimable_to_end(self, db: sqlite3.Connection, limit: int) -> list[tuple[str, str]]:
        """Sessions that this process claims although it may not run them, once it has claimed all that it may run:
        those to be stopped, and those that no process could run."""
        stopping = db.execute(SQL["stopping"], (limit,)).fetchall()
        unplaced = self._order.unplaced(db, before=self._now_ms() - UNPLACED_MS, limit=limit)
        return list(dict.fromkeys([*stopping, *unplaced]))[:limit]

    def oldest_unclaimed(self, db: sqlite3.Connection) -> int | None:
        return self._order.oldest(db)

    def _others(self, db: sqlite3.Connection) -> list[tuple[Any, ...]]:
        return db.execute(SQL["other_processes"], (self._me, self._boot, boottime_ms())).fetchall()

    def _gone(self, db: sqlite3.Connection) -> list[tuple[str, bool]]:
        """Processes whose leases are free, each with whether it has ended (rather than only stopped renewing)."""
        others = [(token, self._liveness.is_dead(token), renewed, holds) for token, renewed, holds in self._others(db)]
        return [(token, is_dead) for token, is_dead, renewed, holds in others if is_dead or (holds and not renewed)]


def _until(ttl_seconds: float) -> int:
    return boottime_ms() + int(ttl_seconds * 1000)
