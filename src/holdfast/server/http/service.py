"""What every route stands on: the operations, who asks, and what they may ask for.

A route module has a function `routes(service)`. A handler asks the service who is there and which session is meant,
reads what was sent, calls one operation and answers; it neither catches errors nor writes to the store.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from starlette.requests import Request

from holdfast.events.body import Body
from holdfast.events.ids import Key, MessageId, SessionId
from holdfast.events.session import SettingsChanged
from holdfast.live.live import Live
from holdfast.models.credentials import Credentials
from holdfast.observability.exposition import single
from holdfast.observability.observer import Observer
from holdfast.observability.spans import RequestSpan
from holdfast.server.errors import Conflict
from holdfast.server.http.identity import Identities, Identity
from holdfast.server.http.metrics import Accesses, Metrics
from holdfast.server.http.policy import Policies, Policy
from holdfast.server.http.rates import Rates
from holdfast.server.http.streams import Streams
from holdfast.server.http.visible import LastTurn, last_turn
from holdfast.server.operations import Change, DeliveryChoice, Operations, Sent
from holdfast.server.task_operations import TaskOperations
from holdfast.session.bounds import Bounds
from holdfast.session.state import State
from holdfast.store.clock import Clock

IDENTITY = "holdfast.identity"
"""Where the gate leaves in a request's scope who asks."""

REQUEST_SPAN = "holdfast.span"
"""Where its span is, if somebody keeps those."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How this process serves HTTP: its bounds, and what a session gets whose maker did not choose."""

    model: str
    model_advanced: str | None = None
    """The model of the tier `advanced`; None: there is no such tier here."""
    thinking: int | None = None
    """What a session is made with whose maker did not say how long the model may think."""
    titles: Literal["model", "words"] = "words"
    """What new sessions are called: as a model says, or by the first words of the first message."""
    tools: tuple[str, ...]
    known_tools: tuple[str, ...]
    """All that there are. A session with any other could be run by nobody."""
    refused_tools: frozenset[str] = frozenset()
    """Of those, what this server does not run, whoever asks."""
    directory: str | None = None
    """Where a session works unless its maker says otherwise."""
    max_body_bytes: int = 1_000_000
    max_import_bytes: int = 16_000_000
    max_import_events: int = 10_000
    follow_ups_per_minute: int = 30
    streams_per_owner: int = 1_000
    replay_seconds: float = 60.0
    """How long a turn that has ended is still told from its start."""
    stop_wait_seconds: float = 2.0
    """How long a stop waits to say what it did."""


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a session may name."""

    name: str
    is_default: bool = False


class Service:
    """The HTTP surface of one process."""

    def __init__(
        self,
        *,
        operations: Operations,
        tasks: TaskOperations,
        live: Live,
        clock: Clock,
        bounds: Bounds,
        settings: Settings,
        identities: Identities,
        policies: Policies,
        credentials: Credentials,
        metrics: Metrics,
        observer: Observer,
        models: Callable[[], Awaitable[tuple[Offered, ...]]],
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
        self.accesses = Accesses()
        self.models = models
        self._check_model = check_model
        self.redis_state = redis_state
        self.rates = Rates(clock, per_minute=settings.follow_ups_per_minute)
        self.streams = Streams(clock, per_owner=settings.streams_per_owner)
        self.is_draining = False

    async def figures(self) -> str:
        """What this process did and does, for Prometheus."""
        readers = single("holdfast_readers", "Streams that are open.", len(self.streams))
        return await self.metrics.page((*readers, *self.accesses.lines()))

    # Who asks, and for what

    def identity(self, request: Request) -> Identity:
        """Who asks. The gate let nobody through who is not known."""
        found: Identity = request.scope[IDENTITY]
        return found

    def policy(self, identity: Identity) -> Policy:
        return self.policies.of(identity.role)

    def check_model(self, identity: Identity, model: str) -> None:
        """Raises why somebody may not have their session asked by this model, or why nobody could."""
        self.policy(identity).check_model(model)
        if model != self.settings.model:
            self._check_model(model)

    def key(self, request: Request) -> Key:
        """The session that the path names. One of somebody else has another key, and so is found as little as one
        that never was."""
        key = Key(self.identity(request).owner, SessionId(request.path_params["session_id"]))
        span: RequestSpan | None = request.scope.get(REQUEST_SPAN)
        if span is not None and request.method == "POST":
            self.observer.link_request(key, span.context)
        return key

    async def check_use(self, identity: Identity, key: Key) -> None:
        """Raises why somebody may not have this session do anything: it has more than their role may have. Rules that
        the role may not grant are taken from it first, so that it asks again, and it asks the server's default instead
        of a model that the role may not choose; a crash after that leaves it so."""
        policy = self.policy(identity)
        if not policy.is_limited:
            return
        state = await self.operations.state(key)
        policy.check_session(identity.owner, state)
        if policy.narrowed(state) is not None:
            await self.operations.change(key, _one(policy.narrowed))
        if policy.asks_beyond(state, default=self.settings.model):
            await self.operations.change_model(key, self.settings.model)

    # Sending

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
        """Accept a message as `Operations.send` does, if its sender has not sent too many into running turns. Whether
        it goes into one is known when it is accepted: who has none left is only accepted by a session at rest. One that
        was accepted before is not counted: a retry gets its receipt."""
        with self.rates.taken(identity.owner) as one:
            try:
                sent = await self.operations.send(
                    key, text, message_id=message_id, delivery=delivery, only_if_idle=not one.is_there, **more
                )
            except Conflict as error:
                if one.is_there or delivery == "reject" or error.code != "busy":
                    raise
                raise self.rates.refusal(identity.owner) from None
            if not sent.duplicate and not sent.found_idle:
                one.keep()
        return sent

    # The turn that a stream would tell

    async def replayed_turn(self, key: Key) -> LastTurn | None:
        """The turn that a reader who asks for the turn's stream is told from its start: one that is unfinished, or
        that ended a moment ago. A page of messages leaves out exactly its answer."""
        found = await last_turn(self.operations.store, key)
        if found is None or found.ended_at is None:
            return found
        age = self.clock.now_ms() - found.ended_at
        return found if age < self.settings.replay_seconds * 1000 else None


def _one(record: Callable[[State], SettingsChanged | None]) -> Change:
    async def change(state: State) -> list[Body]:
        found = record(state)
        return [] if found is None else [found]

    return change
