"""`holdfast chat`: finds the session to go on with, or makes one, and talks on whatever terminal there is."""

import os
import sys
from typing import Final

from holdfast.app import Runtime
from holdfast.cli.chat_commands import COMMANDS
from holdfast.cli.conversation import Conversation, Wanted
from holdfast.cli.finding import find_session, unfinished_here
from holdfast.cli.hints import Hints
from holdfast.cli.opening import opened
from holdfast.cli.screen import PlainScreen, Screen
from holdfast.config import Config
from holdfast.store.store import Row

GRACE_SECONDS: Final = 0.5
"""Leaving lets a step that is about to end do so."""


async def chat(config: Config, wanted: Wanted, hints: Hints) -> int:
    # Looked up before anything is run here: a turn that would end right away is still shown.
    async with opened(config, work=False) as reading:
        found = await _find(reading, wanted)
    async with opened(config, work=True, grace_seconds=GRACE_SECONDS) as runtime:
        conversation = Conversation(runtime, _screen(), wanted=wanted, hints=hints, commands=COMMANDS)
        return await conversation.run(found)


async def _find(runtime: Runtime, wanted: Wanted) -> Row | None:
    if wanted.session is not None:
        return await find_session(runtime, wanted.session)
    return None if wanted.new else await unfinished_here(runtime, wanted.folder)


def _screen() -> Screen:
    real = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    if not real:
        return PlainScreen()
    from holdfast.cli.prompt_screen import PromptScreen  # deferred: a third of a second

    return PromptScreen()
