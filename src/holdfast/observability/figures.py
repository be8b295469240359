"""The metrics of this process. They count committed units, never intentions."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from holdfast.events.body import Body
from holdfast.events.compaction import CompactionEnded
from holdfast.events.ids import MessageId, ToolCallId
from holdfast.events.message import AssistantMessage, CallFailed
from holdfast.events.tool import ToolCompleted, ToolStarted
from holdfast.events.turn import StepStarted, TurnEnded, TurnStarted
from holdfast.observability.exposition import Histogram, Labels, counter, single
from holdfast.store.store import LedgerEntry, Unit

FIRST_TOKEN_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

COMMIT_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)

END_REASONS: Final = ("completed", "stopped", "error", "interrupted")

COMPACTION_OUTCOMES: Final = ("summary", "cut", "failed")

MAX_AWAITED: Final = 10_000
"""Model calls whose first token has not arrived yet: far more than one process makes at once."""

MAX_MODELS: Final = 50
"""Models that get lines of their own, besides the configured one. Clients may bring models under any name."""

NameOf = Callable[[ToolCallId], str]


class Figures:
    """The metrics of one process. Tools that this process does not have (a client's own, or one that a model made up)
    share one label, because outsiders choose their names."""

    def __init__(self, *, tools: Iterable[str] = (), models: Iterable[str] = ()) -> None:
        self._tools = Labels(tools)
        self._models = Labels(models, more=MAX_MODELS)
        self._turns_started = 0
        self._turns_ended: Counter[tuple[str, ...]] = Counter({(reason,): 0 for reason in END_REASONS})
        self._calls_failed: Counter[tuple[str, ...]] = Counter()
        self._tokens: Counter[tuple[str, ...]] = Counter()
        self._cost: Counter[tuple[str, ...]] = Counter()
        self._cost_unknown: Counter[tuple[str, ...]] = Counter()
        self._tool_calls: Counter[tuple[str, ...]] = Counter()
        self._compactions: Counter[tuple[str, ...]] = Counter({(outcome,): 0 for outcome in COMPACTION_OUTCOMES})
        self._requests_opened = 0
        self._requests_closed = 0
        self._awaited: OrderedDict[MessageId, float] = OrderedDict()
        self._first_tokens = Histogram(FIRST_TOKEN_SECONDS)
        self._commits = Histogram(COMMIT_SECONDS)

    # Counting

    def committed(self, unit: Unit, *, name_of: NameOf, now: float, seconds: float) -> None:
        """Count a unit that is durable now; the commit took `seconds`. `name_of` gives the tool of a call from an
        earlier unit."""
        self._commits.observe(seconds)
        self._requests_opened += len(unit.opens)
        self._requests_closed += len(unit.closes)
        for event in unit.events:
            self._count(event.body, unit, name_of, now)

    def shown(self, message_id: MessageId, seconds: float, now: float) -> None:
        """Count a piece of this message that is durable and shown now; the write took `seconds`."""
        self._commits.observe(seconds)
        self._first_token(message_id, now)

    def _first_token(self, message_id: MessageId, now: float) -> None:
        if (started := self._awaited.pop(message_id, None)) is not None:
            self._first_tokens.observe(now - started)

    def booked(self, entry: LedgerEntry) -> None:
        """Count an attempt at a model call that is in the ledger now."""
        model = self._models.of(entry.model)
        for kind, tokens in (
            ("input", entry.input_tokens),
            ("output", entry.output_tokens),
            ("cached", entry.cache_read_tokens),
            ("cache_write", entry.cache_write_tokens),
        ):
            if tokens:
                self._tokens[model, kind] += tokens
        if entry.cost_microdollars is None:
            self._cost_unknown[model,] += 1
        else:
            self._cost[model,] += entry.cost_microdollars

    def _count(self, body: Body, unit: Unit, name_of: NameOf, now: float) -> None:
        match body:
            case TurnStarted():
                self._turns_started += 1
            case TurnEnded(reason=reason):
                self._turns_ended[reason,] += 1
            case StepStarted(message_id=message_id):
                self._awaited[message_id] = now
                if len(self._awaited) > MAX_AWAITED:
                    self._awaited.popitem(last=False)
            case AssistantMessage(message_id=message_id):
                self._first_token(message_id, now)  # A short answer arrives in one piece, without segments.
            case CompactionEnded(success=success, method=method):
                self._compactions[method if success else "failed",] += 1
            case CallFailed(error_code=code):
                self._calls_failed[code,] += 1
            case ToolCompleted(tool_call_id=tool_call_id):
                name = name_of(tool_call_id) or _name_in(unit, tool_call_id)
                self._tool_calls[self._tools.of(name), body.error or "ok"] += 1
            case _:
                pass

    # Exposition

    def lines(self) -> Iterator[str]:
        """All metrics, in the text format of Prometheus."""
        yield from single("holdfast_turns_started_total", "Turns that this process started.", self._turns_started)
        yield from counter(
            "holdfast_turns_ended_total", "Turns that ended in this process, by reason.", self._turns_ended, ["reason"]
        )
        yield from counter(
            "holdfast_model_call_failures_total", "Failed model calls, by error code.", self._calls_failed, ["code"]
        )
        yield from counter("holdfast_tokens_total", "Tokens that models reported.", self._tokens, ["model", "kind"])
        yield from counter(
            "holdfast_cost_microdollars_total", "Cost of the model calls whose cost is known.", self._cost, ["model"]
        )
        yield from counter(
            "holdfast_cost_unknown_total", "Model calls whose cost is unknown.", self._cost_unknown, ["model"]
        )
        yield from counter(
            "holdfast_tool_calls_total", "Tool calls that have a result.", self._tool_calls, ["tool", "outcome"]
        )
        yield from counter(
            "holdfast_compactions_total",
            "Compactions that ended: with a summary, with a cut, or without effect.",
            self._compactions,
            ["outcome"],
        )
        yield from single(
            "holdfast_requests_opened_total",
            "Requests (permissions, questions, client tools) that this process opened.",
            self._requests_opened,
        )
        yield from single(
            "holdfast_requests_closed_total",
            "Requests that this process closed, answered or not.",
            self._requests_closed,
        )
        yield from self._first_tokens.lines(
            "holdfast_first_token_seconds", "From the start of a step to its first token."
        )
        yield from self._commits.lines(
            "holdfast_commit_seconds", "From handing a session's writes to the store until they are durable."
        )


def _name_in(unit: Unit, tool_call_id: ToolCallId) -> str:
    """The tool of a call that starts and completes in the same unit."""
    for event in unit.events:
        if isinstance(event.body, ToolStarted) and event.body.tool_call_id == tool_call_id:
            return event.body.tool_name
    return ""
