"""Commands of people who have no database, only a server: each in a place of their own."""

import sys
from pathlib import Path

from holdfast.models.scripted import Failure, Reply, Rule, Script, ScriptedCall
from tests.cli.processes import Place
from tests.http.world import LONG, SCRIPT
from tests.http.world import Place as ServerPlace

WORDS = Script(
    rules=(
        Rule(when="refuse", replies=(Reply(fail=Failure(kind="refused")),)),
        Rule(
            when="wait for it",
            replies=(
                Reply(tool_calls=(ScriptedCall("exec", {"command": "echo one; cat pipe", "timeout": 300}),)),
                Reply(text="It goes on."),
            ),
        ),
        *SCRIPT.rules,
    )
)

__all__ = ["LONG", "WORDS", "Desk", "key_of"]


class Desk(Place):
    """Where somebody sits: commands that name the server, with its key in the environment."""

    def __init__(self, folder: Path, url: str, key: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder)
        self._url = url
        self.environ |= {"HOLDFAST_DATA_DIR": str(self.data), "HOLDFAST_KEY": key}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "holdfast", *words, "--url", self._url]


async def key_of(place: ServerPlace, owner: str, role: str = "user") -> str:
    made = await place.run("keys", "create", "--name", f"the key of {owner}", "--owner", owner, "--role", role)
    assert made.code == 0, made.err
    return made.out.strip()
