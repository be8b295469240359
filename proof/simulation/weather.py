"""The faults of one run and their severity, drawn once from its seed."""

import random
from typing import Literal

import msgspec

Mishap = Literal["crash", "pause", "cut off", "shake", "fade", "restart", "failover"]
"""A process dies; stands still for a while; can't reach the store for a while; reaches it, but every other call fails;
hears its answers ever so late, and then can't reach it; or is stopped in good order. Or the database fails over, and
all leases end at once."""


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    processes: int
    sessions: int
    owners: int
    cancelled_tool_seconds: float
    """How long a session is kept for a tool that was cancelled and still runs."""
    clients: int
    readers: int
    seconds: float
    """How long the faults last. Then everything must come to rest."""
    latency: float
    """The longest that a call to the store takes when nothing is wrong."""
    failing: float
    """How many calls to the store fail. Whether they took place is unknown."""
    stalling: float
    """The share of calls that take very long to arrive."""
    lateness: float
    """The share of calls that take effect in time, and whose responses take very long to come back."""
    deafness: float
    """How many model calls and tool calls do not heed their cancellation, for a while or for ever."""
    losing: float
    """How many hints are lost between processes."""
    delaying: float
    """How long a hint may be under way."""
    doubling: float
    """How many hints, and requests of clients, come twice."""
    death_is_seen: bool
    """Other processes see a death at once, as on one machine; or they see only that the process no longer renews."""
    skew: float
    """How much faster or slower than true time a process's clock may go."""
    mishaps: tuple[tuple[float, Mishap], ...]
    busy: float
    """How many things each client does in a second."""
    slots: int | None
    """How many turns of an owner run at a time."""
    in_flight: int | None
    """How many turns of an owner may run or wait for a slot."""
    patience: int
    """How many claims without progress a turn survives."""
    thinking: float
    """The longest pause of the model between two pieces."""
    nodes: int
    """Machines. With more than one, some sessions have their files on one of them, and can run on no other."""
    renaming: float
    """How many processes come up under the name of another machine than the one before them."""
    node_is_lost: bool
    """When the faults end, one machine stays away for longer than a session may wait without a report."""
    gaps: float
    """How many processes lack a tool, or a model, that some sessions need."""
    old: float
    """How many processes are of the release before, which does not know every kind of inbox item."""
    entrusts: bool
    """Some sessions need a token that only the process has to which a client gave it."""
    commands: bool
    """Models run commands, in the foreground of their turn and in the background."""
    guests: int
    """Clients that bring tools of their own, and can decide permissions or decline to."""


def drawn(chance: random.Random) -> Weather:
    seconds = chance.choice((2.0, 4.0, 6.0, 10.0))
    kinds: tuple[Mishap, ...] = (
        *("crash", "crash", "pause", "pause", "cut off", "shake", "shake", "fade", "restart", "failover"),
    )
    count = chance.choice((0, 1, 2, 3, 4, 6))
    nodes = chance.choice((1, 1, 1, 1, 1, 2))
    return Weather(
        processes=chance.choice((1, 2, 2, 2, 3)),
        sessions=chance.choice((1, 1, 1, 1, 2, 2, 3)),
        cancelled_tool_seconds=chance.choice((1.0, 3.0, 8.0)),
        owners=chance.choice((1, 1, 2, 3)),
        clients=chance.choice((1, 2, 2, 3)),
        readers=chance.choice((1, 2)),
        seconds=seconds,
        latency=chance.choice((0.002, 0.01, 0.05, 0.2)),
        failing=chance.choice((0.0, 0.0, 0.02, 0.06)),
        stalling=chance.choice((0.0, 0.0, 0.02)),
        lateness=chance.choice((0.0, 0.0, 0.02, 0.06)),
        deafness=chance.choice((0.0, 0.0, 0.1, 0.3)),
        losing=chance.choice((0.0, 0.2, 1.0)),
        delaying=chance.choice((0.01, 0.2, 2.0)),
        doubling=chance.choice((0.0, 0.1, 0.4)),
        death_is_seen=chance.random() < 0.5,
        skew=chance.choice((0.0, 0.01, 0.05)),
        mishaps=tuple(sorted((chance.uniform(0.2, seconds), chance.choice(kinds)) for _ in range(count))),
        busy=chance.choice((0.5, 1.5, 3.0)),
        slots=chance.choice((None, None, 1, 2)),
        in_flight=chance.choice((None, None, None, 3)),
        patience=chance.choice((2, 10)),
        thinking=chance.choice((0.02, 0.2, 1.0)),
        nodes=nodes,
        renaming=0.3 if nodes > 1 else 0.0,
        node_is_lost=nodes > 1 and chance.random() < 0.15,
        gaps=chance.choice((0.0, 0.0, 0.0, 0.0, 0.4)),
        old=chance.choice((0.0, 0.0, 0.0, 0.0, 0.5)),
        entrusts=chance.random() < 0.15,
        commands=chance.random() < 0.12,
        guests=chance.choice((0, 0, 0, 0, 0, 1, 2)),
    )


def calm(weather: Weather) -> Weather:
    """The same weather without its faults."""
    return msgspec.structs.replace(
        weather,
        failing=0.0,
        stalling=0.0,
        lateness=0.0,
        doubling=0.0,
        renaming=0.0,
        gaps=0.0,
        old=0.0,
        mishaps=(),
    )


def on_a_real_store(weather: Weather, kind: Literal["sqlite", "postgresql"]) -> Weather:
    """The same where the database is a real one: SQLite's processes see a death at once, PostgreSQL's never do; all
    processes are of this release, and no commands are run."""
    return msgspec.structs.replace(weather, death_is_seen=kind == "sqlite", old=0.0, commands=False)
