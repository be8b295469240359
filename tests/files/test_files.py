"""Files with a real database and a real file store: a folder, and a bucket of an S3 server."""

import asyncio
import hashlib
import io
import os
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from holdfast.events.ids import FileId, Owner
from holdfast.files.bucket import Bucket
from holdfast.files.errors import FileMissing, FileRefused, FilesUnavailable
from holdfast.files.files import FileLimits, Files
from holdfast.files.folder import ObjectFolder
from holdfast.files.objects import HOME, Objects
from holdfast.store.clock import SystemClock
from holdfast.store.files import ContentId, FileRow, Reserved
from holdfast.store.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.files.s3_server import BUCKET, s3_server

pytestmark = pytest.mark.anyio

ANN, BOB = Owner("ann"), Owner("bob")

PNG: Final = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\6\0\0\0\x1f\x15\xc4\x89"
    b"\0\0\0\rIDATx\x9cc\xf8\xcf\xc0\xf0\x1f\0\5\0\1\xff\x89\x99=\x1d\0\0\0\0IEND\xaeB`\x82"
)


@pytest.fixture(scope="module")
def bucket_url() -> Iterator[str]:
    with s3_server() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", url)
        patch.setenv("AWS_ALLOW_HTTP", "true")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_REGION", "us-east-1")
        yield f"s3://{BUCKET}"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(tmp_path / "holdfast.db", node="here")
    yield opened
    await opened.close()


@pytest.fixture(params=["folder", "bucket"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Objects]:
    if request.param == "folder":
        return lambda: ObjectFolder(tmp_path / "objects")
    url = f"{request.getfixturevalue('bucket_url')}/{tmp_path.name}"
    return lambda: Bucket(url)


@pytest.fixture
def files(store: SqliteStore, objects: Callable[[], Objects], tmp_path: Path) -> Files:
    return new_files(store, objects, tmp_path)


def new_files(store: SqliteStore, objects: Callable[[], Objects], tmp_path: Path, max_bytes: int = 1 << 30) -> Files:
    limits = FileLimits(max_bytes=max_bytes)
    return Files(store, objects, SystemClock(), spool_folder=tmp_path / "spool", limits=limits)


async def pieces_of(data: bytes, *, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def add(files: Files, name: str, data: bytes, owner: Owner = ANN, **options: str) -> FileRow:
    return await files.add(owner, name, pieces_of(data), **options)  # type: ignore[arg-type]


def left_on_disk(tmp_path: Path) -> list[str]:
    found = (path for name in ("objects", "spool") for path in (tmp_path / name).rglob("*") if path.is_file())
    return sorted(path.name for path in found if path.name != HOME)


async def test_what_was_stored_is_read_as_it_was(files: Files) -> None:
    data = os.urandom(11_000_000)
    row = await add(files, "data.bin", data)
    assert row == await files.find(ANN, row.file_id)
    assert (row.size, row.digest) == (len(data), hashlib.sha256(data).hexdigest())
    assert await files.read_whole(row) == data
    part = b"".join([piece async for piece in files.read(row, 5_999_999, 6_000_002)])
    assert part == data[5_999_999:6_000_002]
    assert await files.read_whole(await add(files, "empty", b"")) == b""
    with pytest.raises(FileMissing):
        await files.find(BOB, row.file_id)


async def test_memory_stays_flat_however_large_a_file_is(files: Files) -> None:
    """200 MB go in and out. What obstore holds is not Python's memory: it has four parts of 5 MB at most."""
    piece = os.urandom(1 << 20)

    async def large() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield piece

    tracemalloc.start()
    try:
        row = await files.add(ANN, "large.bin", large())
        got = 0
        async for data in files.read(row):
            got += len(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got == row.size == 200 << 20
    assert peak < 40 << 20


async def test_a_broken_upload_leaves_nothing(store: SqliteStore, tmp_path: Path) -> None:
    files = new_files(store, lambda: ObjectFolder(tmp_path / "objects"), tmp_path, max_bytes=3_000_000)

    async def broken() -> AsyncIterator[bytes]:
        yield os.urandom(2_000_000)
        raise ConnectionError("the client is gone")

    with pytest.raises(ConnectionError):
        await files.add(ANN, "half.bin", broken())
    with pytest.raises(FileRefused) as refused:
        await add(files, "too large.bin", os.urandom(3_000_001))
    assert refused.value.code == "file_too_large"
    assert (await files.page(ANN, limit=9)).rows == ()
    assert left_on_disk(tmp_path) == []
    assert await files.sweep() == 0


async def test_a_deleted_file_leaves_no_object(files: Files, tmp_path: Path) -> None:
    kept, gone = await add(files, "a.txt", b"same"), await add(files, "b.txt", b"same")
    await files.delete(ANN, gone.file_id)
    with pytest.raises(FileMissing):
        await files.delete(ANN, gone.file_id)
    assert await files.sweep() == 0
    assert await files.read_whole(kept) == b"same"
    await files.delete(ANN, kept.file_id)
    assert await files.sweep() == 1
    with pytest.raises(FilesUnavailable):
        await files.read_whole(kept)
    assert left_on_disk(tmp_path) == []


async def test_an_object_that_no_file_got_is_collected(store: SqliteStore, tmp_path: Path) -> None:
    """As after a crash between the object and the row of the file."""
    clock = ManualClock(start_ms=1_000)
    other = await SqliteStore.open(tmp_path / "holdfast.db", node="here", clock=clock)
    folder = ObjectFolder(tmp_path / "objects")
    row = FileRow(
        owner=ANN,
        file_id=FileId("f"),
        name="a",
        media_type="text/plain",
        size=1,
        digest="d",
        created_at=clock.now_ms(),
        content_id=ContentId("d-1"),
    )
    try:
        assert isinstance(await other.add_file(row), Reserved)
        for name in ("d-1", "d-1.partial"):
            await folder.store(name, io.BytesIO(b"x"))
        files = Files(other, lambda: folder, clock, spool_folder=tmp_path, limits=FileLimits(storing_seconds=60))
        assert await files.sweep() == 0
        await clock.advance(61)
        assert await files.sweep() == 1
        assert left_on_disk(tmp_path) == []
    finally:
        await other.close()


async def test_the_same_id_is_the_same_file_or_refused(files: Files) -> None:
    first = await files.add(ANN, "a.txt", pieces_of(b"text"), file_id=FileId("mine"))
    assert await files.add(ANN, "a.txt", pieces_of(b"text"), file_id=FileId("mine")) == first
    with pytest.raises(FileRefused) as refused:
        await files.add(ANN, "a.txt", pieces_of(b"other"), file_id=FileId("mine"))
    assert refused.value.code == "id_reused"
    assert (await files.add(BOB, "a.txt", pieces_of(b"other"), file_id=FileId("mine"))).owner == BOB


async def test_of_too_many_uploads_at_once_one_is_refused(files: Files) -> None:
    going, hold = asyncio.Semaphore(0), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x"
        going.release()
        await hold.wait()

    uploads = [asyncio.create_task(files.add(ANN, f"{number}", slow())) for number in range(4)]
    for _ in uploads:
        await going.acquire()
    with pytest.raises(FileRefused) as refused:
        await add(files, "one more", b"x")
    assert refused.value.code == "too_many_uploads"
    assert (await add(files, "of another owner", b"x", BOB)).owner == BOB
    hold.set()
    await asyncio.gather(*uploads)
    assert (await add(files, "one more", b"x")).size == 1


@pytest.mark.parametrize(
    "name", ["", "  ", ".", "..", "../a", "a/b", "a\\b", "a\0b", "a\nb", "a\x1b[31m", "abc\u202egpj.exe", "x" * 256]
)
async def test_a_name_that_is_no_plain_line_is_refused(store: SqliteStore, tmp_path: Path, name: str) -> None:
    files = new_files(store, lambda: ObjectFolder(tmp_path / "objects"), tmp_path)
    with pytest.raises(FileRefused) as refused:
        await add(files, name, b"x")
    assert refused.value.code == "file_name_invalid"
    assert (await files.page(ANN, limit=1)).rows == ()


@pytest.mark.parametrize(
    ("name", "claimed", "data", "expected"),
    [
        ("a.png", "", PNG, "image/png"),
        ("a", "text/plain", PNG, "image/png"),
        ("a.pdf", "", b"%PDF-1.7 ...", "application/pdf"),
        ("a.py", "", b"print()", "text/x-python"),
        ("notes", "", "Grüße".encode(), "text/plain"),
        ("notes", "", b"\0\1\2", "application/octet-stream"),
        ("a.zip", "", b"PK\3\4" + bytes(100), "application/zip"),
        ("a", "Text/CSV; charset=utf-8", b"a,b", "text/csv"),
        ("a", "not a type\r\n", b"a,b", "text/plain"),
    ],
)
async def test_the_type_goes_by_the_content_first(
    store: SqliteStore, tmp_path: Path, name: str, claimed: str, data: bytes, expected: str
) -> None:
    files = new_files(store, lambda: ObjectFolder(tmp_path / "objects"), tmp_path)
    assert (await add(files, name, data, media_type=claimed)).media_type == expected


@pytest.mark.parametrize(
    ("name", "claimed", "data"),
    [("a.png", "", b"<script>"), ("a", "application/pdf", b"MZ"), ("a.png", "image/png", PNG[:-20])],
)
async def test_a_picture_that_is_none_is_refused(
    store: SqliteStore, tmp_path: Path, name: str, claimed: str, data: bytes
) -> None:
    files = new_files(store, lambda: ObjectFolder(tmp_path / "objects"), tmp_path)
    with pytest.raises(FileRefused) as refused:
        await add(files, name, data, media_type=claimed)
    assert refused.value.code == "file_type_wrong"


async def test_a_process_with_another_file_store_says_so(
    store: SqliteStore, objects: Callable[[], Objects], tmp_path: Path
) -> None:
    await new_files(store, objects, tmp_path).check()
    await new_files(store, objects, tmp_path).check()
    elsewhere = new_files(store, lambda: ObjectFolder(tmp_path / "elsewhere"), tmp_path)
    for _ in range(2):
        with pytest.raises(FilesUnavailable) as error:
            await elsewhere.check()
        assert error.value.code == "files_elsewhere"
        assert str(tmp_path / "elsewhere") in error.value.message
