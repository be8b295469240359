"""Messages that wait are looked at, changed, put in another order and taken back."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.http.world import Client, Model, Place, code_of, patience


class Busy:
    """A session whose turn is held in the middle, and three messages that wait behind it."""

    def __init__(self, client: Client, session: str) -> None:
        self.client = client
        self.session = session
        self.path = f"/v1/sessions/{session}/queue"

    async def queue(self) -> list[tuple[str, str]]:
        found: list[dict[str, Any]] = (await self.client.get(self.path)).json()["messages"]
        return [(message["message_id"], message["text"]) for message in found]


@pytest.fixture
async def busy(own_place: Place, own_model: Model) -> AsyncIterator[Busy]:
    async with own_place.serve() as server, server.client() as client:
        found = Busy(client, await client.make())
        own_model.hold(3)
        saying = asyncio.create_task(client.say(found.session, "a long answer"))
        await own_model.until_held()
        for name in ("one", "two", "three"):
            await client.add(found.session, f"say {name}", message_id=name, delivery="enqueue")
        yield found
        own_model.release()
        await saying


async def test_the_queue_is_looked_at_without_being_consumed(busy: Busy) -> None:
    for _ in range(2):
        assert await busy.queue() == [("one", "say one"), ("two", "say two"), ("three", "say three")]


async def test_a_queued_message_is_edited_moved_and_taken_back(busy: Busy, own_model: Model) -> None:
    edited = await busy.client.patch(f"{busy.path}/two", json={"text": "say deux"})
    assert edited.status_code == 200
    assert [message["text"] for message in edited.json()["messages"]] == ["say one", "say deux", "say three"]
    moved = await busy.client.patch(busy.path, json={"message_ids": ["three", "two", "one"]})
    assert [message["message_id"] for message in moved.json()["messages"]] == ["three", "two", "one"]
    assert (await busy.client.delete(f"{busy.path}/one")).status_code == 204
    assert await busy.queue() == [("three", "say three"), ("two", "say deux")]
    own_model.release()
    async with patience(), busy.client.follow(busy.session) as frames:
        ended = 0
        async for frame in frames:
            ended += frame.kind == "event" and frame.data["type"] == "holdfast.turn_ended"
            if ended == 3:
                break
    assert (await busy.client.texts(busy.session))[2::2] == ["say three", "say deux"]


async def test_an_unqueued_message_is_not_found_and_an_outdated_order_is_refused(busy: Busy) -> None:
    for response in (
        await busy.client.patch(f"{busy.path}/nobody", json={"text": "x"}),
        await busy.client.delete(f"{busy.path}/nobody"),
    ):
        assert (response.status_code, code_of(response)) == (404, "message_not_queued")
    response = await busy.client.patch(busy.path, json={"message_ids": ["one"]})
    assert (response.status_code, code_of(response)) == (409, "queue_changed")


@pytest.mark.parametrize("body", [{}, {"text": ""}, {"text": 1}, {"text": "a", "more": 1}])
async def test_an_edit_has_some_text_and_nothing_else(busy: Busy, body: object) -> None:
    response = await busy.client.patch(f"{busy.path}/one", json=body)
    assert (response.status_code, code_of(response)) == (422, "invalid")
    assert (await busy.queue())[0] == ("one", "say one")


@pytest.mark.parametrize("text", ["  ", "x" * 64_001])
async def test_an_edit_is_bounded_like_any_message(busy: Busy, text: str) -> None:
    response = await busy.client.patch(f"{busy.path}/one", json={"text": text})
    assert response.status_code == 422
    assert (await busy.queue())[0] == ("one", "say one")


async def test_readers_see_each_change_of_the_queue(busy: Busy) -> None:
    async with patience(), busy.client.follow(busy.session) as frames:
        queues = (frame.data["messages"] async for frame in frames if frame.kind == "queue")
        assert [message["message_id"] for message in await anext(queues)] == ["one", "two", "three"]
        await busy.client.delete(f"{busy.path}/two")
        assert [message["message_id"] for message in await anext(queues)] == ["one", "three"]
