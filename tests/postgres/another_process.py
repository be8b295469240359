"""A process of its own at the same database. It carries out orders, one per line, and answers each with a line.

Run as: python another_process.py URL
"""

import asyncio
import json
import os
import signal
import sys

from holdfast.events.event import Event
from holdfast.events.ids import EventId, MessageId, Owner, Position, SessionId
from holdfast.events.inbox import Message
from holdfast.events.session import SessionInfo
from holdfast.events.turn import Aborted
from holdfast.store import crash_points
from holdfast.store.errors import StoreError
from holdfast.store.postgres import connections
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Attachment, Committed, Key, Lease, Unit
from holdfast.store.turn_limits import TurnLimits

KEY = Key(Owner("ann"), SessionId("first"))
LIMITS = TurnLimits(running=50, in_flight=50)
"""With limits a put counts the turns of its owner, and locks the owner for that."""
FROZEN_MILLISECONDS = "60000"
"""How long the process may freeze in a transaction: longer than any test takes."""


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


class Orders:
    """The orders that a test may send."""

    def __init__(self, store: PostgresStore) -> None:
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

    async def renew(self, ttl_seconds: str = "30") -> object:
        return await self._store.renew(ttl_seconds=float(ttl_seconds))

    async def put(self, owner: str, session: str, message: str) -> object:
        item = Message(message_id=MessageId(message), text="hello")
        put = await self._store.put(Key(Owner(owner), SessionId(session)), item, item_key=message, queue_limit=10)
        return type(put).__name__

    async def freeze_at(self, point: str) -> object:
        """Print the point and freeze, as SIGSTOP does, once a transaction reaches this point."""

        def freeze(reached: str) -> None:
            if reached == point:
                crash_points.install(None)
                say("frozen")
                os.kill(os.getpid(), signal.SIGSTOP)

        crash_points.install(freeze)
        return None

    async def attach(self) -> object:
        await self._store.attach(Attachment(attachment_id="there", key=KEY, node="there"), ttl_seconds=3600)
        return self._store.process

    async def attach_to(self, owner: str, session: str) -> object:
        key = Key(Owner(owner), SessionId(session))
        await self._store.attach(Attachment(attachment_id="there", key=key, node="there"), ttl_seconds=3600)
        return None

    async def write_until_killed(self) -> object:
        """Append for ever, and print each position once it is acknowledged."""
        while True:
            event = Event(Position(0), EventId("e"), 1, SessionInfo(info_type="n", message="x" * 200))
            outcome = await self._store.commit(Unit(key=KEY, fence=None, events=(event,)))
            assert isinstance(outcome, Committed)
            say(outcome.head)

    async def close(self) -> object:
        await self._store.close()
        return "closed"


async def main(url: str) -> None:
    connections._SETTINGS["idle_in_transaction_session_timeout"] = FROZEN_MILLISECONDS
    try:
        orders = Orders(await PostgresStore.open(url, node="there", limits=LIMITS))
    except StoreError as error:
        say(error.code)
        return
    say("ready")
    loop = asyncio.get_running_loop()
    while order := (await loop.run_in_executor(None, sys.stdin.readline)).split():
        say(await getattr(orders, order[0])(*order[1:]))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
