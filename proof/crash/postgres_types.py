"""PostgreSQL's description of the array types, asked for once in a campaign.

asyncpg asks for it over every connection that meets such a type, with the most expensive query of a short-lived
process. These types are built in: their description is the same in every database.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import asyncpg

ARRAYS: Final = ("bigint[]", "boolean[]", "bytea[]", "integer[]")
"""The types in Holdfast's statements. asyncpg knows `text[]` by itself, and still asks for any other type."""

SECONDS: Final = 10.0


class NothingAsked(NamedTuple):
    """Stands for the statement that asyncpg would have asked with. Having a name, it did not take the place of the
    statement without one that is being prepared."""

    name: str = "nothing asked"


async def learn(url: str) -> None:
    """Ask for them. From now on no connection of this process, nor of its forks, asks for them again."""
    db = await asyncpg.connect(url)
    try:
        known = {}
        for array in ARRAYS:
            oid = await db.fetchval(f"SELECT '{array}'::regtype::oid")
            known[oid], _ = await db._introspect_types([oid], SECONDS)
    finally:
        await db.close()
    _answer_with(known)


def _answer_with(known: Mapping[int, list[Any]]) -> None:
    ask = asyncpg.Connection._introspect_types

    async def answer(self: Any, oids: Iterable[int], timeout: float) -> Any:
        wanted = list(oids)
        if not known.keys() >= set(wanted):
            return await ask(self, wanted, timeout)
        return [row for oid in wanted for row in known[oid]], NothingAsked()

    asyncpg.Connection._introspect_types = answer
