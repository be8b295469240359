"""Starting, using and stopping the process that a client starts."""

import asyncio
import os
import signal
import sys

import pytest
from copilot import CopilotClient

from tests.wire.copilot.harness import (
    EXECUTABLE,
    Home,
    Model,
    approving,
    ask,
    connected,
    is_gone,
    patience,
    pipes_closed,
    reply_to,
    running,
    says,
)

pytestmark = pytest.mark.anyio


async def test_should_start_and_connect_to_server_using_stdio(own_home: Home) -> None:
    client = own_home.stdio()
    with pipes_closed(client) as started:
        await client.start()
        pong = await client.ping("test message")
        assert pong.message == "pong: test message"
        assert pong.timestamp is not None
        assert pong.protocol_version == 3
        await client.stop()
        assert [process.returncode for process in started] == [0]


async def test_should_start_and_connect_to_server_using_tcp(own_home: Home) -> None:
    async with running(own_home.tcp()) as client:
        assert client.runtime_port
        assert (await client.ping("over tcp")).message == "pong: over tcp"


async def test_stop_ends_the_process_by_itself_with_sessions_open(own_home: Home) -> None:
    for client in (own_home.stdio(), own_home.tcp()):
        with pipes_closed(client) as started:
            await client.start()
            await client.create_session(**approving())
            await client.stop()
            assert [process.returncode for process in started] == [0]


async def test_should_force_stop_without_cleanup(own_home: Home) -> None:
    client = own_home.stdio()
    with pipes_closed(client) as started:
        await client.start()
        await client.create_session(**approving())
        await client.force_stop()
        assert [process.returncode for process in started] == [-signal.SIGKILL]


async def test_a_runtime_over_stdio_ends_when_its_client_dies(own_home: Home) -> None:
    program = (
        "import asyncio, os, sys\n"
        "from copilot import CopilotClient, RuntimeConnection\n"
        "async def main():\n"
        "    client = CopilotClient(connection=RuntimeConnection.for_stdio(path=sys.argv[1]))\n"
        "    await client.start()\n"
        "    await client.create_session()\n"
        "    print(client._cli_process.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    command = (sys.executable, "-c", program, EXECUTABLE)
    dies = await asyncio.create_subprocess_exec(
        *command, env=own_home.environ, cwd=own_home.work, stdout=asyncio.subprocess.PIPE
    )
    assert dies.stdout is not None
    async with patience():
        pid = int(await dies.stdout.readline())
        await dies.wait()
    gone = await asyncio.to_thread(is_gone, pid)
    assert gone


async def test_should_get_status(client: CopilotClient) -> None:
    status = await client.get_status()
    assert status.protocol_version == 3
    assert status.version


async def test_should_get_auth_status(client: CopilotClient) -> None:
    status = await client.get_auth_status()
    assert isinstance(status.isAuthenticated, bool)


async def test_should_list_models(client: CopilotClient) -> None:
    models = await client.list_models()
    assert "scripted" in [found.id for found in models]
    for found in models:
        assert found.name
        assert found.capabilities is not None


async def test_should_report_error_with_stderr_when_cli_fails_to_start(own_home: Home) -> None:
    client = own_home.stdio(env={**own_home.environ, "HOLDFAST_LEASE_TTL_SECONDS": "soon"})
    with pipes_closed(client), pytest.raises(RuntimeError, match="HOLDFAST_LEASE_TTL_SECONDS"):
        await client.start()
    await client.force_stop()


async def test_unusable_home_is_reported_and_does_not_hang(own_home: Home) -> None:
    taken = own_home.folder / "home-is-a-file"
    taken.write_text("", encoding="utf-8")
    client = own_home.stdio(base_directory=str(taken))
    with pipes_closed(client), pytest.raises(RuntimeError, match="home-is-a-file"):
        await client.start()
    await client.force_stop()


async def test_a_session_can_be_made_without_starting_first(own_home: Home, model: Model) -> None:
    model.on("Start by yourself", says("Started."))
    client = own_home.stdio()
    with pipes_closed(client):
        session = await client.create_session(**approving())
        assert await reply_to(session, "Start by yourself") == "Started."
        await client.stop()


async def test_a_client_can_be_started_again_after_it_was_stopped(own_home: Home) -> None:
    client = own_home.stdio()
    for _ in range(2):
        async with running(client):
            assert (await client.ping("again")).message == "pong: again"


async def test_requests_are_answered_while_another_is_pending(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    tail = (await session.rpc.event_log.tail()).cursor
    slow = asyncio.create_task(ask(session, "session.eventLog.read", cursor=tail, max=1, waitMs=30_000))
    assert (await client.ping("meanwhile")).message == "pong: meanwhile"
    assert not slow.done()
    await session.log("Now")
    async with patience():
        await slow


async def test_nothing_but_frames_comes_out_of_stdout(own_home: Home, model: Model) -> None:
    """The client stops reading at the first line that is no header, so a stray line would fail what follows."""
    model.on("Print something", says("Printed."))
    async with running(own_home.stdio(log_level="debug")) as client:
        session = await client.create_session(**approving())
        assert await reply_to(session, "Print something") == "Printed."
        assert (await client.ping("still here")).message == "pong: still here"


async def test_hundred_clients_can_connect_and_leave(own_home: Home) -> None:
    async with own_home.serve() as server, connected(server.client()) as stays:
        before = _open_files(server.pid)
        for _ in range(100):
            passing = server.client()
            await passing.start()
            await passing.force_stop()
        assert (await stays.ping("after a hundred")).message == "pong: after a hundred"
        assert _open_files(server.pid) <= before + 10


def _open_files(pid: int) -> int:
    folder = f"/proc/{pid}/fd"
    return len(os.listdir(folder)) if os.path.isdir(folder) else 0
