"""The writer of each event, as the database itself saw it: triggers record each event and each change of a session's
holder, with the connection's application name and the database's own clock. Nothing here depends on the reports of
processes."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import asyncpg
import msgspec

from holdfast.events.codec import is_record

WRITER: Final = "node.writer"
"""The setting of a connection that names its process."""

TRIGGERS: Final = """
CREATE SCHEMA audit;
CREATE TABLE audit.noted (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  writer text NOT NULL DEFAULT coalesce(current_setting('node.writer', true), ''),
  session text NOT NULL,
  position bigint,
  type text,
  fence bigint,
  is_held boolean
);
CREATE FUNCTION audit.note_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO audit.noted (session, position, type) VALUES (NEW.session, NEW.position, NEW.type);
  RETURN NULL;
END $$;
CREATE FUNCTION audit.note_holder() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO audit.noted (session, fence, is_held) VALUES (NEW.id, NEW.fence, NEW.lease_holder IS NOT NULL);
  RETURN NULL;
END $$;
CREATE TRIGGER note_event AFTER INSERT ON holdfast.event FOR EACH ROW EXECUTE FUNCTION audit.note_event();
CREATE TRIGGER note_holder AFTER UPDATE ON holdfast.session FOR EACH ROW
  WHEN (OLD.lease_holder IS DISTINCT FROM NEW.lease_holder OR OLD.fence <> NEW.fence)
  EXECUTE FUNCTION audit.note_holder();
"""

_NOTED: Final = "SELECT number, at, writer, session, position, type, fence, is_held FROM audit.noted ORDER BY number"


class Noted(msgspec.Struct, frozen=True):
    """An event (it has a position), or a claim or release of a session (it has a fence)."""

    number: int
    at: datetime
    writer: str
    session: str
    position: int | None
    type: str | None
    fence: int | None
    is_held: bool | None


def named(url: str, writer: str) -> str:
    """The URL of a database, for connections of that name."""
    return f"{url}{'&' if '?' in url else '?'}{WRITER}={quote(writer)}"


async def ask(url: str, statement: str, *given: Any) -> list[tuple[Any, ...]]:
    """One statement, over a connection of its own."""
    db = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await db.fetch(statement, *given)]
    finally:
        await db.close()


async def run(url: str, statements: str) -> None:
    db = await asyncpg.connect(url)
    try:
        await db.execute(statements)
    finally:
        await db.close()


async def noted(url: str) -> list[Noted]:
    return [Noted(*row) for row in await ask(url, _NOTED)]


async def now(url: str) -> datetime:
    """The time of the database's clock."""
    ((found,),) = await ask(url, "SELECT clock_timestamp()")
    assert isinstance(found, datetime)
    return found


def claims(found: Sequence[Noted], writer: str) -> dict[str, Noted]:
    """The first time that each session was claimed by that process."""
    first: dict[str, Noted] = {}
    for each in found:
        if each.is_held and each.writer == writer:
            first.setdefault(each.session, each)
    return first


def trespasses(found: Sequence[Noted]) -> Iterator[str]:
    """Progress that a process other than the holder of that moment wrote, and fences that did not rise."""
    holders: dict[str, str | None] = {}
    fences: dict[str, int] = {}
    for each in found:
        if each.position is None:
            holders[each.session] = each.writer if each.is_held else None
            fence = each.fence or 0
            if each.is_held and fence <= fences.get(each.session, 0):
                yield f"{each.session} was claimed by {each.writer} with the fence {fence} again"
            fences[each.session] = max(fence, fences.get(each.session, 0))
        elif not is_record(each.type or "") and holders.get(each.session) != each.writer:
            holder = holders.get(each.session)
            yield f"{each.writer} wrote {each.type} at {each.position} of {each.session}, which {holder} held"
