"""A command that nobody waits for: the model starts it, and is woken when it ends, also if this program was killed.

Kill it while the build runs and start it again: the same build is still running, and its report comes.
"""

import asyncio
from pathlib import Path

from holdfast import Runtime
from holdfast.events.event import Event
from holdfast.events.task import TaskNotified
from holdfast.events.turn import TurnEnded


async def main() -> None:
    async with Runtime(model="demo") as runtime:
        here = str(Path.cwd())
        session = await runtime.session("background-example", working_directory=here, allow=("shell",))
        turn = await session.run("Please build something", message_id="the-build")
        print(turn.text, "\n")
        for task in await session.tasks():
            print(f"{task.id}: {task.description}, {task.status}")
        told = False
        async for reading in session.events():
            match reading:
                case Event(body=TaskNotified(notice=notice)):
                    print(f"{notice.task_id} {notice.kind}, exit code {notice.exit_code}: {notice.output_tail[-14:]}")
                    told = True
                case Event(body=TurnEnded()) if told:
                    return
                case _:
                    pass


asyncio.run(main())
