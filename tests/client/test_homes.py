"""One program, run on a runtime in its own process and on a server: the home is the only line that differs."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Runtime
from holdfast.client import connect
from holdfast.events.event import Event
from holdfast.events.session import ClientTool, SessionStarted
from holdfast.events.turn import TurnEnded
from holdfast.live.live import Delta
from holdfast.models.scripted import ScriptedModel
from holdfast.models.server import ModelServer
from holdfast.protocol.home import AnySession, Home
from holdfast.protocol.provider import OwnProvider
from holdfast.protocol.reading import QueueChanged
from holdfast.protocol.refusal import Conflict, Invalid, NotFound
from tests.http.world import SCRIPT, Place, patience

LOOKUP = ClientTool(name="lookup", description="Looks a person up.", parameters={"type": "object"})


@pytest.fixture(params=["runtime", "server"])
async def home(request: pytest.FixtureRequest, tmp_path: Path, place: Place) -> AsyncIterator[Home]:
    if request.param == "runtime":
        async with patience(), Runtime(database=tmp_path / "own.db", model=ScriptedModel(SCRIPT)) as runtime:
            yield runtime
    else:
        async with patience(), place.serve() as served, connect(served.url, served.token) as server:
            yield server


async def test_a_message_gets_its_answer_and_again_the_same_one(home: Home) -> None:
    session = await home.session("one", title="Mornings", metadata={"of": "a test"})
    turn = await session.run("good morning", message_id="m")
    assert (turn.reason, turn.text, turn.requests) == ("completed", "Hello, world.", ())
    assert await session.run("good morning", message_id="m") == turn
    assert await session.result_of("m") == turn
    assert (await session.receipt("m")).state == "promoted"
    look = await session.look()
    assert (look.id, look.title, look.status, dict(look.metadata)) == ("one", "Mornings", "idle", {"of": "a test"})
    assert [found async for found in home.sessions(text="good morning")] == [look]
    activity = await session.activity()
    assert (activity.is_settled, activity.head) == (True, look.head)


async def test_only_a_turn_that_ended_with_an_error_goes_on(home: Home) -> None:
    session = await home.session()
    with pytest.raises(Conflict) as refused:
        await session.go_on()
    assert refused.value.code == "nothing_to_continue"
    await session.run("good morning")
    with pytest.raises(Conflict):
        await session.go_on(message_id="m")


async def test_a_permission_a_question_and_a_client_tool_are_answered(home: Home, tmp_path: Path) -> None:
    session = await home.session(working_directory=str(tmp_path), client_tools=(LOOKUP,))
    (asked,) = (await session.run("write a note", message_id="m1")).requests
    assert (asked.kind, asked.title, asked.details["tool_name"]) == ("permission", "write note.txt", "create")
    assert (await session.approve(asked.id, answer_id="a")).duplicate is False
    assert (await session.approve(asked.id, answer_id="a")).duplicate is True
    assert (await session.result_of("m1")).text == "Written."
    with pytest.raises(Conflict) as refused:
        await session.deny(asked.id)
    assert refused.value.code == "answered_already"
    (asked,) = (await session.run("ask me", message_id="m2")).requests
    assert asked.details["choices"] in (("red", "blue"), ["red", "blue"])
    await session.answer(asked.id, "blue")
    assert "blue" in (await session.result_of("m2")).text
    (asked,) = (await session.run("look up ada", message_id="m3")).requests
    await session.give_result(asked.id, "a person")
    assert "a person" in (await session.result_of("m3")).text
    assert await session.requests() == ()


async def test_a_stream_tells_everything_and_goes_on_from_its_cursor(home: Home) -> None:
    session = await home.session()
    await session.run("good morning")
    stream = session.stream()
    readings = [reading async for reading in stream.until_now()]
    assert isinstance(readings[0], Event)
    assert isinstance(readings[0].body, SessionStarted)
    assert readings[0] == await session.first_event()
    assert not any(isinstance(reading, QueueChanged) for reading in readings)
    assert [reading async for reading in session.events(stream.cursor, follow=False)] == []
    await session.send("long")
    text = ""
    async for reading in stream.follow():
        if isinstance(reading, Delta):
            text += reading.text
        if isinstance(reading, Event) and isinstance(reading.body, TurnEnded):
            break
    assert text.startswith("word0 word1")


async def test_waiting_messages_are_edited_removed_and_returned(home: Home, tmp_path: Path) -> None:
    session = await home.session(working_directory=str(tmp_path))
    turn = await session.run("write a note")
    for name in ("first", "second", "third"):
        await session.send(name, message_id=name, delivery="enqueue")
    await session.edit_queued("first", "the first")
    await session.remove_queued("second")
    assert [(waiting.message_id, waiting.text) for waiting in await session.queue()] == [
        ("first", "the first"),
        ("third", "third"),
    ]
    assert (await session.result_of("second")).reason == "removed"
    assert (await session.stop(turn_id=turn.turn_id)).returned == ("the first", "third")
    assert await reason_of_end(session) == "stopped"


async def test_a_conversation_is_compacted_on_request_and_a_pinned_message_stays(home: Home) -> None:
    session = await home.session()
    with pytest.raises(Conflict) as refused:
        await session.compact(wait_seconds=20)
    assert refused.value.code == "nothing_to_compact"
    for number in range(4):
        await session.run(f"good morning {number}", message_id=f"m{number}")
    await session.pin("m1")
    await session.pin("m1")
    compacted = await session.compact(instructions="Keep the mornings.", compaction_id="c", wait_seconds=20)
    assert (compacted.compaction_id, compacted.outcome, compacted.error) == ("c", "compacted", "")
    assert compacted.summary
    assert await session.compact(instructions="Keep the mornings.", compaction_id="c") == compacted
    context = await session.context()
    assert (context.compactions, context.is_compacting, context.pinned) == (1, False, ("m1",))
    assert context.tokens == compacted.tokens_after
    await session.run("and evening")
    usage = (await session.context()).usage
    assert usage is not None
    assert usage.calls == 6
    await session.unpin("m1")
    assert (await session.context()).pinned == ()
    assert (await session.cancel_compaction()).outcome == "nothing_to_cancel"
    with pytest.raises(NotFound) as missing:
        await session.pin("never said")
    assert missing.value.code == "message_not_found"


async def test_a_home_tells_what_its_owner_uses(home: Home) -> None:
    await home.session("one")
    found = await home.identity()
    assert (found.owner, found.role, found.key_id, found.expires_at) == ("local", "admin", "", None)
    assert (found.usage.sessions.used, found.usage.sessions.limit) == (1, None)
    assert found.usage.stored_bytes.used > 0


async def reason_of_end(session: AnySession) -> str:
    """Follow the session until its turn has ended."""
    async for reading in session.events():
        if isinstance(reading, Event) and isinstance(reading.body, TurnEnded):
            return reading.body.reason
    raise AssertionError("a session is followed without end")


async def test_a_session_is_changed_exported_imported_and_deleted(home: Home, tmp_path: Path) -> None:
    session = await home.session()
    await session.run("good morning")
    await session.rename("Evenings")
    await session.move(str(tmp_path))
    copy = await home.import_session(await session.export())
    assert (await session.look()).title == (await copy.look()).title == "Evenings"
    assert (await session.permissions(), await home.permissions(), await home.tasks()) == ((), (), ())
    await session.delete()
    for attempt in (session.look, session.requests, session.tasks, session.activity, session.delete):
        with pytest.raises(NotFound) as missing:
            await attempt()
        assert missing.value.code == "session_not_found"
    with pytest.raises(Invalid):
        await home.session("not an id")


# A provider of the session's own

FIELD_OF_WIRE = {"chat": "stream_options", "responses": "input", "messages": "system"}
"""A field that only the calls of this wire have."""


@pytest.mark.parametrize("wire", FIELD_OF_WIRE)
async def test_a_session_speaks_the_wire_of_its_own_provider(home: Home, wire: str) -> None:
    async with ModelServer(SCRIPT) as own:
        provider = OwnProvider(base_url=own.url, wire=wire, model="theirs", api_key="k")
        session = await home.session(provider=provider)
        assert (await session.run("good morning")).text == "Hello, world."
        calls = [msgspec.json.decode(body) for body in own.requests]
        assert calls
        for call in calls:
            assert call["model"] == "theirs"
            assert [name for name, field in FIELD_OF_WIRE.items() if field in call] == [wire]


@pytest.mark.parametrize(
    ("wrong", "code", "why"),
    [
        ({"wire": "grpc"}, "wire_unknown", "Possible are chat, responses, messages."),
        ({"wire": ""}, "wire_unknown", "Possible are"),
        ({"wire": "messages", "type": "azure"}, "wire_unknown", "azure speaks chat or responses"),
        ({"base_url": "ftp://example.org"}, "model_not_usable", "base URL"),
        ({"api_key": "a\nb"}, "model_not_usable", "a character that a header can't carry"),
    ],
)
async def test_a_provider_that_can_not_be_called_is_refused_and_no_session_is_made(
    home: Home, wrong: dict[str, Any], code: str, why: str
) -> None:
    provider = OwnProvider(**{"base_url": "http://127.0.0.1:1/v1", "api_key": "k", **wrong})
    with pytest.raises(Invalid) as refused:
        await home.session("of-its-own", provider=provider)
    assert (refused.value.code, why in str(refused.value)) == (code, True), refused.value
    assert "of-its-own" not in [found.id async for found in home.sessions()]


def test_a_provider_does_not_show_its_key() -> None:
    assert "secret" not in repr(OwnProvider(base_url="http://127.0.0.1/v1", api_key="secret"))


async def test_a_file_is_uploaded_listed_read_kept_and_deleted(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_bytes(b"1,2\n" * 200_000)
    session = await home.session()
    from_path = await home.upload(path, file_id="numbers")
    assert await home.upload(path, file_id="numbers") == from_path
    assert (from_path.id, from_path.name, from_path.media_type) == ("numbers", "numbers.csv", "text/csv")
    with pytest.raises(Conflict) as reused:
        await home.upload(b"other", name="numbers.csv", file_id="numbers")
    assert reused.value.code == "id_reused"
    from_bytes = await home.upload(b"hello", name="hello.txt", keep=True)
    assert [found async for found in home.files()] == [from_bytes, from_path]
    assert [found async for found in home.files(session_id=session.id)] == []
    assert b"".join([piece async for piece in home.read_file("numbers")]) == path.read_bytes()
    assert (await home.keep_file(from_bytes.id, kept=False)).kept is False
    await home.delete_file("numbers")
    for use in (home.file("numbers"), home.delete_file("numbers"), home.keep_file("numbers")):
        with pytest.raises(NotFound) as missing:
            await use
        assert missing.value.code == "file_not_found"
    with pytest.raises(NotFound):
        _ = [piece async for piece in home.read_file("numbers")]
    for name in ("", "..", "a/b"):
        with pytest.raises(Invalid):
            await home.upload(b"x", name=name)
    assert [found.id async for found in home.files()] == [from_bytes.id]
