"""`holdfast db`: a backup, and what the database holds."""

import contextlib
from pathlib import Path

import msgspec

from holdfast.cli.finding import all_rows
from holdfast.cli.opening import opened
from holdfast.cli.terminal import neutral
from holdfast.config import Config
from holdfast.store.sqlite.connections import connect


async def back_up(config: Config, file: Path) -> None:
    async with opened(config, work=False) as runtime:
        await runtime.store.backup(file)
    print(f"Backed up to {neutral(str(file))} ({_bytes(file):,} bytes).")


async def show_status(config: Config, *, as_json: bool) -> None:
    async with opened(config, work=False) as runtime:
        rows = [row async for row in all_rows(runtime)]
    path = config.database_path
    found = {
        "path": str(path),
        "bytes": _bytes(path) + _bytes(path.with_name(path.name + "-wal")),
        "schema_version": schema_version(path),
        "sessions": len(rows),
        "unfinished_sessions": sum(row.status != "idle" for row in rows),
        "waiting_requests": sum(row.open_requests for row in rows),
    }
    if as_json:
        print(msgspec.json.encode(found).decode())
        return
    for name, value in found.items():
        shown = f"{value:,}" if isinstance(value, int) else neutral(str(value))
        print(f"{name.replace('_', ' '):20} {shown}")


def _bytes(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def schema_version(path: Path) -> int:
    with contextlib.closing(connect(path, read_only=True)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])
