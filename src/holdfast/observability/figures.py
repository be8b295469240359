"""What this process has done, in numbers. Counted from what it committed, never from what it meant to do."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from holdfast.events.body import Body
from holdfast.events.ids import MessageId, ToolCallId
from holdfast.events.message import AssistantMessage, CallFailed
from holdfast.events.tool import ToolCompleted, ToolStarted
from holdfast.events.turn import StepStarted, TurnEnded, TurnStarted
from holdfast.observability.exposition import Histogram, Labels, counter, single
from holdfast.store.store import LedgerEntry, Unit

FIRST_TOKEN_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

COMMIT_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)

END_REASONS: Final = ("completed", "stopped", "error", "interrupted")

MAX_AWAITED: Final = 10_000
"""Model calls whose first token is awaited: far more than one process makes at once."""

MAX_MODELS: Final = 50
"""Models that get lines of their own, beside the configured one. Clients may bring models under any name."""

NameOf = Callable[[ToolCallId], str]


class Figures:
    """One per process. Tools that are not of this process, such as a client's own or one that a model made up, are
    counted together: their names are anybody's."""

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
        self._requests_opened = 0
        self._requests_closed = 0
        self._awaited: OrderedDict[MessageId, float] = OrderedDict()
        self._first_tokens = Histogram(FIRST_TOKEN_SECONDS)
        self._commits = Histogram(COMMIT_SECONDS)

    # Counting

    def committed(self, unit: Unit, *, name_of: NameOf, now: float, seconds: float) -> None:
        """A unit is durable; it took so long. `name_of` knows the tool of a call that was asked for before."""
        self._commits.observe(seconds)
        self._requests_opened += len(unit.opens)
        self._requests_closed += len(unit.closes)
        for event in unit.events:
            self._saw(event.body, unit, name_of, now)

    def shown(self, message_id: MessageId, seconds: float, now: float) -> None:
        """Text of this message is durable, and shown; writing it took so long."""
        self._commits.observe(seconds)
        self._saw_text(message_id, now)

    def _saw_text(self, message_id: MessageId, now: float) -> None:
        if (started := self._awaited.pop(message_id, None)) is not None:
            self._first_tokens.observe(now - started)

    def booked(self, entry: LedgerEntry) -> None:
        """A try at a model call was written into the ledger."""
        model = self._models.of(entry.model)
        for kind, tokens in (
            ("input", entry.input_tokens),
            ("output", entry.output_tokens),
            ("cached", entry.cache_read_tokens),
        ):
            if tokens:
                self._tokens[model, kind] += tokens
        if entry.cost_microdollars is None:
            self._cost_unknown[model,] += 1
        else:
            self._cost[model,] += entry.cost_microdollars

    def _saw(self, body: Body, unit: Unit, name_of: NameOf, now: float) -> None:
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
                self._saw_text(message_id, now)  # A short answer comes all at once.
            case CallFailed(error_code=code):
                self._calls_failed[code,] += 1
            case ToolCompleted(tool_call_id=tool_call_id):
                name = name_of(tool_call_id) or _name_in(unit, tool_call_id)
                self._tool_calls[self._tools.of(name), body.error or "ok"] += 1
            case _:
                pass

    # Telling

    def lines(self) -> Iterator[str]:
        """All of them, as Prometheus reads them."""
        yield from single("holdfast_turns_started_total", "Turns that were started here.", self._turns_started)
        yield from counter(
            "holdfast_turns_ended_total", "Turns that ended here, by how.", self._turns_ended, ["reason"]
        )
        yield from counter(
            "holdfast_model_call_failures_total", "Model calls that failed, by why.", self._calls_failed, ["code"]
        )
        yield from counter("holdfast_tokens_total", "Tokens that models reported.", self._tokens, ["model", "kind"])
        yield from counter(
            "holdfast_cost_microdollars_total", "What model calls cost, where it is known.", self._cost, ["model"]
        )
        yield from counter(
            "holdfast_cost_unknown_total",
            "Model calls of which nobody said what they cost.",
            self._cost_unknown,
            ["model"],
        )
        yield from counter(
            "holdfast_tool_calls_total", "Tool calls that have a result.", self._tool_calls, ["tool", "outcome"]
        )
        yield from single(
            "holdfast_requests_opened_total",
            "Permissions, questions and client tools that were asked for here.",
            self._requests_opened,
        )
        yield from single(
            "holdfast_requests_closed_total", "Those that were answered or given up here.", self._requests_closed
        )
        yield from self._first_tokens.lines(
            "holdfast_first_token_seconds", "From the start of a step to its first token."
        )
        yield from self._commits.lines(
            "holdfast_commit_seconds", "From handing a session's writes to the store until they are durable."
        )


def _name_in(unit: Unit, tool_call_id: ToolCallId) -> str:
    """The tool of a call that was asked for and closed at once."""
    for event in unit.events:
        if isinstance(event.body, ToolStarted) and event.body.tool_call_id == tool_call_id:
            return event.body.tool_name
    return ""
