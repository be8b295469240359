"""Clients that talk to a cluster while it is being broken: each has its own session, sends everything twice, to two
nodes at once, under the same id, follows the session at either of them, and records all responses and all shown text.

When the database has lost transactions, a client discards its records since then, and begins again from before the
loss.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec

from holdfast.client import Refused
from holdfast.client.server import Server
from holdfast.client.session import Session
from holdfast.events.event import Event
from holdfast.events.ids import Key, RequestId, TurnId
from holdfast.events.message import AssistantMessage, UserMessage
from holdfast.events.request import PermissionRequested
from holdfast.events.turn import TurnEnded
from holdfast.live.live import Delta
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall
from proof.crash.journal import Acknowledged, AnyEntry, Read, Shown

LONG: Final = " ".join(f"word{number}" for number in range(40))

PATIENCE_SECONDS: Final = 120.0
"""For how long nodes and the database may be away. They are away for some seconds at a time."""


def _rule(when: str, *calls: ScriptedCall, text: str = "I will.") -> Rule:
    return Rule((Reply(text=text, tool_calls=calls, chunk_delay_ms=5), Reply(text="All of it is done.")), when)


SCRIPT: Final = Script(
    (
        _rule("append", ScriptedCall("append_line", {"seconds": 0.3})),
        _rule("put", ScriptedCall("put_line", {"seconds": 0.3})),
        _rule("both", ScriptedCall("append_line", {"seconds": 0.1}), ScriptedCall("put_line", {"seconds": 0.5})),
        _rule("guarded", ScriptedCall("guarded_line", {})),
        Rule((Reply(text=LONG, chunk_delay_ms=30),), "long"),
        Rule((Reply(text="Hello, world."),)),
    )
)

TEXTS: Final = ("long", "long", "append", "append", "put", "both", "guarded", "hello", "long, and stop")


class Sent(msgspec.Struct, frozen=True):
    """A message that was acknowledged."""

    message_id: str
    text: str
    at: float


class Decided(msgspec.Struct, frozen=True):
    """An answer to a request, and whether it was accepted."""

    request_id: str
    approves: bool
    is_accepted: bool
    at: float


class Noted(msgspec.Struct, frozen=True):
    """A line of a client's journal, and the cursor after it."""

    at: float
    entry: AnyEntry
    cursor: str


class Talker:
    """One client. `doors` are the nodes as its owner enters them, and `tally` counts the client's operations."""

    def __init__(
        self,
        key: Key,
        doors: Sequence[Server],
        chance: random.Random,
        tally: Counter[str],
        *,
        directory: str | None = None,
    ) -> None:
        self.key = key
        self.name = key.session
        self.turns = 0
        """How many of its turns have ended."""
        self._sent: dict[str, Sent] = {}
        self._decided: dict[tuple[str, bool], Decided] = {}
        self._noted: list[Noted] = []
        self._turn_ids: dict[str, tuple[float, TurnId]] = {}
        self._doors = doors
        self._chance = chance
        self._tally = tally
        self._directory = directory
        self._numbers = 0
        self._saying: asyncio.Task[None] | None = None
        self._begins_again = False

    @property
    def sent(self) -> tuple[Sent, ...]:
        return tuple(self._sent.values())

    @property
    def decided(self) -> tuple[Decided, ...]:
        return tuple(self._decided.values())

    @property
    def journal(self) -> tuple[AnyEntry, ...]:
        return tuple(noted.entry for noted in self._noted)

    async def begin(self) -> None:
        await self._twice(lambda door: door.session(self.name, working_directory=self._directory))

    async def say_something(self) -> None:
        """One message, and its turn to the end."""
        self._numbers += 1
        await self._until_said(f"{self.name}-{self._numbers}", self._chance.choice(TEXTS))

    async def finish(self) -> None:
        """Answer what is asked until nothing is left to do, if the database lost writes since the last message was
        said: it may have lost an answer, and its turn waits for that now."""
        if not self._begins_again:
            return
        self._begins_again = False
        await self.begin()
        session = self._at(self._doors[0])
        while (await session.look()).status != "idle":
            for request in await session.requests():
                await self._decide(RequestId(request.id))
            await asyncio.sleep(0.2)

    async def _until_said(self, message_id: str, text: str) -> None:
        while True:
            self._saying = asyncio.create_task(self._say(message_id, text))
            try:
                await self._saying
            except asyncio.CancelledError:
                if not self._begins_again:
                    raise
            else:
                return

    def forget(self, since: float) -> None:
        """Note that the database lost the writes since then."""
        self._noted = [noted for noted in self._noted if noted.at < since]
        self._decided = {name: decided for name, decided in self._decided.items() if decided.at < since}
        self._turn_ids = {name: found for name, found in self._turn_ids.items() if found[0] < since}
        self._begins_again = True
        if self._saying is not None:
            self._saying.cancel()

    async def _say(self, message_id: str, text: str) -> None:
        if self._begins_again:
            self._begins_again = False
            await self.begin()
        await self._twice(lambda door: self._at(door).send(text, message_id=message_id))
        self._sent[message_id] = Sent(message_id, text, time.time())
        self._note(Acknowledged(process=0, step=f"send {message_id}"))
        self._tally["messages"] += 1
        await self._follow(message_id, stops="stop" in text)
        self.turns += 1

    def _note(self, entry: AnyEntry, cursor: str | None = None) -> None:
        self._noted.append(Noted(time.time(), entry, self._cursor if cursor is None else cursor))

    @property
    def _cursor(self) -> str:
        return self._noted[-1].cursor if self._noted else "0"

    # Reading

    async def _follow(self, message_id: str, *, stops: bool) -> None:
        is_refused = False
        session = self._at(self._chance.choice(self._doors))
        stream = session.stream(self._cursor, patience_seconds=PATIENCE_SECONDS)
        async with asyncio.TaskGroup() as asking, aclosing(stream.follow()) as readings:
            for request in await session.requests():  # Of a turn that this client knew before it began again.
                asking.create_task(self._decide(RequestId(request.id)))
            async for reading in readings:
                if isinstance(reading, Delta):
                    self._note_shown(reading, stream.cursor)
                    if stops:
                        stops = False
                        asking.create_task(self._stop(message_id))
                if not isinstance(reading, Event):
                    continue
                self._note_read(reading, stream.cursor)
                match reading.body:
                    case UserMessage(message_id=found, turn_id=its_turn) if found == message_id:
                        self._turn_ids[message_id] = time.time(), its_turn
                    case PermissionRequested(request_id=request_id):
                        asking.create_task(self._decide(request_id))
                    case TurnEnded(turn_id=ended, reason=reason) if ended == self._turn_of(message_id):
                        self._tally[f"turns {reason}"] += 1
                        is_refused = reason == "error"
                        break
                    case _:
                        pass
        if is_refused:  # Its owner's budget is used up: it asks again, but not all the time.
            await asyncio.sleep(self._chance.uniform(1, 3))

    def _turn_of(self, message_id: str) -> TurnId | None:
        _, turn_id = self._turn_ids.get(message_id, (0.0, None))
        return turn_id

    def _note_shown(self, delta: Delta, cursor: str) -> None:
        place = (delta.message_id, delta.block, delta.offset)
        shown = Shown(process=0, message_id=place[0], block=place[1], offset=place[2], text=delta.text)
        self._note(shown, cursor)

    def _note_read(self, event: Event, cursor: str) -> None:
        closes = isinstance(event.body, AssistantMessage)
        self._note(Read(process=0, position=event.position, event_id=event.id, closes=closes), cursor)

    # Asking

    async def _stop(self, message_id: str) -> None:
        stop_id = f"stop-{message_id}"
        outcomes = await self._twice(lambda door: self._at(door).stop(stop_id=stop_id, keep_queued=True))
        said = Acknowledged(process=0, step=f"stop {stop_id}", outcome=str(outcomes[0].outcome))
        self._note(said)
        self._tally["stops"] += 1

    async def _decide(self, request_id: RequestId) -> None:
        """Send two different answers at once: one of them counts."""

        async def approve(door: Server, number: int) -> None:
            session, answer_id = self._at(door), f"{request_id}-{number}"[-64:]
            ask, approves = (session.approve, True) if number == 0 else (session.deny, False)
            try:
                await ask(request_id, answer_id=answer_id)
            except Refused:
                is_accepted = False
            else:
                is_accepted = True
            self._decided[request_id, approves] = Decided(request_id, approves, is_accepted, time.time())

        await asyncio.gather(*(approve(door, number) for number, door in enumerate(self._doors)))
        self._tally["answers"] += 1

    def _at(self, door: Server) -> Session:
        return door.open(self.name, patience_seconds=PATIENCE_SECONDS)

    async def _twice(self, ask: Callable[[Server], Awaitable[Any]]) -> list[Any]:
        return list(await asyncio.gather(*(ask(door) for door in self._doors)))
