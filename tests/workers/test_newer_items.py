"""A process of this release on a database in which a newer release puts items of unknown types."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Runtime
from holdfast.events.inbox import INBOX_VERSION
from holdfast.models.scripted import Reply, Rule, Script, ScriptedModel
from holdfast.store.sqlite.store import SqliteStore
from tests.faults.world import comes_true

pytestmark = pytest.mark.anyio

PAYLOAD = b'{"kind":"from_the_future","words":"kept"}'


def put_future_item(database: Path) -> None:
    """Put an item as a process of the next release would."""
    with closing(sqlite3.connect(database)) as db, db:
        db.execute(
            "INSERT INTO inbox (owner, session, item_key, sequence, place, kind, state, outcome, accepted_at,"
            " while_running, payload) SELECT owner, id, 'future', inbox_tail + 1, inbox_tail + 1, 'from_the_future',"
            " 'accepted', '', 1, 0, ? FROM session",
            (PAYLOAD,),
        )
        db.execute("UPDATE session SET inbox_tail = inbox_tail + 1, runnable = 1, runnable_since = 1")


async def test_a_session_with_an_item_of_the_next_release_continues(tmp_path: Path) -> None:
    database = tmp_path / "holdfast.db"
    model = ScriptedModel(Script((Rule((Reply(text="as ever"),)),)))
    async with Runtime(database=database, model=model) as runtime:
        session = await runtime.session("s")
        put_future_item(database)
        assert (await session.run("hello")).text == "as ever"
        assert (await session.run("and again")).text == "as ever"
        row = await session.look()
        assert (row.status, row.waiting_messages) == ("idle", 0)
        await comes_true(lambda: runtime.worker.sessions_held == 0)
    with closing(sqlite3.connect(database)) as db:
        kept = db.execute("SELECT state, payload FROM inbox WHERE item_key = 'future'").fetchall()
        runnable = db.execute("SELECT runnable, lease_holder, claims FROM session").fetchall()
    assert kept == [("accepted", PAYLOAD)]
    assert runnable == [(0, None, 0)]


async def test_the_first_process_of_the_next_release_promotes_its_items(
    tmp_path: Path,
) -> None:
    database = tmp_path / "holdfast.db"
    model = ScriptedModel(Script((Rule((Reply(text="as ever"),)),)))
    async with Runtime(database=database, model=model) as runtime:
        session = await runtime.session("s")
        put_future_item(database)
        assert (await session.run("hello")).text == "as ever"
        await comes_true(lambda: runtime.worker.sessions_held == 0)
        node, tools = runtime._node, runtime._registry.names()
    newer = await SqliteStore.open(database, node=node, tools=tools, inbox_version=INBOX_VERSION + 1)
    assert [claim.lease.key for claim in await newer.claim(limit=1)] == [session.key]
    await newer.close()
