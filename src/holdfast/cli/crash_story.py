"""`holdfast story`: half a minute of crashes, told as they happen. Every process is real, and so is every kill.

Each claim of the story is checked: if one does not hold, the story says so and fails.
"""

import asyncio
import os
import re
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from holdfast.app import Runtime
from holdfast.cli.errors import WORLD, Refusal
from holdfast.cli.escapes import visible
from holdfast.cli.screen import wants_color
from holdfast.cli.transcript import INTERRUPTED, Piece, Style, styled
from holdfast.config import load
from holdfast.events.event import Event
from holdfast.events.message import AssistantMessage, TextBlock
from holdfast.events.tool import ToolAttempted
from holdfast.models.demo import DEMO_FILE

STEP_SECONDS: Final = 20.0
"""A part of the story that takes longer has failed."""

CUT_AFTER: Final = "When the process comes back"
"""The words of the demo's long answer after which the process is killed."""

QUOTED: Final = 50


async def tell() -> int:
    """Tell the story of the two crashes, and return the exit status."""
    with tempfile.TemporaryDirectory(prefix="holdfast-story-") as folder:
        teller = Teller(Path(folder))
        try:
            await teller.approval_outlives_its_process()
            await teller.answer_outlives_its_process()
        finally:
            await teller.end_all()
        teller.say("good", "✓ Two kills, nothing lost, nothing done twice. Try it: holdfast chat")
    return 0


class Teller:
    """Starts processes, kills them, checks the state they leave, and tells it."""

    def __init__(self, folder: Path) -> None:
        self._work = folder.resolve() / "work"
        self._data = folder.resolve() / "data"
        self._work.mkdir()
        self._began = time.monotonic()
        self._color = wants_color(is_terminal=sys.stdout.isatty())
        self._children: list[Process] = []

    # The two parts

    async def approval_outlives_its_process(self) -> None:
        self.say("ask", "1. An approval outlives the process that asked for it.")
        first = await self._chat("write a note")
        await self._said(first, r"wants to write")
        await self._kill(first, "It waits for an approval.")
        request_id = await self._waiting_request()
        self.say("text", f"Nothing runs now. The request is in the database: holdfast approve {request_id[:8]}")
        second = await self._start("approve", request_id[:8], "--work", "--model", "demo")
        said = await self._said(second, None)
        self._hold("Approved" in said and f"Created file {DEMO_FILE}" in said, "the approved call ran")
        self._hold((self._work / DEMO_FILE).exists(), "the file is there")
        self._hold(await self._attempts() == 1, "the tool ran exactly once")
        self.say("good", "✓ Another process took the answer, ran the tool once and finished the turn.")

    async def answer_outlives_its_process(self) -> None:
        self.say("ask", "2. An answer is cut in the middle, and what was read stays.")
        first = await self._chat("a long answer", "--new")
        seen = await self._said(first, CUT_AFTER)
        await self._kill(first, "It is in the middle of a sentence.")
        self.say("text", "The same command again, in the same folder: holdfast chat")
        second = await self._start("chat", "--dir", str(self._work), "--model", "demo")
        said = await self._said(second, None)
        cut, whole = await self._answers()
        shown = seen[seen.index("Here is a long answer") :].rstrip("\n")
        self._hold(cut.interrupted and text_of(cut).startswith(shown), "the text that was read is kept, to the letter")
        self._hold(text_of(cut) in said and INTERRUPTED in said, "the cut is shown, and marked")
        self._hold(not whole.interrupted and text_of(whole).endswith("I will wait."), "the answer came whole")
        self.say("text", f"Kept:  …{text_of(cut)[-QUOTED:]} {INTERRUPTED}")
        self.say("text", f"Then:  …{text_of(whole)[-QUOTED:]}")
        self.say("good", "✓ It continued at once. The text that was read is kept and marked; the answer came whole.")

    # Processes

    async def _chat(self, line: str, *options: str) -> Process:
        self.say("text", f"Starting: holdfast chat, and typing “{line}”")
        return await self._start("chat", *options, "--dir", str(self._work), "--model", "demo", typed=f"{line}\n")

    async def _start(self, *words: str, typed: str = "", stays: bool = False) -> Process:
        """Start a process and type a line. Its input stays open if a line was typed, or if it `stays`."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "holdfast",
            *words,
            "--data-dir",
            str(self._data),
            stdin=PIPE,
            stdout=PIPE,
            env={**environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"},
        )
        self._children.append(child)
        assert child.stdin is not None
        child.stdin.write(typed.encode())
        if not (typed or stays):
            child.stdin.close()
        return child

    async def _said(self, child: Process, until: str | None) -> str:
        """The output of a process until it matches a pattern or, without one, until it ends well."""
        said = b""
        assert child.stdout is not None
        async with within_time():
            while data := await child.stdout.read(4096):
                said += data
                if until is not None and re.search(until, said.decode(errors="ignore")):
                    return said.decode(errors="ignore")
            await child.wait()
        self._hold(until is None and child.returncode == 0, f"a process ended well (it said: {said.decode()[-300:]!r})")
        return said.decode()

    async def _kill(self, child: Process, why: str) -> None:
        child.send_signal(signal.SIGKILL)
        await child.wait()
        self._hold(child.returncode == -signal.SIGKILL, "the process was killed")
        self.say("bad", f"{why} kill -9 {child.pid}")

    async def end_all(self) -> None:
        for child in self._children:
            if child.returncode is None:
                child.kill()
                await child.wait()

    # Looking into the database

    def _runtime(self) -> Runtime:
        return Runtime(config=load({"data_dir": str(self._data), "model": "demo"}, {}), work=False)

    async def _waiting_request(self) -> str:
        async with self._runtime() as runtime:
            (found,) = [session async for session in runtime.sessions()]
            (request,) = await runtime.open(found.id).requests()
            return request.id

    async def _attempts(self) -> int:
        return sum(isinstance(event.body, ToolAttempted) for event in await self._events())

    async def _answers(self) -> tuple[AssistantMessage, AssistantMessage]:
        found = [event.body for event in await self._events() if isinstance(event.body, AssistantMessage)]
        self._hold(len(found) == 2, "there is the cut answer, and the whole one")
        return found[0], found[1]

    async def _events(self) -> list[Event]:
        """The log of the latest session."""
        async with self._runtime() as runtime:
            latest = await anext(runtime.sessions())
            readings = [reading async for reading in runtime.open(latest.id).events(follow=False)]
        return [reading for reading in readings if isinstance(reading, Event)]

    # Output

    def say(self, style: Style, text: str) -> None:
        line = Piece(style, " ".join(visible(text).split()))
        print(f"{time.monotonic() - self._began:5.1f} s  {styled(line, color=self._color)}", flush=True)

    def _hold(self, is_so: bool, claim: str) -> None:
        if not is_so:
            raise Refusal("story_failed", f"The story does not hold: {claim}.", exit_code=WORLD)


@asynccontextmanager
async def within_time() -> AsyncIterator[None]:
    """Bound the time of one part of the story."""
    try:
        async with asyncio.timeout(STEP_SECONDS):
            yield
    except TimeoutError:
        late = f"The story does not hold: what should come next did not come within {STEP_SECONDS:g} s."
        raise Refusal("story_failed", late, exit_code=WORLD) from None


def text_of(message: AssistantMessage) -> str:
    return "".join(block.text for block in message.blocks if isinstance(block, TextBlock))
