"""Attachments: clients that are present at a session, with the tools that they run and the requests they can answer."""

from holdfast.events.ids import Key, RequestId
from holdfast.events.session import SessionResumed
from holdfast.server.errors import Conflict
from holdfast.server.operations.session_access import SessionAccess
from holdfast.store.store import Attachment, Clash


class AttachmentVerbs(SessionAccess):
    async def attach(
        self,
        key: Key,
        attachment_id: str,
        *,
        tools: tuple[str, ...] = (),
        capabilities: tuple[str, ...] = (),
        declined: tuple[RequestId, ...] = (),
        ttl_seconds: float = 60,
    ) -> tuple[Attachment, ...]:
        """Attach a client with the tools that it runs, its capabilities and the requests that it has declined; to be
        repeated before the time to live ends. Returns the other attachments of the session."""
        self.check_id("attachment", attachment_id)
        attachment = Attachment(
            attachment_id=attachment_id,
            key=key,
            node=self._node,
            tools=tools,
            capabilities=capabilities,
            declined=declined,
        )
        others = await self.store.attach(attachment, ttl_seconds=ttl_seconds)
        if isinstance(others, Clash):
            raise Conflict(
                "tool_clash", f"External tool name clash: {others.tool} already registered by another connection"
            )
        return others

    async def detach(self, key: Key, attachment_id: str) -> None:
        await self.store.detach(key, attachment_id)

    async def note_resume(self, key: Key) -> None:
        """Record that a client came back to the session."""
        row = await self.session(key)
        await self._record(key, SessionResumed(resume_time=self._clock.now_ms(), event_count=row.head))
