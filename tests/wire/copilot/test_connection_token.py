"""Only clients that send the token can use a connection."""

import socket

import pytest
from copilot import CopilotClient, RuntimeConnection

from tests.wire.copilot.harness import (
    TOKEN,
    Home,
    RawClient,
    Server,
    approving,
    calls,
    connected,
    reply_to,
    running,
    says,
    tool_results,
)

pytestmark = pytest.mark.anyio


async def test_explicit_token_connects(server: Server) -> None:
    async with connected(server.client(TOKEN)) as client:
        assert (await client.ping("hi")).message == "pong: hi"


async def test_auto_generated_token_connects(own_home: Home) -> None:
    async with running(own_home.tcp(connection_token=None)) as client:
        assert (await client.ping("hi")).message == "pong: hi"


@pytest.mark.parametrize("wrong", ["wrong", TOKEN + "x", TOKEN[:-1], TOKEN.upper(), "ü"])
async def test_wrong_token_is_rejected(server: Server, wrong: str) -> None:
    client = server.client(wrong)
    with pytest.raises(Exception, match="JSON-RPC Error -32002: AUTHENTICATION_FAILED"):
        await client.start()
    await client.force_stop()


async def test_missing_token_is_rejected(server: Server) -> None:
    client = server.client(None)
    with pytest.raises(Exception, match="JSON-RPC Error -32002: AUTHENTICATION_FAILED"):
        await client.start()
    await client.force_stop()


@pytest.mark.parametrize("method", ["ping", "session.create", "session.list", "runtime.shutdown", "no.such.method"])
async def test_no_method_is_answered_before_the_token(server: Server, method: str) -> None:
    async with RawClient.to(server.port, token=None) as raw:
        refused = await raw.request(method)
        assert refused["error"]["code"] == -32001
        assert refused["error"]["message"] == "AUTHENTICATION_REQUIRED"


@pytest.mark.parametrize("token", [None, 5, {"a": 1}, ["x"], True])
async def test_token_that_is_not_a_string_is_rejected(server: Server, token: object) -> None:
    async with RawClient.to(server.port, token=None) as raw:
        refused = await raw.request("connect", token=token)
        assert refused["error"]["code"] == -32002


async def test_right_token_is_accepted_after_a_wrong_one(server: Server) -> None:
    async with RawClient.to(server.port, token=None) as raw:
        assert "error" in await raw.request("connect", token="wrong")
        second = await raw.request("connect", token=TOKEN)
        assert second["result"]["protocolVersion"] == 3


async def test_guesses_that_come_in_one_write_are_counted_like_any_other(server: Server) -> None:
    """They are all read before the first of them is answered."""
    async with RawClient.to(server.port, token=None) as raw:
        guesses = [raw.begin("connect", token=f"guess {number}") for number in range(20)]
        right, listed = raw.begin("connect", token=TOKEN), raw.begin("session.list")
        answers = {}
        while (answer := await raw.read()) is not None:
            answers[answer["id"]] = answer
    assert all("error" in answers[guess] for guess in guesses if guess in answers)
    for last in (right, listed):
        assert last not in answers or "error" in answers[last], answers[last]


async def test_token_is_not_passed_to_commands(own_home: Home) -> None:
    model = own_home.model
    model.on("Print your environment", calls("bash", command="env"), says("Printed."))
    async with own_home.serve(COPILOT_SDK_AUTH_TOKEN="sdk-secret") as server, connected(server.client()) as client:
        session = await client.create_session(**approving())
        await reply_to(session, "Print your environment")
    (printed,) = tool_results(model.last_call_about("Print your environment"))
    assert "PATH=" in printed
    assert TOKEN not in printed
    assert "sdk-secret" not in printed


@pytest.mark.parametrize("url", ["127.0.0.1:{port}", "[::1]:{port}", "localhost:{port}", "{port}"])
async def test_a_client_finds_the_server_by_any_of_its_addresses(server: Server, url: str) -> None:
    if "[" in url and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    connection = RuntimeConnection.for_uri(url.format(port=server.port), connection_token=TOKEN)
    async with connected(CopilotClient(connection=connection)) as client:
        assert (await client.ping("hi")).message == "pong: hi"


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
