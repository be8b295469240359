"""Shows a text that is longer than the screen: in the pager that the person chose, or in `less`, or in `more`."""

import asyncio
import os
import shlex
import shutil
from asyncio.subprocess import PIPE

FALLBACKS = ("less", "more")


def pager_command() -> list[str] | None:
    """None: there is no pager."""
    try:
        chosen = shlex.split(os.environ.get("PAGER", ""))
    except ValueError:
        chosen = []
    if chosen:
        return chosen
    return next(([found] for name in FALLBACKS if (found := shutil.which(name))), None)


async def page(text: str) -> bool:
    """Run the pager until the person leaves it. False: there is none, or it failed, and nothing may count as shown."""
    command = pager_command()
    if command is None:
        return False
    environ = {**os.environ, "LESSCHARSET": "utf-8"}
    try:
        pager = await asyncio.create_subprocess_exec(*command, stdin=PIPE, env=environ)
    except OSError:
        return False
    try:
        await pager.communicate(
            text.encode()
        )  # A pager that is left before its end closes the pipe, which is no fault.
    finally:
        if pager.returncode is None:
            pager.kill()
            await pager.wait()
    return pager.returncode == 0
