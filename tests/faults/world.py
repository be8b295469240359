"""The world of the fault tests: runtimes on a file, a scripted model, gates that pause it, and a log that is checked
whenever it is read."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from holdfast.app import Runtime
from holdfast.config import Config, load
from holdfast.events import codec
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import RequestId, ToolCallId
from holdfast.events.message import AssistantMessage, TextBlock, UserMessage
from holdfast.events.request import (
    ExternalToolCompleted,
    ExternalToolRequested,
    PermissionCompleted,
    PermissionRequested,
    UserInputCompleted,
    UserInputRequested,
)
from holdfast.events.tool import ToolCompleted, ToolStarted
from holdfast.events.turn import TurnEnded, TurnStarted
from holdfast.live.live import Delta
from holdfast.models.call_wait import ModelPatience
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel
from holdfast.models.model import Model
from holdfast.models.scripted import Gate as ModelGate
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.server.embedded.session import Session
from holdfast.session.state import Phase, next_phase
from holdfast.store.clock import Clock
from holdfast.tools.tool import Tool

PATIENCE_SECONDS = 30
"""How long a test waits for something that must come. No test that passes waits so long."""

QUICK: dict[str, Any] = {
    "claim_every_seconds": 0.1,
    "tails_every_seconds": 0.05,
    "linger_seconds": 0,
    "backoff_seconds": 0,
    "max_backoff_seconds": 0,
}
"""A runtime that looks often and never pauses; what it promises is the same."""

SHORT_LEASE: dict[str, Any] = {
    "lease_ttl_seconds": 1.2,
    "renew_every_seconds": 0.2,
    "lease_margin_seconds": 0.3,
}
"""For faults that need a lease to run out."""

LONG_LEASE: dict[str, Any] = {"lease_ttl_seconds": 600, "renew_every_seconds": 0.2}
"""A lease that only the test ends, however slow the machine is."""

LEASE_OF_A_CLUSTER: dict[str, Any] = {
    "lease_ttl_seconds": 3,
    "renew_every_seconds": 0.5,
    "lease_margin_seconds": 0.5,
}
"""For databases where nobody is told of a death: what the dead held is free only when its time is over."""

B = TypeVar("B", bound=Body)


def patience() -> asyncio.Timeout:
    return asyncio.timeout(PATIENCE_SECONDS)


def place_of(database: Path) -> dict[str, Any]:
    """The settings that say where the database is: in this file or, with a note beside it, in a PostgreSQL."""
    note = note_beside(database)
    if not note.exists():
        return {"database": f"sqlite:///{database}", "data_dir": database.parent}
    return {"database": note.read_text(), "data_dir": database.parent, **LEASE_OF_A_CLUSTER}


def note_beside(database: Path) -> Path:
    return database.with_name("postgresql-url")


def settings(database: Path, **more: Any) -> Config:
    return load({**QUICK, **place_of(database), **more}, {})


def runtime_on(
    database: Path,
    model: Model | None = None,
    *,
    tools: Iterable[Tool] = (),
    clock: Clock | None = None,
    work: bool = True,
    **more: Any,
) -> Runtime:
    """A runtime on this file; several may be open at once, each of them like a process of its own."""
    given = model or ScriptedModel(says(Reply(text="Done.")))
    return Runtime(config=settings(database, **more), model=given, tools=tools, clock=clock, work=work)


@asynccontextmanager
async def runtime_over_http(
    database: Path, url: str, *, read_timeout_seconds: float = 20.0, **more: Any
) -> AsyncIterator[Runtime]:
    """A runtime whose model is a real provider, at this URL."""
    patience = ModelPatience(first_byte_seconds=read_timeout_seconds, silence_seconds=read_timeout_seconds)
    model = HttpModel(ChatCompletions("m"), base_url=url, name="openai/m", patience=patience)
    async with model, runtime_on(database, model, **more) as runtime:
        yield runtime


def says(*replies: Reply) -> Script:
    """The same replies to everything, one for each round of tools."""
    return Script((Rule(replies),))


def told(**rules: tuple[Reply, ...]) -> Script:
    """Replies for messages that contain a word; `otherwise` for all the others."""
    otherwise = rules.pop("otherwise", (Reply(text="Done."),))
    return Script((*(Rule(replies, when) for when, replies in rules.items()), Rule(otherwise)))


def scripted(*replies: Reply, gate: ModelGate | None = None) -> ScriptedModel:
    return ScriptedModel(says(*replies), gate=gate)


def call(tool_name: str, /, **arguments: Any) -> Reply:
    """A reply that calls one tool."""
    return Reply(tool_calls=(ScriptedCall(tool_name, arguments),))


class Gate:
    """Holds whoever comes to it until it is opened, and notices who had to leave."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.reached = asyncio.Event()
        self.left = asyncio.Event()
        self.visits = 0
        self._opened = asyncio.Event()

    def open(self) -> None:
        self._opened.set()

    async def __call__(self, index: int = 0) -> None:
        if index != self.at:
            return
        self.visits += 1
        self.reached.set()
        try:
            await self._opened.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise


# Reading


async def log_of(session: Session) -> list[Event]:
    """The whole log, which is checked on the way."""
    events = [reading async for reading in session.events(follow=False) if isinstance(reading, Event)]
    check(events)
    return events


async def bodies_of(session: Session, kind: type[B]) -> list[B]:
    return [event.body for event in await log_of(session) if isinstance(event.body, kind)]


async def until(session: Session, fits: Callable[[Body], bool], *, after: int = 0) -> Event:
    """Wait for the first event like this behind a position."""
    async with patience():
        async for reading in session.events(str(after)):
            if isinstance(reading, Event) and fits(reading.body):
                return reading
    raise AssertionError("a session is followed without end")


async def until_idle(session: Session) -> None:
    """Wait until every message that was sent has had its turn."""
    async with patience():
        async for _ in session.events():
            row = await session.look()
            if row.status == "idle" and row.waiting_messages == 0:
                return


async def comes_true(condition: Callable[[], bool]) -> None:
    """Wait for what nothing announces. Where there is an event, wait for that."""
    async with patience():
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def people_said(session: Session) -> list[str]:
    return [body.content for body in await bodies_of(session, UserMessage)]


async def model_said(session: Session) -> list[str]:
    return [text_of(body) for body in await bodies_of(session, AssistantMessage)]


def text_of(body: AssistantMessage) -> str:
    return "".join(block.text for block in body.blocks if isinstance(block, TextBlock))


async def endings_of(session: Session) -> list[str]:
    return [body.reason for body in await bodies_of(session, TurnEnded)]


Whole = tuple[list[tuple[int, str, bytes]], dict[tuple[str, int], str]]


def whole(readings: Iterable[object]) -> Whole:
    """A reading in comparable form: the events in order, and each block of each message, byte for byte."""
    events: list[tuple[int, str, bytes]] = []
    blocks: dict[tuple[str, int], str] = {}
    for reading in readings:
        match reading:
            case Event():
                name, _, data = codec.encode(reading.body)
                events.append((reading.position, name, data))
            case Delta():
                key = (reading.message_id, reading.block)
                assert len(blocks.get(key, "").encode()) == reading.offset, "a gap, or the same text twice"
                blocks[key] = blocks.get(key, "") + reading.text
            case _:
                pass
    return events, blocks


# What holds for every log

_OPENING = (PermissionRequested, ExternalToolRequested, UserInputRequested)
_CLOSING = (PermissionCompleted, ExternalToolCompleted, UserInputCompleted)


def check(events: list[Event]) -> None:
    """Positions are dense, every event may follow the one before, and everything is opened and closed once."""
    assert [event.position for event in events] == list(range(1, len(events) + 1))
    phase = Phase.IDLE
    started: Counter[ToolCallId] = Counter()
    completed: Counter[ToolCallId] = Counter()
    opened: Counter[RequestId] = Counter()
    closed: Counter[RequestId] = Counter()
    for event in events:
        phase = next_phase(phase, event.body)
        match event.body:
            case ToolStarted(tool_call_id=call_id):
                started[call_id] += 1
            case ToolCompleted(tool_call_id=call_id):
                completed[call_id] += 1
            case PermissionRequested() | ExternalToolRequested() | UserInputRequested() as body:
                opened[body.request_id] += 1
            case PermissionCompleted() | ExternalToolCompleted() | UserInputCompleted() as body:
                closed[body.request_id] += 1
            case _:
                pass
    assert all(count == 1 for counter in (started, completed, opened, closed) for count in counter.values())
    assert closed.keys() <= opened.keys()
    if phase is Phase.IDLE:
        assert started.keys() <= completed.keys()
        assert closed.keys() == opened.keys(), "a request outlived its turn"
    turns = [event.body.turn_id for event in events if isinstance(event.body, TurnStarted)]
    ended = [event.body.turn_id for event in events if isinstance(event.body, TurnEnded)]
    assert turns[: len(ended)] == ended
    assert len(turns) - len(ended) == (0 if phase is Phase.IDLE else 1)
