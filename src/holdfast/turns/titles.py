"""Titles that models make, beside the turns of their sessions and without delaying them.

A session starts with the first words of its first message as its title. During its first turn the holder asks the model
for a better title, once, after the first words of the turn's own answer were shown. The title is appended as a record,
and only if the log holds no other title by then: a title that a person gave is never replaced, and if two processes
both ask, only one title is recorded. If the process crashes or stops meanwhile, the first words stay, and the next
holder of that first turn asks again. A call that fails leaves them too. Every call is in the ledger.
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
from holdfast.models.model import Model, ModelError, ModelRequest, TextDelta, TokenUsage
from holdfast.models.title_request import title_in, title_request
from holdfast.session.state import Person, State
from holdfast.store.clock import Clock
from holdfast.store.log_pages import PAGE_BYTES, PAGE_EVENTS
from holdfast.store.store import Committed, LedgerEntry, Store, Unit

CALL_SECONDS: Final = 60.0
"""Timeout of a call: a title that takes longer is not worth a connection."""

MAX_CALLS: Final = 8
"""How many calls for titles one process makes at a time; further ones wait."""

MAX_WAITING: Final = 200
"""How many titles may be under way in one process; further sessions keep their first words."""

MAX_ANSWER_CHARACTERS: Final = 10_000
"""The answer is cut off here, in case a model never stops."""

MAX_TRIES: Final = 50
"""How often the append is tried while the session's own turn appends first each time."""

OpenModel = Callable[[], Awaitable[Model]]

Reserve = Callable[[MessageId, Model, ModelRequest], Awaitable[bool]]
"""Has money reserved for a call; False: there is none."""

log = logging.getLogger(__name__)


class Titles:
    """Makes the titles of this process's sessions."""

    def __init__(self, *, store: Store, live: Live, clock: Clock, new_id: Callable[[], str]) -> None:
        self._store = store
        self._live = live
        self._clock = clock
        self._new_id = new_id
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self._is_stopped = False

    def consider(self, key: Key, state: State, model: OpenModel, answer_begun: asyncio.Event, reserve: Reserve) -> None:
        """Start making a title if the session needs one. The call waits for `answer_begun`, so that it does not delay
        the first words of the turn's answer. Without money for it, the first words stay."""
        is_free = not self._is_stopped and key not in self._tasks and len(self._tasks) < MAX_WAITING
        if not is_free or not wants_title(state):
            return
        first_message = next(item.text for item in state.history if isinstance(item, Person))
        task = asyncio.create_task(
            self._make_title(key, first_message, state.head, model, answer_begun, reserve), name=f"title {key.session}"
        )
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def stop(self) -> None:
        """Cancel all calls at once: nothing depends on a title."""
        self._is_stopped = True
        making = list(self._tasks.values())
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)

    async def _make_title(
        self,
        key: Key,
        first_message: str,
        head: Position,
        model: OpenModel,
        answer_begun: asyncio.Event,
        reserve: Reserve,
    ) -> None:
        try:
            await answer_begun.wait()
            async with self._calls:
                opened, request = await model(), title_request(first_message)
                call = MessageId(f"title:{self._new_id()}")
                if not await reserve(call, opened, request):
                    return
                title, usage = await _request_title(opened, request)
            await self._record(key, head, title, self._ledger_entry(call, opened.name, usage))
        except Exception as error:
            log.warning("session %s keeps its first words for a title: %s", key.session, type(error).__name__)

    async def _record(self, key: Key, head: Position, title: str, entry: LedgerEntry) -> None:
        """Commit the title and its ledger entry as one unit or, if another title came first, the entry alone."""
        body = TitleChanged(title=title, by_model=True)
        for _ in range(MAX_TRIES if title else 0):
            latest = await self._head_if_untitled(key, head)
            if latest is None:
                break
            head = latest
            event = Event(Position(0), EventId(self._new_id()), self._clock.now_ms(), body)
            outcome = await self._store.commit(
                Unit(key=key, fence=None, events=(event,), title=title, ledger=(entry,), supposes_head=head)
            )
            if isinstance(outcome, Committed):
                self._live.publish(key, Advanced((event.at(outcome.head),)))
                return
        await self._store.commit(Unit(key=key, fence=None, ledger=(entry,)))

    async def _head_if_untitled(self, key: Key, head: Position) -> Position | None:
        """The head of the log, or None if a title was appended after `head`."""
        while events := await self._store.events_after(key, head, limit=PAGE_EVENTS, max_bytes=PAGE_BYTES):
            if any(isinstance(event.body, TitleChanged) for event in events):
                return None
            head = events[-1].position
        return head

    def _ledger_entry(self, call: MessageId, model: str, usage: TokenUsage | None) -> LedgerEntry:
        """The ledger entry of one call; a call that did not report its usage is unknown, not free."""
        used = usage or TokenUsage()
        return LedgerEntry(
            message_id=call,
            attempt=1,
            model=model,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cache_read_tokens=used.cache_read_tokens,
            cache_write_tokens=used.cache_write_tokens,
            cost_microdollars=used.cost_microdollars,
            time=self._clock.now_ms(),
        )


def wants_title(state: State) -> bool:
    """Whether a session needs a title from the model: in its first turn, while the first words are its only title."""
    is_named = state.title_chosen or state.title_by_model
    return state.wants_title and not is_named and state.turn is not None and state.turns == 1


async def _request_title(model: Model, request: ModelRequest) -> tuple[str, TokenUsage | None]:
    """Ask the model for a title. Returns the title, empty if the call failed, and the usage."""
    answer: list[str] = []
    usage: TokenUsage | None = None
    try:
        async with (
            asyncio.timeout(CALL_SECONDS),
            contextlib.aclosing(model.stream(request)) as stream,
        ):
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
