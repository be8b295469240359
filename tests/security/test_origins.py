"""Fault 60: a web page of another origin can't drive a local server, by whatever name it calls it."""

import asyncio

import pytest

from tests.http.world import Client, Place, Server, code_of, patience


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://127.0.0.1",
        "http://127.0.0.1:1",
        "http://localhost",
        "null",
        "",
        "file://",
        "http://[",
    ],
)
async def test_fault_60_another_origin_is_refused(client: Client, origin: str) -> None:
    session = await client.make()
    for response in (
        await client.get("/v1/sessions", headers={"origin": origin}),
        await client.delete(f"/v1/sessions/{session}", headers={"origin": origin}),
        await client.post("/v1/sessions", headers={"origin": origin, "content-type": "text/plain"}, content="{}"),
        await client.options("/v1/sessions", headers={"origin": origin}),
    ):
        assert (response.status_code, code_of(response)) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in response.headers
    assert (await client.get(f"/v1/sessions/{session}")).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost.evil.example",
        "http://localhost:evil.example",
        "http://localhost@evil.example",
        "http://evil.example#localhost",
        "http://evil.example/localhost",
        "http://evil.localhost",
        "http://notlocalhost",
        "ftp://localhost",
    ],
)
async def test_an_origin_is_not_the_server_s_own_because_its_name_is_a_part_of_it(client: Client, origin: str) -> None:
    response = await client.get("/v1/sessions", headers={"host": "localhost", "origin": origin})
    assert (response.status_code, code_of(response)) == (403, "origin_not_allowed")


async def test_a_page_of_the_server_itself_may_ask(client: Client, server: Server) -> None:
    assert (await client.get("/v1/sessions", headers={"origin": server.url})).status_code == 200
    assert (await client.post("/v1/sessions", headers={"origin": server.url}, json={})).status_code == 201


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.0.1", "", "a b", "[::2]:80"]
)
async def test_fault_60_a_name_that_was_made_to_point_here_is_refused(client: Client, host: str) -> None:
    response = await client.get("/v1/sessions", headers={"host": host, "origin": f"http://{host}"})
    assert response.status_code in (400, 403)
    assert code_of(response) in ("host_not_allowed", "http_invalid")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:8787", "localhost."])
async def test_the_names_of_this_machine_are_its_own(client: Client, host: str) -> None:
    assert (await client.get("/healthz", headers={"host": host})).status_code == 200


async def test_fault_60_a_page_elsewhere_can_t_have_something_fetched_without_saying_who_it_is(client: Client) -> None:
    for site in ("cross-site", "same-site"):
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
        response = await client.get("/v1/sessions", headers=headers)
        assert (response.status_code, code_of(response)) == (403, "origin_not_allowed")
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
        assert (await client.get("/", headers=headers)).status_code == 200
        assert (await client.get("/v1/sessions", headers=headers)).status_code == 403


async def test_fault_60_two_hosts_in_one_request_are_refused(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n\r\n")
    async with patience():
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_an_origin_and_a_host_that_were_allowed_may_ask(own_place: Place) -> None:
    async with (
        own_place.serve(HOLDFAST_ALLOWED_ORIGINS="https://app.example", HOLDFAST_ALLOWED_HOSTS="api.example") as server,
        server.client() as client,
    ):
        headers = {"origin": "https://app.example", "host": "api.example"}
        asked = await client.get("/v1/sessions", headers=headers)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == "https://app.example"
        assert asked.headers["vary"] == "origin"
        preflight = await client.options(
            "/v1/sessions", headers={**headers, "authorization": "", "access-control-request-method": "POST"}
        )
        assert preflight.status_code == 204
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        assert (await client.get("/v1/sessions", headers={"origin": "https://b.example"})).status_code == 403
