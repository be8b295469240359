"""What this process has done, as text that Prometheus reads. Counted from the hints that tell readers of commits."""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.events.body import Body
from holdfast.events.ids import Key, MessageId
from holdfast.events.message import AssistantMessage, CallFailed, Usage
from holdfast.events.turn import StepStarted, TurnEnded, TurnStarted
from holdfast.live.live import Advanced, Grown, Hint
from holdfast.store.clock import Clock

FIRST_TOKEN_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

MAX_AWAITED: Final = 10_000
"""Model calls whose first token is awaited: far more than one process makes at once."""


class Metrics:
    """One per process. `hear` is given every hint that is published here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns_started = 0
        self._turns_ended: Counter[str] = Counter()
        self._call_failures = 0
        self._tokens: Counter[str] = Counter()
        self._awaited: OrderedDict[MessageId, float] = OrderedDict()
        self._first_tokens: Counter[float] = Counter()
        self._first_token_count = 0
        self._first_token_sum = 0.0

    def hear(self, key: Key, hint: Hint) -> None:
        match hint:
            case Grown(deltas=deltas):
                if self._awaited:
                    self._saw_text(deltas[0].message_id)
            case Advanced(events=events):
                for event in events:
                    self._saw(event.body)
            case _:
                pass

    def _saw(self, body: Body) -> None:
        match body:
            case TurnStarted():
                self._turns_started += 1
            case TurnEnded(reason=reason):
                self._turns_ended[reason] += 1
            case StepStarted(message_id=message_id):
                self._awaited[message_id] = self._clock.monotonic()
                if len(self._awaited) > MAX_AWAITED:
                    self._awaited.popitem(last=False)
            case AssistantMessage(message_id=message_id):
                self._saw_text(message_id)  # A short answer comes all at once.
            case Usage():
                self._tokens["input"] += body.input_tokens or 0
                self._tokens["output"] += body.output_tokens or 0
            case CallFailed():
                self._call_failures += 1
            case _:
                pass

    def _saw_text(self, message_id: MessageId) -> None:
        started = self._awaited.pop(message_id, None)
        if started is None:
            return
        seconds = self._clock.monotonic() - started
        self._first_token_count += 1
        self._first_token_sum += seconds
        for bound in FIRST_TOKEN_SECONDS:
            if seconds <= bound:
                self._first_tokens[bound] += 1

    def page(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """The whole page. `gauges` are figures of this moment, each with what it means."""
        return "\n".join((*self._counters(), *self._histogram(), *_lines_of(gauges))) + "\n"

    def _counters(self) -> Iterator[str]:
        yield from _head("holdfast_turns_started_total", "counter", "Turns that were started here.")
        yield f"holdfast_turns_started_total {self._turns_started}"
        yield from _head("holdfast_turns_ended_total", "counter", "Turns that ended here, by how.")
        for reason in ("completed", "stopped", "error", "interrupted"):
            yield f'holdfast_turns_ended_total{{reason="{reason}"}} {self._turns_ended[reason]}'
        yield from _head("holdfast_model_call_failures_total", "counter", "Model calls that failed.")
        yield f"holdfast_model_call_failures_total {self._call_failures}"
        yield from _head("holdfast_tokens_total", "counter", "Tokens that models reported.")
        for direction in ("input", "output"):
            yield f'holdfast_tokens_total{{direction="{direction}"}} {self._tokens[direction]}'

    def _histogram(self) -> Iterator[str]:
        name = "holdfast_first_token_seconds"
        yield from _head(name, "histogram", "From the start of a step to its first token.")
        for bound in FIRST_TOKEN_SECONDS:
            yield f'{name}_bucket{{le="{bound:g}"}} {self._first_tokens[bound]}'
        yield f'{name}_bucket{{le="+Inf"}} {self._first_token_count}'
        yield f"{name}_sum {self._first_token_sum:.6f}"
        yield f"{name}_count {self._first_token_count}"


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _lines_of(gauges: Mapping[str, tuple[str, float]]) -> Iterator[str]:
    for name, (meaning, figure) in gauges.items():
        yield from _head(name, "counter" if name.endswith("_total") else "gauge", meaning)
        yield f"{name} {figure:g}"
