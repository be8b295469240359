"""Leases: which process runs which session. A lease is held under the random token of a process and lasts as long as
that process renews itself.

The holder of a session always has a row in `process`: leases are freed in the transaction that removes that row. Expiry
is decided by the database's clock alone, which is the same for all processes.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

from holdfast.events.ids import Fence, Owner, SessionId
from holdfast.events.inbox import INBOX_VERSION
from holdfast.store.fences import FenceStep, random_step
from holdfast.store.postgres.attachment_rows import AttachmentRows
from holdfast.store.postgres.connections import Link
from holdfast.store.postgres.order import MAX_KINDS, Claimant, Order
from holdfast.store.store import Claim, Key, Lease, ReleaseKind, Snapshot
from holdfast.store.survey import NO_DESCRIPTION, ProcessDescription
from holdfast.store.turn_limits import TurnLimits

UNPLACED_MS: Final = 60_000
"""A session that no process could run for this long is given to any process, which records that in its log."""

UNPLACED_PAUSE_MS: Final = 5_000
"""The pause after a search for such sessions found none: in a long line all sessions may have waited that long, and
only for a place."""

FIRST_TTL_SECONDS: Final = 30.0
"""How long a process that just opened the store may claim before its first renewal."""

ALIVE_SECONDS: Final = 30.0
"""How long a process counts as alive without a heartbeat."""

LOOKS: Final = 20
LOOK_PAUSE_SECONDS: Final = 0.01
"""How often, and with which pause, the writer of a snapshot checks that its session still exists. A session that is
locked all that time is being deleted, or its holder is stuck: then no snapshot is kept."""


class Leases:
    """The lease writes of one process. Every method runs inside a transaction."""

    def __init__(
        self,
        *,
        token: str,
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
        self._me = token
        self._node = node
        self._tools = sorted(tools)
        self._keepers = [token, secret_key or token]
        self._now_ms = now_ms
        self.fence_step = fence_step
        self._inbox_version = inbox_version
        self._order = Order(limits)
        self.attachments = AttachmentRows(token=token, now_ms=now_ms)
        self._in_vain = False
        """The last claim got nothing: waiting sessions wait for a slot, or are being changed."""
        self._unplaced_at = 0
        """When to search again for sessions that no process could run for long."""

    # The process

    async def begin(self, db: Link) -> tuple[None, str]:
        """Register a process that has just opened the store, and has not renewed yet."""
        return await self.register(db, ttl_seconds=FIRST_TTL_SECONDS)

    async def register(self, db: Link, *, ttl_seconds: float) -> tuple[None, str]:
        lives = (self._me, self._node, max(ALIVE_SECONDS, ttl_seconds), ttl_seconds)
        await db.run("register", *lives, *self._about)
        return None, "process"

    async def renew(self, db: Link, ttl_seconds: float) -> tuple[bool, str]:
        """Once the expiry has passed, or the row is gone, the leases are gone too: a process that slept that long
        starts over, as a new process would."""
        if await db.run("renew", self._me, ttl_seconds) == 1:
            return True, "process"
        await db.run("free_own_leases", self._me)
        await self.register(db, ttl_seconds=ttl_seconds)
        return False, "process"

    async def show_life(self, db: Link) -> tuple[None, str]:
        """Send this process's heartbeat, whether it holds sessions or not; and end expired attachments."""
        if await db.run("show_life", self._me, ALIVE_SECONDS) == 0:
            await self.register(db, ttl_seconds=0)
        await self.attachments.end(db)
        return None, "process"

    async def leave(self, db: Link) -> tuple[None, str]:
        """A clean end: the sessions that this process held can be claimed at once. If one of them is locked right now,
        another process frees it as soon as it is not."""
        await self._bury(db, [self._me])
        await db.run("expire", self._me)
        return None, "process"

    async def is_alive(self, db: Link, token: str) -> bool:
        return await db.row("is_alive", token) is not None

    async def _bury(self, db: Link, tokens: Sequence[str]) -> None:
        await db.run("free_leases", tokens)
        await self.attachments.end(db, tokens)
        await db.run("forget_processes", tokens)

    # Claiming

    async def is_anything_to_claim(self, db: Link, without_models: Collection[str]) -> bool:
        """Whether a claim would find something, checked without a lock. Sessions that the last claim skipped stay
        skipped until something changes: after a claim that got nothing, a fitting session counts only if its owner has
        a slot."""
        now, claimant = self._now_ms(), self._claimant(without_models)
        before = now - UNPLACED_MS if now >= self._unplaced_at else -1
        arguments = (*claimant.has, self._me, now, MAX_KINDS, before, self._inbox_version)
        ((fits, is_more),) = await db.rows("is_anything_to_claim", *arguments)
        return is_more or (fits and (not self._in_vain or await self._order.has_next(db, claimant)))

    async def claim(self, db: Link, limit: int, without_models: Collection[str]) -> tuple[list[Claim], str | None]:
        if await db.row("may_claim", self._me) is None:
            return [], None
        await self._free_the_gone(db)
        await db.run("wake_due", self._now_ms())
        claimant = self._claimant(without_models)
        await db.run("wake_left", *claimant.has, self._inbox_version, self._now_ms())
        claims = await self._take(db, await self._order.next(db, claimant, limit), eligible=True)
        if len(claims) < limit:
            left = await self._to_end(db, claimant, limit - len(claims))
            claims += await self._take(db, left, eligible=False)
        self._in_vain = not claims
        return claims, "sessions" if claims else None

    @property
    def busy(self) -> frozenset[str]:
        """Owners that the last claim skipped, because another process was counting their turns."""
        return self._order.busy

    def _claimant(self, without_models: Collection[str]) -> Claimant:
        return Claimant(
            node=self._node, tools=self._tools, without_models=sorted(without_models), keepers=self._keepers
        )

    async def held(self, db: Link) -> tuple[Lease, ...]:
        found = await db.rows("held", self._me)
        return tuple(Lease(Key(Owner(owner), SessionId(id)), Fence(fence)) for owner, id, fence in found)

    async def has_next(self, db: Link, without_models: Collection[str]) -> bool:
        return await self._order.has_next(db, self._claimant(without_models))

    async def oldest_unclaimed(self, db: Link) -> int | None:
        return await self._order.oldest(db)

    async def _free_the_gone(self, db: Link) -> None:
        gone = await db.rows("gone", self._me)
        dead = [token for token, is_dead in gone if is_dead]
        stopped = [token for token, is_dead in gone if not is_dead]
        if stopped:
            await db.run("free_leases", stopped)
        if dead:
            await self._bury(db, dead)

    async def _to_end(self, db: Link, claimant: Claimant, limit: int) -> list[tuple[str, str]]:
        """Sessions that this process claims although it may not run them, once it has claimed all that it may run:
        those to be stopped, and those that no process could run for so long that their logs should say so."""
        now = self._now_ms()
        stopping = [(owner, id) for owner, id in await db.rows("stopping", limit)]
        unplaced: list[tuple[str, str]] = []
        if now >= self._unplaced_at:
            unplaced = await self._order.unplaced(db, claimant, before=now - UNPLACED_MS, limit=limit)
            self._unplaced_at = now if unplaced else now + UNPLACED_PAUSE_MS
        return list(dict.fromkeys([*stopping, *unplaced]))[:limit]

    async def _take(self, db: Link, keys: Sequence[tuple[str, str]], *, eligible: bool) -> list[Claim]:
        if not keys:
            return []
        arguments = ([owner for owner, _ in keys], [id for _, id in keys], self._me, self.fence_step())
        taken = {number - 1: (fence, claims) for number, fence, claims in await db.rows("take", *arguments)}
        return [
            Claim(
                lease=Lease(Key(Owner(owner), SessionId(id)), Fence(taken[number][0])),
                claims_without_progress=taken[number][1],
                eligible=eligible,
            )
            for number, (owner, id) in enumerate(keys)
        ]

    async def keep_snapshot(self, db: Link, lease: Lease, kept: Snapshot) -> tuple[bool, str | None]:
        held = (lease.key.owner, lease.key.session, lease.fence, self._me)
        is_kept = await db.run("keep_snapshot", *held, kept.fold_version, kept.position, kept.state) == 1
        if is_kept and not await self._is_not_deleted(db, lease.key):
            await db.run("delete_snapshot", lease.key.owner, lease.key.session)
            return False, None
        return is_kept, "snapshot" if is_kept else None

    async def _is_not_deleted(self, db: Link, key: Key) -> bool:
        """Whether the session is not deleted, and will not be before this transaction ends. Its lock is taken only now,
        because a snapshot takes long to write; and this does not wait for the lock, since a deletion may wait for the
        snapshot."""
        for _ in range(LOOKS):
            if await db.row("is_not_deleted", key.owner, key.session) is not None:
                return True
            await asyncio.sleep(LOOK_PAUSE_SECONDS)
        return False

    async def release(self, db: Link, lease: Lease, seen_tail: int, how: ReleaseKind) -> tuple[bool, str | None]:
        held = (lease.key.owner, lease.key.session, lease.fence, self._me)
        if how in ("done", "for_newer"):
            needs_inbox = self._inbox_version + 1 if how == "for_newer" else None
            released = await db.run("release", *held, seen_tail, needs_inbox) == 1
        else:
            now = self._now_ms()
            since = await self._end_of_line(db, lease.key.owner, now) if how == "gave_way" else None
            released = await db.run("hand_over", *held, how, now, since) == 1
        return released, "session" if released else None

    async def _end_of_line(self, db: Link, owner: Owner, now: int) -> int:
        """A waiting-since time after all other sessions of the owner, even if the clock was set back."""
        ((last,),) = await db.rows("last_in_line", owner)
        return now if last is None else max(now, last + 1)
