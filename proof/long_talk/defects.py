"""Known defects that the long session must catch, planted one at a time, on both stores. `plant` changes the code of
the process that is about to be killed, and no other."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.events.body import Body
from holdfast.events.compaction import CompactionEnded
from holdfast.events.event import Event
from holdfast.events.inbox import InboxItem, Item
from holdfast.events.message import UserMessage
from holdfast.events.passage import searched_words
from holdfast.session import compaction, fold, history
from holdfast.session.state import Person, State
from holdfast.store import text_index
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Accepted, Refused
from proof.crash.plant import altered, replace

LATE_SECONDS: Final = 0.1


class Defect(msgspec.Struct, frozen=True):
    """One defect, and the code that plants it."""

    name: str
    plant: Callable[[], None]


def plant(name: str) -> None:
    """Make this process suffer from the defect of that name."""
    if name:
        BY_NAME[name].plant()


# The words of the person


def _drop_more_than_is_covered() -> None:
    """The two oldest messages after the part that a summary stands for are gone as well: every second is planted."""

    def shorten(state: State, body: CompactionEnded) -> None:
        intact(state, body)
        people = [index for index, item in enumerate(state.history) if isinstance(item, Person)]
        if len(people) > 2:
            del state.history[people[1]], state.history[people[0]]

    intact = fold._shorten
    replace(fold, "_shorten", shorten)


def _name_too_small_a_position() -> None:
    replace(history, "SUMMARISED", altered(history.SUMMARISED, "{position}", "1"))


def _index_no_messages() -> None:
    def not_of_people(body: Body) -> set[str]:
        return set() if isinstance(body, UserMessage) else searched_words(body)

    replace(text_index, "searched_words", not_of_people)


# Rules, mode, gates


def _after_each_compaction(change: Callable[[State], None]) -> None:
    def compaction_ended(state: State, body: CompactionEnded, event: Event) -> None:
        intact(state, body, event)
        if body.success:
            change(state)

    intact = fold._compaction_ended
    replace(fold, "_compaction_ended", compaction_ended)


def _forget_the_rule() -> None:
    def change(state: State) -> None:
        state.client_tools = tuple(msgspec.structs.replace(tool, asks_permission=False) for tool in state.client_tools)

    _after_each_compaction(change)


def _forget_the_dry_run() -> None:
    def change(state: State) -> None:
        state.dry_run = False

    _after_each_compaction(change)


def _forget_the_mode() -> None:
    def change(state: State) -> None:
        state.mode = "interactive"

    _after_each_compaction(change)


def _state_no_mode() -> None:
    replace(history, "_mode", lambda state: "")


# Compactions and messages


def _compact_once() -> None:
    def compact(state: State, *given: Any) -> Any:
        return intact(state, *given) if state.compactions < 1 else None

    intact = compaction.compact
    replace(compaction, "compact", compact)
    replace(compaction, "must_wait", lambda state, inputs: False)


def _acknowledge_first() -> None:
    """A message is acknowledged, and known to this process; it is written a moment later."""
    for store in (SqliteStore, PostgresStore):
        _put_late(store)


def _put_late(store: type[SqliteStore] | type[PostgresStore]) -> None:
    put: Callable[..., Any] = store.put
    receipt: Callable[..., Any] = store.receipt
    pending: dict[str, InboxItem] = {}
    writing: set[asyncio.Future[None]] = set()

    async def write(item_key: str, *given: Any, **more: Any) -> None:
        await asyncio.sleep(LATE_SECONDS)
        await put(*given, item_key=item_key, **more)
        del pending[item_key]

    async def put_later(self: Any, key: Any, item: Item, *, item_key: str, **rest: Any) -> Accepted | Refused:
        pending[item_key] = InboxItem(
            sequence=0, key=item_key, state="accepted", outcome="", accepted_at=0, while_running=False, item=item
        )
        writing.add(asyncio.ensure_future(write(item_key, self, key, item, **rest)))
        return Accepted(pending[item_key])

    async def receipt_or_pending(self: Any, key: Any, item_key: str) -> Any:
        return pending.get(item_key) or await receipt(self, key, item_key)

    replace(store, "put", put_later)
    replace(store, "receipt", receipt_or_pending)


DEFECTS: Final = (
    Defect("a compaction drops more than it covers", _drop_more_than_is_covered),
    Defect("a summary names too small a position", _name_too_small_a_position),
    Defect("the index misses messages", _index_no_messages),
    Defect("a rule is forgotten at a compaction", _forget_the_rule),
    Defect("the dry run is forgotten at a compaction", _forget_the_dry_run),
    Defect("the mode is forgotten at a compaction", _forget_the_mode),
    Defect("the mode is not stated again", _state_no_mode),
    Defect("compactions stop", _compact_once),
    Defect("a kill loses an accepted message", _acknowledge_first),
)

NONE: Final = Defect("none at all", lambda: None)
"""For the control's own control: this one must not be caught."""

BY_NAME: Final = {defect.name: defect for defect in (*DEFECTS, NONE)}
