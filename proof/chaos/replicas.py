"""PostgreSQL with a standby that follows it, and the failover from one to the other: with every acknowledged
transaction on the standby, or with the last ones lost, as an asynchronous standby loses them."""

import asyncio
import os
import pwd
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

import msgspec

from proof.chaos import audit
from proof.postgres_server import PostgresServer

SETTINGS: Final = {"wal_level": "replica", "max_wal_senders": "4", "wal_retrieve_retry_interval": "100ms"}

LOST_SECONDS: Final = 1.5
"""How long the primary runs alone before it is lost."""

LOOK_SECONDS: Final = 0.05

NOWHERE: Final = "host=/nonexistent"


class Window(msgspec.Struct, frozen=True):
    """The time in which transactions were acknowledged that a failover lost, by `time.time`. Acknowledgements that
    clients received in it may be void; it ends when the new primary takes over."""

    since: float
    until: float

    def has(self, at: float) -> bool:
        return self.since <= at <= self.until


class Replicas:
    """One primary and, most of the time, one synchronous standby."""

    def __init__(self) -> None:
        self.primary = PostgresServer(settings=SETTINGS)
        self.standby: PostgresServer | None = None
        self._gone: list[PostgresServer] = []

    def start(self) -> None:
        self.primary.start()

    def remove(self) -> None:
        for server in (self.primary, self.standby, *self._gone):
            if server is not None:
                server.remove()

    def log(self) -> str:
        return "\n".join(server.log() for server in (*self._gone, self.primary, self.standby) if server is not None)

    async def add_standby(self) -> None:
        """Returns once commits wait for it. A copy that a crash of the primary cuts short is made again."""
        while self.standby is None:
            try:
                self.standby = await asyncio.to_thread(_standby_of, self.primary)
            except subprocess.CalledProcessError:
                await asyncio.sleep(LOOK_SECONDS)
        await self._until("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'")
        await self._set(self.primary, "synchronous_standby_names", "*")
        await self._until("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
        # That is what the setting says. Commits wait once the checkpointer has read it, too, and it does so before it
        # begins a checkpoint.
        await audit.run(self.primary.url(), "CHECKPOINT")

    async def crash(self) -> None:
        """The primary ends and recovers, and its standby follows it again."""
        await asyncio.to_thread(self.primary.restart, "immediate")

    async def fail_over(self, *, loses: bool) -> Window | None:
        """Promote the standby; the primary is gone for good. The caller redirects all connections from the primary to
        the new one, which has no standby yet. Returns None if nothing was lost."""
        assert self.standby is not None
        since = time.time()
        if loses:
            await self._set(self.primary, "synchronous_standby_names", "")
            await self._set(self.standby, "primary_conninfo", NOWHERE)
            await self._until("SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pg_stat_replication)")
            await asyncio.sleep(LOST_SECONDS)
        else:
            await self._until("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
        await asyncio.to_thread(self.primary.stop, "immediate")
        self._gone.append(self.primary)
        self.primary, self.standby = self.standby, None
        await audit.run(self.primary.url(), "SELECT pg_promote()")
        return Window(since, time.time()) if loses else None

    async def _set(self, server: PostgresServer, name: str, value: str) -> None:
        await audit.run(server.url(), f"ALTER SYSTEM SET {name} = '{value}'")
        await audit.run(server.url(), "SELECT pg_reload_conf()")

    async def _until(self, question: str) -> None:
        """Until the primary answers it with a row."""
        while not await audit.ask(self.primary.url(), question):  # noqa: ASYNC110 - another process answers
            await asyncio.sleep(LOOK_SECONDS)


def _standby_of(primary: PostgresServer) -> PostgresServer:
    standby = PostgresServer(settings=SETTINGS)
    shutil.rmtree(standby.data)
    try:
        primary.run("pg_basebackup", "--write-recovery-conf", "--checkpoint=fast", "--pgdata", str(standby.data))
    except subprocess.CalledProcessError:
        standby.remove()
        raise
    _give_to_nobody(standby.data)
    standby.start()
    return standby


def _give_to_nobody(folder: Path) -> None:
    """PostgreSQL does not run as root, and cannot read root's files."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody").pw_uid
        for path in (folder, *folder.rglob("*")):
            os.chown(path, nobody, -1)
