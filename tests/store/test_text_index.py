"""The text index of SQLite beside releases and builds that do not have it, and what is left of deleted text."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.store.errors import StoreUnusable
from holdfast.store.sqlite import store as sqlite_store
from holdfast.store.sqlite.store import SqliteStore
from holdfast.testing.store_conformance.searches import found, listed, made_with, rewound, write
from holdfast.testing.store_conformance.words import KEY, OTHER, running, said

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, node="here")
    yield store
    await store.close()


def indexed_text(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return " ".join(tokens for (tokens,) in db.execute("SELECT tokens FROM passage_words"))


def delete_as_an_older_release(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("DELETE FROM event WHERE owner = ? AND session = ?", (KEY.owner, KEY.session))
        db.execute("UPDATE session SET deleted_at = 1 WHERE owner = ? AND id = ?", (KEY.owner, KEY.session))


async def test_a_deleted_session_leaves_no_word_in_the_file(store: SqliteStore, path: Path) -> None:
    await made_with(store, KEY, said("confidential"))
    await made_with(store, OTHER, said("public"))
    assert (await found(store, "confidential"), await found(store, "public", key=OTHER)) == ([2], [2])
    assert "confidential" in indexed_text(path)
    await store.delete(KEY)
    assert "confidential" not in indexed_text(path)
    assert "public" in indexed_text(path)


async def test_what_an_older_release_deletes_leaves_the_index_with_the_next_step(
    store: SqliteStore, path: Path
) -> None:
    await made_with(store, KEY, said("confidential"))
    assert await found(store, "confidential") == [2]
    delete_as_an_older_release(path)
    assert await found(store, "confidential") == []
    await made_with(store, OTHER, said("public"))
    assert await found(store, "public", key=OTHER) == [2]
    assert "confidential" not in indexed_text(path)


async def test_words_that_a_rewind_undid_leave_the_file(store: SqliteStore, path: Path) -> None:
    lease = await running(store)
    await write(store, lease, said("kept"), said("undone"))
    assert await found(store, "undone") == [5]
    assert "undone" in indexed_text(path)
    await write(store, lease, rewound(4))
    assert await found(store, "undone") == []
    assert "undone" not in indexed_text(path)
    assert "kept" in indexed_text(path)


async def test_a_session_with_an_unreadable_event_does_not_hide_the_others(
    store: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for key in (KEY, OTHER):
        await made_with(store, key, said("lamp"))
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE event SET data = x'7b' WHERE session = ? AND position = 2", (KEY.session,))
    assert await listed(store, "lamp") == [OTHER.session]
    assert "session first is not indexed beyond position 0" in caplog.text


async def test_a_python_without_text_search_is_refused_with_advice(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "has_text_search", lambda: False)
    with pytest.raises(StoreUnusable) as raised:
        await SqliteStore.open(path, node="here")
    assert raised.value.code == "store_sqlite_without_search"
    assert "FTS5" in raised.value.message
