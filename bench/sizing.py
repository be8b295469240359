"""`python -m bench.sizing`: what one turn costs on a database, in the figures that docs/scale.md calculates with.

Turns are paced like those of a hosted model, many at a time, on a PostgreSQL of their own: in one process that nobody
reads from, or with `--through-http` by a worker, each read by a client of a server beside it. It has no bars: it says
what is, on this machine, on this day.
"""

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import msgspec

from bench import served
from bench.holdfast_server import make_session, turn_request
from bench.http_client import connections
from bench.http_load import load
from bench.memory import megabytes_of
from bench.processor import cpu_seconds_of
from bench.served import Served
from holdfast.app import Runtime
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from proof.postgres_server import PostgresServer

TOKENS = 200

_AT_REST = """
SELECT sum(pg_total_relation_size(pg_class.oid))::bigint FROM pg_class
  JOIN pg_namespace ON pg_namespace.oid = relnamespace
 WHERE nspname = 'holdfast' AND relkind = 'r' AND relname <> 'segment'
"""

_COUNTS = """
SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
       pg_current_wal_lsn() - '0/0'::pg_lsn,
       (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast'),
       (SELECT coalesce(sum(head), 0) FROM holdfast.session)
"""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured."""

    streams: int
    turns: int
    token_ms: float
    redis: str

    @property
    def script(self) -> Script:
        words = " ".join(f"word{number:04}" for number in range(TOKENS))
        return Script((Rule((Reply(text=words, chunk_delay_ms=self.token_ms),)),))

    def environ(self, folder: Path) -> dict[str, str]:
        return {
            "HOME": str(folder),
            "HOLDFAST_DATA_DIR": str(folder),
            "HOLDFAST_MAX_SESSIONS_PER_PROCESS": str(self.streams),
            "HOLDFAST_STREAMS_PER_OWNER": str(2 * self.streams),
            "HOLDFAST_REDIS": self.redis,
        }


class Reading(msgspec.Struct, frozen=True):
    """How far every counter was at one moment."""

    cpu: dict[str, float]
    transactions: int
    wal: int
    connections: int
    events: int
    at_rest: int


async def embedded(server: PostgresServer, folder: Path, asked: Asked) -> None:
    """One process that runs the turns, with a model inside of it."""
    async with Runtime(database=server.url(), model=ScriptedModel(asked.script), environ=asked.environ(folder)) as here:
        sessions = [await here.session() for _ in range(asked.streams)]

        async def a_round() -> None:
            await asyncio.gather(*(session.run("Go on.") for session in sessions))

        await _measure(server, asked, a_round, {"the process": os.getpid()})
        for name, (_, figure) in here.redis_figures().items():
            print(f"{name:38} {figure:.0f}")


async def through_http(server: PostgresServer, folder: Path, asked: Asked) -> None:
    """A model, a worker, a server and as many clients as there are turns, each a process of its own."""
    (folder / "script.json").write_bytes(msgspec.json.encode(asked.script))
    environ = {**os.environ, **asked.environ(folder), "HOLDFAST_DATABASE": server.url()}

    def command(*words: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "holdfast", *words)

    async with AsyncExitStack() as running:

        async def start(*words: str) -> tuple[Process, str]:
            program = served.announced(command(*words), cwd=folder, environ=environ)
            child, said = await running.enter_async_context(program)
            return child, said.decode()

        _, said = await start("model-server", "--script", str(folder / "script.json"))
        asks = ("--model", "openai/bench", "--model-base-url", _url_in(said))
        worker, _ = await start("worker", *asks)
        way_in, said = await start("serve", "--no-work", "--port", "0", *asks)
        url = _url_in(said)
        token = (folder / f"serve-{url.rpartition(':')[2]}.token").read_text("ascii").strip()
        at = Served(way_in.pid, url, token)
        async with connections(url, 1) as (connection,):
            sessions = [await make_session(at, connection) for _ in range(asked.streams)]

        async def a_round() -> None:
            await load(at, [[turn_request(at, session, "Go on.")] for session in sessions], tokens=TOKENS)

        await _measure(server, asked, a_round, {"the worker": worker.pid, "the server": way_in.pid})


def _url_in(said: str) -> str:
    found = re.search(r"http://[0-9.:]+[0-9/a-z]*", said)
    assert found is not None, said
    return found[0]


async def _measure(
    server: PostgresServer, asked: Asked, a_round: Callable[[], Awaitable[None]], processes: dict[str, int]
) -> None:
    await a_round()
    looking = await asyncpg.connect(server.url())
    before = await _read(looking, server, processes)
    began = time.monotonic()
    for _ in range(asked.turns):
        await a_round()
    took = time.monotonic() - began
    # Statistics of other connections are a second late.
    await asyncio.sleep(2)
    after = await _read(looking, server, processes)
    await looking.close()
    _tell(before, after, asked, seconds=took)
    for name, pid in processes.items():
        print(f"{'memory of ' + name:38} {megabytes_of(pid):.0f} MB")


async def _read(db: asyncpg.Connection, server: PostgresServer, processes: dict[str, int]) -> Reading:
    await db.execute("VACUUM holdfast.event")
    at_rest = await db.fetchval(_AT_REST)
    transactions, wal, connections, events = await db.fetchrow(_COUNTS)
    return Reading(
        cpu={
            **{name: cpu_seconds_of(pid) or 0.0 for name, pid in processes.items()},
            "PostgreSQL": _cpu_of_family(int((server.data / "postmaster.pid").read_text().split()[0])),
        },
        transactions=transactions,
        wal=int(wal),
        connections=connections,
        events=events,
        at_rest=at_rest,
    )


def _cpu_of_family(postmaster: int) -> float:
    """Of the server's processes that live, and those that it buried."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has just ended.
        if int(entry.parent.name) == postmaster:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == postmaster:
            ticks += sum(map(int, fields[11:13]))
    return ticks / 100


def _tell(before: Reading, after: Reading, asked: Asked, *, seconds: float) -> None:
    count = asked.streams * asked.turns

    def each(name: str) -> float:
        return float(getattr(after, name) - getattr(before, name)) / count

    rows = (
        ("turns", f"{count} of {TOKENS} tokens, {asked.streams} at a time, {seconds:.0f} s"),
        *(
            (f"CPU of {name}, each turn", f"{(after.cpu[name] - before.cpu[name]) / count * 1000:.1f} ms")
            for name in after.cpu
        ),
        ("transactions, each turn", f"{each('transactions'):.1f}"),
        ("transactions a second, in all", f"{each('transactions') * count / seconds:.0f}"),
        ("write-ahead log, each turn", f"{each('wal') / 1000:.1f} kB"),
        ("events, each turn", f"{each('events'):.1f}"),
        ("kept on disk, each turn", f"{each('at_rest') / 1000:.1f} kB"),
        ("connections to PostgreSQL", str(after.connections)),
    )
    for name, value in rows:
        print(f"{name:38} {value}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sizing", description=__doc__)
    parser.add_argument("--streams", type=int, default=100, help="turns at a time (100)")
    parser.add_argument("--turns", type=int, default=3, help="turns of each session (3)")
    parser.add_argument("--redis", default="", metavar="URL", help="tell others through a Redis (none)")
    parser.add_argument("--token-ms", type=float, default=20.0, help="between two tokens (20)")
    parser.add_argument("--through-http", action="store_true", help="a worker, a server and clients")
    given = parser.parse_args(arguments)
    asked = Asked(streams=given.streams, turns=given.turns, redis=given.redis, token_ms=given.token_ms)
    with PostgresServer(settings={"fsync": "on"}) as server, tempfile.TemporaryDirectory() as folder:
        asyncio.run((through_http if given.through_http else embedded)(server, Path(folder), asked))


if __name__ == "__main__":
    main()
