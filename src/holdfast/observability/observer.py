"""Observes held sessions: counts their commits, records spans, and logs how turns end.

It only observes: nothing waits for it, and none of its failures can fail a turn.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from opentelemetry.trace import SpanContext

from holdfast.events.ids import Fence, Key, MessageId, TurnId
from holdfast.events.message import CallFailed
from holdfast.events.session import SessionError
from holdfast.events.turn import TurnEnded, TurnStarted, TurnWaiting
from holdfast.observability.activity import ActivityContext, current_activity
from holdfast.observability.figures import Figures, NameOf
from holdfast.observability.spans import Content, HoldingSpan, RequestSpan, named_by, trace_id_of, tracer
from holdfast.store.clock import Clock
from holdfast.store.store import LedgerEntry, Unit

log = logging.getLogger(__name__)

MAX_ORIGINS: Final = 1_000
MAX_ORIGINS_PER_SESSION: Final = 8
ORIGIN_SECONDS: Final = 60.0
"""How long after its arrival a request may still be linked to the work that it causes."""


class Observer:
    """The observer of one process."""

    def __init__(self, clock: Clock, figures: Figures | None = None, *, records_content: bool = False) -> None:
        self.clock = clock
        self.figures = figures or Figures()
        self._records_content = records_content
        self._origins: OrderedDict[Key, list[tuple[float, SpanContext]]] = OrderedDict()

    def held(self, key: Key, fence: Fence, redacted: Callable[[str], str]) -> "Observed":
        """Begin to observe a session that this process holds from now on. `redacted` removes the known secrets from a
        text."""
        return Observed(self, key, fence, Content(redacted if self._records_content else None))

    def request(self, method: str, headers: dict[str, str]) -> RequestSpan | None:
        """Start the span of an HTTP request; None without a tracer provider."""
        maker = tracer()
        return None if maker is None else RequestSpan(maker, method, headers)

    def link_request(self, key: Key, request: SpanContext) -> None:
        """Link the request to the work that it is about to cause in a session. The link exists only in this process:
        an inbox item carries no trace, so that sending it again gives the same item."""
        origins = self._origins.setdefault(key, [])
        self._origins.move_to_end(key)
        origins.append((self.clock.monotonic(), request))
        del origins[:-MAX_ORIGINS_PER_SESSION]
        if len(self._origins) > MAX_ORIGINS:
            self._origins.popitem(last=False)

    def link_traceparent(self, key: Key, traceparent: str) -> None:
        """Link the client's span that a `traceparent` names, as `link_request` does."""
        if tracer() is not None and (context := named_by(traceparent)) is not None:
            self.link_request(key, context)

    def origins(self, key: Key) -> list[SpanContext]:
        """Take the requests that were linked since the last call, without those older than `ORIGIN_SECONDS`."""
        since = self.clock.monotonic() - ORIGIN_SECONDS
        return [context for at, context in self._origins.pop(key, ()) if at >= since]


class Observed:
    """One session while this process holds it. Entered when the work begins, left when the session is released."""

    def __init__(self, observer: Observer, key: Key, fence: Fence, content: Content) -> None:
        self._observer = observer
        self._key = key
        self._fence = fence
        self._content = content
        self._activity = ActivityContext(owner=key.owner, session_id=key.session)
        self._maker = tracer()
        self._waits = False
        self._booked: tuple[MessageId, int] | None = None
        self.span: HoldingSpan | None = None
        """The span of the current turn; None between turns, or without a tracer provider."""

    def resume(self, turn_id: TurnId | None, *, waits: bool) -> Self:
        """Take up the unfinished turn that the claim found, if any. `waits`: it waits for an answer."""
        self._waits = waits
        if turn_id is not None:
            self._began(turn_id)
        return self

    def __enter__(self) -> Self:
        current_activity.set(self._activity)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, asyncio.CancelledError):
            self._ended("waiting" if self._waits else "handed_over")
        else:
            self._ended("lost", error=type(error).__name__)

    def committed(self, unit: Unit, *, name_of: NameOf, seconds: float) -> None:
        """Observe a unit of this session that is durable now; the commit took `seconds`. `name_of` still reads the
        state before the unit."""
        self._observer.figures.committed(unit, name_of=name_of, now=self._observer.clock.monotonic(), seconds=seconds)
        for entry in unit.ledger:
            self._book(entry)
        failure = ""
        for event in unit.events:
            match event.body:
                case TurnStarted(turn_id=turn_id):
                    self._began(turn_id)
                case SessionError(error_type=code):
                    failure = code
                case TurnEnded(reason=reason, duration_ms=duration_ms):
                    log.info("turn ended: %s after %d ms%s", reason, duration_ms, f" ({failure})" if failure else "")
                    self._ended(reason, error=failure)
                case CallFailed(error_code=code, attempt=attempt, status_code=status, retryable=retryable):
                    log.warning(
                        "model call failed: %s, status %s, attempt %d, retryable %s", code, status, attempt, retryable
                    )
                case _:
                    pass
        if unit.events:
            self._waits = any(isinstance(event.body, TurnWaiting) for event in unit.events)
        if unit.promotes and self._maker is not None and (origins := self._observer.origins(self._key)) and self.span:
            self.span.link(origins)

    def shown(self, message_id: MessageId, seconds: float) -> None:
        """Observe a piece of a message that is durable and shown now; the write took `seconds`."""
        self._observer.figures.shown(message_id, seconds, self._observer.clock.monotonic())

    def _book(self, entry: LedgerEntry) -> None:
        """Count each attempt at a model call once, although two units may carry its ledger entry."""
        if self._booked == (entry.message_id, entry.attempt):
            return
        self._booked = (entry.message_id, entry.attempt)
        self._observer.figures.booked(entry)
        if self.span is not None:
            self.span.used(entry.input_tokens, entry.output_tokens)

    def _began(self, turn_id: TurnId) -> None:
        self._activity.turn_id = turn_id
        if self._maker is not None:
            self._activity.trace_id = f"{trace_id_of(turn_id):032x}"
            self.span = HoldingSpan(self._maker, self._key, self._fence, turn_id, self._content)

    def _ended(self, outcome: str, *, error: str = "") -> None:
        if self.span is not None:
            self.span.end(outcome, error=error)
            self.span = None
        self._activity.turn_id = self._activity.trace_id = ""
