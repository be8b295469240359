"""Reading a turn: coming back at any moment, leaving, being slow, and what is left when it is over."""

import asyncio
import itertools
import re
import socket

import aiohttp
import msgspec
import pytest

from tests.wire.ai_sdk.harness import Home, Model, Server, Talk, calls, patience, says

pytestmark = pytest.mark.anyio


async def test_a_replay_from_before_the_first_word_is_complete(talk: Talk, model: Model) -> None:
    model.on("Think before you speak", says("I thought."))
    hold = model.hold("Think before you speak")
    sent = await talk.send("Think before you speak")
    await hold.until_reached()
    replayed = await talk.replay()
    assert replayed.status == 200
    hold.release()
    assert await replayed.message() == await sent.message()


async def test_a_replay_after_a_cut_at_any_chunk_gives_the_same_message(talk: Talk, model: Model) -> None:
    """Fault 33."""
    model.on("Cut me anywhere", says("Grüße an alle ✓", reasoning="Hm hm."))
    whole = await talk.send("Cut me anywhere")
    message = await whole.message()
    replayed = await talk.replay()
    for cut_after in range(len(await replayed.rest()) + 1):
        cut = await talk.replay()
        for _ in range(cut_after):
            await cut.next()
        assert cut.chunks == replayed.chunks[:cut_after]
        cut.hang_up()
        assert await (await talk.replay()).message() == message


async def test_two_readers_get_the_same_stream(talk: Talk, model: Model) -> None:
    model.on("For two readers", says("One two three four five."))
    hold = model.hold("For two readers", piece=2)
    sent = await talk.send("For two readers")
    await hold.until_reached()
    other = await talk.replay()
    await other.until_text("One")
    hold.release()
    assert await other.message() == await sent.message()


async def test_a_disconnect_is_not_a_stop(talk: Talk, model: Model) -> None:
    """Fault 37."""
    model.on("Go on without me", says("One two three four."))
    hold = model.hold("Go on without me", piece=2)
    sent = await talk.send("Go on without me")
    await sent.until_text("One")
    sent.hang_up()
    await hold.until_reached()
    hold.release()
    message = await (await talk.replay()).message()
    assert message["parts"][1]["text"] == "One two three four."
    assert message["metadata"]["reason"] == "completed"


async def test_a_stop_reaches_every_reader(talk: Talk, model: Model) -> None:
    model.on("Stop me", says("One two three four."))
    model.hold("Stop me", piece=2)
    sent = await talk.send("Stop me")
    await sent.until_text("One")
    other = await talk.replay()
    await other.until_text("One")
    assert (await talk.stop())["outcome"] in ("stopped", "stopping")
    message = await sent.message()
    assert await other.message() == message
    assert sent.types[-4:] == ["text-end", "finish-step", "message-metadata", "abort"]
    assert message["parts"][-1]["state"] == "done"
    assert await (await talk.replay()).message() == message


async def test_rejoining_a_finished_turn_ends_at_once(talk: Talk, model: Model) -> None:
    """Fault 34."""
    model.on("Soon over", says("Over."))
    message = await (await talk.send("Soon over")).message()
    for _ in range(3):
        replayed = await talk.replay()
        assert await replayed.message() == message
        assert replayed.is_done


async def test_a_turn_that_ended_long_ago_is_loaded_and_not_replayed(own_home: Home, model: Model) -> None:
    model.on("Long ago", says("It was."))
    async with own_home.serve(HOLDFAST_REPLAY_SECONDS="0.001") as server, Talk(server) as talk:
        message = await (await talk.send("Long ago")).message()
        while (replayed := await talk.replay()).status == 200:  # Until its time is over.
            await replayed.rest()
        assert replayed.status == 204
        assert (await talk.messages())[-1] == message


async def test_each_answer_is_either_loaded_or_replayed(talk: Talk, model: Model) -> None:
    """An answer is in one of the two, and in one only."""
    model.on("In one only", says("Here."))
    for number in range(3):
        await (await talk.send("In one only", f"user-{number}")).rest()
    replayed = await (await talk.replay()).message()
    loaded = await talk.messages()
    assert [found["role"] for found in loaded] == ["user", "assistant"] * 2 + ["user"]
    assert replayed["id"] not in [found["id"] for found in loaded]


async def test_a_long_conversation_is_loaded_in_pages(talk: Talk, model: Model) -> None:
    model.on("Page", says("Turned."))
    for number in range(5):
        await (await talk.send("Page", f"user-{number}")).rest()
    pages: list[list[str]] = []
    path: str | None = f"/v1/chat/{talk.name}?turns=2"
    while path is not None:
        page = await (await talk.request("GET", path)).json()
        pages.insert(0, [found["id"] for found in page["messages"] if found["role"] == "user"])
        path = f"/v1/chat/{talk.name}?turns=2&before={page['before']}" if page["before"] else None
    assert list(itertools.chain(*pages)) == [f"user-{number}" for number in range(5)]
    assert len(pages) == 3


async def test_a_deleted_session_ends_its_streams_with_an_error(talk: Talk, model: Model) -> None:
    model.on("Delete me", says("One two three four."))
    hold = model.hold("Delete me", piece=2)
    sent = await talk.send("Delete me")
    await sent.until_text("One")
    assert (await talk.request("DELETE", f"/v1/sessions/{talk.name}")).status == 204
    await sent.rest()
    assert sent.chunks[-1] == {"type": "error", "errorText": "This session was deleted."}
    hold.release()


async def open_readers(talk: Talk) -> int:
    metrics = (await (await talk.request("GET", "/metrics")).bytes()).decode()
    found = re.search(r"^holdfast_readers (\S+)$", metrics, re.MULTILINE)
    assert found is not None, metrics
    return int(float(found[1]))


async def until_left(talk: Talk, readers: int) -> None:
    async with patience():
        while await open_readers(talk) > readers:
            pass


async def test_a_hundred_reconnects_leave_nothing_behind(own_home: Home, model: Model) -> None:
    """Fault 36."""
    model.on("Come and go", says("One two three four."))
    hold = model.hold("Come and go", piece=2)
    async with own_home.serve() as server, Talk(server) as talk:
        sent = await talk.send("Come and go")
        await sent.until_text("One")
        for _ in range(100):
            reader = await talk.replay()
            await reader.next()
            reader.hang_up()
        await until_left(talk, 1)
        hold.release()
        assert (await sent.message())["parts"][1]["text"] == "One two three four."
        await until_left(talk, 0)


LAZY_READERS = 30
ROUNDS = 60


async def test_readers_that_read_nothing_delay_no_other_and_fill_no_memory(own_home: Home, model: Model) -> None:
    """Fault 35: one of them holds a message or two, however long the turn is that it is owed."""
    words = "A sentence that is repeated until it is long. " * 4_000
    looks = [calls("view", path=f"file-{number}.txt") for number in range(ROUNDS)]
    replies = [msgspec.structs.replace(look, text=words, chunk_size=50_000) for look in looks]
    model.on("Fill them up", *replies, says("Full."))
    hold = model.hold("Fill them up", piece=1)
    facts = own_home.work / "models.toml"
    facts.write_text('["openai/scripted"]\nwindow = 1_000_000_000\n')  # The conversation is not to be summarised.
    async with own_home.serve(HOLDFAST_MODELS=str(facts)) as server, Talk(server) as talk:
        sent = await talk.send("Fill them up")
        await hold.until_reached()
        lazy = [await lazy_reader(talk) for _ in range(LAZY_READERS)]
        before = await memory_of(server)
        hold.release()
        await sent.rest()
        assert sent.text == words * ROUNDS + "Full."
        grown = await memory_of(server) - before
        for reader in lazy:
            reader.close()
    owed = LAZY_READERS * len(sent.text)
    assert grown < owed / 3, f"{grown:,} bytes for readers that were owed {owed:,}"


async def lazy_reader(talk: Talk) -> socket.socket:
    """A client that asks for the turn, and takes only its first words."""
    loop = asyncio.get_running_loop()
    made = socket.socket()
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await loop.sock_connect(made, ("127.0.0.1", talk.server.port))
    asked = f"GET /v1/chat/{talk.name}/stream HTTP/1.1\r\nHost: localhost\r\n"
    await loop.sock_sendall(made, f"{asked}Authorization: Bearer {talk.server.token}\r\n\r\n".encode())
    taken = b""
    while b"text-delta" not in taken:
        async with patience():
            taken += await loop.sock_recv(made, 1024)
    assert taken.startswith(b"HTTP/1.1 200 OK")
    return made


async def memory_of(server: Server) -> int:
    command = await asyncio.create_subprocess_exec(
        *("ps", "-o", "rss=", "-p", str(server.pid)), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await command.communicate()
    return int(out) * 1024


@pytest.mark.slow
async def test_a_stream_is_never_silent_for_long(talk: Talk, model: Model) -> None:
    """Fault 38. A comment is a byte, and no client minds it."""
    model.on("Be quiet", says("At last."))
    hold = model.hold("Be quiet", piece=0)
    sent = await talk.send("Be quiet")
    await hold.until_reached()
    reading = asyncio.create_task(sent.rest())
    async with patience():
        await sent.was_filled.wait()
    hold.release()
    await reading
    assert sent.text == "At last."


async def test_a_server_that_ends_breaks_its_streams_off(own_home: Home, model: Model) -> None:
    """A clean end in the middle of a message would look like its end."""
    model.on("Until the end", says("One two three four."))
    hold = model.hold("Until the end", piece=2)
    async with own_home.serve(HOLDFAST_DRAIN_SECONDS="0.1") as server, Talk(server, "lasting") as talk:
        sent = await talk.send("Until the end")
        await sent.until_text("One")
        await server.terminate()
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await sent.rest()
        assert not sent.is_done
    hold.release()
    async with own_home.serve() as server, Talk(server, "lasting") as talk:
        message = await (await talk.replay()).message()
        assert message["parts"][-1]["text"] == "One two three four."
