"""`holdfast-copilot` as a process: how it is started, what it prints, how it ends. At the end by the real client."""

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


async def test_what_was_asked_before_the_end_of_input_is_answered(place: Place) -> None:
    ended = await place.run("--stdio", typed=PING)
    assert (ended.code, ended.err) == (0, "")
    assert b'"pong: hi"' in ended.out


@pytest.mark.parametrize("typed", [b"", b"Content-Le", b"Content-Length: 100\r\n\r\n{"])
async def test_a_client_that_says_nothing_whole_is_no_reason_to_fail(place: Place, typed: bytes) -> None:
    assert await place.run("--stdio", typed=typed) == (0, b"", "")


async def test_input_and_output_may_be_files(place: Place, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(PING)
    with (tmp_path / "in").open("rb") as reading, (tmp_path / "out").open("wb") as writing:
        child = await place.start("--stdio", stdin=reading.fileno(), stdout=writing.fileno())
        assert await exit_code(child) == 0
    assert b'"pong: hi"' in (tmp_path / "out").read_bytes()


async def test_nothing_but_frames_ever_reaches_a_client_over_stdio(place: Place) -> None:
    """The parrot prints, and so does a program that it starts; which also reads what it can get."""
    async with place.over_stdio() as (_, client):
        assert await client.call("print") == 0
        assert await client.call("echo", {"x": 1}) == {"x": 1}
        assert client.set_aside == []


async def test_a_bad_stream_over_stdio_is_told_what_is_wrong_and_ends_the_process(place: Place) -> None:
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


async def test_the_port_that_was_asked_for_is_taken_or_refused(place: Place) -> None:
    async with place.listening() as first:
        refused = await place.run("--port", str(first.port))
    assert (refused.code, refused.out) == (1, b"")
    assert re.fullmatch(rf"holdfast: .*{first.port}: Address already in use. \[address_not_usable\]\n", refused.err), (
        refused.err
    )
    async with place.listening("--port", str(first.port)) as second:
        assert second.port == first.port


async def test_nobody_needs_to_read_what_a_listening_runtime_prints(place: Place) -> None:
    """Clients don't, and a pipe holds only so much."""
    async with place.listening() as listening, await listening.client() as client:
        assert await client.call("print", {"size": 1_000_000}) == 0
        assert await client.call("echo") == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("mode", ["stdio", "tcp"])
async def test_a_signal_is_a_clean_end(place: Place, number: signal.Signals, mode: str) -> None:
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
    """What a process that holds the database keeps beside it, and takes away when it ends cleanly."""
    return sorted(path.name for path in (place.home / "holdfast.db.live").iterdir())


async def test_a_shutdown_puts_all_away_then_is_answered_then_ends_the_process(place: Place) -> None:
    async with place.listening() as (child, port), await RawClient.tcp(port) as other:
        await other.call("echo")
        assert live_files(place)
        async with await RawClient.tcp(port) as client:
            assert await client.call("runtime.shutdown") is None
            assert not live_files(place)
            assert await client.is_ended()
        assert await other.is_ended()
        assert await exit_code(child) == 0


async def test_signals_after_the_shutdown_was_answered_change_nothing(place: Place) -> None:
    """The real client sends one to whatever has not ended by itself, however late in its end that is."""
    async with place.listening() as (child, port), await RawClient.tcp(port) as client:
        await client.call("runtime.shutdown")
        ended = asyncio.create_task(exit_code(child))
        while not ended.done():
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)
            await asyncio.sleep(0)
        assert await ended == 0


async def test_two_clients_may_ask_for_the_shutdown(place: Place) -> None:
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
async def test_a_wrong_setting_is_one_line_and_exit_2(
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
async def test_an_address_that_can_not_or_must_not_be_used_is_refused(
    place: Place, host: str, token: str, said: str
) -> None:
    ended = await place.run("--host", host, environ={"COPILOT_CONNECTION_TOKEN": token})
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.count("\n") == 1
    assert said in ended.err


async def test_a_client_that_is_newer_than_we_are_is_served(place: Place) -> None:
    ended = await place.run("--from-the-future", "value", "--key=secret", "--stdio", typed=PING)
    assert ended.code == 0
    assert b"pong" in ended.out
    log = place.log.read_text()
    assert "ignored: --from-the-future" in log
    assert "secret" not in log


@pytest.mark.parametrize(
    ("option", "said"), [("--help", "CopilotClient("), ("--version", f"holdfast-copilot {__version__}")]
)
async def test_it_says_what_it_is(place: Place, option: str, said: str) -> None:
    ended = await place.run(option)
    assert (ended.code, ended.err) == (0, "")
    assert said in ended.out.decode()
    assert not place.home.exists()


async def test_sessions_are_kept_in_the_home_that_the_client_names(place: Place) -> None:
    await place.run("--stdio")
    assert (place.home / "holdfast.db").exists()
    assert stat.S_IMODE(place.home.stat().st_mode) == 0o700


async def test_without_a_home_named_it_is_in_the_users(place: Place, tmp_path: Path) -> None:
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
async def test_a_database_that_is_named_is_used_instead(
    place: Place, words: tuple[str, ...], environ: dict[str, str]
) -> None:
    ended = await place.run("--stdio", *words, typed=PING, environ=environ)
    assert (ended.code, ended.err) == (0, "")
    with closing(sqlite3.connect(place.work / "elsewhere" / "holdfast.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert not (place.home / "holdfast.db").exists()
    assert place.log.exists()


async def test_the_log_is_a_private_file_and_says_as_much_as_was_asked(place: Place) -> None:
    await place.run("--stdio", "--log-level", "error", typed=PING)
    assert place.log.read_text() == ""
    await place.run("--stdio", typed=PING)
    assert "Connection" in place.log.read_text()
    assert stat.S_IMODE(place.log.stat().st_mode) == 0o600


async def test_without_a_log_there_is_no_log_anywhere(place: Place) -> None:
    ended = await place.run("--stdio", "--log-level", "none", typed=framed(request(1, "bug")))
    assert (ended.code, ended.err) == (0, "")
    assert not place.log.exists()


async def test_a_log_that_can_not_be_written_is_no_reason_not_to_serve(place: Place) -> None:
    place.home.mkdir()
    (place.home / "logs").write_text("not a folder")
    ended = await place.run("--stdio", typed=PING)
    assert (ended.code, ended.err) == (0, "")
    assert b"pong" in ended.out


async def test_a_bug_is_told_to_the_log_with_its_place_and_to_the_client_without(place: Place) -> None:
    ended = await place.run("--stdio", typed=framed(request(1, "bug")))
    assert b"a secret detail" not in ended.out
    assert "LookupError: a secret detail" in place.log.read_text()


async def test_tokens_are_neither_logged_nor_handed_to_programs(place: Place) -> None:
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


async def test_a_start_brings_in_nothing_that_it_can_do_without(place: Place) -> None:
    heavy = ["aiohttp", "typer", "rich", "prompt_toolkit", "pydantic"]
    async with place.over_stdio() as (_, client):
        seen = await client.call("process", {"variables": [], "modules": [*heavy, "sqlite3"]})
        assert seen["modules"] == ["sqlite3"]


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_stream_that_is_closed_from_the_start_harms_nothing(place: Place, closed: tuple[int, ...]) -> None:
    """Else the database would be opened under its number, and printed into."""
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


async def test_more_real_clients_share_a_port_with_its_token_only(place: Place) -> None:
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


async def test_the_real_client_is_told_why_a_start_failed(place: Place) -> None:
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
    """The client leaves them to the garbage collector, which warns."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
