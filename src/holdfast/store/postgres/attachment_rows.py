"""Rows of the clients that are present at sessions.

The session's holder denies a permission that every present client has declined. So every change of which clients could
answer (a client attaches, detaches, declines, or ends with its process) wakes the session in the same transaction, if
any client of the session has declined a request. All of these changes lock the session's row first, so they take turns.
"""

from collections.abc import Callable, Sequence

from holdfast.events.ids import Owner, RequestId, SessionId
from holdfast.store.postgres.connections import Link
from holdfast.store.store import Attachment, Clash, Key


class AttachmentRows:
    """Writes the attachments of one process, and reads those of all. Every method runs inside a transaction."""

    def __init__(self, *, token: str, now_ms: Callable[[], int]) -> None:
        self._me = token
        self._now_ms = now_ms

    async def attach(
        self, db: Link, attachment: Attachment, ttl_seconds: float
    ) -> tuple[tuple[Attachment, ...] | Clash, str | None]:
        """Attachments of dead processes, and expired ones, are removed first, so that they do not block a present
        client."""
        key = attachment.key
        exists = await db.row("lock_session", key.owner, key.session) is not None
        everyone = await self._all(db, key)
        absent = [row_id for row_id, _, is_there in everyone if not is_there]
        if absent:
            await db.run("detach", key.owner, key.session, absent)
        own = self._row_id(attachment.attachment_id)
        others = tuple(found for row_id, found, is_there in everyone if is_there and row_id != own)
        taken = {name for other in others for name in other.tools}
        for name in attachment.tools:
            if name in taken:
                return Clash(name), None
        if not exists:
            return others, None
        can = (list(attachment.tools), list(attachment.capabilities), list(attachment.declined))
        await db.run("attach", key.owner, key.session, own, self._me, attachment.node, *can, ttl_seconds)
        await self._wake(db, key)
        return others, "attachment"

    async def detach(self, db: Link, key: Key, attachment_id: str) -> tuple[tuple[Attachment, ...] | None, str | None]:
        """The session's row is locked first: of clients that detach at the same time, one is the last."""
        await db.row("lock_session", key.owner, key.session)
        if await db.run("detach", key.owner, key.session, [self._row_id(attachment_id)]) == 0:
            return None, None
        await self._wake(db, key)
        return await self.attachments(db, key), "attachment"

    async def decline(self, db: Link, key: Key, attachment_id: str, request_id: RequestId) -> tuple[bool, str | None]:
        await db.row("lock_session", key.owner, key.session)
        if await db.run("decline", key.owner, key.session, self._row_id(attachment_id), request_id) == 0:
            return False, None
        await self._wake(db, key)
        return True, "attachment"

    async def attachments(self, db: Link, key: Key) -> tuple[Attachment, ...]:
        return tuple(found for _, found, is_there in await self._all(db, key) if is_there)

    async def attached(self, db: Link) -> frozenset[tuple[Key, str]]:
        rows = await db.rows("attached", self._me)
        return frozenset((Key(Owner(owner), SessionId(id)), self._id(row_id, self._me)) for owner, id, row_id in rows)

    async def end(self, db: Link, dead: Sequence[str] = ()) -> None:
        """End expired attachments, and those of dead processes. A session that another transaction has locked is
        skipped, and its attachments stay until the next look."""
        await db.run("end_attachments", list(dead), self._now_ms())

    async def _wake(self, db: Link, key: Key) -> None:
        """Make the holder look again for a client that could answer, if a client has declined a request."""
        await db.run("wake_declined", key.owner, key.session, self._now_ms())

    async def _all(self, db: Link, key: Key) -> list[tuple[str, Attachment, bool]]:
        """Each attachment with its row's id, and whether it is still present: it has not expired, and its process
        lives."""
        return [
            (
                row_id,
                Attachment(
                    attachment_id=self._id(row_id, process),
                    key=key,
                    node=node,
                    tools=tuple(tools),
                    capabilities=tuple(capabilities),
                    process=process,
                    declined=tuple(declined),
                ),
                is_there,
            )
            for row_id, process, node, tools, capabilities, declined, is_there in await db.rows(
                "attachments", key.owner, key.session, self._me
            )
        ]

    def _row_id(self, attachment_id: str) -> str:
        """The same id at two processes names two attachments: neither may end with the other's process."""
        return f"{self._me}/{attachment_id}"

    def _id(self, row_id: str, process: str) -> str:
        return row_id.removeprefix(f"{process}/")
