"""The HTTP surface of one process: the operations, and the bounds within which callers may use them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from holdfast.events.body import Body
from holdfast.events.ids import Key, MessageId
from holdfast.events.session import SettingsChanged
from holdfast.live.live import Live
from holdfast.models.credentials import Credentials
from holdfast.observability.exposition import single
from holdfast.observability.observer import Observer
from holdfast.protocol.message import DeliveryChoice, Sent
from holdfast.protocol.model import OfferedModel
from holdfast.server.errors import Conflict
from holdfast.server.http.identity import Identities, Identity
from holdfast.server.http.metrics import Metrics, RequestCounts
from holdfast.server.http.policy import Policies, Policy
from holdfast.server.http.rates import Rates
from holdfast.server.http.streams import Streams
from holdfast.server.log_tail import LastTurn, last_turn
from holdfast.server.operations import Change, Operations
from holdfast.server.presence import Presence
from holdfast.server.task_operations import TaskOperations
from holdfast.session.bounds import Bounds
from holdfast.session.state import State
from holdfast.store.clock import Clock


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How this process serves HTTP: its bounds, and the defaults of new sessions."""

    model: str
    model_advanced: str | None = None
    """The model of the tier `advanced`; None: the server has no such tier."""
    thinking: int | None = None
    """How long the model of a new session may think, unless its creator chooses."""
    titles: Literal["model", "words"] = "words"
    """Titles of new sessions: made by a model, or the first words of the first message."""
    tools: tuple[str, ...]
    known_tools: tuple[str, ...]
    """All tools of the server. A session with any other tool could not run."""
    refused_tools: frozenset[str] = frozenset()
    """Known tools that this server runs for no caller."""
    directory: str | None = None
    """The working directory of a new session, unless its creator chooses."""
    max_body_bytes: int = 1_000_000
    max_import_bytes: int = 16_000_000
    max_import_events: int = 10_000
    follow_ups_per_minute: int = 30
    streams_per_owner: int = 1_000
    replay_seconds: float = 60.0
    """How long the stream of an ended turn is replayed from its start."""
    stop_wait_seconds: float = 2.0
    """How long the response to a stop waits for the outcome."""


class HttpService:
    """Everything that the handlers of one process share."""

    def __init__(
        self,
        *,
        operations: Operations,
        tasks: TaskOperations,
        live: Live,
        clock: Clock,
        bounds: Bounds,
        settings: HttpSettings,
        identities: Identities,
        policies: Policies,
        credentials: Credentials,
        metrics: Metrics,
        observer: Observer,
        models: Callable[[], Awaitable[tuple[OfferedModel, ...]]],
        check_model: Callable[[str], None],
        redis_state: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.operations = operations
        self.tasks = tasks
        self.live = live
        self.clock = clock
        self.bounds = bounds
        self.settings = settings
        self.identities = identities
        self.policies = policies
        self.credentials = credentials
        self.metrics = metrics
        self.observer = observer
        self.request_counts = RequestCounts()
        self.models = models
        self._check_model = check_model
        self.redis_state = redis_state
        self.rates = Rates(clock, per_minute=settings.follow_ups_per_minute)
        self.streams = Streams(clock, per_owner=settings.streams_per_owner)
        self.presence = Presence(operations, operations.store, clock)
        self.copying = asyncio.Semaphore(1)
        """Held while a log is copied: a copy is in memory as a whole, so only one is made at a time."""
        self.is_draining = False

    async def metrics_page(self) -> str:
        """The metrics of this process, for Prometheus."""
        readers = single("holdfast_readers", "Streams that are open.", len(self.streams))
        return await self.metrics.page((*readers, *self.request_counts.lines()))

    # What a caller may use

    def policy(self, identity: Identity) -> Policy:
        return self.policies.of(identity.role)

    def check_model(self, identity: Identity, model: str) -> None:
        """Raise an error if the caller may not choose the model, or if the server can't call it."""
        self.policy(identity).check_model(model)
        if model != self.settings.model:
            self._check_model(model)

    async def check_use(self, identity: Identity, key: Key) -> None:
        """Raise `ApiError` if the session has more than the caller's role may use. Otherwise rules that the role
        may not grant are removed from the session, so that it asks again, its folder gets the bounds of the role's
        folders, and a model that the role may not choose is replaced by the server's default; a crash after that leaves
        the session so."""
        policy = self.policy(identity)
        if not policy.is_limited:
            return
        state = await self.operations.state(key)
        policy.check_session(identity.owner, state)
        if policy.narrowed(state) is not None:
            await self.operations.change(key, _change_of(policy.narrowed))
        if policy.asks_beyond(state, default=self.settings.model):
            await self.operations.change_model(key, self.settings.model)

    async def check_change(self, identity: Identity, key: Key) -> None:
        """Raise `ApiError` if the session has more than the caller's role may use. For changes that start no work, so
        the session keeps rules and a model beyond the role."""
        policy = self.policy(identity)
        if policy.is_limited:
            policy.check_session(identity.owner, await self.operations.state(key))

    async def may_change(self, identity: Identity, key: Key) -> bool:
        """Whether `check_change` would pass."""
        policy = self.policy(identity)
        return not policy.is_limited or policy.covers_session(identity.owner, await self.operations.state(key))

    async def send(
        self,
        identity: Identity,
        key: Key,
        text: str,
        *,
        message_id: MessageId | None = None,
        delivery: DeliveryChoice = "steer",
        **more: Any,
    ) -> Sent:
        """Accept a message as `Operations.send` does, within the caller's rate of messages into running turns. Whether
        a message goes into a running turn is known only when it is accepted, so a caller at the limit may send to idle
        sessions only. A duplicate is not counted: a retry gets its receipt."""
        with self.rates.reserve(identity.owner) as slot:
            try:
                sent = await self.operations.send(
                    key, text, message_id=message_id, delivery=delivery, only_if_idle=not slot.is_free, **more
                )
            except Conflict as error:
                if slot.is_free or delivery == "reject" or error.code != "busy":
                    raise
                raise self.rates.refusal(identity.owner) from None
            if not sent.duplicate and not sent.found_idle:
                slot.keep()
        return sent

    # The turn that a stream replays

    async def replayed_turn(self, key: Key) -> LastTurn | None:
        """The turn that a reader of the turn's stream gets from its start: an unfinished turn, or one that ended a
        moment ago. A page of messages leaves out exactly the answer of this turn."""
        turn = await last_turn(self.operations.store, key)
        if turn is None or turn.ended_at is None:
            return turn
        age = self.clock.now_ms() - turn.ended_at
        return turn if age < self.settings.replay_seconds * 1000 else None


def _change_of(record: Callable[[State], SettingsChanged | None]) -> Change:
    async def change(state: State) -> list[Body]:
        settings = record(state)
        return [] if settings is None else [settings]

    return change
