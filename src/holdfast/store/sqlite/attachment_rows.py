"""Rows of the clients that are present at sessions.

The session's holder denies a permission that every present client has declined. So every change of which clients could
answer (a client attaches, detaches, declines, or ends with its process) wakes the session in the same transaction, if
any client of the session has declined a request.
"""

import json
import sqlite3
from collections.abc import Callable

from holdfast.events.ids import Owner, RequestId, SessionId
from holdfast.store.sqlite.liveness import Liveness, boot_id, boottime_ms
from holdfast.store.sqlite.queries import SQL
from holdfast.store.store import Attachment, Clash, Key


class AttachmentRows:
    """Writes the attachments of one process, and reads those of all. Every writing method runs inside a transaction of
    the writer's thread."""

    def __init__(self, liveness: Liveness, *, now_ms: Callable[[], int]) -> None:
        self._liveness = liveness
        self._me = liveness.token
        self._now_ms = now_ms
        self._boot = boot_id()
        self._woken: list[Key] = []

    def attach(
        self, db: sqlite3.Connection, attachment: Attachment, ttl_seconds: float
    ) -> tuple[tuple[Attachment, ...] | Clash, str | None]:
        """Attachments of dead processes, and expired ones, are removed first, so that they do not block a present
        client."""
        key = attachment.key
        others: list[Attachment] = []
        for row_id, found, is_there in self._all(db, key):
            if not is_there:
                db.execute(SQL["detach"], (key.owner, key.session, row_id))
            elif row_id != self._row_id(attachment.attachment_id):
                others.append(found)
        taken = {name for other in others for name in other.tools}
        for name in attachment.tools:
            if name in taken:
                return Clash(name), None
        of = (key.owner, key.session, self._row_id(attachment.attachment_id), self._me, attachment.node)
        can = (json.dumps(attachment.tools), json.dumps(attachment.capabilities), json.dumps(attachment.declined))
        db.execute(SQL["attach"], (*of, *can, self._boot, boottime_ms() + int(ttl_seconds * 1000)))
        self._wake(db, key)
        return tuple(others), "attachment"

    def detach(
        self, db: sqlite3.Connection, key: Key, attachment_id: str
    ) -> tuple[tuple[Attachment, ...] | None, str | None]:
        if db.execute(SQL["detach"], (key.owner, key.session, self._row_id(attachment_id))).rowcount == 0:
            return None, None
        self._wake(db, key)
        return self.attachments(db, key), "attachment"

    def decline(
        self, db: sqlite3.Connection, key: Key, attachment_id: str, request_id: RequestId
    ) -> tuple[bool, str | None]:
        where = (key.owner, key.session, self._row_id(attachment_id))
        if db.execute(SQL["decline"], (*where, request_id)).rowcount == 0:
            return False, None
        self._wake(db, key)
        return True, "attachment"

    def attachments(self, db: sqlite3.Connection, key: Key) -> tuple[Attachment, ...]:
        return tuple(found for _, found, is_there in self._all(db, key) if is_there)

    def attached(self, db: sqlite3.Connection) -> frozenset[tuple[Key, str]]:
        rows = db.execute(SQL["attached"], (self._me, self._boot, boottime_ms())).fetchall()
        return frozenset((Key(Owner(owner), SessionId(id)), self._id(row_id, self._me)) for owner, id, row_id in rows)

    # Attachments that end without a call of detach

    def has_expired(self, db: sqlite3.Connection) -> bool:
        return db.execute(SQL["expired_attachments"], (self._boot, boottime_ms())).fetchone() is not None

    def end_expired(self, db: sqlite3.Connection) -> None:
        now = boottime_ms()
        ended = db.execute(SQL["expired_attachments"], (self._boot, now)).fetchall()
        if ended:
            db.execute(SQL["end_expired_attachments"], (self._boot, now))
            self._wake_all(db, ended)

    def end_of(self, db: sqlite3.Connection, process: str) -> None:
        """End the attachments of a process that is dead or about to end: its clients are gone."""
        ended = db.execute(SQL["attachments_of"], (process,)).fetchall()
        db.execute(SQL["end_attachments_of"], (process,))
        self._wake_all(db, ended)

    def take_woken(self) -> list[Key]:
        """The sessions that were woken since the last call: their rows have changed."""
        woken, self._woken = self._woken, []
        return woken

    def _wake_all(self, db: sqlite3.Connection, sessions: list[tuple[str, str]]) -> None:
        for owner, id in sessions:
            self._wake(db, Key(Owner(owner), SessionId(id)))

    def _wake(self, db: sqlite3.Connection, key: Key) -> None:
        """Make the holder look again for a client that could answer, if a client has declined a request."""
        if db.execute(SQL["wake_declined"], (key.owner, key.session, self._now_ms())).rowcount:
            self._woken.append(key)

    def _all(self, db: sqlite3.Connection, key: Key) -> list[tuple[str, Attachment, bool]]:
        """Each attachment with its row's id, and whether it is still present: it has not expired, and its process
        lives."""
        rows = db.execute(SQL["attachments"], (key.owner, key.session, self._boot, boottime_ms())).fetchall()
        return [
            (
                row_id,
                Attachment(
                    attachment_id=self._id(row_id, process),
                    key=key,
                    node=node,
                    tools=tuple(json.loads(tools)),
                    capabilities=tuple(json.loads(capabilities)),
                    process=process,
                    declined=tuple(json.loads(declined)),
                ),
                bool(in_time) and (process == self._me or not self._liveness.is_dead(process)),
            )
            for row_id, process, node, tools, capabilities, declined, in_time in rows
        ]

    def _row_id(self, attachment_id: str) -> str:
        """The same id at two processes names two attachments: neither may end with the other's process."""
        return f"{self._me}/{attachment_id}"

    def _id(self, row_id: str, process: str) -> str:
        return row_id.removeprefix(f"{process}/")
