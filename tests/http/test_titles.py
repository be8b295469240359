"""Titles that a model makes of the first message, in the background."""

import asyncio
import signal
from typing import Any

import httpx
import msgspec
import pytest

from holdfast.models.scripted import Failure, Reply
from holdfast.models.title_request import INSTRUCTIONS, MAX_SENT_CHARACTERS
from tests.http.world import SCRIPT, Client, Model, Place, patience


def titled(reply: Reply) -> Model:
    """A model that answers so when it is asked for a title."""
    return Model(msgspec.structs.replace(SCRIPT, title=reply))


def title_calls(model: Model) -> list[list[dict[str, Any]]]:
    calls = [msgspec.json.decode(body)["messages"] for body in model.requests]
    return [messages for messages in calls if messages[0]["content"] == INSTRUCTIONS]


async def title_of(client: Client, session: str) -> str:
    return str((await client.get(f"/v1/sessions/{session}")).json()["session"]["title"])


async def until_titled(client: Client, session: str) -> dict[str, Any]:
    """The event by which a reader of the session's stream learns of the title that a model made."""
    async with patience(), client.follow(session) as frames:
        async for frame in frames:
            if frame.kind == "event" and frame.data["data"].get("byModel"):
                data: dict[str, Any] = frame.data["data"]
                return data
    raise AssertionError("the stream ended")


async def test_a_model_names_a_session_and_its_readers_see_the_title(own_place: Place) -> None:
    async with titled(Reply(text='"A morning greeting."\n')) as model:
        place = Place(own_place.data.parent, model)
        async with place.serve(HOLDFAST_TITLES="model") as server, server.client() as client:
            session = await client.make()
            await client.say(session, "good morning", context={"url": "https://example.org"})
            assert await until_titled(client, session) == {
                "type": "session.title_changed",
                "title": "A morning greeting",
                "byModel": True,
            }
            assert await title_of(client, session) == "A morning greeting"
            (found,) = (await client.get("/v1/sessions?q=greeting")).json()["sessions"]
            assert (found["id"], found["title"]) == (session, "A morning greeting")
            await client.say(session, "and good night")
            assert title_calls(model) == [
                [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": "good morning"}]
            ]


async def test_a_title_comes_while_the_turn_runs_and_is_in_its_stream(own_place: Place, own_model: Model) -> None:
    async with own_place.serve(HOLDFAST_TITLES="model") as server, server.client() as client:
        session = await client.make()
        own_model.hold(5)
        saying = asyncio.create_task(client.say(session, "a long answer " + "x" * 5_000))
        await own_model.until_held()
        await until_titled(client, session)
        assert (await client.get(f"/v1/sessions/{session}")).json()["session"]["status"] == "running"
        own_model.release()
        told = (await saying).text
        assert '{"type":"data-title","data":{"title":"A long answer…"},"transient":true}' in told
        (call,) = title_calls(own_model)
        assert len(call[1]["content"]) == MAX_SENT_CHARACTERS


async def test_a_title_that_somebody_gave_is_never_replaced(own_place: Place) -> None:
    async with titled(Reply(text="Made up", delay_ms=300)) as model:
        place = Place(own_place.data.parent, model)
        async with place.serve(HOLDFAST_TITLES="model") as server, server.client() as client:
            session = await client.make()
            model.hold(3)
            saying = asyncio.create_task(client.say(session, "a long answer"))
            await model.until_held()
            async with patience():
                while not title_calls(model):
                    await client.get("/healthz")
            words = await title_of(client, session)
            # The very words that it had: chosen all the same.
            await client.patch(f"/v1/sessions/{session}", json={"title": words})
            model.release()
            await saying
            await client.say(session, "and more")
            await server.end()
        async with place.serve() as server, server.client() as client:
            assert await title_of(client, session) == words
            names = [found for found in await client.events(session) if found["type"] == "session.title_changed"]
            assert [found["data"].get("byModel", False) for found in names] == [False, False]


@pytest.mark.parametrize("kind", ["refused", "rate_limited", "cut", "malformed"])
async def test_a_title_that_can_t_be_made_leaves_the_first_words_and_no_error(own_place: Place, kind: str) -> None:
    fails = Failure(kind=msgspec.convert(kind, Failure.__annotations__["kind"]))
    async with titled(Reply(text="Half a title", fail=fails)) as model:
        place = Place(own_place.data.parent, model)
        async with place.serve(HOLDFAST_TITLES="model") as server, server.client() as client:
            session = await client.make()
            await client.say(session, "good morning")
            await client.say(session, "and good night")
            async with patience():
                while not title_calls(model):
                    await client.get("/healthz")
            assert await title_of(client, session) == "good morning"
            types = {found["type"] for found in await client.events(session)}
            assert not types & {"session.error", "model.call_failure"}
            assert (await client.get(f"/v1/sessions/{session}")).json()["session"]["status"] == "idle"


async def test_nothing_waits_for_a_title_neither_the_turn_nor_the_end_of_the_server(own_place: Place) -> None:
    async with titled(Reply(text="never", fail=Failure(kind="hang"))) as model:
        place = Place(own_place.data.parent, model)
        async with place.serve(HOLDFAST_TITLES="model") as server, server.client() as client:
            session = await client.make()
            await client.say(session, "good morning")
            async with patience():
                while not title_calls(model):
                    await client.get("/healthz")
            assert (await client.say(session, "and good night")).status_code == 200
            assert await server.end(signal.SIGTERM) == 0
        async with place.serve(HOLDFAST_TITLES="model") as server, server.client() as client:
            assert await title_of(client, session) == "good morning"


async def test_a_server_that_died_in_the_first_turn_makes_the_title_when_it_comes_back(own_place: Place) -> None:
    async with titled(Reply(text="After all", fail=Failure(kind="hang", times=1))) as model:
        place = Place(own_place.data.parent, model)
        async with place.serve(HOLDFAST_TITLES="model") as server, server.client() as client:
            session = await client.make()
            model.hold(3)
            saying = asyncio.create_task(client.say(session, "a long answer"))
            await model.until_held()
            async with patience():
                while not title_calls(model):
                    await client.get("/healthz")
            await server.end(signal.SIGKILL)
            model.release()
            with pytest.raises(httpx.HTTPError):
                await saying
        async with place.serve(HOLDFAST_TITLES="model") as server, server.client() as client:
            assert (await until_titled(client, session))["title"] == "After all"


async def test_only_a_session_that_wants_one_gets_one(own_place: Place, own_model: Model) -> None:
    async with own_place.serve(HOLDFAST_TITLES="model") as server, server.client() as client:
        named, parent = await client.make(title="Mine"), await client.make()
        child = await client.make(parent=parent)
        await client.say(parent, "good evening")
        await until_titled(client, parent)
        copy = (await client.post(f"/v1/sessions/{parent}/fork")).json()["id"]
        exported = (await client.get(f"/v1/sessions/{parent}/export")).content
        imported = (await client.post("/v1/sessions/import", content=exported)).json()["id"]
        for session in (named, child, copy, imported):
            await client.say(session, "good morning")
        assert len(title_calls(own_model)) == 1
        chatted = await client.post("/v1/chat", json={"id": "chatted", "text": "good night"})
        assert chatted.status_code == 200
        assert (await until_titled(client, "chatted"))["title"] == "Good night"
    async with own_place.serve() as server, server.client() as client:
        session = await client.make()
        await client.say(session, "good day")
        assert await title_of(client, session) == "good day"
        assert len(title_calls(own_model)) == 2
