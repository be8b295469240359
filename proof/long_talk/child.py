"""The process that is killed: a runtime on the campaign's database, and a client in it.

It takes commands on its standard input and replies on its standard output, each as a line of JSON. It ends with its
input.
"""

import asyncio
import json
import logging
import os
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.app import Runtime
from holdfast.config import load
from holdfast.events.context import SystemText, UserText
from holdfast.models.model import Chunk, ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.models.summary_request import asks_for_summary
from holdfast.models.title_request import asks_for_title
from holdfast.server.errors import OperationError
from holdfast.session.fold import FOLD_VERSION
from holdfast.store.errors import StoreError
from holdfast.tools.tool import Tool, tool
from holdfast.turns.load import fold_loaded
from proof.long_talk import defects
from proof.long_talk.script import MODE, MODE_STATED, PUBLISH, SESSION, SIMULATED, SUMMARY_MILLISECONDS, script

CALLS: Final = "calls"
"""The file with a line for each call of the model: the position that the summary in it names, and whether the mode is
stated."""
LAST_CALL: Final = "last-call"
"""The file with the texts of the last call."""
EFFECTS: Final = "effects"
"""The file in which the tool of the dry run would leave its traces."""

_COVERS: Final = re.compile(r"The conversation up to position (\d+) of this session's log is longer")


class Setup(msgspec.Struct, kw_only=True):
    """How the process is started. Its settings come from its environment."""

    folder: str
    turns: int
    defect: str = ""


class RecordedCall(msgspec.Struct, frozen=True):
    """What one call of the model had."""

    covers: int
    """The last position that its summary stands for, as the model is told it; 0 without a summary."""
    states_mode: bool


class RecordedModel(ScriptedModel):
    """A scripted model that records what it is sent, in files, and says when it is asked for a summary."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(script(setup.turns))
        self._folder = Path(setup.folder)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        if asks_for_summary(request.messages):
            say({"summary": True})
            await asyncio.sleep(SUMMARY_MILLISECONDS / 1000)
        elif not asks_for_title(request.messages):
            self._record(request)
        async for chunks in super().stream(request):
            yield chunks

    def _record(self, request: ModelRequest) -> None:
        texts = [message.text for message in request.messages if isinstance(message, UserText)]
        found = _COVERS.search(texts[0]) if texts else None
        (system,) = (message.text for message in request.messages if isinstance(message, SystemText))
        call = RecordedCall(int(found[1]) if found else 0, MODE_STATED in system)
        with (self._folder / CALLS).open("ab") as calls:
            calls.write(msgspec.json.encode(call) + b"\n")
        new = self._folder / f"{LAST_CALL}.new"
        new.write_bytes(msgspec.json.encode((call, texts)))
        new.replace(self._folder / LAST_CALL)


class Commands:
    """The commands of the campaign."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def create(self) -> None:
        """Create the session, or find it as an earlier process created it. Its mode is set before its first turn."""
        session = await self._runtime.session(SESSION, tools=(SIMULATED,), client_tools=(PUBLISH,), dry_run=True)
        await self._runtime.operations.change_mode(session.key, MODE)

    async def send(self, message_id: str, text: str) -> Any:
        return msgspec.to_builtins(await self._session.send(text, message_id=message_id))

    async def receipt(self, message_id: str) -> Any:
        return msgspec.to_builtins(await self._session.receipt(message_id))

    async def result(self, message_id: str, after: int) -> Any:
        return msgspec.to_builtins(await self._session.result_of(message_id, after=str(after)))

    async def deny(self, request_id: str) -> None:
        await self._session.deny(request_id, answer_id=f"deny-{request_id}")

    async def give_result(self, request_id: str) -> None:
        await self._session.give_result(request_id, "It is published.", answer_id=f"give-{request_id}")

    async def settings(self) -> Any:
        """What no compaction may change, as this process has it."""
        loaded = await self._runtime.store.load(self._session.key, fold_version=FOLD_VERSION)
        folded = await fold_loaded(self._runtime.store, loaded) if loaded is not None else None
        assert folded is not None
        state = folded.state
        kept = {
            "mode": state.mode,
            "dry run": state.dry_run,
            "rules": state.allow,
            "tools": state.tools,
            "client tools": state.client_tools,
        }
        return msgspec.to_builtins(kept)

    @property
    def _session(self) -> Any:
        return self._runtime.open(SESSION)


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _tools(folder: Path) -> list[Tool]:
    @tool(name=SIMULATED, permission="allow")
    async def leave_trace(line: str) -> str:
        """Leave a trace."""
        with (folder / EFFECTS).open("a") as effects:
            effects.write(f"{line}\n")
        return "It is left."

    return [leave_trace]


async def _live(setup: Setup) -> None:
    runtime = Runtime(
        config=load({}, os.environ),
        model=RecordedModel(setup),
        tools=_tools(Path(setup.folder)),
        built_in_tools=True,
    )
    async with runtime:
        say({"ready": os.getpid()})
        await _listen(Commands(runtime))


async def _listen(commands: Commands) -> None:
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        asked = json.loads(line)
        await _obey(asked["number"], getattr(commands, asked["do"]), asked["with"])


async def _obey(number: int, command: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> None:
    try:
        say({"reply": number, "value": await command(**arguments)})
    except (OperationError, StoreError) as error:
        say({"reply": number, "code": error.code, "message": error.message})


def main() -> None:
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    setup = msgspec.json.decode(sys.argv[1], type=Setup)
    defects.plant(setup.defect)
    asyncio.run(_live(setup))


if __name__ == "__main__":
    main()
