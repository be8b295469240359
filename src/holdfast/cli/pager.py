"""The pager for texts that are longer than the screen: $PAGER, or else `less` or `more`."""

import asyncio
import os
import shlex
import shutil
from asyncio.subprocess import PIPE

FALLBACKS = ("less", "more")


def pager_command() -> list[str] | None:
    """The command line of the pager; None if there is none."""
    try:
        chosen = shlex.split(os.environ.get("PAGER", ""))
    except ValueError:
        chosen = []
    if chosen:
        return chosen
    return next(([found] for name in FALLBACKS if (found := shutil.which(name))), None)


async def page(text: str) -> bool:
    """Run the pager until the person leaves it. False if there is none or it failed: then the text was not shown."""
    command = pager_command()
    if command is None:
        return False
    environ = {**os.environ, "LESSCHARSET": "utf-8"}
    try:
        pager = await asyncio.create_subprocess_exec(*command, stdin=PIPE, env=environ)
    except OSError:
        return False
    try:
        await pager.communicate(text.encode())  # ignores that a pager that is left early closes the pipe
    finally:
        if pager.returncode is None:
            pager.kill()
            await pager.wait()
    return pager.returncode == 0
