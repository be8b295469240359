"""One session as every verb reaches it: its row, its state, records appended to its log, items put into its inbox.

Nothing here needs a lease. An append that depends on the session's state names the head that it supposes, so that a
writer never overwrites a change that it has not read.
"""

import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from holdfast.events import inbox
from holdfast.events.body import Body
from holdfast.events.event import Event
from holdfast.events.ids import CHOSEN_ID_RULE, EventId, Key, Position, may_be_chosen, random_id
from holdfast.events.role import RoleBounds
from holdfast.events.session import DirectoryIdentity, ModelChanged, Provider, SettingsChanged, TitleChanged
from holdfast.live.live import Advanced, Changed, Live, Subscription
from holdfast.models.choice import OWN_MODEL, ModelChoice, row_model
from holdfast.models.info import TokenPrice
from holdfast.server.errors import Conflict, Invalid, NotFound, OperationError
from holdfast.server.reader import Reader
from holdfast.session.bounds import Bounds
from holdfast.session.fold import FOLD_VERSION, drop_texts, fold, fold_turn, restored
from holdfast.session.role import may_use
from holdfast.session.state import State
from holdfast.store.audit import Actor, AuditAction, AuditEntry, audit_entry
from holdfast.store.clock import Clock
from holdfast.store.grants import NewGrants
from holdfast.store.log_pages import NO_SNAPSHOT, pages
from holdfast.store.store import (
    HEAD_MOVED,
    Accepted,
    Committed,
    Cursor,
    Loaded,
    Refused,
    Rejected,
    Row,
    Store,
    Unit,
)
from holdfast.tools.working_directory import Identify, identity_of

_REFUSALS: Final[Mapping[str, type[OperationError]]] = {
    "request_not_found": NotFound,
    "message_files_too_large": Invalid,
}
"""The errors of refusals that are no conflicts."""

FindWindow = Callable[[ModelChoice], Awaitable[int | None]]
"""Finds the window of a session's model in tokens; None if nothing is known of models here."""


FindPrice = Callable[[str], Awaitable[TokenPrice | None]]
"""Finds the present price of a model by its name; None if nobody knows it."""


async def no_price(model: str) -> TokenPrice | None:
    """For a program that knows no models."""
    return None


async def no_window(choice: ModelChoice) -> int | None:
    """For a program that knows no models."""
    return None


PROGRAM: Final = Actor(kind="program")

EVERYWHERE: Final = "everywhere"
"""The place of a permission in the audit log that holds in every directory."""


class SessionAccess:
    """Reads sessions of one store and writes to them.

    `host` names this machine where sessions with files must stay on theirs."""

    def __init__(
        self,
        *,
        store: Store,
        live: Live,
        clock: Clock,
        bounds: Bounds,
        node: str,
        host: str | None,
        producer: str,
        shared_directories: Sequence[str] = (),
        new_id: Callable[[], str] = random_id,
        identify: Identify = identity_of,
        find_window: FindWindow = no_window,
        actor: Actor = PROGRAM,
        find_price: FindPrice = no_price,
    ) -> None:
        self.store = store
        self.live = live
        self._clock = clock
        self._bounds = bounds
        self._node = node
        self._host = host
        self._shared = tuple(shared_directories)
        self._producer = producer
        self._new_id = new_id
        self._identify = identify
        self._find_window = find_window
        self._actor = actor
        self._find_price = find_price

    def acting_as(self, actor: Actor) -> Self:
        """The same verbs, whose acts the audit log attributes to that actor."""
        verbs = copy.copy(self)
        verbs._actor = actor
        return verbs

    def _told(self, action: AuditAction, target: str, *, owner: str, detail: str = "") -> AuditEntry:
        """An entry of the audit log about an act of this actor."""
        return audit_entry(self._clock.now_ms(), self._actor, action, owner=owner, target=target, detail=detail)

    @property
    def bounds(self) -> Bounds:
        return self._bounds

    # Reading

    async def session(self, key: Key) -> Row:
        """The session's row. Raises `NotFound`."""
        row = await self.store.row(key)
        if row is None:
            raise self._not_found(key)
        return row

    async def state(self, key: Key) -> State:
        """The session, folded without its conversation: of that, only the last reply is left, with which of its calls
        have a result, and no text. It takes little memory, however much was said."""
        loaded, state = await self._restored(key)
        drop_texts(state)
        async for page in pages(self.store, loaded):
            fold_turn(page, state)
        return state

    async def whole_state(self, key: Key) -> State:
        """The session, folded: the state that its holder decides on, except for images that a snapshot left in the
        log."""
        loaded, state = await self._restored(key)
        async for page in pages(self.store, loaded):
            fold(page, state)
        return state

    async def _restored(self, key: Key) -> tuple[Loaded, State]:
        """The session's load, and the state to fold its events onto."""
        loaded = await self._loaded(key, FOLD_VERSION)
        state = restored(loaded.snapshot.state if loaded.snapshot else None)
        return (loaded, state) if state is not None else (await self._loaded(key, NO_SNAPSHOT), State())

    async def _loaded(self, key: Key, fold_version: int) -> Loaded:
        loaded = await self.store.load(key, fold_version=fold_version)
        if loaded is None:
            raise self._not_found(key)
        return loaded

    def read(self, key: Key, cursor: Cursor | None = None, *, heard_since: Subscription | None = None) -> Reader:
        return Reader(self.store, self.live, key, cursor, heard_since=heard_since)

    # Writing

    async def _put(
        self,
        key: Key,
        item: inbox.Item,
        item_key: str,
        *,
        only_if_idle: bool = False,
        stop_first: str | None = None,
        grants: NewGrants | None = None,
        audit: AuditEntry | None = None,
    ) -> Accepted:
        """Put an item into the inbox and publish the change; raises the reason of a refusal."""
        if isinstance(item, inbox.Message):
            await self._check_may_use(key, item.model, item.bounds)
        putting = self.store.put(
            key,
            item,
            item_key=item_key,
            queue_limit=self._bounds.max_waiting_messages,
            only_if_idle=only_if_idle,
            stop_first=stop_first,
            grants=grants,
            audit=audit,
            max_file_bytes=self._bounds.max_message_file_bytes,
        )
        self.live.announce()
        outcome = await putting
        if isinstance(outcome, Refused):
            if outcome.code == "session_not_found":
                raise self._not_found(key)
            kind = _REFUSALS.get(outcome.code, Conflict)
            raise kind(outcome.code, outcome.message)
        self.live.publish(key, Changed(tail=outcome.item.sequence, queue=bool(outcome.removed)))
        return outcome

    async def _check_may_use(self, key: Key, model: str | None, bounds: RoleBounds | None) -> None:
        """Refuse text of a sender with these bounds for a message with a model beyond them, whoever chose the model.
        A session that runs with its own provider or token has its own names of models."""
        if model is None or bounds is None or may_use(model, bounds):
            return
        if (await self.session(key)).model != OWN_MODEL:
            raise Conflict("model_not_allowed", f"The model {model} is not among those that you may choose.")

    async def _record(self, key: Key, *bodies: Body, audit: tuple[AuditEntry, ...] = ()) -> Event:
        last = await self._append(key, bodies, audit=audit)
        assert last is not None, "an append that supposes no head is never too late"
        return last

    async def _append(
        self,
        key: Key,
        bodies: Sequence[Body],
        *,
        provider: Provider | None = None,
        supposes_head: Position | None = None,
        audit: tuple[AuditEntry, ...] = (),
    ) -> Event | None:
        """Append records and update the session's row to match; returns the last record, or None if the log's head is
        not the supposed one. `provider` is the provider in the session's state, where that is known."""
        events = self._events(bodies)
        title = next((body.title for body in reversed(bodies) if isinstance(body, TitleChanged)), None)
        model = _model_of_row(bodies, provider)
        unit = Unit(
            key=key, fence=None, events=events, title=title, model=model, supposes_head=supposes_head, audit=audit
        )
        outcome = await self.store.commit(unit)
        if isinstance(outcome, Rejected) and outcome.reason == HEAD_MOVED:
            return None
        if not isinstance(outcome, Committed):
            raise self._not_found(key)
        first = outcome.head - len(events) + 1
        placed = tuple(event.at(Position(first + index)) for index, event in enumerate(events))
        self.live.publish(key, Advanced(placed))
        return placed[-1]

    def _events(self, bodies: Sequence[Body]) -> tuple[Event, ...]:
        now = self._clock.now_ms()
        return tuple(Event(Position(0), EventId(self._new_id()), now, body) for body in bodies)

    # Directories

    def _is_only_here(self, directory: str | None) -> bool:
        """Whether a session that works in the directory can run on this host alone."""
        if not directory:
            return False
        return not any(Path(directory).is_relative_to(shared) for shared in self._shared)

    def _identity(self, directory: str | None) -> DirectoryIdentity | None:
        """The identity of the directory, which the session keeps to from now on. None: the directory does not exist
        (yet), and the session's first holder looks again."""
        identity: DirectoryIdentity | None = self._identify(directory) if directory else None
        return identity

    # Checks that several verbs make

    def check_id(self, noun: str, chosen_id: str) -> None:
        """Raise `Invalid` for an id that a client may not choose, before anything is stored under the id."""
        limit = self._bounds.max_id_characters
        if len(chosen_id) > limit or not may_be_chosen(chosen_id):
            article = "An" if noun[0] in "aeiou" else "A"
            raise Invalid("id_invalid", f"{article} {noun} id has 1 to {limit} characters: {CHOSEN_ID_RULE}.")

    def _not_found(self, key: Key) -> OperationError:
        return NotFound("session_not_found", f"There is no session {key.session}.")


def check_size(subject: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise Invalid("too_long", f"{subject} has at most {limit:,} characters; this has {len(text):,}.")


def provider_in(settings: SettingsChanged | None) -> Provider | None:
    return settings.provider if settings is not None and isinstance(settings.provider, Provider) else None


def _model_of_row(bodies: Sequence[Body], provider: Provider | None) -> str | None:
    """The model that the session's row names after these records; None: the same as before."""
    model: str | None = None
    for body in bodies:
        if isinstance(body, SettingsChanged) and (own := provider_in(body)) is not None:
            provider, model = own, OWN_MODEL
        elif isinstance(body, SettingsChanged) and body.provider is None:
            provider = None
        elif isinstance(body, ModelChanged):
            model = row_model(body.new_model, provider)
    return model
