"""A server that freezes inside a put: `python -m bench.frozen_server URL OWNER SESSION` says "ready", and for a line on
its input puts a message into that session; it says "frozen" and stands still with all that the put has locked."""

import asyncio
import os
import signal
import sys

from holdfast.events.ids import MessageId, Owner, SessionId
from holdfast.events.inbox import Message
from holdfast.store import crash_points
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.store import Key
from holdfast.store.turn_limits import TurnLimits

LIMITS = TurnLimits(running=5, in_flight=15)
"""As `holdfast serve --auth keys` has them: a put counts the turns of its owner, and locks the owner for that."""


def _freeze(point: str) -> None:
    if point.endswith(":before"):
        print("frozen", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)


async def main(url: str, owner: str, session: str) -> None:
    store = await PostgresStore.open(url, node="frozen", limits=LIMITS)
    key = Key(Owner(owner), SessionId(session))
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    crash_points.install(_freeze)
    await store.put(key, Message(message_id=MessageId("frozen"), text="go"), item_key="frozen", queue_limit=10)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
