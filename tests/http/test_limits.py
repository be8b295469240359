"""An owner has so many turns that run and so many that wait; whoever goes beyond is told so, and has lost nothing."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.http.world import Client, Model, Place, code_of, patience


class Counting(Model):
    """Knows how many answers were begun."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = 0
        self._another = asyncio.Event()

    async def _pass(self, piece: int) -> None:
        if piece == 0:
            self._begun += 1
            self._another.set()
        await super()._pass(piece)

    async def until_begun(self, number: int) -> None:
        async with patience():
            while self._begun < number:
                self._another.clear()
                await self._another.wait()


@pytest.fixture
async def own_model() -> AsyncIterator[Counting]:
    async with Counting() as server:
        yield server


async def key_of(place: Place, owner: str, *options: str) -> str:
    done = await place.run("keys", "create", "--name", owner, "--owner", owner, *options)
    assert done.code == 0, done.err
    return done.out.split()[-1]


def spoken(response: httpx.Response) -> str:
    """The text of a streamed answer, in however many pieces it came."""
    told = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    return "".join(chunk["delta"] for chunk in told if chunk["type"] == "text-delta")


async def send(client: Client, session: str, text: str = "hello") -> httpx.Response:
    return await client.post(f"/v1/sessions/{session}/messages", json={"text": text, "message_id": "m"})


async def status(client: Client, session: str) -> str:
    return str((await client.get(f"/v1/sessions/{session}")).json()["session"]["status"])


async def turns(client: Client, session: str) -> list[tuple[int, int]]:
    """When each turn of a session began and ended."""
    events = await client.events(session)
    began = [event["time"] for event in events if event["type"] == "holdfast.turn_started"]
    ended = [event["time"] for event in events if event["type"] == "holdfast.turn_ended"]
    return list(zip(began, ended, strict=True))


async def test_fault_13_of_twenty_messages_five_run_ten_wait_and_five_are_refused_unharmed(
    own_place: Place, own_model: Counting
) -> None:
    key = await key_of(own_place, "ann")
    async with own_place.serve("--auth", "keys") as server, server.client(key) as ann:
        sessions = [await ann.make() for _ in range(20)]
        own_model.hold(0)
        answers = [await send(ann, session) for session in sessions]
        waits = [answer.json()["waits_for_slot"] for answer in answers[:15]]
        assert waits == [False] * 5 + [True] * 10
        for refused, session in zip(answers[15:], sessions[15:], strict=True):
            assert (refused.status_code, code_of(refused)) == (429, "too_many_turns")
            assert int(refused.headers["retry-after"]) >= refused.json()["error"]["retry_after"] > 0
            assert (await ann.texts(session), await status(ann, session)) == ([], "idle")
        again = await send(ann, sessions[14])
        assert (again.status_code, again.json()["duplicate"]) == (200, True), "a retry is never one too many"
        listed = (await ann.get("/v1/sessions")).json()["sessions"]
        assert sum(session["status"] == "queued" for session in listed) >= 10
        own_model.release()
        for session in sessions[:15]:
            await ann.get(f"/v1/sessions/{session}/stream")
            assert await ann.texts(session) == ["hello", "Hello, world."]
        assert (await send(ann, sessions[19])).status_code == 200, "the same words are taken when there is a place"


async def test_a_turn_that_waits_for_a_slot_is_answered_like_a_message_to_a_busy_session(
    own_place: Place, own_model: Counting
) -> None:
    key = await key_of(own_place, "ann")
    limits: dict[str, Any] = {
        "HOLDFAST_MAX_RUNNING_TURNS_PER_OWNER": "1",
        "HOLDFAST_MAX_TURNS_IN_FLIGHT_PER_OWNER": "3",
    }
    async with own_place.serve("--auth", "keys", **limits) as server, server.client(key) as ann:
        first, second, third, fourth = [await ann.make() for _ in range(4)]
        own_model.hold(0)
        await send(ann, first)
        await own_model.until_held()
        queued = await ann.add(second, "hello", message_id="m")
        assert queued.status_code == 202
        assert queued.json() == {
            "message_id": "m",
            "buffer_length": 1,
            "max_buffer_length": 10,
            "turn_in_flight": False,
        }
        assert (await ann.add(second, "hello", message_id="m")).json() == queued.json(), "asked again, told the same"
        streamed = await ann.say(third, "hello", message_id="m")
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert '"data-queued"' in streamed.text
        assert '"start"' not in streamed.text
        assert [await status(ann, session) for session in (second, third)] == ["queued", "queued"]
        refused = await ann.say(fourth, "hello", message_id="m")
        assert (refused.status_code, code_of(refused)) == (429, "too_many_turns")
        body = {"id": "new", "text": "hello", "message_id": "m"}
        assert code_of(await ann.post("/v1/chat", json=body)) == "too_many_turns"
        assert (await ann.get("/v1/sessions/new")).status_code == 404, "nothing is left of it, not even its session"
        reading = asyncio.create_task(ann.get(f"/v1/sessions/{third}/stream"))
        own_model.release()
        assert spoken(await reading) == "Hello, world."
        began = [(await turns(ann, session))[0] for session in (first, second, third)]
        assert all(before[1] <= after[0] for before, after in pairwise(began)), began
        async with patience():
            # The turn before has ended, but its slot may be free only a moment later: until then it is queued.
            while spoken(made := await ann.post("/v1/chat", json=body)) != "Hello, world.":
                assert '"data-queued"' in made.text


async def test_a_message_that_is_answered_again_needs_a_slot_or_stays_as_it_was(
    own_place: Place, own_model: Counting
) -> None:
    key = await key_of(own_place, "ann")
    limits: dict[str, Any] = {
        "HOLDFAST_MAX_RUNNING_TURNS_PER_OWNER": "1",
        "HOLDFAST_MAX_TURNS_IN_FLIGHT_PER_OWNER": "2",
    }
    accept = {"accept": "application/json"}
    said = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
    again = {"messages": [said], "trigger": "regenerate-message"}
    async with own_place.serve("--auth", "keys", **limits) as server, server.client(key) as ann:
        first, second, third = [await ann.make() for _ in range(3)]
        for session in (first, second):
            await ann.say(session, "hello", message_id="m")
        own_model.hold(0)
        await send(ann, third)
        await own_model.until_begun(3)
        for _ in range(2):
            queued = await ann.post(f"/v1/sessions/{first}/stream", json=again, headers=accept)
            assert (queued.status_code, queued.json()["buffer_length"]) == (202, 1)
        before = await ann.events(second)
        refused = await ann.post(f"/v1/sessions/{second}/stream", json=again)
        assert (refused.status_code, code_of(refused)) == (429, "too_many_turns")
        assert await ann.events(second) == before, "what was said stays"
        own_model.release()
        assert spoken(await ann.get(f"/v1/sessions/{first}/stream")) == "Hello, world."
        assert len(await turns(ann, first)) == 2


async def test_one_owner_s_backlog_does_not_delay_other_owners(own_place: Place, own_model: Counting) -> None:
    ann_s, bob_s = await key_of(own_place, "ann"), await key_of(own_place, "bob")
    few: dict[str, Any] = {"HOLDFAST_MAX_SESSIONS_PER_PROCESS": "2", "HOLDFAST_MAX_RUNNING_TURNS_PER_OWNER": "0"}
    async with (
        own_place.serve("--auth", "keys", **few) as server,
        server.client(ann_s) as ann,
        server.client(bob_s) as bob,
    ):
        own_model.hold(0)
        hers = [await ann.make() for _ in range(12)]
        for session in hers:
            await send(ann, session)
        await own_model.until_begun(2)
        his = await bob.make()
        await send(bob, his)
        own_model.release()
        await bob.get(f"/v1/sessions/{his}/stream")
        for session in hers:
            await ann.get(f"/v1/sessions/{session}/stream")
        began = sorted([(await turns(ann, session))[0][0] for session in hers])
        assert (await turns(bob, his))[0][0] <= began[4], "he came last, and was not the last"


async def test_a_person_at_their_own_machine_has_no_limit(own_place: Place, own_model: Counting) -> None:
    async with own_place.serve(HOLDFAST_MAX_RUNNING_TURNS_PER_OWNER="1") as server, server.client() as client:
        own_model.hold(0)
        answers = [await send(client, await client.make()) for _ in range(20)]
        assert [answer.json()["waits_for_slot"] for answer in answers] == [False] * 20
        own_model.release()


async def test_of_two_servers_on_one_database_one_gives_the_last_place_away(
    own_place: Place, own_model: Counting
) -> None:
    key = await key_of(own_place, "ann")
    limits: dict[str, Any] = {
        "HOLDFAST_MAX_RUNNING_TURNS_PER_OWNER": "2",
        "HOLDFAST_MAX_TURNS_IN_FLIGHT_PER_OWNER": "5",
    }
    async with (
        own_place.serve("--auth", "keys", **limits) as one,
        own_place.serve("--auth", "keys", **limits) as two,
        one.client(key) as here,
        two.client(key) as there,
    ):
        sessions = [await here.make() for _ in range(16)]
        own_model.hold(0)
        sides = [(here, there)[number % 2] for number in range(16)]
        answers = await asyncio.gather(*map(send, sides, sessions))
        codes = [answer.status_code for answer in answers]
        assert sorted(codes) == [200] * 5 + [429] * 11
        await own_model.until_begun(2)
        own_model.release()
        accepted = [session for session, code in zip(sessions, codes, strict=True) if code == 200]
        for session in accepted:
            await there.get(f"/v1/sessions/{session}/stream")
            assert await here.texts(session) == ["hello", "Hello, world."]
        spans = [(await turns(here, session))[0] for session in accepted]
        assert max(sum(began < moment <= ended for began, ended in spans) for _, moment in spans) <= 2


async def test_a_server_that_was_killed_is_followed_by_one_that_keeps_the_order(
    own_place: Place, own_model: Counting
) -> None:
    key = await key_of(own_place, "ann")
    limits: dict[str, Any] = {"HOLDFAST_MAX_RUNNING_TURNS_PER_OWNER": "1"}
    async with own_place.serve("--auth", "keys", **limits) as server, server.client(key) as ann:
        sessions = [await ann.make(id=name) for name in ("z", "a", "y", "b")]
        own_model.hold(0)
        for session in sessions:
            await send(ann, session)
        await own_model.until_held()
        await server.end(signal.SIGKILL)
    own_model.release()
    async with own_place.serve("--auth", "keys", **limits) as server, server.client(key) as ann:
        for session in sessions:
            await ann.get(f"/v1/sessions/{session}/stream")
        spans = [(await turns(ann, session))[0] for session in sessions]
        assert all(before[1] <= after[0] for before, after in pairwise(spans)), spans
