"""`holdfast serve` and `holdfast worker` as a test of a cluster starts them: the same commands, with a few more tools,
whose effects on the world can be counted; and, for a control, with a known defect.

    NODE_FOLDER=... python -m proof.chaos.node worker --database postgresql://...
"""

import asyncio
import os
import runpy
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.tools import built_in
from holdfast.tools.tool import Tool, ToolContext, tool
from proof.chaos.effects import Effect, note_beat, note_effect
from proof.crash import postgres_defects

FOLDER: Final = "NODE_FOLDER"
"""The variable that names the folder where effects are noted, and gates are opened by making a file."""
NAME: Final = "NODE_NAME"
DEFECT: Final = "NODE_DEFECT"

LOOK_SECONDS: Final = 0.02


def counted_tools(environ: Mapping[str, str]) -> tuple[Tool, ...]:
    folder, name = Path(environ[FOLDER]), environ.get(NAME, "")

    def affect(what: str, context: ToolContext) -> str:
        made = Effect(
            tool=what,
            session=context.session_id,
            tool_call_id=context.tool_call_id,
            attempt=context.attempt,
            node=name,
            at=time.time(),
        )
        note_effect(folder, made)
        return f"{what} is done"

    @tool(permission="allow")
    async def append_line(context: ToolContext, seconds: float = 0) -> str:
        """Append a line, and take so long about it. Twice is not as good as once."""
        done = affect("append_line", context)
        await asyncio.sleep(seconds)
        return done

    @tool(permission="allow", after_crash="repeat")
    async def put_line(context: ToolContext, seconds: float = 0) -> str:
        """Make sure that a line exists, and take some time for it. Running it twice is as good as once."""
        done = affect("put_line", context)
        await asyncio.sleep(seconds)
        return done

    @tool
    async def guarded_line(context: ToolContext) -> str:
        """Append a line, if one may."""
        return affect("guarded_line", context)

    @tool(permission="allow")
    async def hold(gate: str, context: ToolContext) -> str:
        """Append a line, and wait until the gate opens."""
        done = affect("hold", context)
        await _opened(folder / gate)
        return done

    @tool(permission="allow", after_crash="repeat")
    async def hold_again(gate: str, context: ToolContext) -> str:
        """The same, for a call that may be repeated."""
        done = affect("hold_again", context)
        await _opened(folder / gate)
        return done

    @tool(permission="allow", after_crash="repeat")
    async def beat(gate: str, context: ToolContext) -> str:
        """Work, and report progress repeatedly, until the gate opens."""
        affect("beat", context)
        while not (folder / gate).exists():
            note_beat(folder, name)
            await asyncio.sleep(LOOK_SECONDS)
        return "beat is done"

    @tool(permission="allow", after_crash="repeat")
    async def die(context: ToolContext) -> str:
        """End the process, whichever runs it."""
        affect("die", context)
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    return append_line, put_line, guarded_line, hold, hold_again, beat, die


async def _opened(gate: Path) -> None:
    while not gate.exists():  # noqa: ASYNC110, ASYNC240 - another process opens it
        await asyncio.sleep(LOOK_SECONDS)


def offer(tools: tuple[Tool, ...]) -> None:
    """Add the tools as if they were built in. Call this before any other import of Holdfast."""
    assert "holdfast.app" not in sys.modules, "too late: it has the tools that it came with"
    known: dict[str, object] = vars(built_in)
    known["BUILT_IN"] = (*tools, *built_in.BUILT_IN)
    known["HOLDFAST_TOOLS"] = (*(found.name for found in tools), *built_in.HOLDFAST_TOOLS)


def main() -> None:
    offer(counted_tools(os.environ))
    if defect := os.environ.get(DEFECT, ""):
        postgres_defects.PLANTS[defect]()
    sys.argv[0] = "holdfast"
    runpy.run_module("holdfast", run_name="__main__")


if __name__ == "__main__":
    main()
