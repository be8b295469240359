"""A runtime that is killed in the middle: starts the commands that it is given, says so, and waits for their ends.

python -m tests.commands.runtime ROOT < one JSON list of [key, spec] pairs
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from holdfast.commands.command import CommandKey, Spec
from holdfast.commands.commands import Commands, Started
from holdfast.commands.service import SupervisorSettings


async def main() -> None:
    wanted = msgspec.json.decode(sys.stdin.buffer.readline(), type=list[tuple[CommandKey, Spec]])
    async with Commands(Path(sys.argv[1]), settings=SupervisorSettings(idle_seconds=5.0)) as commands:

        async def run(key: CommandKey, spec: Spec) -> None:
            answer = await commands.start(key, spec)
            assert answer.status.runner is not None
            word = "started" if isinstance(answer, Started) else "there"
            print(word, key.tool_call, answer.status.runner.pid, flush=True)
            end = (await commands.wait(key)).outcome
            assert end is not None
            print("ended", key.tool_call, end.exit_code, flush=True)

        await asyncio.gather(*(run(key, spec) for key, spec in wanted))


if __name__ == "__main__":
    asyncio.run(main())
