"""`holdfast db`: what the database holds, a backup of it, and its migrations. Passwords are never shown."""

import sys
from pathlib import Path

import msgspec

from holdfast.cli.errors import WORLD
from holdfast.cli.escapes import visible
from holdfast.cli.surveying import migrate as run_migrations
from holdfast.cli.surveying import surveyed, write_backup
from holdfast.config import Config
from holdfast.store.survey import Contents, Survey


async def back_up(config: Config, file: Path) -> None:
    if config.is_postgres:
        _say(f"Dumping {config.database_shown}.")
    await write_backup(config, file, so_far=lambda size: _say(f"{size:,} bytes so far."))
    print(f"Backed up to {visible(str(file))} ({_bytes(file):,} bytes).")


async def migrate(config: Config, *, only_check: bool) -> int:
    """Safe to repeat. Each migration is all or nothing: one that is cut off is run again by whoever comes next."""
    where = visible(config.database_shown)
    before = (await surveyed(config, with_contents=False)).schema
    if not before.pending:
        print(f"Nothing to migrate: {where} is at schema {before.version}, as this release is.")
        return 0
    if only_check:
        print(f"To be run on {where}: {', '.join(before.pending)}.")
        return WORLD
    await run_migrations(config)
    after = (await surveyed(config, with_contents=False)).schema
    done = [name for name in before.pending if name not in after.pending]
    print(f"Ran {', '.join(done)}.")
    print(f"{where} was at schema {before.version}, and is at {after.version} now.")
    return 0


async def show_status(config: Config, *, as_json: bool) -> None:
    found = _told(config, await surveyed(config, with_contents=True))
    if as_json:
        print(msgspec.json.encode(found).decode())
        return
    for name, value in found.items():
        print(f"{name.replace('_', ' '):24} {visible(_shown(value))}")


def _told(config: Config, survey: Survey) -> dict[str, object]:
    contents = survey.contents or Contents()
    return {
        "kind": "postgresql" if config.is_postgres else "sqlite",
        "path": config.database_shown,
        "server_version": survey.server.version,
        "schema_version": survey.schema.version,
        "pending_migrations": survey.schema.pending,
        "sessions": contents.sessions,
        "unfinished_sessions": contents.unfinished_sessions,
        "events": contents.events,
        "bytes": contents.bytes,
        "backlog": survey.work.backlog,
        "oldest_waiting_seconds": survey.work.oldest_waiting_seconds,
        "waiting_requests": survey.work.waiting_requests,
    }


def _shown(value: object) -> str:
    match value:
        case None | ():
            return "none"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.1f}"
        case tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)


def _bytes(file: Path) -> int:
    return file.stat().st_size


def _say(line: str) -> None:
    """How it goes, beside what it comes to."""
    print(f"holdfast: {visible(line)}", file=sys.stderr, flush=True)
