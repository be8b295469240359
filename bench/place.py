"""Where a probe runs and how much it does: handed from the process that judges to the one that measures."""

from pathlib import Path

import msgspec


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How much each probe does. The bars are stated for `FULL`; `QUICK` only shows that every line can be measured."""

    clients: int = 20
    rounds: int = 4
    first_chunks: int = 30
    calibration_loops: int = 12
    """How often the loop of `calibration.py` is run each time; it takes about ten milliseconds. A shared machine is at
    times half as fast for as long as that, so that a few of them could all be taken at such a time, or at none."""
    raw_commits: int = 300
    streamed_tokens: int = 500
    append_seconds: float = 1.0
    producers: tuple[int, ...] = (20, 100)
    long_events: int = 10_000
    long_turns: int = 40
    talk_turns: int = 1_000
    cache_steps: tuple[int, int] = (30, 5)
    """Steps with a tool in the first turn, and in each of the two follow-ups."""
    waiting_sessions: int = 100_000
    answers: int = 20
    copilot_starts: int = 3
    copilot_creates: int = 50
    """At least as many as there are clients: the sessions that talk are among them."""
    copilot_talks: int = 4
    copilot_turns: int = 20
    copilot_sessions: int = 100
    pings: int = 200
    foreground_commands: int = 40
    background_commands: int = 200
    quiet_seconds: float = 3.0
    http_clients: tuple[int, int] = (20, 100)
    http_readers: int = 1_000
    http_starts: int = 3
    bombs: int = 1_000
    """More than there are."""
    cluster_sessions: tuple[int, int] = (1_000, 1_000_000)
    """In the small database and in the large one."""
    cluster_claims: int = 200
    stuck_owners: int = 1_000
    frozen_seconds: float = 2.0
    """Less than PostgreSQL lets a frozen process hold what it locked."""
    cluster_tokens: int = 400
    worker_turns: int = 50
    """At a time, in each worker."""
    worker_backlog: int = 900
    """More turns than are made while anything is measured."""
    worker_seconds: float = 3.0
    slow_answers: tuple[float, float] = (1.0, 2.0)
    """The shortest and the longest time, in seconds, that the model takes to answer a worker."""
    page_messages: int = 5_000
    page_traced: int = 20
    """Gestures up the thread while the browser notes what it does: enough to have several older pages fetched."""
    page_stream_seconds: float = 60.0
    own_core: float = 0.8
    """What is compared by how fast it goes must have had so much of its core. With less, others were in its way: a
    server of several threads, which often sleeps, is then given more of a core than one that never does."""


FULL = Size()

QUICK = Size(
    clients=2,
    rounds=1,
    first_chunks=2,
    calibration_loops=1,
    raw_commits=10,
    streamed_tokens=20,
    append_seconds=0.05,
    producers=(20, 100),
    long_events=300,
    long_turns=2,
    talk_turns=60,
    cache_steps=(6, 2),
    waiting_sessions=50,
    answers=2,
    copilot_starts=1,
    copilot_creates=2,
    copilot_talks=1,
    copilot_turns=2,
    copilot_sessions=3,
    pings=3,
    foreground_commands=2,
    background_commands=3,
    quiet_seconds=0.05,
    http_clients=(2, 3),
    http_readers=5,
    http_starts=1,
    bombs=2,
    cluster_sessions=(40, 400),
    cluster_claims=3,
    stuck_owners=20,
    frozen_seconds=0.2,
    cluster_tokens=20,
    worker_turns=2,
    worker_backlog=300,
    worker_seconds=0.5,
    slow_answers=(0.1, 0.2),
    page_messages=60,
    page_traced=1,
    page_stream_seconds=2.0,
    own_core=0.0,
)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one probe."""

    folder: Path
    """Empty, on the file system that is measured, and removed afterwards."""
    prepared: Path
    """What `prepare` of the same probe left; every run may use it, one after the other."""
    run: int
    model_url: str
    paced_url: str
    size: Size
    peers: Path
    """Where what others use instead is installed; it is kept from one benchmark to the next."""
    core: int | None
    """Where the measured process is pinned, if it can be."""
    model_core: int | None = None
    """Where the models are, and the clients of a measured process that is a server."""
    postgres_url: str = ""
    redis_url: str = ""
    """Both are there for the probes of the cluster, and for no others."""


def to_json(place: Place) -> bytes:
    return msgspec.json.encode(place, enc_hook=str)


def from_json(data: bytes) -> Place:
    return msgspec.json.decode(data, type=Place, dec_hook=lambda kind, text: kind(text))


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a probe gave: its own figures, and how fast the machine was at that moment."""

    figures: dict[str, float]
    calibration_ms: float
    calibration_cpu_ms: float
    """The same loop by the processor's clock, which others on the machine slow down far less."""
    commit_p50_ms: float
    commit_p99_ms: float
