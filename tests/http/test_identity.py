"""Authentication by the token of a local server or by a key; no owner finds another owner's data."""

import re
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.http.world import Client, Place, Server, code_of, patience


def secret_of(key: str) -> str:
    """Behind the id. It may have what separates them in it."""
    return key.split("_", 2)[2]


# The token of a start


async def test_without_the_token_nothing_is_done(server: Server, client: Client) -> None:
    session = await client.make()
    for token in ("x", server.token[:-1], server.token + "x", "é", None):
        async with server.client("") as nobody:
            headers = {} if token is None else {b"authorization": f"Bearer {token}".encode()}
            for response in (
                await nobody.get("/v1/sessions", headers=headers),
                await nobody.get(f"/v1/sessions/{session}", headers=headers),
                await nobody.delete(f"/v1/sessions/{session}", headers=headers),
                await nobody.get("/metrics", headers=headers),
                await nobody.get("/v1/nothing", headers=headers),
            ):
                assert (response.status_code, code_of(response)) == (401, "not_signed_in")
                assert response.headers["www-authenticate"] == "Bearer"
    assert (await client.get(f"/v1/sessions/{session}")).status_code == 200


async def test_fault_61_no_cookie_is_given_or_taken_since_every_port_of_the_machine_would_be_sent_it(
    server: Server, client: Client
) -> None:
    session = await client.make()
    async with server.client("") as browser:
        opened = await browser.get("/", params={"token": server.token})
        assert (opened.status_code, "set-cookie" in opened.headers) == (200, False)
        for name in ("token", f"holdfast_{server.port}"):
            browser.cookies.set(name, server.token)
        for response in (
            await browser.get(f"/v1/sessions/{session}"),
            await browser.delete(f"/v1/sessions/{session}"),
            await browser.post(f"/v1/sessions/{session}/requests/r", json={"decision": "approve"}),
        ):
            assert (response.status_code, code_of(response)) == (401, "not_signed_in")


async def test_a_server_that_was_killed_is_followed_by_one_with_the_same_token(place: Place) -> None:
    async with place.serve() as server:
        first = server.token
        assert await server.end(signal.SIGKILL) == -signal.SIGKILL
    async with place.serve(port=server.port) as server:
        assert server.token == first
        async with server.client(first) as still:
            assert (await still.get("/v1/sessions")).status_code == 200


@pytest.mark.parametrize("left", ["", "short", "x" * 43 + "!", "x" * 10_000])
async def test_a_token_file_that_is_none_is_not_taken_for_one(place: Place, left: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place.data.mkdir(parents=True, exist_ok=True)
    file = place.data / f"serve-{port}.token"
    file.write_text(left)
    file.chmod(0o600)
    async with place.serve(port=port) as server:
        assert server.token not in ("", left)


async def test_a_token_that_others_could_read_is_not_used_again(place: Place) -> None:
    async with place.serve() as server:
        first = server.token
        assert await server.end(signal.SIGKILL) == -signal.SIGKILL
    server.token_file.chmod(0o644)
    async with place.serve(port=server.port) as server:
        assert server.token != first
        assert server.token_file.stat().st_mode & 0o077 == 0


async def test_each_start_has_a_token_of_its_own_that_goes_with_it(place: Place) -> None:
    async with place.serve() as server:
        first, file = server.token, server.token_file
        assert await server.end() == 0
        assert not file.exists()
    async with place.serve(port=server.port) as server:
        assert server.token != first
        async with server.client(first) as late:
            assert (await late.get("/v1/sessions")).status_code == 401


async def test_fault_57_the_token_and_keys_are_in_no_log(own_place: Place) -> None:
    made = await own_place.run("keys", "create", "--name", "laptop")
    key = made.out.strip()
    async with own_place.serve() as server, server.client() as client:
        await client.get("/", params={"token": server.token})
        await client.get(f"/v1/sessions?cursor={server.token}")
        await client.post(
            "/v1/sessions", json={"provider": {"base_url": "http://127.0.0.1:1/", "api_key": "sk-secret"}}
        )
        session = await client.make()
        await client.say(session, "good morning")
        token = server.token
        events = msgspec.json.encode(await client.events(session)).decode()
        assert await server.end() == 0
    written = "".join(path.read_bytes().decode("latin-1") for path in own_place.data.rglob("*") if path.is_file())
    for secret in (token, key, secret_of(key), "sk-secret"):
        assert secret not in written
        assert secret not in events


# Keys


class People:
    """A server that knows people by their keys."""

    def __init__(self, server: Server, keys: dict[str, str]) -> None:
        self.server = server
        self.keys = keys

    def client(self, name: str) -> Client:
        return self.server.client(self.keys[name])


async def made_key(place: Place, name: str, owner: str, role: str = "user") -> str:
    done = await place.run("keys", "create", "--name", name, "--owner", owner, "--role", role)
    assert done.code == 0, done.err
    return done.out.strip()


@pytest.fixture(scope="module")
async def people(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[People]:
    place = Place(tmp_path_factory.mktemp("people"))
    keys = {
        "ada": await made_key(place, "ada", "ada"),
        "bob": await made_key(place, "bob", "bob"),
        "root": await made_key(place, "root", "root", "admin"),
    }
    async with place.serve("--auth", "keys") as server:
        yield People(server, keys)


async def test_a_key_is_shown_once_listed_without_it_and_revoked(place: Place) -> None:
    made = await place.run("keys", "create", "--name", "laptop", "--owner", "ada", "--json")
    key = msgspec.json.decode(made.out)
    assert re.fullmatch(r"hf_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", key["key"])
    listed = await place.run("keys", "list")
    assert f"{key['id']}  user   valid" in listed.out
    assert "ada  laptop" in listed.out
    assert secret_of(key["key"]) not in listed.out
    assert (await place.run("keys", "revoke", key["id"])).code == 0
    assert "revoked" in (await place.run("keys", "list")).out
    again = await place.run("keys", "revoke", key["id"])
    assert (again.code, "[key_not_found]" in again.err) == (2, True)


@pytest.mark.parametrize(
    "words", [("--role", "king"), ("--owner", ""), ("--owner", "x" * 65), ("--owner", "a\nb"), ("--name", " ")]
)
async def test_a_key_needs_a_valid_owner_name_and_role(place: Place, words: tuple[str, ...]) -> None:
    done = await place.run("keys", "create", "--name", "laptop", *words)
    assert done.code == 2
    assert done.out == ""
    assert re.search(r"\[(role|name|owner)_invalid\]", done.err)


async def test_a_key_opens_its_owner_s_sessions_and_no_other(people: People) -> None:
    async with people.client("ada") as ada, people.client("bob") as bob:
        session = await ada.make(id="diary")
        assert [view["id"] for view in (await ada.get("/v1/sessions")).json()["sessions"]] == [session]
        assert (await bob.get("/v1/sessions")).json()["sessions"] == []
        assert (await bob.get("/v1/overview")).json()["counts"]["finished_lately"] == 0
        assert await bob.make(id="diary") == "diary"
        await bob.patch("/v1/sessions/diary", json={"title": "Bob's"})
        assert (await ada.get("/v1/sessions/diary")).json()["session"]["title"] == ""


async def test_every_kind_of_wrong_key_is_refused(people: People) -> None:
    good = people.keys["ada"]
    for key in (
        good[:-1] + ("A" if good[-1] != "A" else "B"),
        "hf_000000000000_" + secret_of(good),
        secret_of(good),
        good.upper(),
        "hf_" + "x" * 5_000,
    ):
        async with people.server.client(key) as nobody:
            response = await nobody.get("/v1/sessions")
            assert (response.status_code, code_of(response)) == (401, "not_signed_in")


async def test_a_revoked_key_is_refused_and_what_it_reads_is_broken_off(tmp_path: Path) -> None:
    place = Place(tmp_path)
    key = await made_key(place, "ada", "ada")
    async with place.serve("--auth", "keys") as server, server.client(key) as ada:
        session = await ada.make()
        async with patience(), ada.follow(session) as frames:
            await anext(frames)
            await place.run("keys", "revoke", key.split("_")[1])
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                async for _ in frames:
                    pass
        assert (await ada.get("/v1/sessions")).status_code == 401


async def test_fault_57_a_key_is_kept_as_a_digest_only(tmp_path: Path) -> None:
    place = Place(tmp_path)
    key = await made_key(place, "ada", "ada")
    secret = secret_of(key).encode()
    assert not any(secret in path.read_bytes() for path in place.data.rglob("*") if path.is_file())
