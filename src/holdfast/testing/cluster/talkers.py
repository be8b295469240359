"""Clients that talk to a cluster while it is being broken: each has a session of its own, sends everything twice, to
two nodes at once, under the same id, reads along at either of them, and keeps what it was told and shown."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec

from holdfast.client import Refused
from holdfast.client.server import Server
from holdfast.client.session import Session
from holdfast.events.event import Event
from holdfast.events.ids import RequestId, TurnId
from holdfast.events.message import AssistantMessage, UserMessage
from holdfast.events.request import PermissionRequested
from holdfast.events.turn import TurnEnded
from holdfast.live.live import Delta
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall
from holdfast.testing.journal import Acknowledged, AnyEntry, Read, Shown

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


class Decided(msgspec.Struct, frozen=True):
    """An answer to a request, and whether it was accepted."""

    request_id: str
    approves: bool
    is_accepted: bool


class Talker:
    """One client. `doors` are the nodes, and `tally` counts what is done."""

    def __init__(self, name: str, doors: Sequence[Server], chance: random.Random, tally: Counter[str]) -> None:
        self.name = name
        self.sent: list[Sent] = []
        self.decided: list[Decided] = []
        self.journal: list[AnyEntry] = []
        self._doors = doors
        self._chance = chance
        self._tally = tally
        self._cursor = "0"
        self._numbers = 0

    async def begin(self) -> None:
        await self._twice(lambda door: door.session(self.name))

    async def say_something(self) -> None:
        """One message, and its turn to the end."""
        self._numbers += 1
        text = self._chance.choice(TEXTS)
        message_id = f"{self.name}-{self._numbers}"
        await self._twice(lambda door: self._at(door).send(text, message_id=message_id))
        self.sent.append(Sent(message_id, text))
        self.journal.append(Acknowledged(process=0, step=f"send {message_id}"))
        self._tally["messages"] += 1
        await self._follow(message_id, stops="stop" in text)

    # Reading

    async def _follow(self, message_id: str, *, stops: bool) -> None:
        turn_id: TurnId | None = None
        stream = self._at(self._chance.choice(self._doors)).stream(self._cursor, patience_seconds=PATIENCE_SECONDS)
        async with asyncio.TaskGroup() as asking, aclosing(stream.follow()) as readings:
            async for reading in readings:
                if isinstance(reading, Delta):
                    self._note_shown(reading)
                    if stops:
                        stops = False
                        asking.create_task(self._stop(message_id))
                if not isinstance(reading, Event):
                    continue
                self._note_read(reading)
                match reading.body:
                    case UserMessage(message_id=found, turn_id=its_turn) if found == message_id:
                        turn_id = its_turn
                    case PermissionRequested(request_id=request_id):
                        asking.create_task(self._decide(request_id))
                    case TurnEnded(turn_id=ended, reason=reason) if ended == turn_id:
                        self._tally[f"turns {reason}"] += 1
                        break
                    case _:
                        pass
        self._cursor = stream.cursor

    def _note_shown(self, delta: Delta) -> None:
        place = (delta.message_id, delta.block, delta.offset)
        self.journal.append(Shown(process=0, message_id=place[0], block=place[1], offset=place[2], text=delta.text))

    def _note_read(self, event: Event) -> None:
        closes = isinstance(event.body, AssistantMessage)
        self.journal.append(Read(process=0, position=event.position, event_id=event.id, closes=closes))

    # Asking

    async def _stop(self, message_id: str) -> None:
        stop_id = f"stop-{message_id}"
        outcomes = await self._twice(lambda door: self._at(door).stop(stop_id=stop_id, keep_queued=True))
        said = Acknowledged(process=0, step=f"stop {stop_id}", outcome=str(outcomes[0].outcome))
        self.journal.append(said)
        self._tally["stops"] += 1

    async def _decide(self, request_id: RequestId) -> None:
        """Two answers at once, which say different things: one of them counts."""

        async def approve(door: Server, number: int) -> None:
            session, answer_id = self._at(door), f"{request_id}-{number}"[-64:]
            ask = session.approve if number == 0 else session.deny
            try:
                await ask(request_id, answer_id=answer_id)
            except Refused:
                self.decided.append(Decided(request_id, number == 0, False))
            else:
                self.decided.append(Decided(request_id, number == 0, True))

        await asyncio.gather(*(approve(door, number) for number, door in enumerate(self._doors)))
        self._tally["answers"] += 1

    def _at(self, door: Server) -> Session:
        return door.open(self.name, patience_seconds=PATIENCE_SECONDS)

    async def _twice(self, ask: Callable[[Server], Awaitable[Any]]) -> list[Any]:
        return list(await asyncio.gather(*(ask(door) for door in self._doors)))
