"""Commands of a client: their output notifications, killing them, and their survival of a crash."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from copilot import CopilotClient, CopilotSession
from copilot._jsonrpc import JsonRpcError
from copilot.generated.rpc import (
    ShellCancelUserRequestedRequest,
    ShellExecRequest,
    ShellExecuteUserRequestedRequest,
    ShellKillRequest,
    ShellKillSignal,
)
from copilot.session_events import ToolExecutionCompleteData, ToolExecutionStartData, ToolUserRequestedData

from tests.commands.sandboxes import why_not
from tests.wire.copilot.harness import (
    Heard,
    Home,
    Model,
    Pipe,
    RawClient,
    Server,
    approving,
    ask,
    connected,
    is_gone,
    patience,
    reply_to,
    says,
)

pytestmark = pytest.mark.anyio

MakePipe = Callable[[str], Pipe]

LONG_MS = 600_000


class Shells:
    """The notifications that a client gets about its commands."""

    def __init__(self, client: CopilotClient) -> None:
        self._told: list[tuple[str, dict[str, Any]]] = []
        self._news = asyncio.Event()
        assert client._client is not None
        for what in ("output", "exit"):
            client._client.set_notification_method_handler(f"shell.{what}", self._taker(what))

    def _taker(self, what: str) -> Callable[[dict[str, Any]], None]:
        def take(params: dict[str, Any]) -> None:
            self._told.append((what, params))
            self._news.set()

        return take

    @property
    def processes(self) -> set[str]:
        return {params["processId"] for _, params in self._told}

    def output(self, process_id: str, stream: str | None = None) -> str:
        return "".join(
            params["data"]
            for what, params in self._told
            if what == "output" and params["processId"] == process_id and stream in (None, params["stream"])
        )

    async def until_output(self, process_id: str, text: str) -> None:
        async with patience():
            while text not in self.output(process_id):
                await self._next()

    async def exit_code(self, process_id: str) -> int | None:
        """Wait for the exit notification, which comes once and last."""
        async with patience():
            while not (
                told := [each for each in self._told if each[1]["processId"] == process_id and each[0] == "exit"]
            ):
                await self._next()
        ((_, ended),) = told
        assert [params for _, params in self._told if params["processId"] == process_id][-1] is ended
        code: int | None = ended["exitCode"]
        return code

    def _of(self, process_id: str) -> list[tuple[str, dict[str, Any]]]:
        return [(what, params) for what, params in self._told if params["processId"] == process_id]

    async def _next(self) -> None:
        self._news.clear()
        await self._news.wait()


async def run(session: CopilotSession, command: str, **more: Any) -> str:
    return (await session.rpc.shell.exec(ShellExecRequest(command=command, **more))).process_id


async def kill(session: CopilotSession, process_id: str, signal: ShellKillSignal | None = None) -> bool:
    asked = ShellKillRequest(process_id=process_id, signal=signal)
    return (await session.rpc.shell.kill(asked, timeout=60)).killed


def waits(pipe: Pipe) -> str:
    """A command that reports its pid and then waits for input that never comes."""
    return f"echo $$ > {pipe.path}; read word < {pipe.path}.never"


@pytest.fixture
def begun(tmp_path: Path, pipe: MakePipe) -> Pipe:
    pipe("begun.never")
    return pipe("begun")


# Running


async def test_output_is_sent_as_it_is_written_and_then_the_exit(
    server: Server, home: Home, client: CopilotClient, pipe: MakePipe
) -> None:
    go_on = pipe("go-on")
    shells = Shells(client)
    session = await client.create_session(**approving())
    process_id = await run(session, f"pwd; read word < {go_on.path}; echo $word; echo oh >&2; exit 4", timeout=LONG_MS)
    await shells.until_output(process_id, "\n")
    assert shells.output(process_id) == f"{home.work.resolve()}\n"
    go_on.write("said")
    assert await shells.exit_code(process_id) == 4
    assert shells.output(process_id, "stdout").endswith("said\n")
    assert shells.output(process_id, "stderr") == "oh\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
async def test_command_of_a_client_runs_in_the_sandbox_with_its_filter(own_home: Home) -> None:
    if why := await asyncio.to_thread(why_not):
        pytest.skip(why)
    async with own_home.serve(HOLDFAST_SANDBOX="bubblewrap") as server, connected(server.client()) as client:
        shells = Shells(client)
        session = await client.create_session(**approving())
        process_id = await run(session, "cat; grep Seccomp: /proc/self/status; touch it; chmod u+s it", timeout=LONG_MS)
        assert await shells.exit_code(process_id) == 1
    assert shells.output(process_id, "stdout") == "Seccomp:\t2\n"
    assert "Operation not permitted" in shells.output(process_id, "stderr")


async def test_only_the_calling_client_is_notified(client: CopilotClient, another: CopilotClient, model: Model) -> None:
    mine, theirs = Shells(client), Shells(another)
    session = await client.create_session(**approving())
    same = await another.resume_session(session.session_id, **approving())
    one, other = await run(session, "echo mine"), await run(same, "echo theirs")
    assert await mine.exit_code(one) == await theirs.exit_code(other) == 0
    assert (mine.processes, theirs.processes) == ({one}, {other})
    assert (mine.output(one), theirs.output(other)) == ("mine\n", "theirs\n")


async def test_command_runs_in_the_named_directory_which_must_exist(home: Home, client: CopilotClient) -> None:
    (home.work / "below").mkdir()
    shells = Shells(client)
    session = await client.create_session(**approving())
    process_id = await run(session, "pwd", cwd="below")
    assert await shells.exit_code(process_id) == 0
    assert shells.output(process_id) == f"{home.work.resolve() / 'below'}\n"
    with pytest.raises(JsonRpcError, match="The directory missing does not exist"):
        await run(session, "pwd", cwd="missing")


@pytest.mark.parametrize("command", ["", "   ", "a\0b", "x" * 30_001], ids=["empty", "blank", "NUL", "long"])
async def test_invalid_command_is_refused(client: CopilotClient, command: str) -> None:
    session = await client.create_session(**approving())
    with pytest.raises(JsonRpcError, match=r"(?i)command"):
        await run(session, command)
    with pytest.raises(JsonRpcError, match="timeout"):
        await run(session, "true", timeout=0)


async def test_command_has_no_secret_in_its_environment(own_home: Home) -> None:
    secrets = {"HOLDFAST_MODEL_API_KEY": "sesame-open-4711", "GH_TOKEN": "ghp_4711471147114711"}
    async with own_home.serve(**secrets) as server, connected(server.client()) as client:
        shells = Shells(client)
        session = await client.create_session(**approving())
        process_id = await run(session, "env; cat /proc/$PPID/environ; echo sesame-open-4711")
        assert await shells.exit_code(process_id) is not None
        told = shells.output(process_id)
    assert "PATH=" in told
    assert "[redacted]" in told
    for hidden in ("sesame", "ghp_", "py-tcp-shared-test-token", "CONNECTION_TOKEN"):
        assert hidden not in told


async def test_secret_split_over_two_pieces_is_redacted(own_home: Home, pipe: MakePipe) -> None:
    go_on = pipe("go-on")
    async with own_home.serve(GH_TOKEN="ghp_4711471147114711") as server, connected(server.client()) as client:
        shells = Shells(client)
        session = await client.create_session(**approving())
        command = f"printf 'begun ghp_471147'; read word < {go_on.path}; printf '1147114711 there'; printf ghp_ >&2"
        process_id = await run(session, command, timeout=LONG_MS)
        await shells.until_output(process_id, "begun")
        go_on.write("now")
        assert await shells.exit_code(process_id) == 0
        assert shells.output(process_id, "stdout") == "begun [redacted] there"
        assert shells.output(process_id, "stderr") == "ghp_", "which is all that came"


async def test_command_is_killed_at_its_timeout(client: CopilotClient, begun: Pipe) -> None:
    shells = Shells(client)
    session = await client.create_session(**approving())
    process_id = await run(session, waits(begun), timeout=50)
    assert await shells.exit_code(process_id) == 128 + 15


async def test_character_split_over_two_pieces_is_sent_whole(client: CopilotClient, pipe: MakePipe) -> None:
    go_on = pipe("go-on")
    shells = Shells(client)
    session = await client.create_session(**approving())
    process_id = await run(session, f"printf 'a\\342'; read word < {go_on.path}; printf '\\202\\254'", timeout=LONG_MS)
    await shells.until_output(process_id, "a")
    go_on.write("now")
    assert await shells.exit_code(process_id) == 0
    assert shells.output(process_id) == "a€"


async def test_constantly_alternating_outputs_are_sent_whole(client: CopilotClient) -> None:
    shells = Shells(client)
    session = await client.create_session(**approving())
    process_id = await run(session, "for i in $(seq 8000); do echo o; echo e >&2; done", timeout=LONG_MS)
    assert await shells.exit_code(process_id) == 0
    told = shells.output(process_id)
    assert (told.count("o\n"), told.count("e\n"), len(told)) == (8000, 8000, 32_000)


async def test_number_of_running_commands_is_bounded(client: CopilotClient, begun: Pipe) -> None:
    session = await client.create_session(**approving())
    started = await asyncio.gather(
        *(run(session, f"read word < {begun.path}.never", timeout=LONG_MS) for _ in range(25)), return_exceptions=True
    )
    running = [one for one in started if isinstance(one, str)]
    refused = [one for one in started if isinstance(one, JsonRpcError)]
    assert len(running) == 20
    assert len(refused) == 5
    assert all("20 commands of this session's clients run already" in error.message for error in refused)
    assert await kill(session, running[0])
    assert await run(session, "true")
    other = await client.create_session(**approving())
    assert await run(other, "true")
    assert all(await asyncio.gather(*(kill(session, one) for one in running[1:])))


async def test_client_that_does_not_read_blocks_no_one_and_misses_nothing(server: Server, pipe: MakePipe) -> None:
    """Output is sent only as fast as the client reads, and exceeds what is ever buffered for one that does not."""
    async with RawClient.to(server.port) as slow, RawClient.to(server.port) as quick:
        number = await floods(slow, pipe("slow"))
        await told_all(quick, await floods(quick, pipe("quick")))
        await told_all(slow, number)


FLOOD_BYTES = 80_000_000


async def floods(raw: RawClient, done: Pipe) -> int:
    """Run a command with very much output, and wait for its end without reading."""
    made = await raw.request("session.create", requestPermission=False)
    command = f"head -c {FLOOD_BYTES} /dev/zero | tr '\\0' x; echo done > {done.path}"
    asked = {"sessionId": made["result"]["sessionId"], "command": command, "timeout": LONG_MS}
    number = raw.begin("session.shell.exec", **asked)
    raw.stop_reading()
    assert await done.line() == "done"
    return number


async def told_all(raw: RawClient, number: int) -> None:
    raw.read_on()
    assert "processId" in (await raw.response(number))["result"]
    told = 0
    while True:
        message = await raw.read()
        assert message is not None, "the runtime hung up"
        if message.get("method") == "shell.output":
            told += len(message["params"]["data"])
        elif message.get("method") == "shell.exit":
            break
    assert told == FLOOD_BYTES


# Ending


@pytest.mark.parametrize("signal", [None, ShellKillSignal.SIGINT, ShellKillSignal.SIGTERM, ShellKillSignal.SIGKILL])
async def test_command_can_be_killed(
    client: CopilotClient, another: CopilotClient, begun: Pipe, signal: ShellKillSignal | None
) -> None:
    shells = Shells(client)
    session = await client.create_session(**approving())
    process_id = await run(session, waits(begun), timeout=LONG_MS)
    pid = int(await begun.line())
    same = await another.resume_session(session.session_id, **approving())
    assert await kill(same, process_id, signal)
    assert await asyncio.to_thread(is_gone, pid)
    assert await shells.exit_code(process_id) == 128 + (9 if signal is ShellKillSignal.SIGKILL else 15)
    assert not await kill(session, process_id, signal)


async def test_missing_command_is_not_killed(client: CopilotClient, begun: Pipe) -> None:
    session, other = [await client.create_session(**approving()) for _ in range(2)]
    process_id = await run(other, waits(begun), timeout=LONG_MS)
    assert not await kill(session, "missing-process")
    assert not await kill(session, process_id)
    with pytest.raises(JsonRpcError, match="SIGHUP"):
        await ask(other, "session.shell.kill", processId=process_id, signal="SIGHUP")
    assert await kill(other, process_id)


async def test_command_is_killed_when_its_session_is_deleted(client: CopilotClient, begun: Pipe) -> None:
    session = await client.create_session(**approving())
    await run(session, waits(begun), timeout=LONG_MS)
    pid = int(await begun.line())
    await client.delete_session(session.session_id)
    assert await asyncio.to_thread(is_gone, pid)


async def test_command_survives_a_killed_runtime_and_the_next_one_can_kill_it(own_home: Home, begun: Pipe) -> None:
    async with own_home.serve() as server:
        client = server.client()
        session = await client.create_session(**approving())
        process_id = await run(session, waits(begun), timeout=LONG_MS)
        pid = int(await begun.line())
        await server.kill()
        await client.force_stop()
    async with own_home.serve() as server, connected(server.client()) as client:
        again = await client.resume_session(session.session_id, **approving())
        assert await kill(again, process_id)
        assert await asyncio.to_thread(is_gone, pid)
        assert not await kill(again, process_id)


async def test_command_goes_on_when_its_client_leaves(server: Server, client: CopilotClient, pipe: MakePipe) -> None:
    begun, go_on = pipe("begun"), pipe("go-on")
    session = await client.create_session(**approving())
    async with connected(server.client()) as leaving:
        same = await leaving.resume_session(session.session_id, **approving())
        await run(same, f"echo begun > {begun.path}; read w < {go_on.path}; echo $w > {begun.path}", timeout=LONG_MS)
        assert await begun.line() == "begun"
    go_on.write("ended")
    assert await begun.line() == "ended"


# What a person asks for


def asked(command: str, request_id: str = "one") -> ShellExecuteUserRequestedRequest:
    return ShellExecuteUserRequestedRequest(command=command, request_id=request_id)


async def test_user_requested_command_is_answered_at_its_end(
    client: CopilotClient, another: CopilotClient, model: Model
) -> None:
    model.on("What did I run?", says("I was not told."))
    heard = Heard()
    session = await client.create_session(**approving())
    await another.resume_session(session.session_id, **approving(on_event=heard))
    result = await session.rpc.shell.execute_user_requested(asked("echo one; echo two >&2; echo three"))
    assert (result.success, result.exit_code, result.error) == (True, 0, None)
    assert sorted(result.output.splitlines()) == ["one", "three", "two"]
    requested = await heard.until(ToolUserRequestedData)
    assert requested.tool_call_id == result.tool_call_id
    assert requested.arguments == {"command": "echo one; echo two >&2; echo three"}
    assert (await heard.until(ToolExecutionStartData)).tool_call_id == result.tool_call_id
    done = await heard.until(ToolExecutionCompleteData)
    assert (done.tool_call_id, done.success) == (result.tool_call_id, True)
    assert await reply_to(session, "What did I run?") == "I was not told."
    assert "three" not in str(model.last_call_about("What did I run?"))


async def test_failed_command_reports_its_reason(client: CopilotClient) -> None:
    heard = Heard()
    session = await client.create_session(**approving(on_event=heard))
    result = await session.rpc.shell.execute_user_requested(asked("echo so far; echo oh no >&2; exit 3"))
    assert (result.success, result.exit_code, result.error) == (False, 3, "oh no\n")
    assert "so far\n" in result.output
    done = await heard.until(ToolExecutionCompleteData)
    assert (done.success, done.error.message if done.error else None) == (False, "oh no\n")
    silent = await session.rpc.shell.execute_user_requested(asked("exit 5"))
    assert (silent.success, silent.exit_code, silent.error) == (False, 5, "It ended with exit code 5.")


async def test_long_output_is_answered_with_its_beginning_and_its_end(client: CopilotClient) -> None:
    session = await client.create_session(**approving())
    output = (await session.rpc.shell.execute_user_requested(asked("seq 1 100000"))).output
    assert output.startswith("1\n2\n")
    assert output.endswith("99999\n100000\n")
    assert "left out" in output
    assert len(output) < 64 * 1024


async def test_user_requested_command_can_be_cancelled(
    client: CopilotClient, another: CopilotClient, begun: Pipe
) -> None:
    session = await client.create_session(**approving())
    same = await another.resume_session(session.session_id, **approving())
    running = asyncio.create_task(session.rpc.shell.execute_user_requested(asked(waits(begun), "mine"), timeout=60))
    pid = int(await begun.line())
    with pytest.raises(JsonRpcError, match="'mine' still runs"):
        await session.rpc.shell.execute_user_requested(asked("true", "mine"))
    assert not (await same.rpc.shell.cancel_user_requested(ShellCancelUserRequestedRequest("other"))).cancelled
    assert (await same.rpc.shell.cancel_user_requested(ShellCancelUserRequestedRequest("mine"))).cancelled
    result = await running
    assert (result.success, result.exit_code, result.error) == (False, 128 + 15, "It was killed.")
    assert await asyncio.to_thread(is_gone, pid)
    assert not (await same.rpc.shell.cancel_user_requested(ShellCancelUserRequestedRequest("mine"))).cancelled
    assert (await session.rpc.shell.execute_user_requested(asked("echo again", "mine"))).output == "again\n"
