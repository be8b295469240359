"""Files over HTTP: in and out as they are, bounded, and of their owner alone."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.world import Client, Place, code_of

PNG_HEAD = b"\x89PNG\r\n\x1a\n"


async def upload(client: httpx.AsyncClient, name: str, data: bytes, **query: str) -> httpx.Response:
    return await client.post("/v1/files", params={"name": name, **query}, content=data)


def objects_of(place: Place) -> list[Path]:
    """The files in the file store, without its name."""
    return [path for path in place.data.rglob("*") if path.is_file() and path.parent.parent.name == "holdfast.db.files"]


async def test_a_file_comes_back_as_it_was_sent_and_never_runs_in_a_browser(client: Client) -> None:
    page = b"<script>alert(1)</script>"
    response = await upload(client, 'a "page"; é.html', page)
    assert response.status_code == 201
    file = response.json()
    assert (file["media_type"], file["size"], file["kept"]) == ("text/html", len(page), False)
    assert (await client.get(f"/v1/files/{file['id']}")).json() == file
    got = await client.get(f"/v1/files/{file['id']}/content")
    assert got.content == page
    assert got.headers["content-length"] == str(len(page))
    assert got.headers["content-disposition"] == "attachment; filename*=UTF-8''a%20%22page%22%3B%20%C3%A9.html"
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["content-security-policy"] == "sandbox; default-src 'none'"
    kept = await client.patch(f"/v1/files/{file['id']}", json={"kept": True})
    assert kept.json() == {**file, "kept": True}
    assert (await client.delete(f"/v1/files/{file['id']}")).status_code == 204
    assert code_of(await client.get(f"/v1/files/{file['id']}/content")) == "file_not_found"


async def test_a_foreign_file_equals_a_missing_one(place: Place) -> None:
    async with place.serve("--auth", "keys") as server:
        keys = [
            (await place.run("keys", "create", "--name", name, "--owner", name)).out.split()[-1]
            for name in ("ann", "bob")
        ]
        async with server.client(keys[0]) as ann, server.client(keys[1]) as bob:
            file = (await upload(ann, "a.txt", b"secret")).json()
            seen = []
            for file_id in (file["id"], "missing"):
                path = f"/v1/files/{file_id}"
                responses = [
                    await bob.get(path),
                    await bob.get(f"{path}/content"),
                    await bob.patch(path, json={"kept": True}),
                    await bob.delete(path),
                ]
                seen.append([(each.status_code, each.text.replace(file_id, "ID")) for each in responses])
            assert seen[0] == seen[1]
            assert {status for status, _ in seen[0]} == {404}
            assert (await bob.get("/v1/files")).json() == {"files": [], "next": None}
            own = await upload(bob, "b.txt", b"mine", id=file["id"])
            assert own.status_code == 201, "an id that another owner has is free"
            assert (await ann.get(f"/v1/files/{file['id']}/content")).content == b"secret"


async def test_two_hundred_megabytes_go_in_and_out_with_flat_memory(place: Place) -> None:
    piece, count = os.urandom(1 << 20), 200

    async def large() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield piece

    async with place.serve() as server, server.client(timeout=120) as client:
        file = (await upload(client, "warm-up.bin", piece)).json()
        assert (await client.get(f"/v1/files/{file['id']}/content")).content == piece
        before = peak_memory(server.process.pid)
        response = await client.post("/v1/files", params={"name": "large.bin"}, content=large())
        assert response.status_code == 201, response.text
        assert response.json()["size"] == count << 20
        async with client.stream("GET", f"/v1/files/{response.json()['id']}/content") as download:
            got = 0
            async for data in download.aiter_raw():
                got += len(data)
        assert got == count << 20
        assert peak_memory(server.process.pid) - before < 40 << 20


def peak_memory(process: int) -> int:
    """The most memory that the process ever had, in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


async def test_a_broken_upload_leaves_nothing(place: Place) -> None:
    async with place.serve() as server, server.client() as client:
        assert (await upload(client, "whole.txt", b"whole")).status_code == 201
        assert len(objects_of(place)) == 1
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = f"POST /v1/files?name=half.bin HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\ncontent-length: 9000000\r\n"
        writer.write(f"{head}authorization: Bearer {server.token}\r\n\r\n".encode() + os.urandom(3_000_000))
        await writer.drain()
        writer.close()
        await reader.read()
        assert [file["name"] for file in (await client.get("/v1/files")).json()["files"]] == ["whole.txt"]
        assert len(objects_of(place)) == 1


async def test_what_is_too_large_is_refused_before_it_is_sent_and_while_it_comes(place: Place) -> None:
    async with place.serve(HOLDFAST_MAX_FILE_BYTES="1000000") as server, server.client() as client:

        async def unannounced() -> AsyncIterator[bytes]:
            for _ in range(11):
                yield bytes(100_000)

        for content in (bytes(1_000_001), unannounced()):
            response = await client.post("/v1/files", params={"name": "zeros.zip"}, content=content)
            assert (response.status_code, code_of(response)) == (413, "file_too_large")
        assert (await upload(client, "zeros.zip", bytes(1_000_000))).status_code == 201
        assert len((await client.get("/v1/files")).json()["files"]) == 1


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("../../etc/passwd", b"x", "file_name_invalid"),
        ("..", b"x", "file_name_invalid"),
        ("a\r\nset-cookie: x", b"x", "file_name_invalid"),
        ("a\0", b"x", "file_name_invalid"),
        ("e" * 256, b"x", "file_name_invalid"),
        ("a.png", b"no picture", "file_type_wrong"),
        ("a.png", PNG_HEAD, "file_type_wrong"),
    ],
)
async def test_what_is_wrong_is_refused_with_its_reason(client: Client, name: str, data: bytes, code: str) -> None:
    response = await upload(client, name, data)
    assert (response.status_code, code_of(response)) == (422, code)


async def test_an_archive_is_never_unpacked(client: Client) -> None:
    """A zip bomb is a small file like any other."""
    bomb = b"PK\3\4" + bytes(10_000)
    file = (await upload(client, "bomb.zip", bomb)).json()
    assert (file["media_type"], file["size"]) == ("application/zip", len(bomb))


async def test_an_owner_with_a_key_has_so_many_files_and_no_more(place: Place) -> None:
    async with place.serve(
        "--auth", "keys", HOLDFAST_MAX_FILES_PER_OWNER="3", HOLDFAST_MAX_FILE_BYTES_PER_OWNER="100"
    ) as server:
        key = (await place.run("keys", "create", "--name", "ann")).out.split()[-1]
        async with server.client(key) as client:
            for number in range(2):
                assert (await upload(client, f"{number}", b"x" * 40)).status_code == 201
            refused = await upload(client, "large", b"y" * 40)
            assert (refused.status_code, code_of(refused)) == (403, "files_full")
            assert (await upload(client, "small", b"x")).status_code == 201
            refused = await upload(client, "one more", b"")
            assert (refused.status_code, code_of(refused)) == (403, "too_many_files")


async def test_a_long_list_comes_in_pages(client: Client) -> None:
    names = [f"page {number}" for number in range(5)]
    for name in names:
        await upload(client, name, name.encode())
    seen: list[str] = []
    cursor = None
    while len(seen) < len(names):
        query = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        page = (await client.get("/v1/files", params=query)).json()
        assert len(page["files"]) == 2
        seen += [file["name"] for file in page["files"]]
        cursor = page["next"]
    assert seen[:5] == names[::-1]
    assert (await client.get("/v1/files", params={"limit": "201"})).status_code == 422
    assert code_of(await client.get("/v1/sessions/missing/files")) == "session_not_found"


async def test_the_command_line_has_the_same_files(place: Place, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    added = json.loads((await place.run("files", "add", str(tmp_path / "a.txt"), "--json")).out)
    async with place.serve() as server, server.client() as client:
        assert (await client.get(f"/v1/files/{added['id']}/content")).content == b"hello"
        assert "a.txt" in (await place.run("files", "list")).out
        assert (await place.run("files", "get", added["id"][:8])).out == "hello"
        target = tmp_path / "b.txt"
        assert [(await place.run("files", "get", added["id"], "-o", str(target))).code for _ in range(2)] == [0, 2]
        assert target.read_text() == "hello"
        assert (await place.run("files", "keep", added["id"])).out == "Kept: a.txt.\n"
        assert (await place.run("files", "delete", added["id"])).out == "Deleted: a.txt.\n"
        assert (await place.run("files", "get", added["id"])).code == 2
        assert (await place.run("files", "list")).out == "There are no files.\n"


async def test_a_message_has_files_and_its_readers_see_which(client: Client) -> None:
    file = (await upload(client, "notes.txt", b"some notes")).json()
    session = await client.make()
    body: dict[str, Any] = {"text": "good morning", "message_id": "m", "files": [file["id"], "missing"]}
    assert (await client.say(session, **body)).status_code == 200
    again = await client.post(f"/v1/sessions/{session}/messages", json=body)
    assert again.json()["duplicate"]
    other = await client.post(f"/v1/sessions/{session}/messages", json={**body, "files": []})
    assert (other.status_code, code_of(other)) == (409, "id_reused")
    shown = {"id": file["id"], "name": "notes.txt", "media_type": "text/plain", "size": 10}
    page = (await client.get(f"/v1/sessions/{session}")).json()["messages"]
    assert (page[0]["text"], page[0]["files"]) == ("good morning", [shown])
    assert [found["id"] for found in (await client.get(f"/v1/sessions/{session}/files")).json()["files"]] == [
        file["id"]
    ]
    events = await client.events(session)
    assert "[Attached files]" not in json.dumps(events)
    many = await client.post(f"/v1/sessions/{session}/messages", json={"text": "x", "files": [file["id"]] * 21})
    assert (many.status_code, code_of(many)) == (422, "too_many_message_files")
    assert (await client.delete(f"/v1/sessions/{session}")).status_code == 204
    assert code_of(await client.get(f"/v1/files/{file['id']}")) == "file_not_found"
