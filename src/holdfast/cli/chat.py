"""`holdfast chat`: finds the session to continue, or makes one, and opens the conversation on the terminal."""

import os
import sys
from typing import Final

from holdfast.cli.chat_commands import COMMANDS
from holdfast.cli.conversation import ChatOptions, Conversation
from holdfast.cli.lookup import find_session, unfinished_session
from holdfast.cli.screen import PlainScreen, Screen
from holdfast.cli.settings import announce_keyed_model
from holdfast.cli.target import Target, open_home
from holdfast.protocol.home import Home
from holdfast.protocol.session import SessionView

GRACE_SECONDS: Final = 0.5
"""How long leaving waits for a step that is about to end."""


async def chat(target: Target, options: ChatOptions) -> int:
    if target.server is None and options.session is None:
        announce_keyed_model(target.config)
    # Looked up before this process runs anything: a session whose turn ends right away is still found.
    async with open_home(target) as reading:
        found = await _find(reading, options)
    screen = _screen()
    async with open_home(target, work=True, grace_seconds=GRACE_SECONDS, is_watched=screen.interactive) as home:
        conversation = Conversation(home, screen, options=options, hints=target.hints, commands=COMMANDS)
        return await conversation.run(found)


async def _find(home: Home, options: ChatOptions) -> SessionView | None:
    if options.session is not None:
        return await find_session(home, options.session)
    return None if options.new else await unfinished_session(home, options.setup.folder)


def _screen() -> Screen:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not is_terminal or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return PlainScreen()
    from holdfast.cli.prompt_screen import PromptScreen  # deferred: a third of a second

    return PromptScreen()
