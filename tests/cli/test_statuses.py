"""While nothing comes, a terminal shows for what the turn waits, in a line that is replaced; a pipe shows nothing."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.wait_line import STALE_SECONDS, LastLine, WaitLine, after
from holdfast.events.ids import MessageId, ToolCallId
from holdfast.live.live import Delta, Progress, WaitStatus
from holdfast.protocol.reading import Connection, QueueChanged
from tests.cli.served import Desk
from tests.faults.world import comes_true
from tests.wire.ai_sdk.harness import LEAPS, Home, Model, Server, calls, says

WORDS = "Take your time"


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    async with Model() as server:
        yield server


@pytest.fixture
async def server(tmp_path: Path, model: Model) -> AsyncIterator[Server]:
    home = Home(tmp_path / "server", model).with_leaping_clock()
    async with home.serve(**LEAPS) as running:
        yield running


@pytest.mark.anyio
async def test_a_chat_shows_the_wait_and_counts_its_seconds(tmp_path: Path, server: Server, model: Model) -> None:
    model.on(WORDS, says("Here it is."))
    hold = model.hold(WORDS)
    desk = Desk(tmp_path / "desk", server.url, server.token)
    async with desk.terminal("chat") as terminal:
        await terminal.until("ready")
        terminal.type(f"{WORDS}\r")
        await hold.until_reached()
        await terminal.until("working")
        server.leap()
        # What stays the same from one line to the next is not drawn again.
        await comes_true(lambda: re.search(r"for ?the ?model, ?1 ?min", terminal.text) is not None)
        assert "Ctrl-C stops" in terminal.text
        drawn = len(terminal.text)
        await comes_true(lambda: any(map(str.isdigit, terminal.text[drawn:])))
        hold.release()
        await terminal.until("Here it is.")
        await terminal.until("── ready", after="Here it is.")
        terminal.type("\x04")
        assert await terminal.ended() == 0


@pytest.mark.anyio
async def test_run_shows_the_wait_on_a_terminal_and_erases_it(tmp_path: Path, server: Server, model: Model) -> None:
    model.on(WORDS, calls("view", path="nothing.txt"), says("Here it is."))
    hold = model.hold(WORDS, round=1)
    desk = Desk(tmp_path / "desk", server.url, server.token)
    async with desk.terminal("run", WORDS) as terminal:
        await hold.until_reached()
        await terminal.until("view nothing.txt")  # It follows the turn.
        server.leap()
        await terminal.until("· waiting for the model, 1 min")
        server.leap()
        await terminal.until("· waiting for the model, 2 min")
        hold.release()
        await terminal.until("Here it is.")
        assert await terminal.ended() == 0
    last = terminal.raw.rpartition("\r\x1b[2K")[2]
    assert "waiting" not in last
    assert last.strip().startswith("Here")


@pytest.mark.anyio
@pytest.mark.parametrize("more", [(), ("--json",)])
async def test_a_pipe_gets_no_status(tmp_path: Path, server: Server, model: Model, more: tuple[str, ...]) -> None:
    model.on(WORDS, says("Here it is."))
    hold = model.hold(WORDS)
    desk = Desk(tmp_path / "desk", server.url, server.token)
    running = await desk.start("run", WORDS, *more)
    await hold.until_reached()
    server.leap()
    hold.release()
    out, err = await running.communicate()
    assert (running.returncode, err) == (0, b"")
    assert b"Here it is." in out
    assert b"waiting" not in out
    assert b"awaits" not in out


def status(**more: Any) -> WaitStatus:
    return WaitStatus(**{"awaits": "model", "seconds": 30, "since": 1_000, **more})


def line(found: WaitStatus, later: float = 0.0, **tools: str) -> str:
    return WaitLine(found, 100.0).text(100.0 + later, tools)


def test_the_line_says_what_is_awaited_for_how_long_and_which_attempt() -> None:
    assert line(status()) == "waiting for the model, 30 s"
    assert line(status(), 32.9) == "waiting for the model, 1 min 2 s"
    failed = status(attempt=2, reason="model_unavailable")
    assert line(failed) == "waiting for the model, 30 s · attempt 2 · it was unavailable"
    assert line(status(awaits="answer")) == "waiting for the rest of the answer, 30 s"
    assert line(status(awaits="tool", tool_call_id="c"), c="exec") == "waiting for exec, 30 s"
    assert line(status(awaits="tool", tool_call_id="c", attempt=2)) == "waiting for a tool, 30 s · attempt 2"
    assert line(status(awaits="compaction")) == "waiting for a summary of the conversation, 30 s"
    retry = status(awaits="retry", attempt=2, reason="model_rate_limited", until=46_000)
    assert line(retry, 5) == "calling the model again in 10 s · attempt 2 · its provider limits the rate of calls"
    assert line(retry, 60).startswith("calling the model again now")


def test_a_status_that_no_newer_one_follows_is_dropped() -> None:
    assert line(status(), STALE_SECONDS) != ""
    assert line(status(), STALE_SECONDS + 1) == ""


def test_the_name_of_a_tool_can_do_nothing_to_a_terminal() -> None:
    assert "\x1b" not in line(status(awaits="tool", tool_call_id="c"), c="\x1b[2Jexec")


def test_anything_that_comes_ends_the_line_and_a_change_of_the_queue_does_not() -> None:
    shown = after(None, status(), 5.0)
    assert shown == WaitLine(status(), 5.0)
    assert after(shown, QueueChanged(messages=()), 6.0) == shown
    came = Delta(message_id=MessageId("m"), block=0, kind="text", offset=0, text="Hi")
    for reading in (came, Progress(ToolCallId("c"), "half"), Connection(is_back=False)):
        assert after(shown, reading, 6.0) is None


def test_the_last_line_is_erased_once(capsys: pytest.CaptureFixture[str]) -> None:
    last = LastLine(color=False)
    last.erase()
    last.show(status(), {})
    last.erase()
    last.erase()
    assert capsys.readouterr().out == "· waiting for the model, 30 s\r\x1b[2K"
