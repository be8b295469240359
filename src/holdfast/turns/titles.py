"""Titles that models make, beside the turns of their sessions and never in their way.

A session has the first words of its first message for a title from the start. While its first turn is under way its
holder asks the model for a better one, once, after the turn's own first words were shown. What comes of it is appended
as a record, only if the log holds no other title by then: one that a person gave is never replaced, and of two
processes that both asked only one is heard. Whoever crashes or ends meanwhile leaves the first words, and the next
holder of that first turn asks again. A call that fails leaves them too; all of them are on the books.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.events.event import Event
from holdfast.events.ids import EventId, Key, MessageId, Position
from holdfast.events.session import TitleChanged
from holdfast.live.live import Advanced, Live
from holdfast.models.model import Model, ModelError, TextDelta, TokenUsage
from holdfast.models.title_request import title_in, title_request
from holdfast.session.state import Person, State
from holdfast.store.clock import Clock
from holdfast.store.log_pages import PAGE_BYTES, PAGE_EVENTS
from holdfast.store.store import Committed, LedgerEntry, Store, Unit

CALL_SECONDS: Final = 60.0
"""A title that takes longer is not worth a connection."""

MAX_CALLS: Final = 8
"""Calls for titles that one process makes at a time; the next ones wait."""

MAX_WAITING: Final = 200
"""Sessions that get no more than their first words when so many wait already."""

MAX_ANSWER_CHARACTERS: Final = 10_000
"""A model that never stops is no longer listened to."""

MAX_TRIES: Final = 50
"""How often the record is tried when the session's own turn is quicker each time."""

OpenModel = Callable[[], Awaitable[Model]]

log = logging.getLogger(__name__)


class Titles:
    """Those that this process is about to make."""

    def __init__(self, *, store: Store, live: Live, clock: Clock, new_id: Callable[[], str]) -> None:
        self._store = store
        self._live = live
        self._clock = clock
        self._new_id = new_id
        self._making: dict[Key, asyncio.Task[None]] = {}
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self._is_stopped = False

    def consider(self, key: Key, state: State, model: OpenModel, begun: asyncio.Event) -> None:
        """Begin to make a title if the session is to have one. `begun`: the turn's own first words were shown."""
        is_free = not self._is_stopped and key not in self._making and len(self._making) < MAX_WAITING
        if not is_free or not wants_title(state):
            return
        said = next(item.text for item in state.history if isinstance(item, Person))
        task = asyncio.create_task(self._make(key, said, state.head, model, begun), name=f"title {key.session}")
        self._making[key] = task
        task.add_done_callback(lambda _: self._making.pop(key, None))

    async def stop(self) -> None:
        """Give up what is under way, at once: nobody waits for a title."""
        self._is_stopped = True
        making = list(self._making.values())
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)

    async def _make(self, key: Key, said: str, head: Position, model: OpenModel, begun: asyncio.Event) -> None:
        try:
            await begun.wait()
            async with self._calls:
                asked = await model()
                title, usage = await _ask(asked, said)
            await self._note(key, head, title, self._entry(asked.name, usage))
        except Exception as error:
            log.warning("session %s keeps its first words for a title: %s", key.session, type(error).__name__)

    async def _note(self, key: Key, head: Position, title: str, entry: LedgerEntry) -> None:
        """The title and what it cost are one unit, or, if it came too late, what it cost alone."""
        body = TitleChanged(title=title, by_model=True)
        for _ in range(MAX_TRIES if title else 0):
            seen = await self._unless_titled(key, head)
            if seen is None:
                break
            head = seen
            event = Event(Position(0), EventId(self._new_id()), self._clock.now_ms(), body)
            outcome = await self._store.commit(
                Unit(key=key, fence=None, events=(event,), title=title, ledger=(entry,), supposes_head=head)
            )
            if isinstance(outcome, Committed):
                self._live.publish(key, Advanced((event.at(outcome.head),)))
                return
        await self._store.commit(Unit(key=key, fence=None, ledger=(entry,)))

    async def _unless_titled(self, key: Key, head: Position) -> Position | None:
        """Where the log ends, if it has no title after the first words."""
        while events := await self._store.events_after(key, head, limit=PAGE_EVENTS, max_bytes=PAGE_BYTES):
            if any(isinstance(event.body, TitleChanged) for event in events):
                return None
            head = events[-1].position
        return head

    def _entry(self, model: str, usage: TokenUsage | None) -> LedgerEntry:
        """Each call has an entry of its own; one that did not say what it used is unknown, not free."""
        used = usage or TokenUsage()
        return LedgerEntry(
            message_id=MessageId(f"title:{self._new_id()}"),
            attempt=1,
            model=model,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cache_read_tokens=used.cache_read_tokens,
            cost_microdollars=used.cost_microdollars,
            time=self._clock.now_ms(),
        )


def wants_title(state: State) -> bool:
    """Only in its first turn, and before anybody or anything but the first words named it."""
    is_named = state.title_chosen or state.title_by_model
    return state.wants_title and not is_named and state.turn is not None and state.turns == 1


async def _ask(model: Model, said: str) -> tuple[str, TokenUsage | None]:
    """The title, and what it took; no title, if the call failed."""
    answer: list[str] = []
    usage: TokenUsage | None = None
    try:
        async with asyncio.timeout(CALL_SECONDS), contextlib.aclosing(model.stream(title_request(said))) as stream:
            async for chunks in stream:
                answer += [chunk.text for chunk in chunks if isinstance(chunk, TextDelta)]
                usage = next((chunk for chunk in chunks if isinstance(chunk, TokenUsage)), usage)
                if sum(map(len, answer)) > MAX_ANSWER_CHARACTERS:
                    break
    except (ModelError, TimeoutError) as error:
        log.info("no title could be made: %s", error)
        return "", usage
    except Exception as error:
        log.info("no title could be made: %s", type(error).__name__)
        return "", usage
    return title_in("".join(answer)), usage
