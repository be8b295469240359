"""A process of its own at the same database. It carries out orders, one per line, and answers each with a line.

Run as: python another_process.py DATABASE NODE
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from holdfast.events.event import Event
from holdfast.events.ids import EventId, Owner, Position, SessionId
from holdfast.events.session import SessionInfo
from holdfast.events.turn import Aborted
from holdfast.store.errors import StoreError
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Attachment, Committed, Key, Lease, Unit


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


class Orders:
    """The orders that a test may send."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._leases: list[Lease] = []

    async def claim(self) -> object:
        claims = await self._store.claim(limit=10)
        self._leases += [claim.lease for claim in claims]
        return [claim.lease.key.session for claim in claims]

    async def progress(self) -> object:
        """Write under the last lease."""
        lease = self._leases[-1]
        event = Event(Position(0), EventId("e"), 1, Aborted(reason="late"))
        return type(await self._store.commit(Unit(key=lease.key, fence=lease.fence, events=(event,)))).__name__

    async def attach(self, session: str) -> object:
        """Attach a client that could decide permissions."""
        key = Key(Owner("ann"), SessionId(session))
        client = Attachment(attachment_id="there", key=key, node="there", capabilities=("permission",))
        await self._store.attach(client, ttl_seconds=3600)
        return self._store.process

    async def renew(self, ttl_seconds: str = "30") -> object:
        return await self._store.renew(ttl_seconds=float(ttl_seconds))

    async def write_until_killed(self, session: str) -> object:
        """Append to a session for ever, and print each position once it is acknowledged."""
        key = Key(Owner("ann"), SessionId(session))
        while True:
            event = Event(Position(0), EventId("e"), 1, SessionInfo(info_type="n", message="x" * 200))
            outcome = await self._store.commit(Unit(key=key, fence=None, events=(event,)))
            assert isinstance(outcome, Committed)
            say(outcome.head)

    async def close(self) -> object:
        await self._store.close()
        return "closed"


async def main(database: str, node: str) -> None:
    if (user := os.environ.get("RUN_AS_USER")) is not None:
        await asyncio.to_thread(os.getpid)  # What is loaded late must be loaded before it can't be read any more.
        os.setuid(int(user))
    try:
        orders = Orders(await SqliteStore.open(Path(database), node=node))
    except StoreError as error:
        say(error.code)
        return
    say("ready")
    loop = asyncio.get_running_loop()
    while order := (await loop.run_in_executor(None, sys.stdin.readline)).split():
        say(await getattr(orders, order[0])(*order[1:]))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
