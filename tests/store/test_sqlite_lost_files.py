"""SQLite's files are deleted, moved or replaced under a running process: no write into a lost file is acknowledged."""

import logging
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from holdfast.events.ids import Position, SessionId
from holdfast.store.errors import StoreUnavailable
from holdfast.store.sqlite.checkpoints import Checkpoints
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.store import Committed, Key, Unit
from holdfast.testing.store_conformance.words import KEY, MANY, create, info, send

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "holdfast.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, node="here")
    await create(store)
    yield store
    await store.close()


def empty_the_folder(path: Path) -> None:
    for found in path.parent.iterdir():
        shutil.rmtree(found) if found.is_dir() else found.unlink()


def delete_the_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def move_the_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


def move_the_database(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def replace_by_a_copy(path: Path) -> None:
    shutil.copyfile(path, path.with_name("copy.db"))
    path.with_name("copy.db").replace(path)


def replace_by_an_empty_file(path: Path) -> None:
    path.unlink()
    path.touch()


def delete_the_log(path: Path) -> None:
    path.with_name("holdfast.db-wal").unlink()


def delete_the_index(path: Path) -> None:
    path.with_name("holdfast.db-shm").unlink()


LOSSES = (
    empty_the_folder,
    delete_the_folder,
    move_the_folder,
    move_the_database,
    replace_by_a_copy,
    replace_by_an_empty_file,
    delete_the_log,
    delete_the_index,
)

lost_in_each_way = pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)


async def refusal(asked: object) -> str:
    with pytest.raises(StoreUnavailable) as raised:
        await asked  # type: ignore[misc]
    return raised.value.code


@lost_in_each_way
async def test_no_write_is_acknowledged_once_a_file_is_lost(
    store: SqliteStore, path: Path, lose: Callable[[Path], None]
) -> None:
    lose(path)
    for _ in range(2):
        assert await refusal(store.commit(Unit(key=KEY, fence=None, events=(info("lost"),)))) == "store_file_lost"
        assert await refusal(send(store, "m")) == "store_file_lost"
        assert await refusal(create(store, Key(KEY.owner, SessionId("new")))) == "store_file_lost"
        assert await refusal(store.claim(limit=MANY)) == "store_file_lost"
        assert await refusal(store.renew(ttl_seconds=30)) == "store_file_lost"


@lost_in_each_way
async def test_no_read_is_served_from_a_lost_file(store: SqliteStore, path: Path, lose: Callable[[Path], None]) -> None:
    assert await store.row(KEY) is not None
    lose(path)
    for _ in range(4):
        assert await refusal(store.row(KEY)) == "store_file_lost"
    assert await refusal(store.backup(path.parent.parent / "backup.db")) == "store_file_lost"


HOUR_NS = 3_600_000_000_000


def hours_ago() -> int:
    """A modification time that is far from now and not a whole second."""
    return time.time_ns() // 1_000_000_000 * 1_000_000_000 - HOUR_NS + 1


def date_back(folder: Path, changed_at: int) -> None:
    os.utime(folder, ns=(changed_at, changed_at))


@lost_in_each_way
async def test_loss_is_noticed_in_a_folder_that_had_not_changed_for_long(
    store: SqliteStore, path: Path, lose: Callable[[Path], None]
) -> None:
    date_back(path.parent, hours_ago())
    await send(store, "kept")
    lose(path)
    assert await refusal(send(store, "m")) == "store_file_lost"
    assert await refusal(store.row(KEY)) == "store_file_lost"


@pytest.mark.parametrize(
    "changed_at",
    [time.time_ns() // 1_000_000_000 * 1_000_000_000 - HOUR_NS, time.time_ns() + HOUR_NS + 1],
    ids=["whole_seconds", "after_now"],
)
async def test_folder_times_that_may_not_advance_are_not_trusted(
    store: SqliteStore, path: Path, changed_at: int
) -> None:
    date_back(path.parent, changed_at)
    await send(store, "kept")
    move_the_database(path)
    date_back(path.parent, changed_at)  # As on a file system whose times are too coarse for this change.
    assert await refusal(send(store, "m")) == "store_file_lost"


async def test_lost_file_is_not_created_again(store: SqliteStore, path: Path) -> None:
    empty_the_folder(path)
    assert await refusal(store.row(KEY)) == "store_file_lost"
    assert await refusal(send(store, "m")) == "store_file_lost"
    await store.close()
    assert list(path.parent.iterdir()) == []


async def test_lost_file_is_logged_once_as_critical(
    store: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty_the_folder(path)
    for _ in range(3):
        await refusal(send(store, "m"))
        await refusal(store.row(KEY))
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(said) == 1
    assert str(path) in said[0]
    assert [record.levelno for record in caplog.records if record.getMessage() == said[0]] == [logging.CRITICAL]


async def test_lost_file_that_is_put_back_is_used_again(
    store: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    move_the_folder(path)
    assert await refusal(store.commit(Unit(key=KEY, fence=None, events=(info("unheard"),)))) == "store_file_lost"
    assert await refusal(store.row(KEY)) == "store_file_lost"
    path.parent.with_name("elsewhere").rename(path.parent)
    outcome = await store.commit(Unit(key=KEY, fence=None, events=(info("back"),)))
    assert isinstance(outcome, Committed)
    events = await store.events_after(KEY, Position(0), limit=MANY)
    assert [event.position for event in events] == list(range(1, outcome.head + 1))
    move_the_folder(path)
    assert await refusal(store.row(KEY)) == "store_file_lost"
    assert sum(record.levelno == logging.CRITICAL for record in caplog.records) == 2


async def test_new_process_uses_the_replacement_while_the_old_one_refuses(store: SqliteStore, path: Path) -> None:
    empty_the_folder(path)
    second = await SqliteStore.open(path, node="here")
    assert isinstance(await create(second), Committed)
    assert await refusal(send(store, "m")) == "store_file_lost"
    await store.close()
    assert await second.row(KEY) is not None
    await second.close()


async def test_clean_end_saves_acknowledged_writes_if_only_the_log_was_deleted(store: SqliteStore, path: Path) -> None:
    outcome = await store.commit(Unit(key=KEY, fence=None, events=(info("kept"),)))
    assert isinstance(outcome, Committed)
    delete_the_log(path)
    assert await refusal(send(store, "m")) == "store_file_lost"
    await store.close()
    again = await SqliteStore.open(path, node="here")
    row = await again.row(KEY)
    await again.close()
    assert row is not None
    assert row.head == outcome.head


async def test_checkpoints_that_start_after_the_files_were_lost_wait_for_them(store: SqliteStore, path: Path) -> None:
    """Their thread may get to run late, on a busy machine."""
    empty_the_folder(path)
    late = Checkpoints(store._files)
    late.start()
    late.stop()
    await store.close()
