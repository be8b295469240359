"""Every failure is one sentence with a stable code and an exit status, and never a traceback."""

import asyncio
import ctypes
import os
import subprocess

import pytest

from holdfast.models.server import ModelServer
from tests.cli.processes import SECONDS, Done, Place
from tests.cli.scripts import SCRIPT, model

PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE = 1


def assert_told(done: Done, exit_code: int, code: str) -> None:
    assert done.code == exit_code, done.err
    assert done.err.endswith(f"[{code}]\n")
    assert done.err.startswith("holdfast: ")
    assert done.err.count("\n") == 1, "one sentence"
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("words", "environ", "code"),
    [
        (("run", "x", "--model", "nonsense"), {}, "model_not_usable"),
        (("run", "x", "--model", "openai/x"), {}, "model_not_usable"),
        (("chat", "--database", "postgresql://me:secret@host"), {}, "config_invalid"),
        (("sessions", "list"), {"HOLDFAST_LEASE_TTL_SECONDS": "no"}, "config_invalid"),
        (("run", "x", "--allow", "(("), {}, "rule_invalid"),
        (("run", " "), {}, "message_empty"),
        (("chat", "--dir", "no-such-folder"), {}, "folder_not_found"),
    ],
)
async def test_a_wrong_setting_is_the_callers_fault(
    place: Place, words: tuple[str, ...], environ: dict[str, str], code: str
) -> None:
    done = await place.run(*words, **environ)
    assert_told(done, 2, code)
    assert "secret" not in done.err


async def test_a_wrong_option_is_refused_with_the_usage(place: Place) -> None:
    done = await place.run("run", "x", "--no-such-option")
    assert done.code == 2
    assert "Usage: holdfast run" in done.err
    assert "Traceback" not in done.err


async def test_a_variable_that_means_nothing_is_warned_of_and_no_more(place: Place) -> None:
    done = await place.run("sessions", "list", HOLDFAST_DATABSE="sqlite:///x.db", HOLDFAST_DEBUG="1")
    assert done.code == 0
    assert done.err == (
        "holdfast: HOLDFAST_DATABSE is set, but there is no such setting. Did you mean HOLDFAST_DATABASE?\n"
    )


async def test_a_model_that_is_not_needed_need_not_be_usable(place: Place) -> None:
    done = await place.run("sessions", "list", HOLDFAST_MODEL="nonsense")
    assert done == (0, "No sessions yet. `holdfast chat` starts one.\n", "")


async def test_a_damaged_database_is_the_worlds_fault(place: Place) -> None:
    assert (await place.run("sessions", "list")).code == 0
    database = place.data / "holdfast.db"
    for beside in place.data.glob("holdfast.db-*"):
        beside.unlink()
    database.write_bytes(database.read_bytes()[:100] + b"\xff" * 20_000)
    assert_told(await place.run("sessions", "list"), 1, "store_corrupt")
    database.write_bytes(b"This is a letter to a friend. " * 200)
    assert_told(await place.run("chat", typed="hello\n"), 1, "store_not_a_database")
    doctor = await place.run("doctor")
    assert doctor.code == 1
    assert "✗ Database" in doctor.out


async def test_a_full_traceback_is_there_for_who_asks(place: Place) -> None:
    done = await place.run("run", "x", "--model", "nonsense", HOLDFAST_DEBUG="1")
    assert done.code == 2
    assert "Traceback" in done.err


def obey_permissions() -> None:
    """Root writes wherever it likes, unless this right is taken from it."""
    if os.geteuid() == 0:
        assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) == 0


def test_a_database_that_can_not_be_written_is_the_worlds_fault(place: Place) -> None:
    place.data.mkdir(mode=0o500)
    done = subprocess.run(
        place.command("sessions", "list"),
        env=place.environ,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=obey_permissions,
    )
    assert_told(Done(done.returncode, done.stdout, done.stderr), 1, "store_read_only")
    assert list(place.data.iterdir()) == []


async def test_a_model_that_does_not_take_the_key_ends_the_turn_with_a_sentence(place: Place) -> None:
    async with ModelServer(SCRIPT, api_key="right") as server:
        options = ("--model", "openai/x", "--model-base-url", server.url)
        done = await place.run("run", "hello", *options, HOLDFAST_MODEL_API_KEY="wrong-key")
        assert_told(done, 4, "model_unauthorized")
        assert "wrong-key" not in done.err
        chat = await place.run("chat", *options, typed="hello\n", HOLDFAST_MODEL_API_KEY="wrong-key")
        assert "[model_unauthorized]" in chat.out
        fine = await place.run("run", "hello", *options, HOLDFAST_MODEL_API_KEY="right")
        assert fine.out == "You said hello.\n"
    for file in place.data.glob("holdfast.log*"):
        assert "wrong-key" not in file.read_text()


async def test_a_model_that_is_not_there_ends_the_turn_with_a_sentence(place: Place) -> None:
    done = await place.run(
        "run",
        "hello",
        "--model",
        "openai/x",
        "--model-base-url",
        "http://127.0.0.1:9/v1",
        HOLDFAST_MAX_MODEL_ATTEMPTS="1",
    )
    assert_told(done, 4, "model_unreachable")


async def test_the_log_is_a_file_that_only_its_owner_reads(place: Place) -> None:
    await place.run("sessions", "list")
    log = place.data / "holdfast.log"
    assert log.stat().st_mode & 0o777 == 0o600
    assert place.data.stat().st_mode & 0o777 == 0o700


async def test_a_chat_ends_quietly_when_its_output_pipe_is_closed(place: Place) -> None:
    async with model(place):
        child = await place.start("chat")
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdin.write(b"hello\n")
        await child.stdout.readuntil(b"You said hello.")
        child.stdout._transport.close()  # type: ignore[attr-defined]
        child.stdin.write(b"and again\n")
        async with asyncio.timeout(SECONDS):
            assert await child.wait() == 141
        assert await child.stderr.read() == b""


async def test_a_terminal_that_lacks_letters_is_shown_what_it_has(place: Place) -> None:
    async with model(place):
        done = await place.run("chat", typed="write it\n", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.code == 0
    assert "? create wants to write a.txt" in done.out


def test_closed_streams_are_no_reason_to_fail(place: Place) -> None:
    command = " ".join(place.command("chat", "--model", "demo"))
    done = subprocess.run(
        ["sh", "-c", f"{command} <&-"], env=place.environ, cwd=place.work, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
