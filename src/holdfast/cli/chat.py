"""`holdfast chat`: finds the session to go on with, or makes one, and talks on whatever terminal there is."""

import os
import sys
from typing import Final

from holdfast.cli.chat_commands import COMMANDS
from holdfast.cli.conversation import Conversation, Wanted
from holdfast.cli.finding import find_session, unfinished_here
from holdfast.cli.hints import Hints
from holdfast.cli.home import Home
from holdfast.cli.screen import PlainScreen, Screen
from holdfast.cli.where import Where, at_home
from holdfast.client.views import SessionView

GRACE_SECONDS: Final = 0.5
"""Leaving lets a step that is about to end do so."""


async def chat(where: Where, wanted: Wanted, hints: Hints) -> int:
    # Looked up before anything is run here: a turn that would end right away is still shown.
    async with at_home(where) as reading:
        found = await _find(reading, wanted)
    screen = _screen()
    async with at_home(where, work=True, grace_seconds=GRACE_SECONDS, is_watched=screen.interactive) as home:
        conversation = Conversation(home, screen, wanted=wanted, hints=hints, commands=COMMANDS)
        return await conversation.run(found)


async def _find(home: Home, wanted: Wanted) -> SessionView | None:
    if wanted.session is not None:
        return await find_session(home, wanted.session)
    return None if wanted.new else await unfinished_here(home, wanted.folder)


def _screen() -> Screen:
    real = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    if not real:
        return PlainScreen()
    from holdfast.cli.prompt_screen import PromptScreen  # deferred: a third of a second

    return PromptScreen()
