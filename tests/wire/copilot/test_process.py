"""`holdfast-copilot` as a process: its start, its output, its end; the last tests use the real client."""

import asyncio
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from copilot import CopilotClient, RuntimeConnection

from holdfast import __version__
from tests.wire.copilot.raw_client import SECONDS, RawClient, Refused, framed, request
from tests.wire.copilot.runtime_process import COMMAND, Place, end, exit_code

SDK_WORDS = (
    "--headless",
    "--no-auto-update",
    "--log-level",
    "info",
    "--auth-token-env",
    "COPILOT_SDK_AUTH_TOKEN",
    "--no-auto-login",
    "--session-idle-timeout",
    "30",
    "--remote",
)
PING = framed(request("p", "ping", {"message": "hi"}))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# stdio


async def test_a_runtime_whose_writer_died_ends_with_an_error(place: Place) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.wire.copilot.broken_writer", "--headless", "--stdio"),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd=place.work,
        env={**place.environ, "HOLDFAST_MODEL": "demo"},
    )
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        client = RawClient(child.stdout, child.stdin)
        await client.call("connect")
        with pytest.raises((Refused, asyncio.IncompleteReadError)):
            await client.call("session.create", {})
        assert await exit_code(child) == 1
        assert b"[store_writer_died]" in await child.stderr.read()
        assert list((place.home / "holdfast.db.live").iterdir()) == []
    finally:
        await end(child)


async def test_the_end_of_input_is_a_clean_end(place: Place) -> None:
    async with place.over_stdio(*SDK_WORDS) as (child, client):
        assert (await client.call("connect"))["version"] == __version__
        client.writer.close()
        assert await client.until_end() == b""
        assert await exit_code(child) == 0
        assert child.stderr is not None
        assert await child.stderr.read() == b""


async def test_requests_before_the_end_of_input_are_answered(place: Place) -> None:
    ended = await place.run("--stdio", typed=PING)
    assert (ended.code, ended.err) == (0, "")
    assert b'"pong: hi"' in ended.out


@pytest.mark.parametrize("typed", [b"", b"Content-Le", b"Content-Length: 100\r\n\r\n{"])
async def test_incomplete_message_before_the_end_of_input_is_no_failure(place: Place, typed: bytes) -> None:
    assert await place.run("--stdio", typed=typed) == (0, b"", "")


async def test_input_and_output_may_be_files(place: Place, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(PING)
    with (tmp_path / "in").open("rb") as reading, (tmp_path / "out").open("wb") as writing:
        child = await place.start("--stdio", stdin=reading.fileno(), stdout=writing.fileno())
        assert await exit_code(child) == 0
    assert b'"pong: hi"' in (tmp_path / "out").read_bytes()


async def test_nothing_but_frames_ever_reaches_a_client_over_stdio(place: Place) -> None:
    """The parrot prints, and so does a program that it starts, which also tries to read the input."""
    async with place.over_stdio() as (_, client):
        assert await client.call("print") == 0
        assert await client.call("echo", {"x": 1}) == {"x": 1}
        assert client.set_aside == []


async def test_bad_stream_over_stdio_gets_an_error_and_ends_the_process(place: Place) -> None:
    ended = await place.run("--stdio", typed=b"garbage\r\n" + PING)
    assert ended.code == 0
    assert b"not of the form 'Name: value'" in ended.out
    assert b"pong" not in ended.out


# TCP


async def test_the_port_is_announced_in_one_line(place: Place) -> None:
    child = await place.start(*SDK_WORDS)
    assert child.stdout is not None
    async with asyncio.timeout(SECONDS):
        line = await child.stdout.readline()
    found = re.fullmatch(rb"CLI server listening on port (\d+)\n", line)
    assert found is not None, line
    async with await RawClient.tcp(int(found[1])) as client:
        assert (await client.call("connect"))["protocolVersion"] == 3
    child.terminate()
    assert await exit_code(child) == 0
    assert await child.stdout.read() == b""


async def test_requested_port_is_used_or_refused(place: Place) -> None:
    async with place.listening() as first:
        refused = await place.run("--port", str(first.port))
    assert (refused.code, refused.out) == (1, b"")
    assert re.fullmatch(rf"holdfast: .*{first.port}: Address already in use. \[address_not_usable\]\n", refused.err), (
        refused.err
    )
    async with place.listening("--port", str(first.port)) as second:
        assert second.port == first.port


async def test_listening_runtime_never_blocks_on_its_output(place: Place) -> None:
    """Clients stop reading, and a pipe has a bounded buffer."""
    async with place.listening() as listening, await listening.client() as client:
        assert await client.call("print", {"size": 1_000_000}) == 0
        assert await client.call("echo") == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("mode", ["stdio", "tcp"])
async def test_signal_ends_the_process_cleanly(place: Place, number: signal.Signals, mode: str) -> None:
    if mode == "stdio":
        async with place.over_stdio() as (child, client):
            await client.call("echo")
            assert live_files(place)
            child.send_signal(number)
            assert await client.until_end() == b""
            assert await exit_code(child) == 0
    else:
        async with place.listening() as (child, port), await RawClient.tcp(port) as client:
            await client.call("echo")
            child.send_signal(number)
            assert await client.is_ended()
            assert await exit_code(child) == 0
    assert not live_files(place)


def live_files(place: Place) -> list[str]:
    """The files that a process keeps beside its database, and removes when it ends cleanly."""
    return sorted(path.name for path in (place.home / "holdfast.db.live").iterdir())


async def test_shutdown_closes_everything_then_answers_then_ends_the_process(place: Place) -> None:
    async with place.listening() as (child, port), await RawClient.tcp(port) as other:
        await other.call("echo")
        assert live_files(place)
        async with await RawClient.tcp(port) as client:
            assert await client.call("runtime.shutdown") is None
            assert not live_files(place)
            assert await client.is_ended()
        assert await other.is_ended()
        assert await exit_code(child) == 0


async def test_signals_after_the_shutdown_answer_change_nothing(place: Place) -> None:
    """The real client sends a signal to a process that has not exited yet, however late in its shutdown."""
    async with place.listening() as (child, port), await RawClient.tcp(port) as client:
        await client.call("runtime.shutdown")
        ended = asyncio.create_task(exit_code(child))
        while not ended.done():
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)
            await asyncio.sleep(0)
        assert await ended == 0


async def test_two_clients_can_request_the_shutdown(place: Place) -> None:
    async with place.listening() as (child, port), await RawClient.tcp(port) as one, await RawClient.tcp(port) as two:
        await asyncio.gather(one.call("echo"), two.call("echo"))
        answers = await asyncio.gather(one.call("runtime.shutdown"), two.call("runtime.shutdown"))
        assert list(answers) == [None, None]
        assert await exit_code(child) == 0


async def test_a_shutdown_over_stdio_ends_the_process_with_its_input_still_open(place: Place) -> None:
    async with place.over_stdio() as (child, client):
        assert await client.call("runtime.shutdown") is None
        assert await client.until_end() == b""
        assert await exit_code(child) == 0


# The command line and the environment


@pytest.mark.parametrize(
    ("words", "environ", "said"),
    [
        (("--port", "seventy"), {}, "'seventy' is not a port"),
        (("--port", "65536"), {}, "'65536' is not a port"),
        (("--port",), {}, "expected one argument"),
        (("serve",), {}, "'serve' is not an argument of this command"),
        (("--log-level", "loud"), {}, "invalid choice: 'loud'"),
        (("--on-last-disconnect", "die"), {}, "invalid choice: 'die'"),
        ((), {"HOLDFAST_ON_LAST_DISCONNECT": "die"}, "HOLDFAST_ON_LAST_DISCONNECT must be one of keep, close"),
        (("--database", "here.db"), {}, "--database is 'here.db', not a database URL"),
        (
            (),
            {"HOLDFAST_DATABASE": "mysql://u:p@h/d"},
            "HOLDFAST_DATABASE names a database that Holdfast does not know",
        ),
        (("--model", "nobody/knows"), {}, "There is no model 'nobody/knows'"),
    ],
)
@pytest.mark.parametrize("mode", [(), ("--stdio",)], ids=["tcp", "stdio"])
async def test_wrong_setting_prints_one_line_and_exits_with_2(
    place: Place, words: tuple[str, ...], environ: dict[str, str], said: str, mode: tuple[str, ...]
) -> None:
    ended = await place.run(*mode, *words, typed=PING, environ=environ)
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.count("\n") == 1
    assert said in ended.err


@pytest.mark.parametrize(
    ("host", "token", "said"),
    [
        ("0.0.0.0", "", "--host 0.0.0.0 is open to other machines, so COPILOT_CONNECTION_TOKEN must be set"),
        ("no.such.host.invalid", "x", "Can't listen on no.such.host.invalid, port 0"),
        ("192.0.2.1", "x", "Can't listen on 192.0.2.1, port 0"),
    ],
)
async def test_unusable_or_forbidden_address_is_refused(place: Place, host: str, token: str, said: str) -> None:
    ended = await place.run("--host", host, environ={"COPILOT_CONNECTION_TOKEN": token})
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.count("\n") == 1
    assert said in ended.err


async def test_newer_client_with_unknown_flags_is_served(place: Place) -> None:
    ended = await place.run("--from-the-future", "value", "--key=secret", "--stdio", typed=PING)
    assert ended.code == 0
    assert b"pong" in ended.out
    log = place.log.read_text()
    assert "ignored: --from-the-future" in log
    assert "secret" not in log


@pytest.mark.parametrize(
    ("option", "said"), [("--help", "CopilotClient("), ("--version", f"holdfast-copilot {__version__}")]
)
async def test_version_and_help_are_printed(place: Place, option: str, said: str) -> None:
    ended = await place.run(option)
    assert (ended.code, ended.err) == (0, "")
    assert said in ended.out.decode()
    assert not place.home.exists()


async def test_sessions_are_stored_in_the_clients_home(place: Place) -> None:
    await place.run("--stdio")
    assert (place.home / "holdfast.db").exists()
    assert stat.S_IMODE(place.home.stat().st_mode) == 0o700


async def test_default_home_is_in_the_users_home(place: Place, tmp_path: Path) -> None:
    await place.run("--stdio", environ={"HOME": str(tmp_path), "COPILOT_HOME": ""})
    assert (tmp_path / ".copilot" / "holdfast.db").exists()


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (("--database", "sqlite:///elsewhere/holdfast.db"), {}),
        ((), {"HOLDFAST_DATABASE": "sqlite:///elsewhere/holdfast.db"}),
        (("--data-dir", "elsewhere"), {}),
        ((), {"HOLDFAST_DATA_DIR": "elsewhere"}),
    ],
)
async def test_named_database_is_used_instead_of_the_default(
    place: Place, words: tuple[str, ...], environ: dict[str, str]
) -> None:
    ended = await place.run("--stdio", *words, typed=PING, environ=environ)
    assert (ended.code, ended.err) == (0, "")
    with closing(sqlite3.connect(place.work / "elsewhere" / "holdfast.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert not (place.home / "holdfast.db").exists()
    assert place.log.exists()


async def test_log_is_a_private_file_with_the_requested_level(place: Place) -> None:
    await place.run("--stdio", "--log-level", "error", typed=PING)
    assert place.log.read_text() == ""
    await place.run("--stdio", typed=PING)
    assert "Connection" in place.log.read_text()
    assert stat.S_IMODE(place.log.stat().st_mode) == 0o600


async def test_log_level_none_writes_no_log(place: Place) -> None:
    ended = await place.run("--stdio", "--log-level", "none", typed=framed(request(1, "bug")))
    assert (ended.code, ended.err) == (0, "")
    assert not place.log.exists()


async def test_unwritable_log_does_not_prevent_serving(place: Place) -> None:
    place.home.mkdir()
    (place.home / "logs").write_text("not a folder")
    ended = await place.run("--stdio", typed=PING)
    assert (ended.code, ended.err) == (0, "")
    assert b"pong" in ended.out


async def test_internal_error_has_its_traceback_in_the_log_and_not_at_the_client(place: Place) -> None:
    ended = await place.run("--stdio", typed=framed(request(1, "bug")))
    assert b"a secret detail" not in ended.out
    assert "LookupError: a secret detail" in place.log.read_text()


async def test_tokens_are_neither_logged_nor_passed_to_programs(place: Place) -> None:
    environ = {"COPILOT_CONNECTION_TOKEN": "the-connection-token", "MY_TOKEN": "the-client-token"}
    child = await place.start("--auth-token-env", "MY_TOKEN", "--log-level", "all", environ=environ)
    assert child.stdout is not None
    port = int((await child.stdout.readline()).split()[-1])
    async with await RawClient.tcp(port) as client:
        with pytest.raises(Refused, match="AUTHENTICATION_FAILED"):
            await client.call("connect", {"token": "a-wrong-token"})
        await client.call("connect", {"token": "the-connection-token"})
        seen = await client.call("process", {"variables": list(environ), "modules": []})
        assert seen["variables"] == {"COPILOT_CONNECTION_TOKEN": None, "MY_TOKEN": None}
        await client.call("runtime.shutdown")
    assert await exit_code(child) == 0
    log = place.log.read_text()
    assert "Connection" in log
    assert "token" not in log.replace("it never showed the token", "")


async def test_start_imports_only_what_it_needs(place: Place) -> None:
    heavy = ["aiohttp", "typer", "rich", "prompt_toolkit", "pydantic"]
    async with place.over_stdio() as (_, client):
        seen = await client.call("process", {"variables": [], "modules": [*heavy, "sqlite3"]})
        assert seen["modules"] == ["sqlite3"]


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_standard_stream_at_start_harms_nothing(place: Place, closed: tuple[int, ...]) -> None:
    """Otherwise the database could get the number of the closed stream, and prints would go into it."""
    ends = " ".join(f"{number}>&-" for number in closed)
    command = f"{' '.join(COMMAND)} --stdio {ends}"
    done = subprocess.run(
        ["/bin/sh", "-c", command], input=PING, capture_output=True, env=place.environ, cwd=place.work, check=False
    )
    assert done.returncode == 0
    with closing(sqlite3.connect(place.home / "holdfast.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_the_command_is_installed() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("holdfast-copilot"), "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"holdfast-copilot {__version__}\n"


# The real client


def over_stdio(place: Place) -> RuntimeConnection:
    return RuntimeConnection.for_stdio(path=place.executable())


def over_tcp(place: Place) -> RuntimeConnection:
    return RuntimeConnection.for_tcp(path=place.executable())


Way = Callable[[Place], RuntimeConnection]
both_ways = pytest.mark.parametrize("way", [over_stdio, over_tcp])


def real_client(place: Place, connection: RuntimeConnection) -> CopilotClient:
    return CopilotClient(
        connection=connection,
        env={**place.environ},
        working_directory=str(place.work),
        base_directory=str(place.home),
        github_token="a-github-token",
    )


def process_of(client: CopilotClient) -> "subprocess.Popen[bytes]":
    process = client._cli_process
    assert isinstance(process, subprocess.Popen)
    return process


@both_ways
async def test_the_real_client_starts_it_asks_and_stops_it(
    place: Place, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    client = real_client(place, way(place))
    await client.start()
    process = process_of(client)
    assert (await client.ping("hi")).message == "pong: hi"
    status = await client.get_status()
    assert (status.version, status.protocol_version) == (__version__, 3)
    many = await asyncio.gather(*(client.ping(str(n)) for n in range(200)))
    assert [pong.message for pong in many] == [f"pong: {n}" for n in range(200)]
    await client.stop()
    assert process.returncode == 0
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
    close_pipes(process)


@both_ways
async def test_the_real_client_stops_it_by_force(place: Place, way: Way) -> None:
    client = real_client(place, way(place))
    await client.start()
    process = process_of(client)
    await client.force_stop()
    assert process.returncode == -signal.SIGKILL
    close_pipes(process)
    again = real_client(place, way(place))
    await again.start()
    assert (await again.ping()).message == "pong"
    process = process_of(again)
    await again.stop()
    close_pipes(process)


async def test_real_clients_share_a_port_only_with_its_token(place: Place) -> None:
    async with place.listening(token="shared") as listening:
        url = f"localhost:{listening.port}"
        one, two, stranger = (
            real_client(place, RuntimeConnection.for_uri(url, connection_token=token))
            for token in ("shared", "shared", "guessed")
        )
        await one.start()
        await two.start()
        with pytest.raises(Exception, match="AUTHENTICATION_FAILED"):
            await stranger.start()
        await one.force_stop()
        assert (await two.ping("still here")).message == "pong: still here"
        await two.stop()
        assert listening.child.returncode is None
        async with await listening.client() as raw:
            await raw.call("connect", {"token": "shared"})
            assert (await raw.call("connections"))["open"] == 1


async def test_real_client_gets_the_reason_of_a_failed_start(place: Place) -> None:
    client = CopilotClient(
        connection=RuntimeConnection.for_stdio(path=place.executable(), args=["--database", "nonsense"]),
        env=place.environ,
        working_directory=str(place.work),
    )
    starting = asyncio.create_task(client.start())
    await asyncio.sleep(0)
    process = process_of(client)  # it forgets the process when that fails
    with pytest.raises(RuntimeError, match=r"stderr: holdfast: --database is 'nonsense', not a database URL"):
        await starting
    close_pipes(process)


def close_pipes(process: "subprocess.Popen[bytes]") -> None:
    """Close the pipes that the client leaves to the garbage collector, which would warn."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
