"""The environment of scenarios: a model that follows stage directions, and tools whose effects can be counted."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from hashlib import sha256

import msgspec

from holdfast.events.codec import to_bytes
from holdfast.events.quote import unmarked
from holdfast.models.info import BOUNDLESS, UNKNOWN, ModelInfo
from holdfast.models.model import (
    Chunk,
    ContextMessage,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    ToolOutcome,
    UserText,
)
from holdfast.models.scripted import Script, ScriptedAnswer, ScriptedModel
from holdfast.models.summary_request import asks_for_summary
from holdfast.models.title_request import asks_for_title
from holdfast.session.notices import HEADER, NO_TASKS
from holdfast.store import crash_points
from holdfast.tools.built_in import BUILT_IN
from holdfast.tools.tool import Tool, ToolContext, tool
from proof.crash.client import Client
from proof.crash.journal import Affected, Asked, Journal, Occupied, Sent

HOLD_FOR_THE_STOP = "hold-for-the-stop"
THE_TASK = "THE-TASK"
STOPPING_SECONDS = 0.1
"""How long an answer waits for the stop to be on its way."""


class StagedModel(ScriptedModel):
    """Plays the script; some words in it are stage directions. Before `hold…` it waits for the gate of that name; after
    `hold-for-the-stop` it announces itself and continues once a stop is on its way, with no other pending write;
    `poison` ends the process, and `die…` does so once in a trial. `THE-TASK` in a call is the last task that a tool
    result names. No two answers, in any process, begin alike, so that a swapped answer is visible. Its notices of tasks
    go into the journal."""

    def __init__(
        self,
        script: Script,
        client: Client,
        journal: Journal,
        *,
        tells_window: bool = True,
        info: ModelInfo = BOUNDLESS,
    ) -> None:
        super().__init__(script, info=info)
        self._client = client
        self._journal = journal
        self._tells_window = tells_window
        self._answers = 0

    @property
    def info(self) -> ModelInfo:
        return super().info if self._tells_window else UNKNOWN

    def answer(self, messages: Sequence[ContextMessage]) -> ScriptedAnswer:
        found = super().answer(messages)
        self._answers += 1
        first, *rest = found.pieces or (TextDelta(""),)
        if isinstance(first, TextDelta | ReasoningDelta):
            first = type(first)(f"[{self._journal.process}.{self._answers}] {first.text}")
        if not asks_for_title(messages) and not asks_for_summary(messages):
            digests = tuple(sha256(to_bytes(message)).hexdigest()[:16] for message in messages)
            self._journal.add(Sent(process=self._journal.process, messages=digests))
        asked = _asked(messages, self._journal.process)
        if asked.notices or asked.running:
            self._journal.add(asked)
        return msgspec.structs.replace(found, pieces=(first, *(_with_task(piece, messages) for piece in rest)))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        async with contextlib.aclosing(super().stream(request)) as stream:
            async for chunks in stream:
                yield [_bounded(chunk, request.max_tokens) for chunk in chunks]

    async def pace(self, answer: ScriptedAnswer, index: int) -> None:
        piece = answer.pieces[index] if index < len(answer.pieces) else None
        word = piece.text.strip() if isinstance(piece, TextDelta) else ""
        if word.startswith("hold"):
            await self._client.gate(word).wait()
            if word == HOLD_FOR_THE_STOP:
                await self._until_stopping()
        elif (word.startswith("die") and self._client.is_first(word)) or word == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        await super().pace(answer, index)

    async def _until_stopping(self) -> None:
        self._client.open("stop now")
        with contextlib.suppress(TimeoutError):  # A stop that an earlier process put is not put again.
            async with asyncio.timeout(STOPPING_SECONDS):
                await self._client.until(lambda: self._client.passed("put:stop:before"))


def _bounded(chunk: Chunk, most: int | None) -> Chunk:
    """An answer has, and costs, no more than it may."""
    if not isinstance(chunk, TokenUsage) or most is None or chunk.output_tokens is None or chunk.output_tokens <= most:
        return chunk
    cost = chunk.cost_microdollars
    left = None if cost is None else cost * most // chunk.output_tokens
    return msgspec.structs.replace(chunk, output_tokens=most, cost_microdollars=left)


def _asked(messages: Sequence[ContextMessage], process: int) -> Asked:
    """The notices and task lists in a call to the model, parsed as a model would read them."""
    notices = [
        f"{found[1]} {found[2]}"
        for message in messages
        if isinstance(message, UserText)
        for found in re.finditer(r"<task-id>(\w+)</task-id>\s*<status>(\w+)</status>", message.text)
    ]
    said = [unmarked(message.text) for message in messages if isinstance(message, UserText)]
    listed = next((text for text in reversed(said) if HEADER in text or text.startswith(NO_TASKS)), "")
    running = re.findall(r"^- \[(\w+)\]", listed.partition(HEADER)[2], re.MULTILINE)
    return Asked(process=process, notices=tuple(notices), running=tuple(running))


def _with_task(piece: Chunk, messages: Sequence[ContextMessage]) -> Chunk:
    if not isinstance(piece, ToolCallDelta) or THE_TASK not in piece.arguments:
        return piece
    results = "".join(message.text for message in messages if isinstance(message, ToolOutcome))
    named = re.findall(r'"task_id":"(\w+)"', results)
    return msgspec.structs.replace(piece, arguments=piece.arguments.replace(THE_TASK, named[-1]))


def tools_for(client: Client, journal: Journal, effects_of: Callable[[ToolContext], Journal]) -> tuple[Tool, ...]:
    """Tools whose effects can be counted afterwards, separately for each session; `journal` is that of all sessions."""

    def affect(name: str, context: ToolContext) -> str:
        effects = effects_of(context)
        crash_points.reach(f"tool:{name}:before")
        effects.add(
            Affected(process=effects.process, tool=name, tool_call_id=context.tool_call_id, attempt=context.attempt)
        )
        crash_points.reach(f"tool:{name}:after")
        return f"{name} is done"

    @tool(permission="allow")
    def append_line(text: str, context: ToolContext) -> str:
        """Append a line. Twice is not as good as once."""
        return affect("append_line", context)

    @tool(permission="allow", after_crash="repeat")
    def put_line(text: str, context: ToolContext) -> str:
        """Make sure that a line exists. Running it twice is as good as once."""
        return affect("put_line", context)

    @tool(permission="allow")
    async def note(text: str, context: ToolContext) -> str:
        """Note something, without a thread."""
        return affect("note", context)

    @tool
    def guarded_line(text: str, context: ToolContext) -> str:
        """Append a line, if one may."""
        return affect("guarded_line", context)

    @tool(permission="allow")
    async def wait_here(context: ToolContext) -> str:
        """Begin, and then wait to be ended."""
        affect("wait_here", context)
        await client.gate("never").wait()
        return "never"

    @tool(permission="allow", after_crash="repeat")
    async def occupy(text: str, context: ToolContext) -> str:
        """Run for a moment, in which others could begin to run if they may."""
        entered = Occupied(process=journal.process, owner=context.owner, session=context.session_id, enters=True)
        journal.add(entered)
        await asyncio.sleep(OCCUPIED_SECONDS)
        journal.add(msgspec.structs.replace(entered, enters=False))
        return affect("occupy", context)

    @tool(permission="allow")
    async def end_late(text: str, context: ToolContext) -> str:
        """Begin, wait until it is cancelled, and be a while about ending."""
        affect("end_late", context)
        entered = Occupied(process=journal.process, owner=context.owner, session=context.session_id, enters=True)
        journal.add(entered)
        try:
            await client.gate("never").wait()
        finally:
            await _still_running(LATE_SECONDS)
            journal.add(msgspec.structs.replace(entered, enters=False))
        return "never"

    return (append_line, put_line, note, guarded_line, wait_here, occupy, end_late, *BUILT_IN)


OCCUPIED_SECONDS = 0.02
LATE_SECONDS = 0.25
"""Longer than it takes to begin the next turn, if that does not wait."""


async def _still_running(seconds: float) -> None:
    """Go on for so long, however often this task is cancelled."""
    pause = asyncio.ensure_future(asyncio.sleep(seconds))
    while not pause.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(pause)


REPEATABLE = frozenset({"put_line", "occupy"})
"""Tools that declared that they may run again for the same call."""

OWN_TOOLS = ("append_line", "put_line", "note", "guarded_line", "wait_here", "occupy", "end_late")
TOOL_NAMES = (*OWN_TOOLS, *(tool.name for tool in BUILT_IN))
