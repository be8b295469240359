"""The tools behind the Copilot figures: a client that notices a failed turn, and looks into another process."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bench.copilot_runtime import Listening
from bench.lean_client import lean_client, ping_delays
from bench.memory import megabytes, megabytes_of, own_megabytes_of
from holdfast.server.copilot.frames import FrameReader, decoded, frame

ANSWER = "assistant.message"

Answers = Callable[[dict[str, Any]], list[dict[str, Any]]]

only_on_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process can't be asked about another")


@asynccontextmanager
async def serving(answers: Answers, *, at_a_time: int = 65_536) -> AsyncIterator[int]:
    """A runtime that is none: it says what it is told to, in pieces of that size, or hangs up. Gives its port."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        while data := await reader.read(65_536):
            frames.feed(data)
            while (body := frames.next()) is not None:
                said = b"".join(map(frame, answers(decoded(body))))
                if not said:
                    reader.feed_eof()
                for start in range(0, len(said), at_a_time):
                    writer.write(said[start : start + at_a_time])
                    await writer.drain()
        writer.close()
        await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await ended.wait()


def result(asked: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": asked["id"], "result": {}}


def event(asked: dict[str, Any], event_type: str) -> dict[str, Any]:
    params = {"sessionId": asked["params"]["sessionId"], "event": {"type": event_type, "data": {}}}
    return {"jsonrpc": "2.0", "method": "session.event", "params": params}


def answered(asked: dict[str, Any]) -> list[dict[str, Any]]:
    if asked["method"] != "session.send":
        return [result(asked)]
    return [event(asked, "user.message"), result(asked), event(asked, ANSWER), event(asked, "session.idle")]


def failed(asked: dict[str, Any]) -> list[dict[str, Any]]:
    return [found for found in answered(asked) if found.get("params", {}).get("event", {}).get("type") != ANSWER]


def refused(asked: dict[str, Any]) -> list[dict[str, Any]]:
    error = {"code": -32603, "message": "no"}
    return [result(asked)] if asked["method"] == "connect" else [{"jsonrpc": "2.0", "id": asked["id"], "error": error}]


@pytest.mark.parametrize("at_a_time", [1, 7, 65_536])
async def test_a_turn_is_over_when_the_session_is_idle_however_the_bytes_come(at_a_time: int) -> None:
    async with serving(answered, at_a_time=at_a_time) as port, lean_client(port) as client:
        sessions = [await client.create() for _ in range(3)]
        await asyncio.gather(*map(client.turn, sessions))
        assert len(set(sessions)) == 3


async def test_a_turn_that_went_wrong_is_no_figure() -> None:
    async with serving(failed) as port, lean_client(port) as client:
        with pytest.raises(RuntimeError, match="no answer"):
            await client.turn(await client.create())
    async with serving(refused) as port, lean_client(port) as client:
        with pytest.raises(RuntimeError, match="refused"):
            await client.turn("any")


async def test_a_runtime_that_dies_is_no_figure() -> None:
    def dies(asked: dict[str, Any]) -> list[dict[str, Any]]:
        return [] if asked["method"] == "session.send" else [result(asked)]

    async with serving(dies) as port, lean_client(port) as client:
        with pytest.raises(RuntimeError, match="hung up"):
            await client.turn(await client.create())


async def test_every_ping_is_answered_before_the_next_one() -> None:
    asked: list[dict[str, Any]] = []

    def answer(found: dict[str, Any]) -> list[dict[str, Any]]:
        asked.append(found)
        return [result(found)]

    async with serving(answer) as port:
        delays = await asyncio.to_thread(ping_delays, port, 5)
    assert len(delays) == 5
    assert [found["method"] for found in asked] == ["ping"] * 5


@only_on_linux
def test_the_processor_time_of_a_process_is_what_it_says_itself() -> None:
    own = Listening(os.getpid(), 0)
    before = time.process_time()
    found = own.cpu_seconds()
    assert found is not None
    assert before <= found <= time.process_time()


@only_on_linux
def test_the_memory_of_a_process_is_what_it_says_itself() -> None:
    assert megabytes_of(os.getpid()) == pytest.approx(megabytes(), abs=10)
    own = own_megabytes_of(os.getpid())
    assert own is not None
    assert 1 < own < megabytes() + 10
