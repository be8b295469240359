"""The Python client against a real server: what a program would do, on ways that break."""

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.client import (
    Conflict,
    Connection,
    NotAllowed,
    NotFound,
    NotHoldfast,
    NotSignedIn,
    Reading,
    Server,
    TooMany,
    Unreachable,
    connect,
)
from holdfast.events.event import Event
from holdfast.events.message import UserMessage
from holdfast.events.turn import TurnEnded
from holdfast.live.live import Delta
from holdfast.server.http.start_token import write_token
from tests.client.way import Way, http, somebody_else
from tests.http.world import LONG, Model, Place, patience
from tests.http.world import Server as Served


@pytest.fixture
async def server(shared: Served) -> AsyncIterator[Server]:
    async with connect(shared.url, shared.token) as connected:
        yield connected


async def key_of(place: Place, owner: str) -> str:
    made = await place.run("keys", "create", "--name", owner, "--owner", owner)
    assert made.code == 0, made.err
    return made.out.strip()


def text_of(readings: list[Reading]) -> str:
    return "".join(found.text for found in readings if isinstance(found, Delta))


async def said(server: Server, session_id: str) -> list[str]:
    events = server.open(session_id).events(follow=False)
    return [
        found.body.content async for found in events if isinstance(found, Event) and isinstance(found.body, UserMessage)
    ]


async def test_a_stop_may_name_the_turn_that_it_is_meant_for(server: Server) -> None:
    session = await server.session()
    turn = await session.run("good morning")
    assert (await session.stop(turn_id=turn.turn_id)).outcome == "turn_ended_before"
    assert (await session.stop()).outcome == "nothing_running"


async def test_a_message_is_sent_and_its_turn_is_awaited(server: Server) -> None:
    session = await server.session()
    turn = await session.run("good morning")
    assert (turn.reason, turn.text, turn.requests) == ("completed", "Hello, world.", ())
    again = await server.session(session.id)
    assert (await again.look()).status == "idle"
    assert session.id in [found.id async for found in server.sessions(text="good morning")]


async def test_the_same_message_again_is_the_same_turn(server: Server) -> None:
    session = await server.session()
    first = await session.run("good morning", message_id="one")
    second = await session.run("good morning", message_id="one")
    assert first == second
    assert await said(server, session.id) == ["good morning"]
    assert (await session.receipt("one")).state == "promoted"


async def test_a_turn_that_waits_is_answered_and_goes_on(server: Server) -> None:
    session = await server.session()
    turn = await session.run("write a note", message_id="note")
    assert turn.reason == "waiting"
    (request,) = turn.requests
    assert request.details["subject"] == "note.txt"
    await session.approve(request.id)
    assert (await session.result_of("note")).text == "Written."
    with pytest.raises(Conflict) as late:
        await session.deny(request.id)
    assert late.value.code == "answered_already"


async def test_a_question_gets_its_answer(server: Server) -> None:
    session = await server.session()
    turn = await session.run("ask me something", message_id="q")
    await session.answer(turn.requests[0].id, "blue", was_freeform=False)
    assert "blue" in (await session.result_of("q")).text


async def test_a_reading_goes_on_from_its_cursor(server: Server) -> None:
    session = await server.session()
    await session.run("long")
    whole = [reading async for reading in session.events(follow=False)]
    assert text_of(whole) == LONG
    first = session.stream()
    async with contextlib.aclosing(first.until_now()) as readings:
        async for reading in readings:
            if isinstance(reading, Delta):
                break
    rest = [found async for found in session.stream(first.cursor).until_now()]
    assert text_of([reading, *rest]) == LONG
    assert [found for found in rest if isinstance(found, Event)] == [
        found for found in whole if isinstance(found, Event) and found.position > int(first.cursor.partition("/")[0])
    ]


async def test_a_session_is_copied_exported_imported_and_deleted(server: Server) -> None:
    session = await server.session(title="Mine")
    await session.run("good morning")
    fork = await session.fork(title="Copy")
    assert (await fork.look()).title == "Copy"
    imported = await server.import_session(await session.export())
    assert await said(server, imported.id) == await said(server, fork.id) == ["good morning"]
    await session.delete()
    with pytest.raises(NotFound):
        await session.look()


async def test_a_deleted_session_ends_its_readings(server: Server) -> None:
    session = await server.session()
    readings = session.events()
    async with patience(), contextlib.aclosing(readings):
        await anext(readings)
        await session.delete()
        with pytest.raises(NotFound) as gone:
            async for _ in readings:
                pass
    assert gone.value.code == "session_not_found"


# Ways that break


async def test_a_lost_answer_never_doubles_a_message(shared: Served) -> None:
    way = Way(shared.port, b"POST /v1/sessions/lost/messages")
    async with way.open(), connect(way.url, shared.token) as server:
        session = await server.session("lost")
        async with patience():
            assert (await session.run("good morning")).text == "Hello, world."
        assert way.lost == 1
        assert await said(server, "lost") == ["good morning"]


async def test_an_import_is_not_repeated_when_its_response_is_lost(shared: Served) -> None:
    way = Way(shared.port, b"POST /v1/sessions/import")
    async with way.open(), connect(way.url, shared.token) as server:
        session = await server.session(title="Brought along")
        document = await session.export()
        with pytest.raises(Unreachable) as broken:
            await server.import_session(document)
        assert broken.value.was_sent
        assert way.lost == 1
        assert len([found async for found in server.sessions() if found.title == "Brought along"]) == 2


@pytest.mark.parametrize("auth", ["none", "keys"])
async def test_a_reading_outlives_the_server_and_tells_each_thing_once(place: Place, model: Model, auth: str) -> None:
    environ = {"HOLDFAST_DATA_DIR": str(place.data)}
    key = await key_of(place, "ada") if auth == "keys" else None
    model.hold(20)
    async with place.serve("--auth", auth) as first, patience(), connect(first.url, key, environ=environ) as server:
        session = await server.session("held")
        readings: list[Reading] = []
        reading = asyncio.create_task(_until_ended(server, readings))
        await session.send("long", message_id="m")
        await model.until_held()
        assert await first.end(signal.SIGKILL) == -signal.SIGKILL
        model.release()
        async with place.serve("--auth", auth, port=first.port):
            await reading
            turn = await session.result_of("m")
            later = [found async for found in session.events(follow=False)]
    assert turn.text == LONG
    assert [found.is_back for found in readings if isinstance(found, Connection)] == [False, True]
    assert [found for found in readings if isinstance(found, Event)] == [
        found for found in later if isinstance(found, Event)
    ]
    assert text_of(readings) == text_of(later)


async def _until_ended(server: Server, readings: list[Reading]) -> None:
    async with contextlib.aclosing(server.open("held").events()) as following:
        async for reading in following:
            readings.append(reading)
            if isinstance(reading, Event) and isinstance(reading.body, TurnEnded):
                return


async def test_a_server_that_stays_away_is_an_error_when_patience_ends(place: Place) -> None:
    async with place.serve() as served:
        token = served.token
        async with connect(served.url, token, patience_seconds=0.3) as server, patience():
            session = await server.session()
            await served.end(signal.SIGKILL)
            with pytest.raises(Unreachable):
                await session.send("hello")
            with pytest.raises(Unreachable):
                async for _ in session.events():
                    pass


# Who may not


async def test_another_persons_session_is_as_good_as_none(place: Place) -> None:
    ada, ben = await key_of(place, "ada"), await key_of(place, "ben")
    async with (
        place.serve("--auth", "keys") as served,
        connect(served.url, ada) as hers,
        connect(served.url, ben) as his,
    ):
        session = await hers.session("secret-plan")
        with pytest.raises(NotFound) as foreign:
            await his.open(session.id).look()
        with pytest.raises(NotFound) as missing:
            await his.open("never-was").look()
        assert foreign.value.code == missing.value.code
        with pytest.raises(NotAllowed) as refused:
            await hers.session(working_directory="/")
        assert refused.value.code == "directory_not_allowed"


async def test_a_key_that_is_none_is_refused_and_never_shown(place: Place) -> None:
    key = await key_of(place, "ada")
    wrong = re.sub(r".{43}$", "x" * 43, key)
    async with place.serve("--auth", "keys") as served:
        with pytest.raises(NotSignedIn) as refused:
            async with connect(served.url, wrong):
                pass
        async with connect(served.url, key) as server:
            shown = f"{server!r} {server.open('s')!r} {server._wire!r} {refused.value!r} {refused.value}"
    assert wrong not in shown
    assert key not in shown


async def test_too_many_messages_say_when_to_try_again(place: Place, model: Model) -> None:
    model.hold(1)
    async with place.serve(HOLDFAST_FOLLOW_UPS_PER_MINUTE="1") as served, connect(served.url, served.token) as server:
        session = await server.session()
        await session.send("long")
        await model.until_held()
        await session.send("one more")
        with pytest.raises(TooMany) as refused:
            await session.send("and another")
        assert refused.value.retry_after is not None
        model.release()


# Who is not there


async def test_an_unreachable_server_is_reported_at_once() -> None:
    async with somebody_else(b"") as url:
        pass
    with pytest.raises(Unreachable) as refused:
        async with connect(url, "key"):
            pass
    assert url in refused.value.message
    assert not refused.value.was_sent


@pytest.mark.parametrize(
    "answer",
    [
        http("200 OK", b"<html>Welcome</html>", "content-type: text/html"),
        http("200 OK", b'{"hello": 1}'),
        http("404 Not Found", b"nothing"),
        http("302 Found", b"", "location: http://127.0.0.1:1/"),
        http("401 Unauthorized", b""),
    ],
)
async def test_another_program_is_recognised_and_gets_no_key(answer: bytes) -> None:
    heard: list[bytes] = []
    async with somebody_else(answer, heard) as url:
        with pytest.raises(NotHoldfast) as refused:
            async with connect(url, "hf_key"):
                pass
    assert refused.value.code == "not_holdfast"
    assert heard
    assert b"hf_key" not in b"".join(heard)


async def test_a_program_that_took_the_port_of_a_server_gets_no_token(tmp_path: Path) -> None:
    heard: list[bytes] = []
    async with somebody_else(http("200 OK", b'{"status": "ok", "version": "0.1.0"}'), heard) as url:
        write_token(tmp_path / f"serve-{url.rpartition(':')[2]}.token", "the-token")
        with pytest.raises(NotSignedIn):
            async with connect(url, environ={"HOLDFAST_DATA_DIR": str(tmp_path)}):
                pass
    assert len(heard) == 2
    assert b"the-token" not in b"".join(heard)


async def test_a_token_of_a_new_start_is_found_where_the_old_one_lay(place: Place) -> None:
    environ = {"HOLDFAST_DATA_DIR": str(place.data)}
    async with place.serve() as first, connect(first.url, environ=environ) as server, patience():
        session = await server.session()
        old = first.token
        assert await first.end(signal.SIGTERM) == 0
        async with place.serve(port=first.port) as second:
            assert second.token != old
            assert (await session.run("good morning")).text == "Hello, world."


async def test_a_server_of_another_age_is_named_with_its_release() -> None:
    async with somebody_else(http("200 OK", b'{"status": "ok", "version": "0.0.1"}')) as url:
        with pytest.raises(NotHoldfast) as refused:
            async with connect(url, "hf_key"):
                pass
    assert refused.value.code == "version_mismatch"
    assert "0.0.1" in refused.value.message
