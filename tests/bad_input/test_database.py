"""A database that is damaged, foreign, read-only or on a full disk: a sentence, a stable code, and what helps."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.models.scripted import Reply
from holdfast.store.errors import StoreError
from tests.faults.processes import Failed, child_on
from tests.faults.world import patience, people_said, runtime_on, says

pytestmark = pytest.mark.anyio

NOBODY = 65534


async def refusal_of(database: Path) -> StoreError:
    with pytest.raises(StoreError) as refused:
        async with runtime_on(database):
            pass
    assert refused.value.message.endswith(".")
    assert database.name in refused.value.message
    return refused.value


def overwrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def make_noise(database: Path) -> None:
    with database.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for page in range(2, size // 4096):
            file.seek(page * 4096)
            file.write(b"\xa5" * 4096)


async def filled(database: Path) -> str:
    """A database with one session that said something; the id of the session."""
    async with runtime_on(database) as runtime, patience():
        session = await runtime.session()
        for number in range(30):
            await session.run(f"Hello {number} " + "x" * 1000)
        return session.id


async def works(database: Path, session_id: str, *, said: int) -> None:
    async with runtime_on(database) as runtime, patience():
        session = runtime.open(session_id)
        assert len(await people_said(session)) == said
        assert (await session.run("And now?")).text == "Done."


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"This is not a database at all. " * 200, "store_not_a_database"),
        (b"\x00" * 8192, "store_not_a_database"),
        (b"SQLite format 3\x00" + b"\xff" * 4080, "store_not_a_database"),
    ],
)
async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(
    database: Path, content: bytes, code: str
) -> None:
    overwrite(database, content)
    assert (await refusal_of(database)).code == code
    assert content_of(database) == content


async def test_a_database_of_another_program_is_refused_and_left_as_it_is(database: Path) -> None:
    other = sqlite3.connect(database)
    other.execute("CREATE TABLE precious (value TEXT)")
    other.commit()
    other.close()
    before = content_of(database)
    assert (await refusal_of(database)).code == "store_not_a_database"
    assert content_of(database) == before


async def test_a_folder_in_its_place_is_refused(database: Path) -> None:
    os.mkdir(database)
    assert (await refusal_of(database)).code == "store_not_a_database"


async def test_a_database_of_a_newer_release_is_refused_with_what_to_do(database: Path) -> None:
    session_id = await filled(database)
    db = sqlite3.connect(database)
    (version,) = db.execute("PRAGMA user_version").fetchone()
    db.execute(f"PRAGMA user_version = {version + 1}")
    db.close()
    refused = await refusal_of(database)
    assert refused.code == "store_newer"
    assert "Upgrade" in refused.message
    db = sqlite3.connect(database)
    db.execute(f"PRAGMA user_version = {version}")
    db.close()
    await works(database, session_id, said=30)


async def test_a_truncated_database_is_called_damaged_and_its_backup_works(database: Path, tmp_path: Path) -> None:
    session_id = await filled(database)
    async with runtime_on(database) as runtime:
        await runtime.store.backup(tmp_path / "backup.db")
    whole = content_of(database)
    overwrite(database, whole[: len(whole) // 3])
    with pytest.raises(StoreError) as damaged:
        async with runtime_on(database) as runtime, patience():
            await people_said(runtime.open(session_id))
    assert damaged.value.code in ("store_corrupt", "store_failed")
    assert "damaged" in damaged.value.message
    assert "backup" in damaged.value.message
    await works(tmp_path / "backup.db", session_id, said=30)


async def test_pages_of_noise_in_the_middle_are_said_to_be_damage_and_never_read_as_a_log(
    database: Path, tmp_path: Path
) -> None:
    session_id = await filled(database)
    shutil.copyfile(database, tmp_path / "backup.db")
    make_noise(database)
    with pytest.raises(StoreError) as damaged:
        async with runtime_on(database) as runtime, patience():
            await people_said(runtime.open(session_id))
    assert damaged.value.code in ("store_corrupt", "store_failed")
    assert "damaged" in damaged.value.message
    await works(tmp_path / "backup.db", session_id, said=30)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users can reach."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_a_read_only_file_or_folder_is_refused_with_what_to_do(shared_folder: Path, what: str) -> None:
    """Root may write anything, so the child is somebody else."""
    database = shared_folder / "holdfast.db"
    session_id = await filled(database)
    shutil.rmtree(shared_folder / "holdfast.db.live", ignore_errors=True)
    user = NOBODY if os.geteuid() == 0 else None
    os.chmod(database, 0o444 if what == "file" else 0o666)
    os.chmod(shared_folder, 0o777 if what == "file" else 0o555)
    async with child_on(database, script=says(Reply(text="ok")), user=user, ready=False) as child:
        failed = await child.hear(lambda line: "failed" in line)
        assert failed["failed"] == "store_read_only"
        assert failed["message"].endswith("Make the file and its folder writable.")
        assert await child.gone() == 1
    os.chmod(shared_folder, 0o755)
    os.chmod(database, 0o644)
    await works(database, session_id, said=30)


async def test_a_disk_that_fills_up_refuses_what_it_can_t_keep_and_keeps_what_it_took(database: Path) -> None:
    async with child_on(database, script=says(Reply(text="Done."))) as child:
        await child.ask("create", session="s")
        await child.ask("send", session="s", text="Hello", message_id="kept")
        await child.ask("result", session="s", message_id="kept")
        await child.ask("limit_files", size=1000)
        with pytest.raises(Failed) as refused:
            await child.ask("send", session="s", text="Lost", message_id="lost")
        assert refused.value.code in ("store_disk_full", "store_failed")
        assert refused.value.message.endswith(".")
        await child.ask("limit_files", size=None)
        await child.ask("send", session="s", text="And now?", message_id="now")
        assert (await child.ask("result", session="s", message_id="now"))["text"] == "Done."
    async with runtime_on(database, work=False) as reader:
        assert set(await people_said(reader.open("s"))) >= {"Hello", "And now?"}
