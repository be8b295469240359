"""The HTTP surface of one process: its settings, and everything that its handlers share."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec

from holdfast.events.ids import Key
from holdfast.live.live import Live
from holdfast.models.credentials import Credentials
from holdfast.observability.exposition import single
from holdfast.observability.observer import Observer
from holdfast.protocol.model import OfferedModel
from holdfast.server.errors import Invalid
from holdfast.server.http.denials import Denials
from holdfast.server.http.identity import Identities
from holdfast.server.http.metrics import Metrics, RequestCounts
from holdfast.server.http.policy import Policies
from holdfast.server.http.rates import PerMinute, Rates
from holdfast.server.http.resets import Resets
from holdfast.server.http.streams import Streams
from holdfast.server.log_tail import LastTurn, last_turn
from holdfast.server.message_options import Tier
from holdfast.server.operations import Operations
from holdfast.server.operations.files import FileOperations
from holdfast.server.operations.tasks import TaskOperations
from holdfast.server.operations.webhooks import WebhookOperations
from holdfast.server.presence import Presence
from holdfast.session.bounds import Bounds
from holdfast.store.clock import Clock

EXPORTS_PER_MINUTE: Final = 600
"""Of one owner."""
BILLING: Final = "/v1/billing"
RESET: Final = "/v1/budget/reset"
"""Routes that exist only where another system is configured."""


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
    max_file_bytes: int = 500_000_000
    max_import_bytes: int = 16_000_000
    max_import_events: int = 10_000
    follow_ups_per_minute: int = 30
    streams_per_owner: int = 1_000
    replay_seconds: float = 60.0
    """How long the stream of an ended turn is replayed from its start."""
    stop_wait_seconds: float = 2.0
    """How long the response to a stop waits for the outcome."""

    def model_of_tier(self, tier: Tier) -> str:
        model = self.model if tier == "standard" else self.model_advanced
        if model is None:
            raise Invalid("tier_not_offered", f"This server has no model of the tier {tier}.")
        return model


class HttpService:
    """Everything that the handlers of one process share."""

    def __init__(
        self,
        *,
        operations: Operations,
        tasks: TaskOperations,
        webhooks: WebhookOperations,
        files: FileOperations,
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
        resets: Resets | None = None,
        billing_key: bytes | None = None,
    ) -> None:
        self.operations = operations
        self.tasks = tasks
        self.webhooks = webhooks
        self.files = files
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
        self.check_model = check_model
        """Raises an error if the server can't call the model."""
        self.redis_state = redis_state
        self.resets = resets
        """None: people can't reset their budgets."""
        self.billing_key = billing_key
        """The key of the signatures of a billing system; None: there is none."""
        self.rates = Rates(clock, per_minute=settings.follow_ups_per_minute)
        self.streams = Streams(clock, per_owner=settings.streams_per_owner)
        self.exports = PerMinute(clock, most=EXPORTS_PER_MINUTE)
        self.denials = Denials(operations.store, clock)
        self.presence = Presence(operations, operations.store, clock)
        self.copying = asyncio.Semaphore(1)
        """Held while a log is copied: a copy is in memory as a whole, so only one is made at a time."""
        self.is_draining = False

    def has_route(self, path: str) -> bool:
        """Whether this server has a route; most are always there."""
        needs = {BILLING: self.billing_key, RESET: self.resets}
        return path not in needs or needs[path] is not None

    async def metrics_page(self) -> str:
        """The metrics of this process, for Prometheus."""
        readers = single("holdfast_readers", "Streams that are open.", len(self.streams))
        return await self.metrics.page((*readers, *self.request_counts.lines()))

    async def replayed_turn(self, key: Key) -> LastTurn | None:
        """The turn that a reader of the turn's stream gets from its start: an unfinished turn, or one that ended a
        moment ago. A page of messages leaves out exactly the answer of this turn."""
        turn = await last_turn(self.operations.store, key)
        if turn is None or turn.ended_at is None:
            return turn
        age = self.clock.now_ms() - turn.ended_at
        return turn if age < self.settings.replay_seconds * 1000 else None
