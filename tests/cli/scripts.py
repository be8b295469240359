"""A scripted model over HTTP for the commands of a test, and a way to hold it in mid-sentence."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.models.scripted import Failure, Reply, Rule, Script, ScriptedCall
from holdfast.models.server import ModelServer
from tests.cli.processes import Place

WRITES = (
    Reply(text="I will write it.", tool_calls=(ScriptedCall("create", {"path": "a.txt", "file_text": "written"}),)),
    Reply(text="It says: {last_tool_result}"),
)
ASKS = (
    Reply(tool_calls=(ScriptedCall("ask_user", {"question": "Which one?", "choices": ["Red", "Blue"]}),)),
    Reply(text="So: {last_tool_result}"),
)
SCRIPT = Script(
    rules=(
        Rule(when="write", replies=WRITES),
        Rule(when="ask", replies=ASKS),
        Rule(when="hostile", replies=(Reply(text="\x1b]0;owned\x07\x1b[2Jdone"),)),
        Rule(when="refuse", replies=(Reply(fail=Failure(kind="refused")),)),
        Rule(replies=(Reply(text="You said {user}."),)),
    )
)
LONG = Script(
    rules=(
        Rule(when="long", replies=(Reply(text=" ".join(f"word{number}" for number in range(40))),)),
        Rule(replies=(Reply(text="You said {user}."),)),
    ),
    varied=True,
)


class Valve:
    """Lets a model say so many words, and then no more until it is opened."""

    def __init__(self, words: int) -> None:
        self._words = words
        self.opened = asyncio.Event()

    async def __call__(self, index: int) -> None:
        if index >= self._words:
            await self.opened.wait()


@asynccontextmanager
async def model(place: Place, script: Script = SCRIPT, valve: Valve | None = None) -> AsyncIterator[ModelServer]:
    """While it is open, every command of the place talks to it."""
    async with ModelServer(script, gate=valve) as server:
        place.options = ("--model", "openai/x", "--model-base-url", server.url)
        yield server
