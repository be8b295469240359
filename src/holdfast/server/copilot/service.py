"""What the connections of this process share: the sessions that their clients watch, and who hears of which."""

import asyncio
import contextlib
import hashlib
import re
import shutil
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from holdfast.events.ids import Key, Owner, Position, RequestId, SessionId
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
from holdfast.server.presence import Arrival, Presence
from holdfast.server.task_operations import TaskOperations
from holdfast.session.state import State
from holdfast.store.clock import Clock
from holdfast.store.store import Row
from holdfast.tasks.shell import Shell

OnLastDisconnect = Literal["keep", "close"]

Lifecycle = Literal["created", "updated", "deleted", "foreground", "background"]

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


class CopilotSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How this process serves Copilot clients."""

    home: Path
    """Where the sessions have their folders."""
    directory: Path
    """Where a session works unless its client says otherwise."""
    owner: Owner
    built_in: tuple[str, ...]
    """Names of our own tools that the model may be offered."""
    instructions: str = ""
    """What the model is told before what a client says."""
    on_last_disconnect: OnLastDisconnect = "keep"
    token_given: bool = False
    max_woken_turns: int = 20
    """After so many in a row that nobody asked for, news of tasks waits for a person."""
    task_wait_seconds: float = 600.0
    """How long a client that waits for all tasks to end waits at most."""


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

    async def place(
        self,
        connection: ClientConnection,
        key: Key,
        params: SessionParams,
        arrival: Arrival,
        *,
        position: Position,
        state: State | None,
    ) -> Attached:
        """Let a client watch a session, from that position on if it is the first here to do so."""
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
            await self._let_go(hub, member)
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
        """A client no longer watches a session. The session goes on; the last one to leave may close it. Whether it
        was attached at all."""
        found = connection.attached.pop(session_id, None)
        if found is None:
            return False
        was_last = await self.presence.leave(found.key, found.member.attachment_id)
        if was_last and await self._closes(found.key, on_purpose):
            await self.shut_down(found.key)
        await self._let_go(found.hub, found.member)
        for waiting in tuple(found.waits):
            waiting.cancel()
        return True

    async def undo(self, connection: ClientConnection, found: Attached, previous: Attached | None) -> None:
        """A client that should have been attached is not: it has what it had before."""
        if previous is None:
            await self.presence.forget(found.key, found.arrival.attachment_id)
            connection.attached.pop(found.key.session, None)
            await self._let_go(found.hub, found.member)
            return
        connection.attached[found.key.session] = previous
        previous.hub.join(previous.member)
        await self.presence.arrive(found.key, previous.arrival)

    async def _let_go(self, hub: Hub, member: Member) -> None:
        """A client no longer watches; without any, nobody need follow the session."""
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
        """Note that a session was closed, with what it used."""
        metrics, duration = await self.usage(key)
        try:
            await self.operations.record(
                key,
                SessionShutdown(
                    shutdown_type=shutdown_type, reason=reason, model_metrics=metrics, api_duration_ms=duration
                ),
            )
        except OperationError:
            pass  # It was deleted meanwhile.

    async def usage(self, key: Key) -> tuple[dict[str, dict[str, Any]], int]:
        """What the session's model calls used, by model; and, as far as it is known, how long they took."""
        metrics: dict[str, dict[str, Any]] = {}
        for entry in await self.operations.usage(key.owner, key.session):
            name = shown_model(entry.model) or "unknown"
            found = metrics.setdefault(
                name,
                {
                    "requests": {"count": 0, "cost": 0},
                    "usage": {"inputTokens": 0, "outputTokens": 0, "cacheReadTokens": 0, "cacheWriteTokens": 0},
                },
            )
            found["requests"]["count"] += 1
            found["usage"]["inputTokens"] += entry.input_tokens or 0
            found["usage"]["outputTokens"] += entry.output_tokens or 0
            found["usage"]["cacheReadTokens"] += entry.cache_read_tokens or 0
        return metrics, 0

    async def decline(self, found: Attached, request_id: RequestId) -> bool:
        """Nobody at this client can decide. Whether the request was open."""
        return await self.presence.decline(found.key, found.member.attachment_id, request_id)

    async def _announce_update(self, key: Key) -> None:
        with contextlib.suppress(OperationError):
            await self.presence.tidy(key)
        row = await self.operations.store.row(key)
        if row is not None:
            self.announce("updated", key, self.about(row))

    def announce(self, what: Lifecycle, key: Key, about: dict[str, Any] | None = None) -> None:
        """Tell every connection of the owner about a session, attached or not."""
        told: dict[str, Any] = {"type": f"session.{what}", "sessionId": key.session}
        if about is not None:
            told["metadata"] = about
        for connection in tuple(self.connections):
            if connection.owner == key.owner:
                connection.peer.notify("session.lifecycle", told)

    def about(self, row: Row) -> dict[str, Any]:
        """What a lifecycle notice says of a session."""
        told = {"startTime": iso(row.created_at), "modifiedTime": iso(row.updated_at)}
        return {**told, "summary": row.title} if row.title else told

    def folder(self, key: Key) -> Path:
        """Where a session keeps its plan and its files. A name that a folder can't have gets another one."""
        name: str = key.session
        if not _PLAIN_NAME.fullmatch(name):
            name = "~" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        return self.settings.home / "session-state" / name

    def remove_folder(self, key: Key) -> None:
        shutil.rmtree(self.folder(key), ignore_errors=True)
