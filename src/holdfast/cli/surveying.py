"""A look at the configured database, whatever it is on, and the ways to it that only operators need."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from holdfast.app import NEEDS_ASYNCPG, redis_live_of, turn_limits
from holdfast.cli.errors import WORLD, Refusal
from holdfast.config import Config
from holdfast.store.errors import StoreUnusable
from holdfast.store.sqlite import survey as sqlite
from holdfast.store.sqlite.backup import back_up
from holdfast.store.sqlite.migrations import migrate_file
from holdfast.store.survey import Survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.store.postgres.connections import DatabaseAddress

RedisState = Literal["up", "down", "not set"]

REDIS_SECONDS: Final = 5.0


async def surveyed(config: Config, *, with_contents: bool) -> Survey:
    """What is there. Nothing is made or changed."""
    limits = turn_limits(config)
    if not config.is_postgres:
        path = config.database_path
        return await asyncio.to_thread(sqlite.survey, path, limits=limits, with_contents=with_contents)
    address = _address(config)
    from holdfast.store.postgres.survey import survey  # deferred: not everybody has it

    return await survey(address, limits=limits, with_contents=with_contents)


async def redis_state(config: Config) -> RedisState:
    """Whether Redis lets a process hear hints, asked as a process does it. Nothing is said to the others."""
    redis_live = redis_live_of(config)
    if redis_live is None or config.redis is None:
        return "not set"
    try:
        async with asyncio.timeout(REDIS_SECONDS), redis_live(config.redis.reveal(), namespace="looking") as live:
            return "up" if await live.answers() else "down"
    except TimeoutError:
        return "down"


async def migrate(config: Config) -> None:
    if not config.is_postgres:
        await asyncio.to_thread(migrate_file, config.database_path)
        return
    address = _address(config, direct=True)
    from holdfast.store.postgres.migrations import migrate as migrate_server  # deferred: not everybody has it

    await migrate_server(address)


async def write_backup(config: Config, file: Path, *, so_far: "Callable[[int], None]") -> None:
    """Of a database that is there. Raises `FileExistsError` rather than overwrite anything."""
    found = await surveyed(config, with_contents=False)
    if found.schema.version == 0:
        raise Refusal(
            "store_not_found",
            f"{config.database_shown} holds nothing of Holdfast's: there is nothing to back up. Check its name.",
            exit_code=WORLD,
        )
    if not config.is_postgres:
        await asyncio.to_thread(back_up, config.database_path, file)
        return
    from holdfast.store.postgres.dump import dump  # deferred: not everybody has it

    await dump(_url(config, direct=True), file, so_far=so_far)


def _url(config: Config, *, direct: bool = False) -> str:
    """Past a pooler, where there is one and it would be in the way."""
    if direct and config.database_direct is not None:
        return config.database_direct.reveal()
    assert config.database_url is not None, "only PostgreSQL has a URL"
    return config.database_url.reveal()


def _address(config: Config, *, direct: bool = False) -> "DatabaseAddress":
    try:
        from holdfast.store.postgres.connections import DatabaseAddress  # deferred: not everybody has it
    except ImportError:
        raise StoreUnusable("store_needs_extra", NEEDS_ASYNCPG) from None
    past_pooler = direct and config.database_direct is not None
    is_pooled = config.database_pooled == "on" or config.database_direct is not None
    return DatabaseAddress(_url(config, direct=direct), is_pooled=is_pooled and not past_pooler)
