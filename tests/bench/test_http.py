"""The tools behind the HTTP figures: a client that notices an incomplete answer, a relay that sends every token by
itself, and a look into the database."""

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench import processes, served
from bench.holdfast_server import answers_in_database, data_of, host_of
from bench.http_client import connections, request_bytes
from bench.http_load import Load, load, words
from bench.models import TOKENS, script
from bench.place import FULL
from bench.probes.http_streams import check_database
from bench.served import Served
from holdfast.models.server import ModelServer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
WHOLE = HEAD + b"Content-Length: 11\r\n\r\nword1 word2"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nword1\r\n10\r\ndata: \n\nword2\n\n\n\r\n0\r\n\r\n"
EMPTY = HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"

Answers = Callable[[int], bytes]

PATIENCE_SECONDS = 60.0
"""No test that passes waits nearly as long."""


@asynccontextmanager
async def serving(answers: Answers, *, at_a_time: int = 65_536) -> AsyncIterator[Served]:
    """Answers its first request, second and so on with what it is told, in pieces of that size; with nothing, it hangs
    up."""
    asked = 0
    at_work: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        at_work.append(asyncio.current_task())
        while await reader.read(65_536):
            said = answers(asked)
            asked += 1
            if not said:
                break
            for start in range(0, len(said), at_a_time):
                writer.write(said[start : start + at_a_time])
                await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield Served(0, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await asyncio.wait([task for task in at_work if task is not None])


@pytest.mark.parametrize("at_a_time", [1, 7, 65_536])
@pytest.mark.parametrize(
    ("answer", "tokens"), [(WHOLE, 2), (CHUNKED, 2), (EMPTY, 0)], ids=["whole", "chunked", "empty"]
)
async def test_an_answer_is_whole_however_its_bytes_come(answer: bytes, tokens: int, at_a_time: int) -> None:
    heard: list[bytes] = []
    async with (
        serving(lambda _: answer, at_a_time=at_a_time) as server,
        connections(server.url, 1) as (connection,),
    ):
        for _ in range(2):
            async with asyncio.timeout(PATIENCE_SECONDS):
                found = await connection.ask(request_bytes("GET", host_of(server), "/"), heard.append)
            assert (found.status, words(found.body)) == (200, tokens)
    assert words(b"".join(heard)) == 2 * tokens


async def test_an_answer_that_lacks_a_token_is_no_figure() -> None:
    request = request_bytes("GET", "here", "/")
    async with serving(lambda _: CHUNKED) as server:
        with pytest.raises(RuntimeError, match="2 tokens of 3"):
            await load(server, [[request]], tokens=3)


async def test_a_refusal_and_a_server_that_hangs_up_are_no_figures() -> None:
    request = request_bytes("GET", "here", "/")
    async with serving(lambda number: REFUSED if number else WHOLE) as server:
        with pytest.raises(RuntimeError, match="503"):
            await load(server, [[request, request]], tokens=2)
    async with serving(lambda number: b"" if number else WHOLE) as server:
        with pytest.raises(RuntimeError, match="hung up"):
            await load(server, [[request, request]], tokens=2)


def test_a_server_that_others_kept_from_its_core_is_not_compared() -> None:
    alone = Load(tokens=100, turns=1, seconds=1.0, cpu_seconds=0.9)
    crowded = Load(tokens=100, turns=1, seconds=1.0, cpu_seconds=0.3)
    unknown = Load(tokens=100, turns=1, seconds=1.0, cpu_seconds=None)
    assert [load.had_its_core(FULL.own_core) for load in (alone, crowded, unknown)] == [True, False, True]


async def test_the_relay_sends_every_token_by_itself() -> None:
    async with (
        ModelServer(script()) as model,
        served.application((sys.executable, "-m", "bench.relay", model.url), cwd=processes.ROOT) as relay,
        connections(relay.url, 1) as (connection,),
    ):
        asked = request_bytes("POST", host_of(relay), "/stream", b'{"text": "a story"}')
        body = (await connection.ask(asked)).expect(200).body
    assert words(body) == body.count(b'data: {"type":"text-delta"') == TOKENS
    # The size of a chunk stands on a line of its own before it: one for each token, one for the end, one for nothing.
    assert body.count(b"\r\n") == 2 * (TOKENS + 1) + 2


@pytest.mark.parametrize("torn", [False, True])
def test_answers_are_looked_for_in_the_database(tmp_path: Path, torn: bool) -> None:
    data_of(tmp_path).mkdir()
    database = sqlite3.connect(data_of(tmp_path) / "holdfast.db")
    database.execute("CREATE TABLE event (number INTEGER PRIMARY KEY, session TEXT, type TEXT, data BLOB)")
    said = [b"word " * TOKENS, b"word " * (TOKENS - torn)]
    for number, text in enumerate(said):
        row = (f"session-{number}", "assistant.message", text)
        database.execute("INSERT INTO event (session, type, data) VALUES (?, ?, ?)", row)
    database.commit()
    database.close()
    assert list(answers_in_database(tmp_path)) == ["session-0", "session-1"]
    if torn:
        with pytest.raises(RuntimeError, match="1 of 2"):
            check_database(tmp_path)
    else:
        check_database(tmp_path)
