"""While the model says nothing, every surface shows for how long; the silence is one of a clock that leaps."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.client import connect
from holdfast.live.live import WaitStatus
from tests.wire.ai_sdk.harness import LEAPS, Answer, Home, Model, Server, Talk, patience, says
from tests.wire.ai_sdk.node_clients import Client, Library, Node

pytestmark = pytest.mark.anyio

WORDS = "Take your time"


@pytest.fixture(scope="module")
async def node(packages: Path) -> AsyncIterator[Node]:
    async with Node.running(packages) as running:
        yield running


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory, model: Model) -> AsyncIterator[Server]:
    home = Home(tmp_path_factory.mktemp("leaping"), model).with_leaping_clock()
    async with home.serve(**LEAPS) as running:
        yield running


async def next_status(answer: Answer) -> dict[str, Any]:
    while (chunk := await answer.next()) is not None:
        if chunk["type"] == "data-status":
            return chunk
    raise AssertionError(f"it ended: {answer.chunks}")


async def test_a_model_that_is_silent_for_three_minutes_is_waited_for_in_sight(talk: Talk, model: Model) -> None:
    model.on(WORDS, says("Here it is."))
    hold = model.hold(WORDS)
    sent = await talk.send(WORDS)
    await hold.until_reached()
    for minutes in (1, 2, 3):
        talk.server.leap()
        data = (await next_status(sent))["data"]
        assert (data["awaits"], data["attempt"], data["seconds"] // 60) == ("model", 1, minutes)
    hold.release()
    message = await sent.message()
    assert [part["type"] for part in message["parts"]] == ["step-start", "text"], "a status is no part of the message"
    assert "data-status" not in str(await talk.messages())
    assert "data-status" not in str(await (await talk.replay()).rest())
    assert "status" not in {event["type"] for event in await talk.events()}


async def test_the_event_stream_has_the_status_without_a_cursor(talk: Talk, model: Model) -> None:
    model.on(WORDS, says("Here it is."))
    hold = model.hold(WORDS)
    sent = await talk.send(WORDS)
    await hold.until_reached()
    path = f"/v1/sessions/{talk.name}/events"
    stream = (await talk.request("GET", path, accept="text/event-stream"))._response
    frames = b""
    async with patience():
        while b"event: queue" not in frames:  # It has everything up to now.
            frames += await stream.content.readany()
        frames = b""
        talk.server.leap()
        while b"event: status" not in frames or not frames.endswith(b"\n\n"):
            frames += await stream.content.readany()
    (frame,) = [part for part in frames.split(b"\n\n") if b"event: status" in part]
    kind, data = frame.split(b"\n")
    assert (kind, data[:6]) == (b"event: status", b"data: ")
    status = msgspec.json.decode(data[6:], type=WaitStatus)
    assert (status.awaits, status.seconds // 60) == ("model", 1)
    hold.release()
    await sent.rest()


async def test_the_python_client_yields_the_status_as_a_typed_value(talk: Talk, model: Model) -> None:
    model.on(WORDS, says("Here it is."))
    hold = model.hold(WORDS)
    sent = await talk.send(WORDS)
    await hold.until_reached()
    found: WaitStatus | None = None
    async with patience(), connect(talk.server.url, talk.server.token) as remote:
        readings = remote.open(talk.name).events()
        async with aclosing(readings):
            async for reading in readings:
                if isinstance(reading, WaitStatus):
                    found = reading
                    break
                talk.server.leap()
    assert found is not None
    assert (found.awaits, found.attempt) == ("model", 1)
    hold.release()
    await sent.rest()


@pytest.mark.parametrize("library", ["ai5", "ai6", "ai7"])
async def test_an_unmodified_client_gets_the_status_as_data_and_keeps_none_of_it(
    node: Node, server: Server, talk: Talk, model: Model, library: Library
) -> None:
    model.on(WORDS, says("Here it is."))
    hold = model.hold(WORDS)
    client = await Client.of(node, server, library, talk.name)
    sending = client.start("send", text=WORDS)
    await hold.until_reached()
    async with patience():
        while not (found := [part for part in (await client.look()).data if part["type"] == "data-status"]):
            server.leap()
    assert found[0]["data"]["awaits"] == "model"
    hold.release()
    async with patience():
        await sending
    seen = await client.look()
    assert (seen.status, seen.error, seen.text) == ("ready", None, "Here it is.")
    assert [part["type"] for part in seen.answer["parts"]] == ["step-start", "text"]


async def test_after_a_kill_in_the_silence_the_next_holder_counts_from_the_beginning(
    own_home: Home, model: Model
) -> None:
    model.on(WORDS, says("Here it is."))
    hold = model.hold(WORDS)
    own_home.with_leaping_clock()
    async with own_home.serve(**LEAPS) as server, Talk(server, "silent") as talk:
        sent = await talk.send(WORDS)
        await hold.until_reached()
        server.leap()
        await next_status(sent)
        server.leap()
        before = (await next_status(sent))["data"]
        assert before["seconds"] // 60 == 2
        await server.kill()
    again = model.hold(WORDS)
    async with own_home.serve(**LEAPS) as server, Talk(server, "silent") as talk:
        await again.until_reached()
        followed = await talk.replay()
        assert (await followed.next() or {})["type"] == "start"
        server.leap()
        after = (await next_status(followed))["data"]
        assert (after["seconds"] // 60, after["attempt"]) == (1, 2), "the attempt of the dead holder is over"
        assert after["since"] > before["since"]
        hold.release()
        again.release()
        assert "Here it is." in "".join(chunk.get("delta", "") for chunk in await followed.rest())
