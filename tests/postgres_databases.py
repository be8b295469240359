"""Databases for tests: they are made on one PostgreSQL for a whole test process, and used again once they are empty."""

import asyncio
import itertools

import asyncpg

from holdfast.store.postgres.connections import DatabaseAddress
from holdfast.store.postgres.migrations import migrate
from proof.postgres_server import PostgresServer

TEMPLATE = "holdfast_template"

_EMPTY = """
DO $$
DECLARE name text;
BEGIN
  FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast' AND tablename <> 'migration' LOOP
    EXECUTE format('DELETE FROM holdfast.%I', name);
  END LOOP;
  INSERT INTO holdfast.identity (name) VALUES (replace(gen_random_uuid()::text, '-', ''));
END $$
"""


class Databases:
    """The server, and what is made on it."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._numbers = itertools.count(1)
        self._free: list[str] = []
        asyncio.run(self._prepare())

    async def _prepare(self) -> None:
        await self._run("postgres", f"CREATE DATABASE {TEMPLATE}")
        await migrate(DatabaseAddress(self.server.url(TEMPLATE)))

    async def fresh(self, *, is_empty: bool = False) -> str:
        """The name of a new database, with the tables unless it is to be empty."""
        name = f"test_{next(self._numbers)}"
        await self._run("postgres", f"CREATE DATABASE {name} TEMPLATE {'template0' if is_empty else TEMPLATE}")
        return name

    async def borrow(self) -> str:
        """The name of a database with the tables, and nothing in them."""
        if not self._free:
            return await self.fresh()
        name = self._free.pop()
        await self._run(name, _EMPTY)
        return name

    def give_back(self, name: str) -> None:
        """It is used again. Whoever did something to it that can't be deleted keeps it."""
        self._free.append(name)

    async def _run(self, database: str, statement: str) -> None:
        db = await asyncpg.connect(self.server.url(database))
        try:
            await db.execute(statement)
        finally:
            await db.close()
