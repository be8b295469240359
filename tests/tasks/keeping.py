"""A process that looks after the tasks of a machine until its input ends; or, with a task to kill, dies right after the
wish for that is durable.

python -m tests.tasks.keeping DATABASE ROOT [TASK KILLER]
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from holdfast.commands.commands import Commands
from holdfast.events.ids import Key
from holdfast.store import crash_points
from holdfast.store.clock import SystemClock
from holdfast.store.sqlite.store import SqliteStore
from holdfast.testing.store_conformance.words import KEY
from tests.tasks.world import QUICK, SETTINGS, Machine


def die_after_the_wish(point: str) -> None:
    if point.startswith("ask_kill:") and point.endswith(":after"):
        os.kill(os.getpid(), signal.SIGKILL)


async def main(database: Path, root: Path, *kill: str) -> None:
    clock = SystemClock()
    commands = Commands(root, settings=SETTINGS)
    store = await SqliteStore.open(database, node="here", clock=clock)
    machine = Machine(store, commands, root, await commands.folder_id(), clock)
    if kill:
        task, by = kill
        crash_points.install(die_after_the_wish)
        await machine.desk.kill(Key(KEY.owner, KEY.session), task, by)  # type: ignore[arg-type]
    async with machine.keeper(QUICK):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    await commands.close()
    await store.close()


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(main(Path(given[0]), Path(given[1]), *given[2:]))
