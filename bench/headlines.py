"""The headlines: the six figures of the README, each taken from lines of the same report. Pure."""

from collections.abc import Mapping

import msgspec

from bench.bars import LINES, UNIT_SIGNS, Judged
from bench.figure import figure


class Headline(msgspec.Struct, frozen=True):
    what: str
    lines: tuple[str, ...]
    """The names of the lines whose medians it quotes."""


HEADLINES = (
    Headline(
        "tokens per second over HTTP, against a bare relay that keeps nothing, 20 / 100 clients",
        ("http_stream_20", "http_stream_100"),
    ),
    Headline("the same, against the faster of pydantic-ai + FastAPI and Agno AgentOS", ("http_peer_ratio",)),
    Headline("first token over HTTP, over the direct call to the model", ("http_first",)),
    Headline("CPU of a turn of 200 tokens", ("turn_200_cpu",)),
    Headline("memory with 100,000 sessions waiting for approvals", ("waiting_memory",)),
    Headline("a turn in a session of 10,000 events, against one in a fresh session", ("long_session",)),
)

_UNITS = {line.name: line.unit for line in LINES}


def quoted(headline: Headline, judged: Mapping[str, Judged]) -> str | None:
    """Its medians, with their unit; None if one of them is not known."""
    if not all(name in judged for name in headline.lines):
        return None
    unit = _UNITS[headline.lines[0]]
    sign = " times" if unit == "times" else UNIT_SIGNS[unit]
    return " / ".join(figure(judged[name].median) for name in headline.lines) + sign
