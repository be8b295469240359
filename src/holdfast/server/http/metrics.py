"""The metrics page: counters of this process, and gauges of the moment."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from holdfast.observability.exposition import counter, single
from holdfast.observability.figures import Figures
from holdfast.store.clock import Clock
from holdfast.store.store import Store

Gauges = Callable[[], Mapping[str, tuple[str, float]]]
"""Gauges by name, each with its help text and value."""


class Metrics:
    """One per process."""

    def __init__(self, figures: Figures, store: Store, clock: Clock, gauges: Gauges) -> None:
        self._figures = figures
        self._store = store
        self._clock = clock
        self._gauges = gauges

    async def page(self, more: Iterable[str] = ()) -> str:
        """The whole page. `more` are lines of the surface that serves it."""
        lines = list(self._figures.lines())
        oldest = await self._store.oldest_unclaimed()
        age = max(0, self._clock.now_ms() - oldest) / 1000 if oldest is not None else 0.0
        gauges = {
            "holdfast_queue_age_seconds": (
                "How long the longest-waiting session has waited for a process.",
                age,
            ),
            **self._gauges(),
        }
        for name, (meaning, figure) in gauges.items():
            lines.extend(single(name, meaning, figure))
        return "\n".join((*lines, *more)) + "\n"


class RequestCounts:
    """Counts of HTTP requests."""

    def __init__(self) -> None:
        self.open = 0
        self._ended: Counter[tuple[str, ...]] = Counter()

    def ended(self, status: int) -> None:
        self._ended[f"{status // 100}xx" if status else "broken off",] += 1

    def lines(self) -> Iterator[str]:
        yield from single("holdfast_http_requests_open", "Requests that are being answered.", self.open)
        yield from counter("holdfast_http_requests_total", "Requests that ended, by status.", self._ended, ["status"])
