"""Leases, attachments, grants and secrets."""

from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from holdfast.events.ids import Fence, RequestId
from holdfast.events.inbox import INBOX_VERSION, Stop
from holdfast.store.fences import FenceStep
from holdfast.store.store import Attachment, Claim, Clash, Key, Lease, Loaded, ReleaseKind, Snapshot
from holdfast.store.turn_limits import TurnLimits
from proof.simulation.memory import files, reading, webhooks
from proof.simulation.memory.order import Order
from proof.simulation.memory.tables import AttachmentRecord, Database, ProcessRecord, SessionRecord

UNPLACED_MS: Final = 60_000
"""Any process may claim a session that no process could run for this long, to report it."""

FIRST_TTL_SECONDS: Final = 30.0
"""How long a process that just opened the store counts as alive before its first renewal."""


class Leases:
    """The lease writes of one process."""

    def __init__(
        self,
        db: Database,
        process: str,
        *,
        node: str,
        tools: frozenset[str],
        secret_key: str,
        limits: TurnLimits,
        fence_step: FenceStep,
        inbox_version: int = INBOX_VERSION,
    ) -> None:
        self.limits = limits
        self._inbox_version = inbox_version
        self._order = Order(db, limits)
        self._db = db
        self._me = process
        self.fence_step = fence_step
        self._node = node
        self._tools = tools
        self._keepers = {process, secret_key or process}

    # The process

    def register(self, ttl_seconds: float) -> None:
        self._db.processes[self._me] = ProcessRecord(self._db.now() + ttl_seconds)

    def renew(self, ttl_seconds: float) -> tuple[bool, str]:
        """Once the expiry has passed the leases are gone too: a process that slept that long starts over."""
        if self._is_alive():
            self._db.processes[self._me].expires_at = self._db.now() + ttl_seconds
            return True, "process"
        self._free(self._me)
        self.register(ttl_seconds)
        return False, "process"

    def leave(self) -> tuple[None, str]:
        self._free(self._me)
        self._db.processes.pop(self._me, None)
        return None, "process"

    def _is_alive(self) -> bool:
        found = self._db.processes.get(self._me)
        return found is not None and found.expires_at > self._db.now()

    def _free(self, process: str) -> None:
        for session in self._db.sessions.values():
            if session.holder == process:
                session.holder, session.noted_at = None, None

    # Claiming

    def claim(
        self, *, limit: int, without_models: Collection[str], fold_version: int | None, now: int
    ) -> tuple[list[Claim], str | None]:
        self.bury()
        self._end_attachments(now)
        if not self._is_alive():
            return [], None
        self._wake_left(now, without_models)
        next_ones = self._order.next(limit, lambda found: self._may_run(found, without_models))
        claims = [self._take(found, eligible=True, now=now) for found in next_ones]
        if len(claims) < limit:
            left = self._claimable_to_end(now)[: limit - len(claims)]
            claims += [self._take(found, eligible=False, now=now) for found in left]
        if fold_version is not None:
            claims = [replace(claim, loaded=self._loaded(claim, fold_version)) for claim in claims]
        return claims, "sessions" if claims else None

    def _wake_left(self, now: int, without_models: Collection[str]) -> None:
        """Take up the sessions that older releases left because of items that they could not read."""
        for found in self._db.sessions.values():
            is_for_us = found.needs_inbox is not None and found.needs_inbox <= self._inbox_version
            if is_for_us and not (found.is_runnable or found.is_deleted) and self._may_run(found, without_models):
                found.is_runnable, found.runnable_since, found.needs_inbox = True, now, None

    def bury(self) -> None:
        """Free the leases of dead processes, and of those that do not renew."""
        for token, process in list(self._db.processes.items()):
            if token == self._me:
                continue
            holds = any(session.holder == token for session in self._db.sessions.values())
            if process.is_dead or (holds and process.expires_at <= self._db.now()):
                self._free(token)
            if process.is_dead:
                del self._db.processes[token]

    def _loaded(self, claim: Claim, fold_version: int) -> Loaded | None:
        """The loaded session, if it is small, as the real stores return it."""
        found = reading.load(self._db, claim.lease.key, fold_version)
        session = self._db.sessions[claim.lease.key]
        return found if found is not None and reading.is_small(session, found) else None

    def _may_run(self, session: SessionRecord, without_models: Collection[str]) -> bool:
        placed = session.host in (None, self._node) and session.tools <= self._tools
        usable = session.model is None or session.model not in without_models
        return placed and usable and (session.secret is None or session.secret[0] in self._keepers)

    def _claimable_to_end(self, now: int) -> list[SessionRecord]:
        """Sessions to be stopped, and sessions that no process could run for so long that their readers should know."""
        free = [found for found in self._db.sessions.values() if found.is_runnable and found.holder is None]
        stopping = [found for found in free if _is_stopped(found)]
        unplaced = [found for found in self._order.with_slots() if _is_unplaced(found, now)]
        return list(dict.fromkeys((*stopping, *unplaced)))

    def has_next(self, without_models: Collection[str]) -> bool:
        return bool(self._order.next(1, lambda found: self._may_run(found, without_models)))

    def oldest_unclaimed(self) -> int | None:
        """Since when a session waits for a process, and not just for a slot."""
        return min((found.runnable_since or 0 for found in self._order.with_slots()), default=None)

    def _take(self, session: SessionRecord, *, eligible: bool, now: int) -> Claim:
        session.fence = Fence(session.fence + self.fence_step())
        session.holder = self._me
        session.claims += 1
        session.is_runnable = True
        session.runnable_since = now if session.runnable_since is None else session.runnable_since
        lease = Lease(session.key, session.fence)
        return Claim(lease=lease, claims_without_progress=session.claims, eligible=eligible)

    def keep_snapshot(self, lease: Lease, kept: Snapshot) -> tuple[bool, str | None]:
        session = self._db.live(lease.key)
        if session is None or session.fence != lease.fence or session.holder != self._me:
            return False, None
        before = session.snapshot
        is_older = before is not None and before.fold_version == kept.fold_version and before.position >= kept.position
        if is_older or kept.position > len(session.events):
            return False, None
        session.snapshot = kept
        return True, "snapshot"

    def held(self) -> tuple[Lease, ...]:
        mine = [found for found in self._db.sessions.values() if found.holder == self._me]
        return tuple(Lease(found.key, found.fence) for found in sorted(mine, key=lambda found: found.key))

    def release(self, lease: Lease, seen_tail: int, how: ReleaseKind, now: int) -> tuple[bool, str | None]:
        session = self._db.live(lease.key)
        if session is None or session.fence != lease.fence or session.holder != self._me:
            return False, None
        is_done = how in ("done", "for_newer")
        if is_done and not self.nothing_came(session, seen_tail):
            return False, None
        session.holder = None
        if is_done:
            session.needs_inbox = self._inbox_version + 1 if how == "for_newer" else None
            session.is_runnable, session.runnable_since, session.noted_at = False, None, None
            if session.status == "queued" and session.turn_id is None:
                session.status = "idle"
        session.claims = session.claims if how == "failed" else 0
        session.noted_at = now if how == "for_another" else session.noted_at
        if how == "gave_way":
            session.runnable_since = self._order.end_of_line(session.key.owner, now)
        return True, "session"

    def nothing_came(self, session: SessionRecord, seen_tail: int) -> bool:
        return session.tail == seen_tail

    # Presence

    def attach(
        self, attachment: Attachment, ttl_seconds: float, now: int
    ) -> tuple[tuple[Attachment, ...] | Clash, str | None]:
        session = self._db.live(attachment.key)
        if session is None:
            return (), None
        here = {(found.process, found.attachment_id): found for found in self.attachments(attachment.key)}
        others = tuple(found for id, found in sorted(here.items()) if id != (self._me, attachment.attachment_id))
        taken = {name for other in others for name in other.tools}
        for name in attachment.tools:
            if name in taken:
                return Clash(name), None
        before = here.get((self._me, attachment.attachment_id))
        session.attachments = {id: session.attachments[id] for id in here}
        noted = replace(attachment, process=self._me, declined=before.declined if before else attachment.declined)
        record = AttachmentRecord(noted, self._db.now() + ttl_seconds)
        session.attachments[self._me, attachment.attachment_id] = record
        self._wake_declined(session, now)
        return others, "attachment"

    def detach(self, key: Key, attachment_id: str, now: int) -> tuple[tuple[Attachment, ...] | None, str | None]:
        session = self._db.live(key)
        if session is None or session.attachments.pop((self._me, attachment_id), None) is None:
            return None, None
        self._wake_declined(session, now)
        return self.attachments(key), "attachment"

    def decline(self, key: Key, attachment_id: str, request_id: RequestId, now: int) -> tuple[bool, str | None]:
        session = self._db.live(key)
        found = session.attachments.get((self._me, attachment_id)) if session else None
        if session is None or found is None:
            return False, None
        declined = dict.fromkeys((*found.attachment.declined, request_id))
        found.attachment = replace(found.attachment, declined=tuple(declined))
        self._wake_declined(session, now)
        return True, "attachment"

    def attachments(self, key: Key) -> tuple[Attachment, ...]:
        session = self._db.live(key)
        found = session.attachments.items() if session else ()
        return tuple(
            record.attachment
            for _, record in sorted(found)
            if record.expires_at > self._db.now() and not self._db.is_dead(record.attachment.process)
        )

    def attached(self) -> frozenset[tuple[Key, str]]:
        return frozenset(
            (key, found.attachment_id)
            for key in self._db.sessions
            for found in self.attachments(key)
            if found.process == self._me
        )

    def _end_attachments(self, now: int) -> None:
        """Attachments that timed out, and those of dead processes."""
        for session in self._db.sessions.values():
            here = {(found.process, found.attachment_id) for found in self.attachments(session.key)}
            if len(here) < len(session.attachments):
                session.attachments = {id: session.attachments[id] for id in sorted(here)}
                self._wake_declined(session, now)

    def _wake_declined(self, session: SessionRecord, now: int) -> None:
        """Make the holder check again which clients could answer, where a client has declined a request."""
        if session.turn_id is None or not any(found.attachment.declined for found in session.attachments.values()):
            return
        session.tail += 1
        session.runnable_since = session.runnable_since if session.is_runnable else now
        session.is_runnable = True


def _is_stopped(session: SessionRecord) -> bool:
    return any(isinstance(found.item.item, Stop) for found in session.waiting())


def _is_unplaced(session: SessionRecord, now: int) -> bool:
    since = session.runnable_since
    return session.noted_at is None and since is not None and since <= now - UNPLACED_MS


def keep_secret(db: Database, key: Key, keeper: str, sealed: bytes) -> tuple[bool, str | None]:
    session = db.live(key)
    if session is None:
        return False, None
    session.secret = (keeper, sealed)
    return True, "secret"


def lose_secret(db: Database, key: Key, keeper: str, sealed: bytes) -> tuple[None, str | None]:
    session = db.live(key)
    if session is None or session.secret not in (None, (keeper, sealed)):
        return None, None
    session.secret = ("", session.secret[1] if session.secret else b"")
    return None, "secret"


def drop_secret(db: Database, key: Key) -> tuple[None, str | None]:
    session = db.live(key)
    if session is None or session.secret is None:
        return None, None
    session.secret = None
    return None, "secret"


def delete(db: Database, key: Key, fence_step: int) -> tuple[bool, str | None]:
    """Keep the row, with a fence that no process holds: the id is never used again."""
    session = db.live(key)
    if session is None:
        return False, None
    session.forget()
    session.is_deleted = True
    session.fence = Fence(session.fence + fence_step)
    session.holder, session.is_runnable, session.runnable_since = None, False, None
    session.status, session.turn_id, session.title = "idle", None, ""
    for (owner_key, _), record in db.tasks.items():
        if owner_key == key:
            record.row = replace(record.row, kill_asked="deletion", command="", description="")
    webhooks.delete_session(db, key)
    files.delete_of_session(db, key)
    return True, "session"
