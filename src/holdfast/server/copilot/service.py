"""State that all Copilot connections of this process share: one hub per watched session, and lifecycle
notifications."""

import asyncio
import contextlib
import hashlib
import re
import shutil
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from holdfast.events.ids import LOCAL_OWNER, Key, Owner, Position, SessionId
from holdfast.events.session import SessionShutdown
from holdfast.models.credentials import Credentials
from holdfast.observability.observer import Observer
from holdfast.server.copilot.client_commands import ClientCommands
from holdfast.server.copilot.connection import Attached, ClientConnection
from holdfast.server.copilot.hub import Hub, Member
from holdfast.server.copilot.model_names import ModelNames
from holdfast.server.copilot.options import SessionParams
from holdfast.server.copilot.projection import iso, shown_model
from holdfast.server.errors import OperationError
from holdfast.server.operations import Operations
from holdfast.server.operations.tasks import TaskOperations
from holdfast.server.presence import Arrival, Presence
from holdfast.session.state import State
from holdfast.store.clock import Clock
from holdfast.store.store import Row
from holdfast.tasks.shell import Shell

OnLastDisconnect = Literal["keep", "close"]

Lifecycle = Literal["created", "updated", "deleted", "foreground", "background"]

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


class CopilotSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the Copilot surface of one process."""

    home: Path
    """The folder that contains the sessions' own folders."""
    directory: Path
    """Working directory of sessions whose client names none."""
    owner: Owner
    built_in: tuple[str, ...]
    """Names of the built-in tools that the model may be offered."""
    instructions: str = ""
    """System text that precedes the client's system message."""
    on_last_disconnect: OnLastDisconnect = "keep"
    token_given: bool = False
    max_woken_turns: int = 20
    """After this many woken turns in a row, news of tasks waits for a person's message."""
    task_wait_seconds: float = 600.0
    """Timeout of `session.tasks.waitForPending`."""


class CopilotService:
    """The Copilot surface of one process."""

    def __init__(
        self,
        *,
        operations: Operations,
        tasks: TaskOperations,
        shell: Shell,
        clock: Clock,
        settings: CopilotSettings,
        models: ModelNames,
        credentials: Credentials,
        observer: Observer,
    ) -> None:
        self.operations = operations
        self.tasks = tasks
        self.commands = ClientCommands(shell)
        self.clock = clock
        self.settings = settings
        self.models = models
        self.credentials = credentials
        self.observer = observer
        self.presence = Presence(operations, operations.store, clock)
        self.connections: set[ClientConnection] = set()
        self.hubs: dict[Key, Hub] = {}
        self.foreground: SessionId | None = None

    async def close(self) -> None:
        await self.presence.close()
        await self.commands.close()
        for hub in list(self.hubs.values()):
            await hub.stop()
        self.hubs.clear()

    async def attach(
        self,
        connection: ClientConnection,
        key: Key,
        params: SessionParams,
        arrival: Arrival,
        *,
        position: Position,
        state: State | None,
    ) -> Attached:
        """Attach a connection to a session's hub. The first connection of this process starts the hub at `position`."""
        member = Member(
            connection.peer,
            attachment_id=connection.peer.id,
            streaming=bool(params.streaming),
            answers_questions=bool(params.request_user_input),
        )
        hub = self.hubs.get(key)
        if hub is None:
            hub = self.hubs[key] = Hub(
                key, self.operations, self.clock, self.settings.instructions, self._announce_update
            )
            hub.starting = asyncio.create_task(hub.start(position, state))
        hub.join(member)
        try:
            if hub.starting is not None:
                await asyncio.shield(hub.starting)
        except BaseException:
            await self._leave_hub(hub, member)
            raise
        attached = Attached(
            key=key,
            hub=hub,
            member=member,
            params=params,
            arrival=arrival,
            answers_permissions=bool(params.request_permission),
        )
        connection.attached[key.session] = attached
        return attached

    async def leave(self, connection: ClientConnection, session_id: SessionId, *, on_purpose: bool = False) -> bool:
        """Detach a connection from a session, and return whether it was attached. The session goes on, but the last
        client to leave may close it."""
        attached = connection.attached.pop(session_id, None)
        if attached is None:
            return False
        was_last = await self.presence.leave(attached.key, attached.member.attachment_id)
        if was_last and await self._closes(attached.key, on_purpose):
            await self.shut_down(attached.key)
        await self._leave_hub(attached.hub, attached.member)
        for waiting in tuple(attached.waits):
            waiting.cancel()
        return True

    async def undo(self, connection: ClientConnection, attached: Attached, previous: Attached | None) -> None:
        """Roll back a failed attach: restore the connection's previous attachment, if it had one."""
        if previous is None:
            await self.presence.forget(attached.key, attached.arrival.attachment_id)
            connection.attached.pop(attached.key.session, None)
            await self._leave_hub(attached.hub, attached.member)
            return
        connection.attached[attached.key.session] = previous
        previous.hub.join(previous.member)
        await self.presence.arrive(attached.key, previous.arrival)

    async def _leave_hub(self, hub: Hub, member: Member) -> None:
        """Remove a member from its hub, and stop the hub if it has no members left."""
        hub.leave(member)
        if not hub.members and self.hubs.get(hub.key) is hub:
            del self.hubs[hub.key]
            await hub.stop()

    async def _closes(self, key: Key, on_purpose: bool) -> bool:
        if self.settings.on_last_disconnect == "close":
            return True
        row = await self.operations.store.row(key)
        return on_purpose and row is not None and row.status == "idle" and bool(row.title)

    async def shut_down(
        self, key: Key, *, shutdown_type: Literal["routine", "error"] = "routine", reason: str = ""
    ) -> None:
        """Record that a session was closed, with the usage of its models."""
        metrics, duration = await self.usage(key)
        try:
            await self.operations.record(
                key,
                SessionShutdown(
                    shutdown_type=shutdown_type, reason=reason, model_metrics=metrics, api_duration_ms=duration
                ),
            )
        except OperationError:
            pass  # The session was deleted meanwhile.

    async def usage(self, key: Key) -> tuple[dict[str, dict[str, Any]], int]:
        """The usage of the session's model calls, by model, and their duration in ms: always 0, which the ledger
        lacks."""
        metrics: dict[str, dict[str, Any]] = {}
        for entry in await self.operations.usage(key.owner, key.session):
            name = shown_model(entry.model) or "unknown"
            metric = metrics.setdefault(
                name,
                {
                    "requests": {"count": 0, "cost": 0},
                    "usage": {"inputTokens": 0, "outputTokens": 0, "cacheReadTokens": 0, "cacheWriteTokens": 0},
                },
            )
            metric["requests"]["count"] += 1
            metric["usage"]["inputTokens"] += entry.input_tokens or 0
            metric["usage"]["outputTokens"] += entry.output_tokens or 0
            metric["usage"]["cacheReadTokens"] += entry.cache_read_tokens or 0
            metric["usage"]["cacheWriteTokens"] += entry.cache_write_tokens or 0
        return metrics, 0

    async def _announce_update(self, key: Key) -> None:
        with contextlib.suppress(OperationError):
            await self.presence.tidy(key)
        row = await self.operations.store.row(key)
        if row is not None:
            self.announce("updated", key, self.lifecycle_metadata(row))

    def announce(self, change: Lifecycle, key: Key, metadata: dict[str, Any] | None = None) -> None:
        """Notify every connection of the owner, attached or not, of a change to a session's lifecycle."""
        params: dict[str, Any] = {"type": f"session.{change}", "sessionId": key.session}
        if metadata is not None:
            params["metadata"] = metadata
        for connection in tuple(self.connections):
            if connection.owner == key.owner:
                connection.peer.notify("session.lifecycle", params)

    def lifecycle_metadata(self, row: Row) -> dict[str, Any]:
        """The metadata of a session in a lifecycle notification."""
        metadata = {"startTime": iso(row.created_at), "modifiedTime": iso(row.updated_at)}
        return {**metadata, "summary": row.title} if row.title else metadata

    def folder(self, key: Key) -> Path:
        """The folder of a session's plan and files, where GitHub's runtime would have it. An id that is no plain folder
        name is replaced by its hash. Owners that share a home have no folder in common, whatever ids they choose."""
        name: str = key.session
        if not _PLAIN_NAME.fullmatch(name):
            name = "~" + _hash(name)
        if key.owner != LOCAL_OWNER:
            name = f"~{_hash(key.owner)}~{_hash(key.session)}"
        return self.settings.home / "session-state" / name

    def remove_folder(self, key: Key) -> None:
        shutil.rmtree(self.folder(key), ignore_errors=True)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
