"""The share of a session's input tokens that its provider's prefix cache reads, on each of the three wires.

The session works with `holdfast serve` and its built-in tools, thinking on: a turn of 30 steps in which a command goes
to the background, the process is killed with SIGKILL in the middle of an answer and another one takes over the same
database; then the turn that the end of the command starts; then two follow-ups of five steps. The scripted server,
which is in this process, counts what its cache reads. Every call of the conversation counts.

The first call of a session finds nothing in any cache, and no call finds what it adds itself. With N calls, of which
the first has P tokens and the last F, growing evenly, no provider can read more than 1 - 2F / (N (P + F)): 1 - 1/N if
the conversation did not grow at all, which is 0.978 for the 45 calls here (0.971 for 35 calls, if the follow-ups used
no tool). The prompt of the built-in tools alone is short, some 2,000 tokens: the conversation grows to several times
that, and the share of the whole session stays below 0.97 even if everything that was sent before is read.
`cache_share_sent_*` leaves out what nobody can read from a cache: of the tokens that an earlier call had sent, it is
the part that was read. `cache_share_long_prompt_*` are the whole sessions once more, with instructions of the length
that a coding agent's have.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench import holdfast_server
from bench.place import Place
from holdfast.client import connect
from holdfast.client.session import Session
from holdfast.models.prefix_cache import PrefixCache, PrefixCount, RequestPart, measured
from holdfast.models.scripted import TASK_NEWS, Reply, Rule, Script, ScriptedCall
from holdfast.models.served_chat import ServedChat
from holdfast.models.served_messages import ServedMessages
from holdfast.models.served_protocol import ServedProtocol
from holdfast.models.served_responses import ServedResponses
from holdfast.models.server import ModelServer

WAIT_SECONDS: Final = 120.0
FILES: Final = 10
LINES: Final = 3
"""In each file."""

INSTRUCTIONS: Final = "Keep the stairs lit, and note in the book of lamps which of them you filled, and when. " * 400
"""Some 8,700 tokens."""

WORK: Final = "Please go through the files and say which lamps need oil."
FOLLOW_UPS: Final = ("Check that again, with the newest lists.", "Check it once more, please.")
ENDS: Final = "oil-came"
"""The file that the command in the background waits for."""


class Wire(msgspec.Struct, frozen=True):
    """A protocol, and the settings with which `holdfast serve` speaks it."""

    name: str
    protocol: ServedProtocol
    model: str
    settings: dict[str, str]


FACTS: Final = '["openrouter/anthropic/claude-sonnet-4.5"]\ncache_marks = true\n'

WIRES: Final = (
    Wire("messages", ServedMessages(), "anthropic/claude-opus-4-5", {}),
    Wire("responses", ServedResponses(), "openai/gpt-6", {"HOLDFAST_MODEL_WIRE": "responses"}),
    Wire(
        "chat",
        ServedChat(),
        "openrouter/anthropic/claude-sonnet-4.5",
        {"HOLDFAST_MODELS": "models.toml", "OPENROUTER_API_KEY": "k"},
    ),
)


class Length(NamedTuple):
    """How many steps with a tool the turns have."""

    steps: int
    follow_up_steps: int

    @property
    def starts_command_at(self) -> int:
        return self.steps // 8

    @property
    def killed_at(self) -> int:
        """The call, from 1, in whose answer the process is killed."""
        return self.steps * 4 // 7


class Hold:
    """Holds the answer of one call of the model after its first pieces."""

    def __init__(self, call: int) -> None:
        self._call = call
        self.reached = asyncio.Event()
        self.server: ModelServer | None = None

    async def __call__(self, index: int) -> None:
        if self.server is not None and len(self.server.counts) == self._call and index == 2:
            self.reached.set()
            await asyncio.Event().wait()


async def measure(place: Place) -> dict[str, float]:
    length = Length(*place.size.cache_steps)
    figures: dict[str, float] = {}
    for wire in WIRES:
        async with asyncio.timeout(WAIT_SECONDS):
            server = await _session(place.folder / wire.name, wire, length)
        figures |= _figures(wire, server)
        async with asyncio.timeout(WAIT_SECONDS):
            server = await _session(place.folder / f"long-prompt-{wire.name}", wire, length, instructions=INSTRUCTIONS)
        figures[f"cache_share_long_prompt_{wire.name}"] = _share(server)
    return figures


async def _session(folder: Path, wire: Wire, length: Length, *, instructions: str | None = None) -> ModelServer:
    """Run the whole session; the server that answered it, closed."""
    files = folder / "files"
    files.mkdir(parents=True)
    (folder / "models.toml").write_text(FACTS, encoding="utf-8")
    for number in range(FILES):
        lines = (f"lamp {line} of stair {number}: filled, lit, {line * number} years old\n" for line in range(LINES))
        (files / f"stair-{number}.txt").write_text("".join(lines), encoding="utf-8")
    hold = Hold(length.killed_at)
    async with ModelServer(_script(files, length), gate=hold) as server:
        hold.server = server
        async with _opened(folder, server, wire, instructions) as (pid, session):
            sent = await session.send(WORK)
            await hold.reached.wait()
            os.kill(pid, signal.SIGKILL)
        async with _opened(folder, server, wire, instructions) as (_, session):
            _check((await session.result_of(sent.message_id)).reason)
            (files / ENDS).touch()
            await _woken(session, server)
            for text in FOLLOW_UPS:
                _check((await session.run(text)).reason)
    return server


@asynccontextmanager
async def _opened(
    folder: Path, server: ModelServer, wire: Wire, instructions: str | None
) -> AsyncIterator[tuple[int, Session]]:
    """The session in a new process of `holdfast serve`, with that process's id."""
    settings = {"HOLDFAST_THINKING": "2000", "HOLDFAST_TITLES": "words", **wire.settings}
    async with (
        holdfast_server.holdfast(folder, server.url, "--model", wire.model, **settings) as ours,
        connect(ours.url, ours.token) as remote,
    ):
        yield (
            ours.pid,
            await remote.session(
                "lamps", working_directory=str(folder / "files"), system_message=instructions, allow=["shell"]
            ),
        )


def _script(files: Path, length: Length) -> Script:
    """The model reads a file in each step; in one it starts a command that waits in the background."""
    waiting = ScriptedCall("exec", {"command": f"until test -e {ENDS}; do sleep 0.1; done", "run_in_background": True})
    steps = [
        _step(number, ScriptedCall("view", {"path": str(files / f"stair-{number % FILES}.txt")}))
        for number in range(length.steps)
    ]
    steps[length.starts_command_at] = _step(length.starts_command_at, waiting)
    end = Reply(reasoning="All of them are read. ", text="The lamps of stair three need oil.")
    return Script(
        (
            Rule((Reply(reasoning="It came. ", text="The oil has come."),), when=TASK_NEWS),
            Rule((*steps, end), when=WORK),
            Rule((*steps[-length.follow_up_steps :], end)),
        )
    )


def _step(number: int, call: ScriptedCall) -> Reply:
    return Reply(reasoning=f"Stair {number} is next, and its list may be old. ", text="I look.", tool_calls=(call,))


async def _woken(session: Session, server: ModelServer) -> None:
    """Wait until the turn that the end of the command started is over."""
    known = len(server.counts)
    while len(server.counts) == known or (await session.look()).status != "idle":  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def _check(reason: str) -> None:
    if reason != "completed":
        raise RuntimeError(f"a measured turn ended as {reason}")


def _figures(wire: Wire, server: ModelServer) -> dict[str, float]:
    read = sum(count.read for count in server.counts)
    sent_before = sum(count.read for count in _counted_again(wire, server, needs_marks=False))
    figures = {f"cache_share_{wire.name}": _share(server), f"cache_share_sent_{wire.name}": read / sent_before}
    if wire.name == "messages":
        control = sum(count.read for count in _counted_again(wire, server, needs_marks=True))
        figures["cache_share_unmarked"] = control / sum(count.total for count in server.counts)
    return figures


def _share(server: ModelServer) -> float:
    if len(server.requests) != len(server.counts):
        raise RuntimeError("the model refused a call of the measured session")
    return sum(count.read for count in server.counts) / sum(count.total for count in server.counts)


def _counted_again(wire: Wire, server: ModelServer, *, needs_marks: bool) -> Iterator[PrefixCount]:
    """The same calls, without their marks, at a cache that knows none of them."""
    cache = PrefixCache()
    for body, headers in zip(server.requests, server.headers, strict=True):
        call = wire.protocol.read(body, headers)
        parts = [RequestPart(part.encoded, is_setting=part.is_setting) for part in call.parts]
        yield cache.count(measured(parts, key=f"{call.model}\0{call.cache_key}"), needs_marks=needs_marks)
