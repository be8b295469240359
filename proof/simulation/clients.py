"""Clients: they send, steer, stop, answer, change the queue, retry elsewhere after a timeout, and sometimes ask twice.

A client lives in no process. It talks to any process that is up, under its own ids; it records all responses, to be
compared with the log.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from holdfast.events.ids import Key, MessageId, Position, TurnId
from holdfast.events.inbox import Message
from holdfast.events.request import Decision
from holdfast.models.credentials import Secrets
from holdfast.server.errors import OperationError
from holdfast.server.operations import DeliveryChoice, Operations
from holdfast.store.errors import StoreUnavailable
from holdfast.store.store import RequestRow
from proof.crash.journal import Acknowledged
from proof.simulation.machines import Fleet, Process
from proof.simulation.world import World

T = TypeVar("T")

PATIENCE_SECONDS = 3.0
"""How long a client waits for a response before it asks another process."""


class Unanswered(Exception):
    """The process died, or timed out: whether the operation took place is unknown."""


class Sending(msgspec.Struct):
    """A message that a client sent, and the client's record of it."""

    key: Key
    text: str
    delivery: DeliveryChoice
    accepted: bool = False
    refused: str = ""
    unsure: bool = False
    """A process was asked and did not respond: the operation may still take place."""
    edited: list[str] = []
    """Texts that it was given since, as far as they were acknowledged."""
    edits_unsure: bool = False
    removed: bool = False


class Ledger(msgspec.Struct):
    """The shared record of all clients of a run."""

    sent: dict[MessageId, Sending] = {}
    reordered: set[Key] = set()
    cleared: set[Key] = set()
    """Sessions in which a client stopped the running turn, and so removed the waiting messages."""


class Client:
    """One of them."""

    def __init__(self, world: World, fleet: Fleet, ledger: Ledger, keys: list[Key], name: str) -> None:
        self._world = world
        self._fleet = fleet
        self._ledger = ledger
        self._keys = keys
        self._name = name
        self._chance = world.chance
        self._count = 0
        self._own: list[MessageId] = []
        self._turns: dict[Key, TurnId] = {}
        """The turn of each session that it last saw running."""

    def _new(self, kind: str) -> str:
        self._count += 1
        return f"{self._name}-{kind}{self._count}"

    # Asking

    async def ask(self, what: str, does: Callable[[Operations], Awaitable[T]]) -> tuple[T, bool]:
        """Ask until a process responds; raises the refusal of an operation. Also returns whether all asked processes
        responded."""
        return await self.ask_process(what, lambda process: does(process.operations))

    async def ask_process(self, what: str, does: Callable[[Process], Awaitable[T]]) -> tuple[T, bool]:
        """The same, for calls that are not only an operation on the store."""
        is_sure = True
        while True:
            asked = [self._ask_one(what, does)]
            if self._chance.random() < self._world.weather.doubling:
                asked.append(self._ask_one(f"{what} (again)", does))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            given: list[Any] = [found for found in answers if not isinstance(found, BaseException)]
            refusals = [found for found in answers if isinstance(found, OperationError)]
            is_sure = is_sure and len(given) + len(refusals) == len(answers)
            if given:
                return given[0], is_sure
            if refusals:
                raise Refusal(refusals[0].code, is_sure=is_sure)
            for found in answers:
                if not isinstance(found, Unanswered | StoreUnavailable):
                    assert isinstance(found, BaseException)
                    raise found
            await asyncio.sleep(self._chance.uniform(0.05, 0.5))

    async def _ask_one(self, what: str, does: Callable[[Process], Awaitable[T]]) -> T:
        process = await self._somebody()
        await asyncio.sleep(self._chance.random() * 0.01)
        self._world.trace.add(self._name, f"asks {process.name}: {what}")
        answer: asyncio.Future[T] = self._world.loop.create_future()
        if not process.is_up:
            raise Unanswered
        process.when_it_ends(lambda: None if answer.done() else answer.set_exception(Unanswered()))
        process.spawn(_handle(process, does, answer))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                result = await answer
        except TimeoutError:
            raise Unanswered from None
        self._world.trace.add(self._name, f"is answered by {process.name}: {what}")
        return result

    async def _somebody(self) -> Process:
        while not (up := self._fleet.up()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return self._chance.choice(up)

    # The operations of a client

    async def live(self, until: float) -> None:
        acts: list[tuple[Callable[[Key], Awaitable[None]], int]] = [
            (self.send, 10),
            (self._answer, 8),
            (self._stop, 4),
            (self._see, 2),
            (self._edit, 2),
            (self._remove, 1),
            (self._reorder, 1),
            (self._rename, 1),
            (self._rewind, 1),
        ]
        if self._world.window is not None:
            acts += [(self._compact, 1), (self._cancel_compaction, 1), (self._pin, 1)]
        if self._world.entrusted:
            acts.append((self._entrust, 4))
        await self.send(self._keys[0])
        while self._world.loop.time() < until:
            await asyncio.sleep(self._chance.expovariate(self._world.weather.busy))
            (act,) = self._chance.choices([act for act, _ in acts], [weight for _, weight in acts])
            await act(self._chance.choice(self._keys))

    async def send(self, key: Key) -> None:
        id = MessageId(self._new("m"))
        deliveries: tuple[DeliveryChoice, ...] = (
            "steer",
            "steer",
            "steer",
            "enqueue",
            "enqueue",
            "interrupt",
            "reject",
        )
        sending = Sending(key=key, text=f"words of {id}", delivery=self._chance.choice(deliveries))
        self._ledger.sent[id] = sending
        self._own.append(id)
        if sending.delivery == "interrupt":
            self._ledger.cleared.add(key)

        async def send(operations: Operations) -> Any:
            return await operations.send(key, sending.text, message_id=id, delivery=sending.delivery)

        try:
            _, is_sure = await self.ask(f"send {id} to {key.session} ({sending.delivery})", send)
            sending.accepted = True
        except Refusal as refusal:
            sending.refused, is_sure = refusal.code, refusal.is_sure
        sending.unsure = not is_sure
        if sending.accepted and self._chance.random() < 0.15:
            await self._edit_one(id)  # At once, while a holder may be promoting it.

    async def _stop(self, key: Key) -> None:
        id, keep = self._new("stop"), self._chance.random() < 0.5
        meant_for = self._turns.get(key) if self._chance.random() < 0.5 else None
        if not keep and meant_for is None:
            self._ledger.cleared.add(key)

        async def stop(operations: Operations) -> Any:
            return await operations.stop(key, stop_id=id, keep_queued=keep, meant_for=meant_for)

        stopped, _ = await self.ask(f"stop {id} of {key.session}, meant for {meant_for}", stop)
        if stopped.returned:
            self._ledger.cleared.add(key)
        self._world.note(key, Acknowledged(process=0, step=f"stop {id}", outcome=stopped.outcome))

    async def _compact(self, key: Key) -> None:
        id = self._new("compact")
        await self._try(f"compact {key.session}", lambda asked: asked.compact(key, compaction_id=id))

    async def _cancel_compaction(self, key: Key) -> None:
        id, manual = self._new("cancel"), self._chance.random() < 0.5
        await self._try(
            f"cancel the compaction of {key.session}",
            lambda asked: asked.cancel_compaction(key, cancel_id=id, only_manual=manual),
        )

    async def _pin(self, key: Key) -> None:
        own = [id for id in self._own if self._ledger.sent[id].key == key]
        if own:
            id, pins = self._chance.choice(own), self._chance.random() < 0.7
            await self._try(f"pin or unpin {id}", lambda asked: asked.pin(key, id) if pins else asked.unpin(key, id))

    async def _try(self, what: str, does: Callable[[Operations], Awaitable[Any]]) -> None:
        """Ask, and take a refusal for an answer."""
        with contextlib.suppress(Refusal):
            await self.ask(what, does)

    async def _see(self, key: Key) -> None:
        async def see(operations: Operations) -> TurnId | None:
            return (await operations.session(key)).turn_id

        turn_id, _ = await self.ask(f"see {key.session}", see)
        if turn_id is not None:
            self._turns[key] = turn_id

    async def _answer(self, key: Key) -> None:
        for asked in await self.requests(key):
            if self._chance.random() < 0.8:
                await self.answer(key, asked)

    async def requests(self, key: Key) -> tuple[RequestRow, ...]:
        async def look(operations: Operations) -> tuple[RequestRow, ...]:
            return await operations.requests(key)

        found, _ = await self.ask(f"requests of {key.session}", look)
        if found:
            self._turns[key] = found[0].turn_id
        return found

    async def answer(self, key: Key, asked: RequestRow) -> None:
        id = self._new("answer")
        says_yes = self._chance.random() < 0.7
        decision: Decision = "approved" if says_yes else "denied-interactively-by-user"

        async def answer(operations: Operations) -> None:
            request, said = asked.request_id, f"found by {id}"
            match asked.kind:
                case "permission":
                    await operations.decide_permission(key, request, decision, answer_id=id, answered_by=id)
                case "client_tool":
                    await operations.answer_tool(key, request, said, answer_id=id, answered_by=id)
                case "question":
                    await operations.answer_question(key, request, said, answer_id=id, answered_by=id)

        said = Acknowledged(process=0, step=f"answer {id}", about=asked.request_id)
        try:
            await self.ask(f"answer {id} to {asked.request_id}", answer)
        except Refusal as refusal:
            said = msgspec.structs.replace(said, refused=refusal.code)
        self._world.note(key, said)

    # The queue

    async def _edit(self, key: Key) -> None:
        if not self._own:
            return
        await self._edit_one(self._chance.choice(self._own[-3:]))

    async def _edit_one(self, id: MessageId) -> None:
        sending, text = self._ledger.sent[id], f"other words of {id} ({self._new('e')})"

        async def edit(operations: Operations) -> None:
            await operations.edit_queued(sending.key, id, text)

        try:
            _, is_sure = await self.ask(f"edit {id}", edit)
            sending.edited.append(text)
        except Refusal as refusal:
            is_sure = refusal.is_sure
        if not is_sure:
            sending.edits_unsure = True
            sending.edited.append(text)

    async def _remove(self, key: Key) -> None:
        if not self._own:
            return
        id = self._chance.choice(self._own[-3:])
        sending = self._ledger.sent[id]

        async def remove(operations: Operations) -> None:
            await operations.remove_queued(sending.key, id)

        try:
            await self.ask(f"remove {id}", remove)
            sending.removed = True
        except Refusal as refusal:
            sending.removed = sending.removed or not refusal.is_sure

    async def _reorder(self, key: Key) -> None:
        self._ledger.reordered.add(key)

        async def reorder(operations: Operations) -> None:
            waiting = [item.item.message_id for item in await operations.queue(key) if isinstance(item.item, Message)]
            await operations.reorder_queue(key, waiting[::-1])

        try:
            await self.ask(f"reorder {key.session}", reorder)
        except Refusal:
            pass  # The queue was another by then, or empty.

    async def _rename(self, key: Key) -> None:
        title = self._new("title")

        async def rename(operations: Operations) -> None:
            await operations.rename(key, title)

        await self.ask(f"rename {key.session}", rename)

    async def _rewind(self, key: Key) -> None:
        id, back = self._new("rewind"), self._chance.randrange(12)

        async def rewind(process: Process) -> None:
            if process.role.is_old:
                return  # That release does not have this verb.
            head = (await process.operations.session(key)).head
            await process.operations.rewind(key, Position(max(1, head - back)), rewind_id=id)

        try:
            await self.ask_process(f"rewind {key.session}", rewind)
        except Refusal:
            pass  # It was busy.

    # The needs of a session from its clients

    async def entrust(self, key: Key) -> None:
        """Give a session its token again: the process that had it may be gone."""

        async def entrust(process: Process) -> None:
            await process.credentials.put(key, Secrets(github_token=f"token of {key.session}"))

        await self.ask_process(f"entrust {key.session}", entrust)

    async def _entrust(self, key: Key) -> None:
        if key in self._world.entrusted:
            await self.entrust(key)


class Refusal(Exception):
    """An operation was refused. `is_sure`: and no other process was asked that may have carried it out."""

    def __init__(self, code: str, *, is_sure: bool) -> None:
        super().__init__(code)
        self.code = code
        self.is_sure = is_sure


async def _handle(process: Process, does: Callable[[Process], Awaitable[T]], answer: "asyncio.Future[T]") -> None:
    """In the asked process: carry it out, and respond to the client if it still waits."""
    try:
        result = await does(process)
    except (OperationError, StoreUnavailable) as refused:
        if not answer.done():
            answer.set_exception(refused)
    else:
        if not answer.done():
            answer.set_result(result)
