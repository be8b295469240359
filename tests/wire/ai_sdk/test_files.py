"""File parts of messages: bytes in the request, and files that were uploaded before."""

from base64 import b64encode
from typing import Any

import pytest

from tests.files.test_files import PNG
from tests.wire.ai_sdk.harness import Model, Talk, says

pytestmark = pytest.mark.anyio

PICTURE = {
    "type": "file",
    "mediaType": "image/png",
    "filename": "dot.png",
    "url": f"data:image/png;base64,{b64encode(PNG).decode()}",
}


def message(*parts: dict[str, Any], text: str = "", id: str = "user-1") -> dict[str, Any]:
    texts = [{"type": "text", "text": text}] if text else []
    return {"id": id, "role": "user", "parts": [*texts, *parts]}


async def files_of(talk: Talk) -> list[dict[str, Any]]:
    found = await (await talk.request("GET", f"/v1/sessions/{talk.name}/files")).json()
    files: list[dict[str, Any]] = found["files"]
    return files


async def test_a_picture_in_the_request_becomes_a_file_that_the_model_sees(talk: Talk, model: Model) -> None:
    model.on("What is this?", says("A dot."))
    body = {"messages": [message(PICTURE, text="What is this?")]}
    assert "A dot." in str(await (await talk.post(body)).message())
    assert "A dot." in str(await (await talk.post(body)).message()), "the same again is the same"
    (file,) = await files_of(talk)
    assert (file["name"], file["media_type"], file["size"]) == ("dot.png", "image/png", len(PNG))
    (call,) = model.calls_about("What is this?")
    assert PICTURE["url"] in str(call)
    await (await talk.send("On", "user-2")).rest()
    said = (await talk.messages())[0]
    content = {**PICTURE, "url": f"/v1/files/{file['id']}/content"}
    assert said["parts"] == [{"type": "text", "text": "What is this?"}, content]


async def test_a_loaded_file_part_is_sent_back_as_it_is_and_an_edit_may_leave_it_out(talk: Talk, model: Model) -> None:
    for text in ("First words", "Edited words", "Without it"):
        model.on(text, says("Seen."))
    await (await talk.post({"messages": [message(PICTURE, text="First words")]})).rest()
    (file,) = await files_of(talk)
    loaded = {**PICTURE, "url": f"http://127.0.0.1:1/v1/files/{file['id']}/content"}
    await (await talk.post({"messages": [message(loaded, text="Edited words")], "messageId": "user-1"})).rest()
    (call,) = model.calls_about("Edited words")
    assert PICTURE["url"] in str(call)
    assert str(call).count("[Attached files]") == 1
    await (await talk.regenerate("Edited words")).rest()
    assert PICTURE["url"] in str(model.calls_about("Edited words")[-1])
    await (await talk.post({"messages": [message(text="Without it")], "messageId": "user-1"})).rest()
    (call,) = model.calls_about("Without it")
    assert "[Attached files]" not in str(call)
    assert len(await files_of(talk)) == 1


async def test_a_file_alone_is_a_message(talk: Talk) -> None:
    text = {"type": "file", "mediaType": "text/plain", "url": "data:text/plain,some%20text"}
    answer = await talk.post({"messages": [message(text)]})
    assert answer.status == 200, await answer.json()
    await answer.rest()
    assert [(file["name"], file["size"]) for file in await files_of(talk)] == [("file-1.txt", 9)]


async def test_files_of_a_message_that_waits_come_back_with_it(talk: Talk, model: Model) -> None:
    model.on("Go on for long", says("A very long story."))
    hold = model.hold("Go on for long", piece=1)
    running = await talk.send("Go on for long")
    await hold.until_reached()
    waiting = {"messages": [message(PICTURE, text="Waits", id="user-2")], "delivery": "enqueue"}
    await (await talk.post(waiting)).rest()
    (file,) = await files_of(talk)
    stopped = await talk.stop()
    (returned,) = stopped["returned_messages"]
    assert [found["id"] for found in returned["files"]] == [file["id"]]
    await running.rest()
