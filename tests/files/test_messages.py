"""Files on their way with messages: to the model over each wire, through the queue, into copies, and back."""

import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.app import Runtime
from holdfast.events.ids import Key, Owner, SessionId
from holdfast.models.anthropic_messages import AnthropicMessages
from holdfast.models.chat_completions import ChatCompletions
from holdfast.models.http_model import HttpModel, ModelWire
from holdfast.models.info import ModelInfo
from holdfast.models.openai_responses import OpenAIResponses
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.models.server import ModelServer
from holdfast.protocol.message import FromUser
from holdfast.protocol.refusal import Conflict, Invalid
from holdfast.server.http.message_page import view_of
from tests.files.test_files import PNG

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\n%fake\n%%EOF\n"
TEXT = "The first line. " * 2_000

SCRIPT = Script(
    (
        Rule(
            (
                Reply(text="I read.", tool_calls=(ScriptedCall("read_attached_file", {"file_id": "text"}),)),
                Reply(
                    tool_calls=(
                        ScriptedCall("read_attached_file", {"file_id": "text", "offset": 31_990}),
                        ScriptedCall("read_attached_file", {"file_id": "photo"}),
                        ScriptedCall("read_attached_file", {"file_id": "foreign"}),
                    )
                ),
                Reply(text="Read."),
            ),
            when="read it",
        ),
        Rule((Reply(text="Hello."),)),
    )
)

WIRES = [OpenAIResponses("gpt-6"), ChatCompletions("m"), AnthropicMessages("claude-opus-4-5")]

ENVIRON = {"HOLDFAST_TITLES": "words"}


async def upload_all(home: Runtime) -> None:
    await home.upload(PNG, name="photo.png", file_id="photo")
    await home.upload(PDF, name="paper.pdf", file_id="paper")
    await home.upload(TEXT.encode(), name="long text.txt", file_id="text")
    await home.file_operations.add(Owner("bob"), "secret.txt", _secret(), file_id="foreign")


async def _secret() -> AsyncIterator[bytes]:
    yield b"the secret of bob"


def listed(body: bytes) -> list[Any]:
    """The conversation of a call, without the marks for the provider's cache, which move."""
    call = json.loads(re.sub(rb',"cache_control":\{[^}]*\}', b"", body))
    found: list[Any] = call.get("input") or call["messages"]
    return found


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.path)
@pytest.mark.parametrize("takes_documents", [True, False])
async def test_a_model_sees_pictures_and_pdfs_and_reads_texts(
    wire: ModelWire, takes_documents: bool, tmp_path: Path
) -> None:
    info = ModelInfo(takes_documents=takes_documents)
    session_id = None
    async with ModelServer(SCRIPT) as server:
        for said in ("read it", "and now?"):
            async with (
                HttpModel(wire, base_url=server.url, name="m", info=info) as model,
                Runtime(database=tmp_path / "s.db", model=model, environ=ENVIRON) as home,
            ):
                if session_id is None:
                    await upload_all(home)
                session = await home.session(session_id, tools=[])
                session_id = session.id
                files = ("photo", "foreign", "text", "paper") if said == "read it" else ()
                turn = await session.run(said, files=files)
                assert turn.reason == "completed", turn
        bodies = list(server.requests)
    assert len(bodies) == 4, "no call was refused, and so none was made twice"
    told = (
        f"[Attached files]\n- photo.png (image/png, {len(PNG)} bytes), file_id: photo\n"
        "- long text.txt (text/plain, 32,000 bytes), file_id: text\n"
        f"- paper.pdf (application/pdf, {len(PDF)} bytes), file_id: paper\n"
    )
    for body in bodies:
        assert json.dumps(told)[1:-1].encode() in body
        assert b64encode(PNG) in body
        assert (b64encode(PDF) in body) is takes_documents
        assert b"the secret of bob" not in body
        assert b"foreign" not in body.split(b"I read.")[0]
    for before, after in pairwise(bodies):
        assert listed(after)[: len(listed(before))] == listed(before)
    end = bodies[-1].decode()
    assert "bytes 0 to 20,000 of 32,000; the next part has the offset 20000" in end
    assert "long text.txt ends here, at 32,000 bytes" in end
    assert "photo.png is of the type image/png and not a text in UTF-8" in end
    assert "There is no file foreign (any more)" in end


async def test_a_file_that_was_deleted_is_no_longer_shown_and_stops_nothing(tmp_path: Path) -> None:
    async with ModelServer(SCRIPT) as server:
        for said in ("look", "again"):
            async with (
                HttpModel(ChatCompletions("m"), base_url=server.url, name="m") as model,
                Runtime(database=tmp_path / "s.db", model=model, environ=ENVIRON) as home,
            ):
                if said == "look":
                    await upload_all(home)
                session = await home.session("s")
                await session.run(said, files=("photo",) if said == "look" else ())
                if said == "look":
                    await home.delete_file("photo")
        first, second = server.requests
    assert b64encode(PNG) in first
    assert b64encode(PNG) not in second
    assert b"photo.png" in second


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(database=tmp_path / "own.db", model=ScriptedModel(SCRIPT), environ=ENVIRON) as runtime:
        await upload_all(runtime)
        yield runtime


async def test_readers_get_what_the_person_typed_and_the_files(home: Runtime) -> None:
    session = await home.session("s")
    await session.run("look", files=("text", "foreign", "missing", "text"))
    events = await home.store.events_after(session.key, 0, limit=100)  # type: ignore[arg-type]
    (said,) = [view for event in events if isinstance(view := view_of(event), FromUser)]
    assert said.text == "look"
    assert [(file.id, file.name, file.size) for file in said.files] == [("text", "long text.txt", 32_000)]
    assert [file.id async for file in home.files(session_id="s")] == ["text"]
    raw = [line async for line in _lines(home, "s")]
    assert not any("[Attached files]" in line for line in raw)


async def _lines(home: Runtime, session_id: str) -> AsyncIterator[str]:
    async for reading in home.open(session_id).events(follow=False):
        yield msgspec.json.encode(reading).decode()


async def test_the_same_id_with_other_files_is_refused_and_with_the_same_it_is_the_same(home: Runtime) -> None:
    session = await home.session("s")
    first = await session.send("look", message_id="m", files=("text", "foreign"))
    await home.delete_file("text")
    assert (await session.send("look", message_id="m", files=("text", "foreign"))).duplicate
    for files in ((), ("text",), ("photo", "foreign")):
        with pytest.raises(Conflict) as reused:
            await session.send("look", message_id="m", files=files)
        assert reused.value.code == "id_reused"
    assert not first.duplicate


async def test_a_message_has_so_many_files_and_no_more(home: Runtime) -> None:
    session = await home.session("s")
    with pytest.raises(Invalid) as many:
        await session.send("look", files=["text"] * 21)
    assert many.value.code == "too_many_message_files"
    with pytest.raises(Invalid) as empty:
        await session.send(" ")
    assert empty.value.code == "message_empty"
    turn = await session.run("", files=["text"] * 20)
    assert turn.text == "Hello.", "a file alone is a message"


async def test_a_follow_up_takes_its_files_along_and_comes_back_with_them(tmp_path: Path) -> None:
    async with Runtime(database=tmp_path / "own.db", model="demo", environ=ENVIRON, work=False) as home:
        await upload_all(home)
        session = await home.session("s")
        await session.send("first", files=("text",))
        await session.send("second", message_id="m2", files=("photo", "foreign"), delivery="enqueue")
        queue = await session.queue()
        assert [[file.id for file in message.files] for message in queue] == [["text"], ["photo"]]
        await session.edit_queued("m2", "other words")
        stopped = await session.stop()
        returned = stopped.returned_messages
        assert [(message.text, [file.id for file in message.files]) for message in returned] == [
            ("first", ["text"]),
            ("other words", ["photo"]),
        ]


async def test_a_copy_uses_the_files_too_and_an_import_has_none(home: Runtime) -> None:
    session = await home.session("s")
    await session.run("look", files=("text", "photo"))
    copy = await home.operations.fork(session.key, before=None, title="copy")
    imported = await home.import_session(await session.export())
    await home.operations.delete(session.key)
    assert {file.id async for file in home.files(session_id=copy)} == {"text", "photo"}
    assert [file.id async for file in home.files(session_id=imported.id)] == []
    await home.operations.delete(Key(home.owner, SessionId(copy)))
    assert [file.id async for file in home.files()] == ["paper"]
