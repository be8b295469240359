"""The page for people as the server gives it away: to anybody, with nothing of anybody's, and nothing else."""

import gzip
import re
from pathlib import Path

import httpx
import pytest

from tests.http.world import Client, Server, code_of

BUILT = Path(__file__).parents[2] / "src" / "holdfast" / "web" / "built"

FIRST_LOAD_BYTES = 80_000
"""The most compressed bytes of a first visit."""


@pytest.fixture
def names() -> list[str]:
    return sorted(path.name for path in BUILT.iterdir() if path.name != "page.html")


async def get(server: Server, path: str, **headers: str) -> httpx.Response:
    """As somebody whom the server does not know."""
    async with server.client("") as nobody:
        return await nobody.get(path, headers=headers)


def named_in(document: str) -> list[str]:
    return re.findall(r'(?:src|href)="(/assets/[^"]+)"', document)


async def test_the_first_load_is_small(server: Server) -> None:
    """The document and what it names; the rest is fetched when there is something to colour."""
    page = await get(server, "/")
    named = named_in(page.text)
    assert len(named) == 2
    loaded = [gzip.compress((BUILT / path.rpartition("/")[2]).read_bytes(), 9) for path in named]
    imported = [
        gzip.compress((BUILT / name).read_bytes(), 9)
        for path in named
        for name in re.findall(r'from"\./([\w.-]+\.js)"', (BUILT / path.rpartition("/")[2]).read_text("utf-8"))
    ]
    assert sum(map(len, [page.content, *loaded, *imported])) <= FIRST_LOAD_BYTES


async def test_the_page_is_public_strict_and_asked_for_anew(server: Server) -> None:
    page = await get(server, "/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cross-origin-opener-policy"] == "same-origin"
    assert "set-cookie" not in page.headers


async def test_the_page_names_no_other_host_and_runs_nothing_inline(server: Server) -> None:
    document = (await get(server, "/")).text
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", document) == []
    assert re.findall(r"<script(?![^>]* src=)|<style|\son\w+=", document) == []


async def test_a_file_is_kept_for_ever_and_comes_packed_to_who_takes_that(server: Server, names: list[str]) -> None:
    for name in names:
        plain = await get(server, f"/assets/{name}", **{"accept-encoding": "identity"})
        packed = await get(server, f"/assets/{name}", **{"accept-encoding": "br, gzip"})
        assert plain.content == packed.content == (BUILT / name).read_bytes()
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        for response in (plain, packed):
            assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert response.headers["vary"] == "accept-encoding"
        kind = {"js": "text/javascript", "css": "text/css"}[name.rpartition(".")[2]]
        assert plain.headers["content-type"] == f"{kind}; charset=utf-8"


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [("gzip", True), ("deflate, GZIP;q=0.5", True), ("gzip;q=0", False), ("gzip; q=0.0, br", False), ("xgzip", False)],
)
async def test_the_page_is_compressed_if_the_client_accepts_it(server: Server, accepted: str, is_packed: bool) -> None:
    response = await get(server, "/", **{"accept-encoding": accepted})
    assert ("content-encoding" in response.headers) is is_packed


async def test_an_unchanged_page_is_answered_with_304(server: Server) -> None:
    first = await get(server, "/")
    again = await get(server, "/", **{"if-none-match": f'"other", {first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    assert (await get(server, "/", **{"if-none-match": '"other"'})).status_code == 200


async def test_a_head_has_what_a_get_would_have_without_the_body(server: Server) -> None:
    async with server.client("") as nobody:
        whole = await nobody.get("/")
        head = await nobody.head("/")
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-length", "content-type", "content-security-policy", "etag"):
        assert head.headers[name] == whole.headers[name]


@pytest.mark.parametrize(
    "name",
    [
        "nothing.js",
        "page.html",
        "..%2fpage.html",
        "..%2f..%2f__init__.py",
        "%2e%2e/%2e%2e/config.py",
        "../../server/http/routes/page.py",
        "..\\page.html",
        "%00",
        "page.html%00.js",
        "a" * 5_000,
        "",
        ".",
        "%F0%9F%8C%8A",
        "<script>",
    ],
)
async def test_a_name_that_is_none_of_its_files_finds_nothing(server: Server, name: str) -> None:
    async with server.client("") as nobody:
        request = nobody.build_request("GET", "/assets/x")
        request.url = httpx.URL(server.url).copy_with(raw_path=f"/assets/{name}".encode())
        response = await nobody.send(request)
    assert response.status_code in (404, 401), response.text
    assert code_of(response) == ("not_found" if response.status_code == 404 else "not_signed_in")
    assert "Traceback" not in response.text


async def test_neither_the_page_nor_its_files_can_be_written_to(client: Client) -> None:
    for path in ("/", "/assets/page.js"):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            response = await client.request(method, path, content=b"x")
            assert (response.status_code, code_of(response)) == (405, "method_not_allowed")


async def test_the_page_contains_no_token_and_no_data_of_a_session(server: Server, client: Client) -> None:
    """Not the token, and not a word of a session; it is the same for everybody."""
    session = await client.make(metadata={"note": "a secret thing"})
    await client.say(session, "another secret thing")
    nobodys, mine = await get(server, "/"), await client.get("/")
    assert nobodys.content == mine.content == (BUILT / "page.html").read_bytes()
