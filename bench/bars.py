"""The bars: what is measured, what it must come to, and when it is missed. Pure.

A bar is missed when the median of all runs is worse than it by more than the spread of those runs. Figures are printed
as measured; instead, a bar that is a time or a rate is moved to the speed of this machine, by the calibration loop
against its value on the machine that the bars were stated for. A delay is allowed raw commits of the same run on top,
because no runtime is faster than its disk. A time that a person feels has the same bar on every machine.
"""

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from bench.calibration import Machine
from bench.place import Measured

Unit = Literal["times", "ms", "us", "per s", "MB", "KB", "%"]

UNIT_SIGNS: dict[Unit, str] = {
    "times": "",
    "ms": " ms",
    "us": " µs",
    "per s": " /s",
    "MB": " MB",
    "KB": " KB",
    "%": " %",
}
"""The end of a figure of each unit."""

Verdict = Literal["met", "MISSED", "reported"]

MIN_RUNS = 7
"""Fewer runs than this establish nothing."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. Its figure has the same name among what its probe gives."""

    name: str
    probe: str
    what: str
    unit: Unit
    at_most: float | None = None
    at_least: float | None = None
    goal: float | None = None
    """What is hoped for beyond the bar. Nothing is missed by missing it."""
    of_processor: bool = False
    """It is time of the processor, and so is moved to this machine's speed by the same."""
    is_felt: bool = False
    """A person perceives this time: 50 ms are as long on a slow machine as on a fast one. The bar is not scaled."""
    commits_p50: float = 0
    """So many median raw commits of the same run come on top of the bar."""
    commits_p99: float = 0
    no_less_than: str | None = None
    """The figure of the same run, of something that has nothing to do, below which no bar makes sense."""

    @property
    def has_bar(self) -> bool:
        return self.at_most is not None or self.at_least is not None


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A line with what became of it. `bar` is the bar on this machine, in these runs."""

    name: str
    what: str
    unit: Unit
    stated: str
    bar: float | None
    median: float
    spread: float
    runs: int
    verdict: Verdict


LINES: tuple[Line, ...] = (
    Line(
        name="turn_token_ratio",
        probe="turns",
        what="CPU of each further token of a turn, against a bare consumer (read, split, decode)",
        unit="times",
        at_most=3,
    ),
    Line(
        name="turn_200_cpu",
        probe="turns",
        what="CPU of a 200-token turn, 20 sessions at once",
        unit="ms",
        at_most=8,
        of_processor=True,
    ),
    Line(name="turn_200_rate", probe="turns", what="200-token turns on one core", unit="per s", at_least=120),
    Line(
        name="turn_1_cpu",
        probe="turns",
        what="CPU of a one-token turn, in process",
        unit="ms",
        at_most=3,
        of_processor=True,
    ),
    Line(
        name="budget_cpu_ratio",
        probe="budgets",
        what="CPU of a 200-token turn whose cost is reserved and settled, against one without a budget",
        unit="times",
        at_most=1.05,
    ),
    Line(
        name="first_chunk",
        probe="first_chunk",
        what="first token, over the direct call to the model",
        unit="ms",
        at_most=2,
        commits_p50=3,
    ),
    Line(
        name="first_chunk_instant",
        probe="first_chunk",
        what="the same, when 200 tokens come at once",
        unit="ms",
    ),
    Line(
        name="delivery_p50",
        probe="delivery",
        what="delivery delay, 20 streams x 200 tokens/s, p50",
        unit="ms",
        at_most=2,
        commits_p50=1,
    ),
    Line(
        name="delivery_p99",
        probe="delivery",
        what="delivery delay, 20 streams x 200 tokens/s, p99",
        unit="ms",
        at_most=10,
        commits_p99=1,
    ),
    Line(name="paced_token_cpu", probe="delivery", what="CPU per token when paced", unit="us"),
    Line(
        name="append_20",
        probe="appends",
        what="appends of 20 producers, against a raw group commit",
        unit="times",
        at_least=0.7,
    ),
    Line(
        name="append_100",
        probe="appends",
        what="appends of 100 producers, against a raw group commit",
        unit="times",
        at_least=0.7,
    ),
    Line(
        name="long_session",
        probe="long_session",
        what="a turn after 10,000 events, against one in a fresh session",
        unit="times",
        at_most=1.3,
    ),
    Line(
        name="long_talk_cpu",
        probe="long_talk",
        what="CPU of the last 100 of 1,000 turns in one session, against the first 100",
        unit="times",
        at_most=1.3,
    ),
    Line(
        name="long_talk_events",
        probe="long_talk",
        what="the same, events read",
        unit="times",
        at_most=1.3,
    ),
    Line(
        name="long_talk_bytes",
        probe="long_talk",
        what="the same, bytes sent to the model",
        unit="times",
        at_most=1.3,
    ),
    Line(
        name="long_talk_compactions",
        probe="long_talk",
        what="compactions in those 1,000 turns",
        unit="times",
        at_least=20,
    ),
    Line(
        name="cache_share_messages",
        probe="cache_share",
        what="input tokens of a 30-step session, killed and taken over, that a prefix cache reads: Messages",
        unit="times",
        at_least=0.97,
    ),
    Line(
        name="cache_share_responses",
        probe="cache_share",
        what="the same: Responses",
        unit="times",
        at_least=0.97,
    ),
    Line(
        name="cache_share_chat",
        probe="cache_share",
        what="the same: chat completions with marks",
        unit="times",
        at_least=0.97,
    ),
    Line(
        name="cache_share_sent_messages",
        probe="cache_share",
        what="of the tokens that an earlier call of that session had sent, the part that is read: Messages",
        unit="times",
    ),
    Line(
        name="cache_share_sent_responses",
        probe="cache_share",
        what="the same: Responses",
        unit="times",
    ),
    Line(
        name="cache_share_sent_chat",
        probe="cache_share",
        what="the same: chat completions with marks",
        unit="times",
    ),
    Line(
        name="cache_share_long_prompt_messages",
        probe="cache_share",
        what="that session's share of all input tokens with instructions of 8,700 tokens: Messages",
        unit="times",
        at_least=0.97,
    ),
    Line(
        name="cache_share_long_prompt_responses",
        probe="cache_share",
        what="the same: Responses",
        unit="times",
        at_least=0.97,
    ),
    Line(
        name="cache_share_long_prompt_chat",
        probe="cache_share",
        what="the same: chat completions with marks",
        unit="times",
        at_least=0.97,
    ),
    Line(
        name="cache_share_unmarked",
        probe="cache_share",
        what="control: what is read of the calls of Messages without their marks",
        unit="times",
    ),
    Line(name="cold_open", probe="cold_open", what="cold open of 10,000 events", unit="ms", at_most=100),
    Line(
        name="cold_open_without_snapshot",
        probe="cold_open",
        what="the same, its snapshot lost",
        unit="ms",
    ),
    Line(name="idle_memory", probe="idle", what="memory of an idle process", unit="MB", at_most=60),
    Line(
        name="waiting_memory",
        probe="waiting",
        what="memory of the process that serves 100,000 waiting sessions",
        unit="MB",
        at_most=150,
    ),
    Line(
        name="answer_to_attempt",
        probe="waiting",
        what="from an accepted answer to the tool that it lets run, p50",
        unit="ms",
        at_most=50,
    ),
    Line(name="import", probe="startup", what="import holdfast", unit="ms", at_most=150),
    Line(name="help", probe="startup", what="holdfast --help", unit="ms", at_most=300),
    Line(
        name="copilot_start",
        probe="copilot_client",
        what="Copilot: from the public client's start to its first ping",
        unit="ms",
        at_most=500,
    ),
    Line(
        name="copilot_resume",
        probe="copilot_client",
        what="Copilot: cold resume of a session of 20 turns in a new process, by the public client",
        unit="ms",
        at_most=600,
    ),
    Line(
        name="copilot_resume_call",
        probe="copilot_client",
        what="Copilot: the same, the call alone",
        unit="ms",
    ),
    Line(
        name="copilot_create",
        probe="copilot_turns",
        what="Copilot: create a session, p50, by a lean client",
        unit="ms",
        at_most=5,
    ),
    Line(
        name="copilot_turn",
        probe="copilot_turns",
        what="Copilot: trivial turn, sent until idle, p50, by a lean client",
        unit="ms",
        at_most=15,
    ),
    Line(
        name="copilot_turn_client",
        probe="copilot_client",
        what="Copilot: the same by the public client",
        unit="ms",
    ),
    Line(
        name="copilot_turn_cpu",
        probe="copilot_turns",
        what="Copilot: CPU of the runtime for a trivial turn",
        unit="ms",
        at_most=6,
        of_processor=True,
    ),
    Line(
        name="copilot_turn_rate",
        probe="copilot_turns",
        what="Copilot: trivial turns on one core, 20 sessions of a lean client at once",
        unit="per s",
        at_least=150,
    ),
    Line(
        name="copilot_ping",
        probe="copilot_turns",
        what="Copilot: ping over TCP, p50, written in two parts as the public client does",
        unit="ms",
        at_most=1.5,
    ),
    Line(
        name="copilot_idle_memory",
        probe="copilot_memory",
        what="Copilot: memory of an idle runtime that had a turn and has no session",
        unit="MB",
        at_most=80,
    ),
    Line(
        name="copilot_sessions_memory",
        probe="copilot_memory",
        what="Copilot: memory with 100 attached sessions that had a trivial turn each",
        unit="MB",
        at_most=100,
    ),
    Line(
        name="http_stream_20",
        probe="http_streams",
        what="HTTP: durable streaming against a bare relay that keeps nothing, tokens/s, 20 clients",
        unit="times",
        at_least=0.8,
        goal=1,
    ),
    Line(
        name="http_stream_100",
        probe="http_streams",
        what="HTTP: the same, 100 clients",
        unit="times",
        at_least=0.8,
        goal=1,
    ),
    Line(
        name="http_tokens_20",
        probe="http_streams",
        what="HTTP: tokens streamed, 20 clients",
        unit="per s",
    ),
    Line(name="http_relay_tokens_20", probe="http_streams", what="HTTP: the same by the bare relay", unit="per s"),
    Line(
        name="http_tokens_100",
        probe="http_streams",
        what="HTTP: tokens streamed, 100 clients",
        unit="per s",
    ),
    Line(
        name="http_relay_tokens_100",
        probe="http_streams",
        what="HTTP: the same by the bare relay",
        unit="per s",
    ),
    Line(name="http_token_cpu_20", probe="http_streams", what="HTTP: CPU per token, 20 clients", unit="us"),
    Line(name="http_relay_token_cpu_20", probe="http_streams", what="HTTP: the same of the bare relay", unit="us"),
    Line(
        name="http_busy_20",
        probe="http_streams",
        what="HTTP: how busy its core was, 20 clients",
        unit="%",
    ),
    Line(name="http_relay_busy_20", probe="http_streams", what="HTTP: the same, the bare relay's", unit="%"),
    Line(
        name="http_peer_ratio",
        probe="http_peers",
        what="HTTP: durable streaming against the faster of pydantic-ai + FastAPI and Agno AgentOS, tokens/s",
        unit="times",
        at_least=10,
    ),
    Line(
        name="http_pydantic_ai_tokens",
        probe="http_peers",
        what="HTTP: tokens streamed by pydantic-ai + FastAPI, 20 clients",
        unit="per s",
    ),
    Line(
        name="http_agno_tokens",
        probe="http_peers",
        what="HTTP: tokens streamed by Agno AgentOS + SQLite, 20 clients",
        unit="per s",
    ),
    Line(
        name="http_first",
        probe="http_first",
        what="HTTP: first token, one client, over the direct call to the model",
        unit="ms",
        at_most=2,
        commits_p50=3,
    ),
    Line(
        name="http_delivery_p50",
        probe="http_delivery",
        what="HTTP: delivery delay, 20 streams x 200 tokens/s, p50",
        unit="ms",
        at_most=2,
        commits_p50=1,
    ),
    Line(
        name="http_delivery_p99",
        probe="http_delivery",
        what="HTTP: delivery delay, 20 streams x 200 tokens/s, p99",
        unit="ms",
        at_most=10,
        commits_p99=1,
    ),
    Line(
        name="http_paced_token_cpu",
        probe="http_delivery",
        what="HTTP: CPU per token when paced",
        unit="us",
    ),
    Line(
        name="http_turn_200_rate",
        probe="http_turns",
        what="HTTP: 200-token turns on one core, 20 clients",
        unit="per s",
        at_least=120,
    ),
    Line(
        name="http_turn_200_cpu",
        probe="http_turns",
        what="HTTP: CPU of the server for a 200-token turn, 20 clients",
        unit="ms",
        at_most=8,
        of_processor=True,
    ),
    Line(
        name="http_turn_1_cpu",
        probe="http_turns",
        what="HTTP: CPU of the server for a one-token turn, 20 clients",
        unit="ms",
        at_most=6,
        of_processor=True,
    ),
    Line(
        name="http_reader_memory",
        probe="http_readers",
        what="HTTP: memory for each of 1,000 idle readers of a log",
        unit="KB",
        at_most=30,
    ),
    Line(
        name="http_turn_reader_memory",
        probe="http_readers",
        what="HTTP: memory for each of 1,000 readers of a turn whose model is silent",
        unit="KB",
    ),
    Line(
        name="http_ready",
        probe="http_start",
        what="HTTP: holdfast serve, from its start until ready",
        unit="ms",
        at_most=1000,
    ),
    Line(
        name="http_idle_memory",
        probe="http_start",
        what="HTTP: memory of an idle holdfast serve that had a turn and has no session",
        unit="MB",
        at_most=60,
    ),
    Line(
        name="http_bomb_pause",
        probe="http_bombs",
        what="HTTP: the longest that one request of allowed size keeps others waiting, of the worst that were found",
        unit="ms",
        at_most=50,
    ),
    Line(
        name="http_bomb_memory",
        probe="http_bombs",
        what="HTTP: the most memory that one such request takes",
        unit="MB",
        at_most=100,
    ),
    Line(
        name="command_foreground",
        probe="commands",
        what="shell: `true` until its outcome is known, over a plain subprocess, p50",
        unit="ms",
        at_most=15,
    ),
    Line(
        name="command_memory",
        probe="commands",
        what="shell: memory of the supervisor for each of 200 commands in the background, without their own",
        unit="MB",
        at_most=2,
    ),
    Line(
        name="command_asker_memory",
        probe="commands",
        what="shell: the same, of the process that waits for them",
        unit="MB",
    ),
    Line(
        name="command_idle_cpu",
        probe="commands",
        what="shell: CPU of the supervisor while all of them are quiet and waited for",
        unit="%",
        at_most=1,
    ),
    Line(
        name="command_asker_idle_cpu",
        probe="commands",
        what="shell: the same, of the process that waits for them",
        unit="%",
        at_most=1,
    ),
    Line(
        name="cluster_long_talk_cpu",
        probe="cluster_long_talk",
        what="PostgreSQL: CPU of the last 100 of 1,000 turns in one session, against the first 100",
        unit="times",
        at_most=1.3,
    ),
    Line(
        name="cluster_long_talk_events",
        probe="cluster_long_talk",
        what="PostgreSQL: the same, events read",
        unit="times",
        at_most=1.3,
    ),
    Line(
        name="cluster_long_talk_bytes",
        probe="cluster_long_talk",
        what="PostgreSQL: the same, bytes sent to the model",
        unit="times",
        at_most=1.3,
    ),
    Line(
        name="cluster_long_talk_compactions",
        probe="cluster_long_talk",
        what="PostgreSQL: compactions in those 1,000 turns",
        unit="times",
        at_least=20,
    ),
    Line(
        name="cluster_append_20",
        probe="cluster_appends",
        what="PostgreSQL: appends of 20 producers, against the bare driver with a fenced statement",
        unit="times",
        at_least=0.7,
    ),
    Line(
        name="cluster_append_100",
        probe="cluster_appends",
        what="PostgreSQL: the same, 100 producers",
        unit="times",
        at_least=0.7,
    ),
    Line(
        name="cluster_append_20_per_s",
        probe="cluster_appends",
        what="PostgreSQL: appends of 20 producers",
        unit="per s",
    ),
    Line(
        name="cluster_append_100_per_s",
        probe="cluster_appends",
        what="PostgreSQL: appends of 100 producers",
        unit="per s",
    ),
    Line(
        name="cluster_claim",
        probe="cluster_claims",
        what="PostgreSQL: a claim, p50, among 1,000,000 sessions against one among 1,000",
        unit="times",
        at_most=1.5,
    ),
    Line(
        name="cluster_claim_p50",
        probe="cluster_claims",
        what="PostgreSQL: a claim among 1,000,000 sessions, p50",
        unit="ms",
    ),
    Line(
        name="cluster_stuck",
        probe="cluster_stuck",
        what="PostgreSQL: a claim, p50, beside 1,000 owners whose sessions can't run here, against one without them",
        unit="times",
        at_most=1.5,
    ),
    Line(
        name="cluster_stuck_p50",
        probe="cluster_stuck",
        what="PostgreSQL: a claim beside those 1,000 owners, p50",
        unit="ms",
    ),
    Line(
        name="cluster_frozen",
        probe="cluster_frozen",
        what="cluster: longest delay of another worker's sessions by a server that is frozen inside a put",
        unit="ms",
        at_most=100,
    ),
    Line(
        name="cluster_frozen_longest",
        probe="cluster_frozen",
        what="cluster: longest append or turn of those sessions meanwhile",
        unit="ms",
    ),
    Line(
        name="cluster_workers",
        probe="cluster_workers",
        what="cluster: turns of two workers against those of one, 50 at a time each, answers of 1 to 2 s",
        unit="times",
        at_least=1.8,
    ),
    Line(
        name="cluster_workers_two",
        probe="cluster_workers",
        what="cluster: turns of the two workers",
        unit="per s",
    ),
    Line(
        name="cluster_turn_cpu",
        probe="cluster_workers",
        what="cluster: CPU of the workers for each of those turns",
        unit="ms",
    ),
    Line(
        name="cluster_node_p50",
        probe="cluster_nodes",
        what="cluster: a token (60 in a second) at another node, through Valkey, later than at its own, p50",
        unit="ms",
        at_most=5,
    ),
    Line(
        name="cluster_node_p99",
        probe="cluster_nodes",
        what="cluster: the same, p99",
        unit="ms",
    ),
    Line(
        name="cluster_node_fast_p50",
        probe="cluster_nodes",
        what="cluster: the same with 200 in a second, p50",
        unit="ms",
    ),
    Line(
        name="cluster_own_node_p50",
        probe="cluster_nodes",
        what="cluster: delivery delay at the node that works, p50",
        unit="ms",
    ),
    Line(
        name="page_scroll_frame",
        probe="page_scroll",
        what="page: longest frame while 5,000 messages are scrolled through, there and back, in Chromium (of 7 parts)",
        unit="ms",
        at_most=50,
        is_felt=True,
        no_less_than="page_scroll_empty",
    ),
    Line(
        name="page_scroll_worst",
        probe="page_scroll",
        what="page: the same, longest frame of all",
        unit="ms",
    ),
    Line(
        name="page_scroll_empty",
        probe="page_scroll",
        what="page: an empty page, same browser, same wheel, longest frame (of 3 such parts)",
        unit="ms",
    ),
    Line(
        name="page_scroll_empty_worst",
        probe="page_scroll",
        what="page: the same, longest frame of all",
        unit="ms",
    ),
    Line(
        name="page_scroll_task",
        probe="page_scroll",
        what="page: while they are scrolled through, longest task of the page's thread, in CPU time",
        unit="ms",
        at_most=50,
        of_processor=True,
    ),
    Line(
        name="page_scroll_p99", probe="page_scroll", what="page: frames while they are scrolled through, p99", unit="ms"
    ),
    Line(
        name="page_scroll_blank",
        probe="page_scroll",
        what="page: frames whose middle was not drawn yet, at 8,000 pixels/s",
        unit="%",
    ),
    Line(
        name="page_scroll_speed",
        probe="page_scroll",
        what="page: pixels scrolled",
        unit="per s",
    ),
    Line(
        name="page_open",
        probe="page_scroll",
        what="page: open that session, until its end is there",
        unit="ms",
    ),
    Line(
        name="page_input_p99",
        probe="page_typing",
        what="page: from a key to the frame after it, while 200 tokens/s stream in for a minute, p99",
        unit="ms",
        at_most=100,
        is_felt=True,
    ),
    Line(
        name="page_input_lost",
        probe="page_typing",
        what="page: the same, typed characters that are missing in the end",
        unit="%",
        at_most=0,
    ),
    Line(
        name="page_input_empty",
        probe="page_typing",
        what="page: from a key to the frame after it on an empty page, same browser, same keys, p99",
        unit="ms",
    ),
    Line(name="page_input_p50", probe="page_typing", what="page: from a key to the frame after it, p50", unit="ms"),
    Line(
        name="page_input_task",
        probe="page_typing",
        what="page: while keys are typed, longest task of the page's thread, in CPU time",
        unit="ms",
        at_most=50,
        of_processor=True,
    ),
    Line(
        name="page_stream_rate",
        probe="page_typing",
        what="page: tokens that streamed in meanwhile",
        unit="per s",
    ),
    Line(name="page_bytes", probe="page_load", what="page: first load, gzipped", unit="KB", at_most=80),
    Line(
        name="page_useful",
        probe="page_load",
        what="page: first load, until the box to write in is painted, local server",
        unit="ms",
    ),
)


def judge(line: Line, runs: Sequence[Measured], *, reference: Machine, strictness: float = 1) -> Judged | None:
    """What these runs say of a line; None when none of them could measure it."""
    measured = [run for run in runs if line.name in run.figures]
    if not measured:
        return None
    figures = [run.figures[line.name] for run in measured]
    median, spread = statistics.median(figures), _spread(figures)
    bars = [_bar(line, run, _speed(line, run, reference), strictness) for run in measured]
    bar = statistics.median(bars) if line.has_bar else None
    return Judged(
        name=line.name,
        what=line.what,
        unit=line.unit,
        stated=stated(line),
        bar=bar,
        median=median,
        spread=spread,
        runs=len(figures),
        verdict=_verdict(line, bar, median, spread),
    )


def _bar(line: Line, run: Measured, speed: float, strictness: float) -> float:
    """`speed` is this machine's, in this run, as a multiple of the reference machine's."""
    if line.at_least is not None:
        return line.at_least * strictness * (speed if line.unit == "per s" else 1)
    on_top = line.commits_p50 * run.commit_p50_ms + line.commits_p99 * run.commit_p99_ms
    at_most = (line.at_most or 0) / (speed if line.unit in ("ms", "us") else 1)
    least = run.figures[line.no_less_than] if line.no_less_than is not None else 0.0
    return max(at_most + on_top, least) / strictness


def _speed(line: Line, run: Measured, reference: Machine) -> float:
    if line.is_felt:
        return 1.0
    if line.of_processor:
        return reference.calibration_cpu_ms / run.calibration_cpu_ms
    return reference.calibration_ms / run.calibration_ms


def _verdict(line: Line, bar: float | None, median: float, spread: float) -> Verdict:
    if bar is None:
        return "reported"
    missed_by = bar - median if line.at_least is not None else median - bar
    return "MISSED" if missed_by > spread else "met"


def _spread(figures: Sequence[float]) -> float:
    """The middle half of the runs lies within this."""
    if len(figures) < 2:
        return 0.0
    low, _, high = statistics.quantiles(figures, n=4, method="inclusive")
    return high - low


def stated(line: Line) -> str:
    """The bar before scaling, in words."""
    sign = UNIT_SIGNS[line.unit]
    if line.at_least is not None:
        return f">= {line.at_least:g}{sign}" + ("" if line.goal is None else f", goal {line.goal:g}{sign}")
    if line.at_most is None:
        return "-"
    felt = " on any machine" if line.is_felt else ""
    p50 = f" + {line.commits_p50:g} commit{'' if line.commits_p50 == 1 else 's'}" if line.commits_p50 else ""
    p99 = f" + {line.commits_p99:g} commit p99" if line.commits_p99 else ""
    least = ", or as an empty page" if line.no_less_than else ""
    return f"<= {line.at_most:g}{sign}{felt}{p50}{p99}{least}"
