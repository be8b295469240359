"""A model and tools that follow the seed: answers stream over virtual time, differ from one call to the next, and
sometimes fail; the effects of the tools can be counted."""

import json
from collections.abc import AsyncGenerator
from typing import Any

from holdfast.events.ids import Key, Owner
from holdfast.events.session import ClientTool
from holdfast.models.info import UNKNOWN, ModelInfo
from holdfast.models.model import (
    AssistantTurn,
    Chunk,
    Finished,
    ModelError,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    UserText,
)
from holdfast.models.scripted import estimated_tokens
from holdfast.models.summary_request import asks_for_summary
from holdfast.tools.built_in import ask_user
from holdfast.tools.errors import ToolFailure
from holdfast.tools.tool import Tool, ToolContext, tool
from proof.crash.journal import Affected
from proof.simulation.world import World, here

LOOK_UP = ClientTool(
    name="look_up",
    description="The client looks something up.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}},
)

MOST_STEPS = 3
"""After so many steps with tools the model comes to an end."""

TOLERANCE = 1.1
"""A call that is so much longer than the window is refused: providers count differently than the runtime."""

_WORDS = ("well ", "so ", "it is done ", "é ", "🙂 ", "\n", "and then ", "perhaps ")


class SimulatedModel:
    """Answers one session. It never gives the same answer twice, so that a swapped answer is visible."""

    def __init__(self, world: World, key: Key) -> None:
        self._world = world
        self._key = key

    @property
    def name(self) -> str:
        return "simulated"

    @property
    def reasoning_source(self) -> str:
        return "simulated"

    @property
    def info(self) -> ModelInfo:
        window = self._world.window
        return UNKNOWN if window is None else ModelInfo(window=window)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        world, number = self._world, self._world.next_number()
        answer, error = self._answer(request, number)
        deaf_seconds = _deafness(world)
        world.trace.add(here().name, f"calls the model for {self._key.session}: answer {number}, {len(answer)} pieces")
        await self._think(deaf_seconds)
        for chunks in answer:
            yield chunks
            await self._think(deaf_seconds)
        if error is not None:
            raise error

    async def _think(self, deaf_seconds: float) -> None:
        """It is at work only from here on: an answer that is not read any further costs nothing."""
        chance = self._world.chance
        longest = self._world.weather.thinking
        seconds = chance.random() * (longest * 4 if chance.random() < 0.1 else longest)
        with self._world.working(self._key) as work:
            await self._world.take_time(work, seconds, deaf_seconds=deaf_seconds)

    def _answer(self, request: ModelRequest, number: int) -> tuple[list[list[Chunk]], ModelError | None]:
        chance = self._world.chance
        if asks_for_summary(request.messages):
            return self._summary(number)
        if (refusal := self._refusal(request)) is not None:
            return [], refusal
        kind = chance.random()
        if kind < 0.04:
            retryable = chance.random() < 0.8
            code: Any = "model_unavailable" if retryable else "model_refused"
            return [], ModelError(code, f"no answer {number}", retryable=retryable)
        pieces = self._pieces(request, number, calls=kind > 0.45)
        if kind < 0.10:
            return pieces[: chance.randrange(len(pieces))], ModelError("model_cut", f"cut {number}", retryable=True)
        return pieces, None

    def _summary(self, number: int) -> tuple[list[list[Chunk]], ModelError | None]:
        """Most summaries are good; others are empty, far too long, or do not come."""
        kind = self._world.chance.random()
        if kind < 0.1:
            return [], ModelError("model_unavailable", f"no summary {number}", retryable=kind < 0.05)
        text = "" if kind < 0.15 else f"summary {number} " * (1_000 if kind < 0.2 else 3)
        return [[TextDelta(text)], [TokenUsage(input_tokens=number, output_tokens=1), Finished("stop")]], None

    def _refusal(self, request: ModelRequest) -> ModelError | None:
        """A call that does not fit into the window is refused; not every provider names its window."""
        window = self._world.window
        if window is None or (sent := estimated_tokens(request)) <= window * TOLERANCE:
            return None
        named = window if self._world.chance.random() < 0.7 else None
        text = f"{sent} tokens are too many"
        return ModelError("model_context_exceeded", text, retryable=False, status=400, window=named)

    def _pieces(self, request: ModelRequest, number: int, *, calls: bool) -> list[list[Chunk]]:
        chance = self._world.chance
        pieces: list[list[Chunk]] = []
        if chance.random() < 0.2:
            pieces.append([ReasoningDelta(f"<{number}> thinking ")])
        if chance.random() > 0.05:
            pieces.append([TextDelta(f"[{number}] ")])
            pieces += [[TextDelta(chance.choice(_WORDS))] for _ in range(chance.randrange(6))]
        has_calls = calls and bool(request.tools) and _steps(request) < MOST_STEPS
        brought = [found.name for found in request.tools if found.name.startswith("fetch_")]
        brought += ["exec"] * 6 if any(found.name == "exec" for found in request.tools) else []
        if has_calls:
            for index in range(chance.choice((1, 1, 2, 3))):
                pieces += self._call(number, index, brought)
        finished = Finished("tool_calls" if has_calls else "stop")
        sent = number if self._world.window is None else estimated_tokens(request)
        pieces.append([TokenUsage(input_tokens=sent, output_tokens=len(pieces)), finished])
        return pieces

    def _call(self, number: int, index: int, brought: list[str]) -> list[list[Chunk]]:
        """`brought`: tools that not every world has."""
        chance = self._world.chance
        name = chance.choice(
            ("note", "append_line", "append_line", "put_line", "guarded_line", "look_up", "ask_user", *brought)
        )
        said: dict[str, Any] = {"text": f"{number}.{index}"}
        if name == "ask_user":
            said = {"question": f"what of {number}?"}
        elif name == "exec":
            command = f"run {chance.choice((0.2, 1.0, 4.0)) * chance.random():.3f} {chance.choice((0, 0, 3))}"
            said = {"command": command, "timeout": 1, "run_in_background": chance.random() < 0.5}
        arguments = json.dumps(said)
        cut = chance.randrange(len(arguments))
        first = ToolCallDelta(index, arguments[:cut], f"call-{number}.{index}", name)
        return [[first], [ToolCallDelta(index, arguments[cut:])]]


def _steps(request: ModelRequest) -> int:
    """The number of steps with tools since the last message."""
    steps = 0
    for message in reversed(request.messages):
        if isinstance(message, UserText):
            break
        steps += isinstance(message, AssistantTurn) and bool(message.tool_calls)
    return steps


def _deafness(world: World) -> float:
    """For how long the next call runs on after a cancellation; 0: it ends at once."""
    chance, share = world.chance, world.weather.deafness
    return chance.choice(_DEAF_SECONDS) * chance.uniform(0.5, 1.0) if share and chance.random() < share else 0.0


async def _affect(name: str, context: ToolContext) -> str:
    """The effect of a tool. It takes time, before its effect and after it."""
    machine = here()
    world = machine.world
    key, chance, deaf_seconds = Key(Owner(context.owner), context.session_id), world.chance, _deafness(world)
    with world.working(key, world.weather.cancelled_tool_seconds) as work:
        await world.take_time(work, chance.choice(_TAKES_SECONDS) * chance.random(), deaf_seconds=deaf_seconds)
        if chance.random() < 0.05:
            raise ToolFailure(f"{name} did not work")
        world.trace.add(machine.name, f"{name} takes effect", f"{context.tool_call_id}, attempt {context.attempt}")
        affected = Affected(
            process=machine.number, tool=name, tool_call_id=context.tool_call_id, attempt=context.attempt
        )
        world.effects.setdefault(key, []).append(affected)
        await world.take_time(work, chance.choice(_TAKES_SECONDS) * chance.random(), deaf_seconds=deaf_seconds)
    return f"{name} is done"


_TAKES_SECONDS = (0.0, 0.01, 0.3, 2.5)
_DEAF_SECONDS = (0.3, 0.8, 3.0, 20.0, 1e6)
"""Less than a stop waits, more than that, longer than a lease lasts, and for ever."""


@tool(permission="allow")
async def append_line(text: str, context: ToolContext) -> str:
    """Append a line. Twice is not as good as once."""
    return await _affect("append_line", context)


@tool(permission="allow", after_crash="repeat")
async def put_line(text: str, context: ToolContext) -> str:
    """Make sure that a line exists. Running it twice is as good as once."""
    return await _affect("put_line", context)


@tool(permission="allow")
async def note(text: str, context: ToolContext) -> str:
    """Note something."""
    return await _affect("note", context)


@tool
async def guarded_line(text: str, context: ToolContext) -> str:
    """Append a line, if one may."""
    return await _affect("guarded_line", context)


TOOLS: tuple[Tool, ...] = (append_line, put_line, note, guarded_line, ask_user)
"""Their effects can be counted: the invariants of the crash campaign know them by these names."""
