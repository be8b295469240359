"""Options of the client that reach the runtime through its arguments and its environment."""

import os
import socket

import pytest
from copilot import CopilotClient, RuntimeConnection
from copilot.session_events import SessionStartData

from tests.wire.copilot.harness import (
    EXECUTABLE,
    Home,
    Model,
    approving,
    history,
    pipes_closed,
    reply_to,
    running,
    says,
    tool_names,
)

pytestmark = pytest.mark.anyio


async def test_clients_token_is_sent_to_the_model_and_nowhere_else(own_home: Home, model: Model) -> None:
    model.on("Show your token", says("Shown."))
    async with running(own_home.stdio(github_token="fake-token-for-tests")) as client:
        session = await client.create_session(**approving())
        await reply_to(session, "Show your token")
        assert (await client.get_auth_status()).isAuthenticated is True
    (headers,) = model.headers_about("Show your token")
    assert headers["Authorization"] == "Bearer fake-token-for-tests"
    for file in own_home.data.rglob("*"):
        assert not file.is_file() or b"fake-token-for-tests" not in file.read_bytes(), file


async def test_sessions_are_stored_in_the_base_directory(own_home: Home, model: Model) -> None:
    model.on("Keep me there", says("Kept."))
    there = own_home.folder / "there"
    async with running(own_home.stdio(base_directory=str(there))) as client:
        session = await client.create_session(**approving())
        await reply_to(session, "Keep me there")
        assert session.workspace_path is not None
        assert session.workspace_path.is_relative_to(there)
    assert there.is_dir()
    assert list(own_home.data.iterdir()) == []


async def test_sessions_work_in_the_clients_working_directory(own_home: Home) -> None:
    other = own_home.folder / "other"
    other.mkdir()
    async with running(own_home.stdio(working_directory=str(other))) as client:
        session = await client.create_session(**approving())
        (started,) = await history(session, SessionStartData)
        assert started.context is not None
        assert started.context.cwd == str(other)


async def test_every_option_that_the_client_knows_is_accepted(own_home: Home, model: Model) -> None:
    model.on("With all options", says("Accepted."))
    client = own_home.stdio(
        log_level="debug",
        github_token="fake-token-for-tests",
        session_idle_timeout_seconds=600,
        telemetry={"otlp_endpoint": "http://127.0.0.1:9", "exporter_type": "otlp", "capture_content": True},
        client_info={"name": "a test", "version": "1"},
    )
    async with running(client):
        session = await client.create_session(**approving())
        assert await reply_to(session, "With all options") == "Accepted."


async def test_empty_client_gets_only_the_tools_that_it_requests(own_home: Home, model: Model) -> None:
    model.on("With an empty client", says("Accepted."))
    client = own_home.stdio(mode="empty", base_directory=str(own_home.data))
    async with running(client):
        session = await client.create_session(**approving(available_tools=["view"]))
        assert await reply_to(session, "With an empty client") == "Accepted."
    assert tool_names(model.last_call_about("With an empty client")) == ["view"]


async def test_the_executable_is_found_by_its_name_on_the_path(own_home: Home) -> None:
    environ = {**own_home.environ, "COPILOT_CLI_PATH": EXECUTABLE}
    by_variable = CopilotClient(
        connection=RuntimeConnection.for_stdio(), env=environ, working_directory=str(own_home.work)
    )
    async with running(by_variable) as client:
        assert (await client.ping("by variable")).message == "pong: by variable"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{os.path.dirname(EXECUTABLE)}{os.pathsep}{os.environ['PATH']}")
        by_name = CopilotClient(
            connection=RuntimeConnection.for_stdio(path="holdfast-copilot"),
            env=own_home.environ,
            working_directory=str(own_home.work),
        )
        async with running(by_name) as client:
            assert (await client.ping("by name")).message == "pong: by name"


async def test_fixed_port_is_used_and_a_taken_port_is_an_error(own_home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        connection = RuntimeConnection.for_tcp(path=EXECUTABLE, port=port, connection_token="t")
        client = CopilotClient(connection=connection, env=own_home.environ, working_directory=str(own_home.work))
        with pipes_closed(client), pytest.raises(RuntimeError, match="exited before announcing port"):
            await client.start()
        await client.force_stop()
