"""Records this release's golden databases and keeps them beside this file: `python -m tests.golden.keep NUMBER`.

Run it once, with the release that is to be remembered, and commit the two files. They are never recorded again: every
later release must open them.
"""

import asyncio
import gzip
import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import asyncpg

from proof.postgres_server import PostgresServer, programs

FOLDER = Path(__file__).parent
RECORD = FOLDER / "record.py"


def record(database: str, folder: Path) -> None:
    """Run the recording, which ends by killing itself. No name of this machine is recorded."""
    environ = {**os.environ, "HOLDFAST_NODE": "golden", "HOLDFAST_DATA_DIR": str(folder / "data")}
    ended = subprocess.run([sys.executable, str(RECORD), database], env=environ, check=False)
    assert ended.returncode < 0, "the recording did not come to its end"


def sqlite_file(folder: Path) -> bytes:
    path = folder / "golden.db"
    record(str(path), folder)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("VACUUM")
        db.execute("PRAGMA journal_mode = DELETE")
    return path.read_bytes()


def postgres_dump(folder: Path) -> bytes:
    with PostgresServer() as server:
        asyncio.run(_create(server.url()))
        record(server.url("golden"), folder)
        options = ("--no-owner", "--no-privileges", "--inserts", "--rows-per-insert=100")
        dump = [str(programs() / "pg_dump"), *options, server.url("golden")]
        lines = subprocess.run(dump, capture_output=True, check=True).stdout.splitlines(keepends=True)
    # Lines for psql, which the tests do not use.
    return b"".join(line for line in lines if not line.startswith(b"\\"))


async def _create(url: str) -> None:
    db = await asyncpg.connect(url)
    await db.execute("CREATE DATABASE golden TEMPLATE template0")
    await db.close()


def main(number: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for ending, content in (("sqlite", sqlite_file(Path(folder))), ("sql", postgres_dump(Path(folder)))):
            kept = FOLDER / f"{number}.{ending}.gz"
            kept.write_bytes(gzip.compress(content, 9, mtime=0))
            print(f"{kept.name}: {len(content):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
