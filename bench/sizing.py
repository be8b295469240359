"""`python -m bench.sizing`: what one turn costs on a database, in the figures that docs/scale.md calculates with.

Turns are paced like those of a hosted model, many at a time in one process, on a PostgreSQL of their own. It has no
bars: it says what is, on this machine, on this day.
"""

import argparse
import asyncio
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import asyncpg
import msgspec

from holdfast.app import Runtime
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from holdfast.testing.postgres_server import PostgresServer

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


class Reading(msgspec.Struct, frozen=True):
    """How far every counter was at one moment."""

    cpu: float
    database_cpu: float
    transactions: int
    wal: int
    connections: int
    events: int
    at_rest: int


async def measure(
    server: PostgresServer, folder: Path, *, streams: int, turns: int, token_ms: float, redis: str
) -> None:
    words = " ".join(f"word{number:04}" for number in range(TOKENS))
    model = ScriptedModel(Script((Rule((Reply(text=words, chunk_delay_ms=token_ms),)),)))
    environ = {"HOME": str(folder), "HOLDFAST_DATA_DIR": str(folder), "HOLDFAST_MAX_SESSIONS_PER_PROCESS": str(streams)}
    environ |= {"HOLDFAST_REDIS": redis}
    async with Runtime(database=server.url(), model=model, environ=environ) as runtime:
        sessions = [await runtime.session() for _ in range(streams)]
        await asyncio.gather(*(session.run("Go on.") for session in sessions))
        looking = await asyncpg.connect(server.url())
        before = await _read(looking, server)
        began = time.monotonic()
        for _ in range(turns):
            await asyncio.gather(*(session.run("Go on.") for session in sessions))
        took = time.monotonic() - began
        # Statistics of other connections are a second late.
        await asyncio.sleep(2)
        after = await _read(looking, server)
        await looking.close()
        for name, (_, figure) in runtime.redis_figures().items():
            print(f"{name:38} {figure:.0f}")
    _tell(before, after, count=streams * turns, streams=streams, seconds=took)


async def _read(db: asyncpg.Connection, server: PostgresServer) -> Reading:
    await db.execute("VACUUM holdfast.event")
    at_rest = await db.fetchval(_AT_REST)
    transactions, wal, connections, events = await db.fetchrow(_COUNTS)
    return Reading(
        cpu=time.process_time(),
        database_cpu=_cpu_of_family(int((server.data / "postmaster.pid").read_text().split()[0])),
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


def _tell(before: Reading, after: Reading, *, count: int, streams: int, seconds: float) -> None:
    def each(name: str) -> float:
        return float(getattr(after, name) - getattr(before, name)) / count

    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows = (
        ("turns", f"{count} of {TOKENS} tokens, {streams} at a time, {seconds:.0f} s"),
        ("CPU of the process, each turn", f"{each('cpu') * 1000:.1f} ms"),
        ("CPU of PostgreSQL, each turn", f"{each('database_cpu') * 1000:.1f} ms"),
        ("transactions, each turn", f"{each('transactions'):.1f}"),
        ("transactions a second, in all", f"{each('transactions') * count / seconds:.0f}"),
        ("write-ahead log, each turn", f"{each('wal') / 1000:.1f} kB"),
        ("events, each turn", f"{each('events'):.1f}"),
        ("kept on disk, each turn", f"{each('at_rest') / 1000:.1f} kB"),
        ("connections of the process", str(after.connections)),
        ("memory of the process, at its most", f"{memory:.0f} MB"),
    )
    for name, value in rows:
        print(f"{name:38} {value}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sizing", description=__doc__)
    parser.add_argument("--streams", type=int, default=100, help="turns at a time (100)")
    parser.add_argument("--turns", type=int, default=3, help="turns of each session (3)")
    parser.add_argument("--redis", default="", metavar="URL", help="tell others through a Redis (none)")
    parser.add_argument("--token-ms", type=float, default=20.0, help="between two tokens (20)")
    asked = parser.parse_args(arguments)
    with PostgresServer(settings={"fsync": "on"}) as server, tempfile.TemporaryDirectory() as folder:
        asyncio.run(
            measure(
                server,
                Path(folder),
                streams=asked.streams,
                turns=asked.turns,
                token_ms=asked.token_ms,
                redis=asked.redis,
            )
        )


if __name__ == "__main__":
    main()
