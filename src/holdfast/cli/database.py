"""`holdfast db`: the contents of the configured database, a backup of it, and its migrations.

Chooses between SQLite and PostgreSQL. Passwords are never shown.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.app import NEEDS_ASYNCPG, turn_limits
from holdfast.cli.errors import WORLD, Refusal
from holdfast.cli.escapes import visible
from holdfast.config import Config
from holdfast.store.errors import StoreUnusable
from holdfast.store.sqlite import backup as sqlite_backup
from holdfast.store.sqlite import survey as sqlite_survey
from holdfast.store.sqlite.migrations import migrate_file
from holdfast.store.survey import Contents, Survey

if TYPE_CHECKING:
    from holdfast.store.postgres.connections import DatabaseAddress


async def back_up(config: Config, file: Path) -> None:
    """Write a backup to a new file. Raises `FileExistsError` rather than overwrite one."""
    if config.is_postgres:
        _print_progress(f"Dumping {config.database_shown}.")
    await _write_backup(config, file, report_size=lambda size: _print_progress(f"{size:,} bytes so far."))
    print(f"Backed up to {visible(str(file))} ({_size(file):,} bytes).")


async def migrate(config: Config, *, only_check: bool) -> int:
    """Run the pending migrations and return the exit status. Safe to repeat: a migration that is interrupted leaves no
    trace, and the next run starts it again."""
    database = visible(config.database_shown)
    before = (await survey_database(config, with_contents=False)).schema
    if not before.pending:
        print(f"Nothing to migrate: {database} is at schema {before.version}, as this release is.")
        return 0
    if only_check:
        print(f"To be run on {database}: {', '.join(before.pending)}.")
        return WORLD
    await _run_migrations(config)
    after = (await survey_database(config, with_contents=False)).schema
    done = [name for name in before.pending if name not in after.pending]
    print(f"Ran {', '.join(done)}.")
    print(f"{database} was at schema {before.version}, and is at {after.version} now.")
    return 0


async def show_status(config: Config, *, as_json: bool) -> None:
    facts = _facts(config, await survey_database(config, with_contents=True))
    if as_json:
        print(msgspec.json.encode(facts).decode())
        return
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):24} {visible(_text(value))}")


def _facts(config: Config, survey: Survey) -> dict[str, object]:
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


def _text(value: object) -> str:
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


def _size(file: Path) -> int:
    return file.stat().st_size


def _print_progress(line: str) -> None:
    """Print to stderr: stdout is for the result."""
    print(f"holdfast: {visible(line)}", file=sys.stderr, flush=True)


# SQLite or PostgreSQL. asyncpg is an extra, so its modules are imported only for a PostgreSQL database.


async def survey_database(config: Config, *, with_contents: bool) -> Survey:
    """Survey the configured database. Creates and changes nothing."""
    limits = turn_limits(config)
    if not config.is_postgres:
        path = config.database_path
        return await asyncio.to_thread(sqlite_survey.survey, path, limits=limits, with_contents=with_contents)
    address = _address(config)
    from holdfast.store.postgres.survey import survey

    return await survey(address, limits=limits, with_contents=with_contents)


async def _run_migrations(config: Config) -> None:
    if not config.is_postgres:
        await asyncio.to_thread(migrate_file, config.database_path)
        return
    address = _address(config, direct=True)
    from holdfast.store.postgres.migrations import migrate

    await migrate(address)


async def _write_backup(config: Config, file: Path, *, report_size: Callable[[int], None]) -> None:
    if (await survey_database(config, with_contents=False)).schema.version == 0:
        raise Refusal(
            "store_not_found",
            f"There is nothing to back up: {config.database_shown} has no tables of Holdfast. Check the name of the "
            "database.",
            exit_code=WORLD,
        )
    if not config.is_postgres:
        await asyncio.to_thread(sqlite_backup.back_up, config.database_path, file)
        return
    from holdfast.store.postgres.dump import dump

    await dump(_url(config, direct=True), file, so_far=report_size)


def _url(config: Config, *, direct: bool) -> str:
    """The URL of the PostgreSQL database; with `direct`, past the pooler if there is one."""
    if direct and config.database_direct is not None:
        return config.database_direct.reveal()
    assert config.database_url is not None, "only PostgreSQL has a URL"
    return config.database_url.reveal()


def _address(config: Config, *, direct: bool = False) -> "DatabaseAddress":
    try:
        from holdfast.store.postgres.connections import DatabaseAddress
    except ImportError:
        raise StoreUnusable("store_needs_extra", NEEDS_ASYNCPG) from None
    past_pooler = direct and config.database_direct is not None
    is_pooled = config.database_pooled == "on" or config.database_direct is not None
    return DatabaseAddress(_url(config, direct=direct), is_pooled=is_pooled and not past_pooler)
