"""The real clients: what an application that uses them would see, in every release that it may have."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.models.model import TokenUsage
from holdfast.models.scripted import Failure
from tests.wire.ai_sdk.harness import Home, Model, Server, Talk, calls, calls_all, says
from tests.wire.ai_sdk.node_clients import Client, Library, Node, ended

pytestmark = pytest.mark.anyio

ALL: tuple[Library, ...] = ("ai5", "ai6", "ai7")
RECENT: tuple[Library, ...] = ("ai6", "ai7")
"""Those that know approvals, and that come back in place."""

every = pytest.mark.parametrize("library", ALL)
recent = pytest.mark.parametrize("library", RECENT)

LOCATE = {"name": "locate", "description": "Where the person is.", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
async def node(packages: Path) -> AsyncIterator[Node]:
    async with Node.running(packages) as running:
        yield running


class Stage:
    """A session of a test's own, and clients of it."""

    def __init__(self, node: Node, server: Server, library: Library, talk: Talk) -> None:
        self.talk = talk
        self.node = node
        self.server = server
        self.library = library

    async def client(self, **options: Any) -> Client:
        return await Client.of(self.node, self.server, self.library, self.talk.name, **options)


@pytest.fixture
def stage(node: Node, server: Server, library: Library, talk: Talk) -> Stage:
    return Stage(node, server, library, talk)


@every
async def test_a_plain_answer(stage: Stage, model: Model) -> None:
    model.on("Say hello", says("Hello to you."))
    client = await stage.client()
    seen = await client.send("Say hello")
    assert (seen.status, seen.error, seen.roles) == ("ready", None, ["user", "assistant"])
    assert (seen.text, seen.answer["parts"][-1]["state"]) == ("Hello to you.", "done")
    assert seen.answer["metadata"]["reason"] == "completed"
    seen = await client.send("Say hello")
    assert (seen.roles, seen.text) == (["user", "assistant"] * 2, "Hello to you.")


@every
async def test_a_compaction_beside_a_turn_is_data_that_no_message_keeps(stage: Stage, model: Model) -> None:
    used = TokenUsage(input_tokens=110_000, output_tokens=1)
    model.on("Say much", says("Much. " * 30_000, usage=used, chunk_size=60_000))
    client = await stage.client()
    heard = (await client.send("Say much")).data
    seen = await client.send("Say much")
    heard = [*heard, *seen.data]
    assert "started" in [part["data"]["state"] for part in heard if part["type"] == "data-compaction"]
    assert (seen.status, seen.error, seen.roles) == ("ready", None, ["user", "assistant"] * 2)
    assert {part["type"] for part in seen.answer["parts"]} <= {"step-start", "text"}


@every
async def test_reasoning(stage: Stage, model: Model) -> None:
    model.on("Think about it", says("It is seven.", reasoning="Three and four."))
    seen = await (await stage.client()).send("Think about it")
    kinds = [(part["type"], part.get("text")) for part in seen.answer["parts"]]
    assert kinds == [("step-start", None), ("reasoning", "Three and four."), ("text", "It is seven.")]


@every
async def test_a_tool_that_is_run_here_is_shown_and_starts_no_second_request(stage: Stage, model: Model) -> None:
    """A client that goes on by itself once all of its calls are done has none of its own here."""
    model.on("Look there", calls("view", path="nowhere.txt"), says("Nothing there."))
    client = await stage.client(automatic="tools")
    seen = await client.send("Look there")
    part = seen.tool("view")
    assert (part["state"], part["input"], part["providerExecuted"]) == ("output-error", {"path": "nowhere.txt"}, True)
    assert (seen.text, seen.requests, seen.tool_calls) == ("Nothing there.", 1, [])


@recent
async def test_an_approval(stage: Stage, model: Model) -> None:
    model.on("Write a file", calls("create", path=f"{stage.talk.name}.txt", file_text="Hi"), says("Written."))
    client = await stage.client(automatic="approvals")
    seen = await client.send("Write a file")
    part = seen.tool("create")
    assert (part["state"], part["input"]["file_text"]) == ("approval-requested", "Hi")
    turn_id = seen.answer["id"]
    await client.do("approve", id=part["approval"]["id"], approved=True)
    await client.do("until_text", text="Written.")
    await client.do("until", status="ready")
    seen = await client.look()
    assert (seen.roles, seen.answer["id"], seen.requests) == (["user", "assistant"], turn_id, 2)
    assert seen.tool("create")["state"] == "output-available"


@recent
async def test_a_denial(stage: Stage, model: Model) -> None:
    model.on("Write what I deny", calls("create", path="never.txt", file_text="Hi"), says("{last_tool_result}"))
    client = await stage.client(automatic="approvals")
    part = (await client.send("Write what I deny")).tool("create")
    await client.do("approve", id=part["approval"]["id"], approved=False, reason="Not there.")
    await client.do("until_text", text="Not there.")
    await client.do("until", status="ready")
    seen = await client.look()
    assert (seen.tool("create")["state"], seen.requests) == ("output-denied", 2)


@recent
async def test_two_approvals_are_sent_once_both_are_given(stage: Stage, model: Model) -> None:
    files = [("create", {"path": f"{stage.talk.name}-{name}.txt", "file_text": name}) for name in ("one", "two")]
    model.on("Write two files", calls_all(*files), says("Both."))
    client = await stage.client(automatic="approvals")
    seen = await client.send("Write two files")
    asked = [part["approval"]["id"] for part in seen.answer["parts"] if part["type"] == "tool-create"]
    for approval_id in asked:
        await client.do("approve", id=approval_id, approved=True)
    await client.do("until_text", text="Both.")
    await client.do("until", status="ready")
    seen = await client.look()
    assert seen.requests == 2
    assert {part["state"] for part in seen.answer["parts"] if part["type"] == "tool-create"} == {"output-available"}


@recent
async def test_an_approval_that_somebody_else_gave_is_seen_by_who_comes_back(stage: Stage, model: Model) -> None:
    model.on("Write for both", calls("create", path=f"{stage.talk.name}.txt", file_text="Hi"), says("For both."))
    client = await stage.client(automatic="approvals")
    await client.send("Write for both")
    await stage.talk.decide("approve")
    seen = await client.resume()
    assert (seen.text, seen.tool("create")["state"], seen.roles) == (
        "For both.",
        "output-available",
        ["user", "assistant"],
    )


@every
async def test_a_tool_of_the_client(stage: Stage, model: Model) -> None:
    model.on("Where am I", calls("locate"), says("You are at {last_tool_result}."))
    client = await stage.client(automatic="tools", body={"tools": [LOCATE]})
    seen = await client.send("Where am I")
    part = seen.tool("locate")
    assert (part["state"], seen.tool_calls, seen.requests) == ("input-available", ["locate"], 1)
    await client.do("output", tool="locate", toolCallId=part["toolCallId"], output={"city": "Ulm"})
    await client.do("until_text", text='You are at {"city":"Ulm"}.')
    await client.do("until", status="ready")
    seen = await client.look()
    assert (seen.roles, seen.requests) == (["user", "assistant"], 2)
    assert seen.tool("locate")["output"] == {"city": "Ulm"}


@every
async def test_a_question(stage: Stage, model: Model) -> None:
    model.on("Ask me", calls("ask_user", question="Which?"), says("{last_tool_result}"))
    client = await stage.client(automatic="tools")
    part = (await client.send("Ask me")).tool("ask_user")
    assert part["input"] == {"question": "Which?"}
    await client.do("output", tool="ask_user", toolCallId=part["toolCallId"], output="blue")
    await client.do("until_text", text="User responded: blue")
    await client.do("until", status="ready")
    assert (await client.look()).tool("ask_user")["output"] == "blue"


@recent
async def test_a_client_with_a_call_done_and_an_approval_open_does_not_ask_for_ever(stage: Stage, model: Model) -> None:
    mixed = calls_all(("locate", {}), ("create", {"path": f"{stage.talk.name}.txt", "file_text": "Hi"}))
    model.on("Locate and write", mixed, says("Both are done."))
    client = await stage.client(automatic="tools", body={"tools": [LOCATE]})
    seen = await client.send("Locate and write")
    call_id, approval_id = seen.tool("locate")["toolCallId"], seen.tool("create")["approval"]["id"]
    await client.do("output", tool="locate", toolCallId=call_id, output="here")
    await client.do("approve", id=approval_id, approved=True)
    await client.do("go_on")
    seen = await client.look()
    assert (seen.text, seen.requests) == ("Both are done.", 2)


@every
async def test_a_stop_while_a_tool_of_the_client_is_awaited_is_not_answered_for_ever(
    stage: Stage, model: Model
) -> None:
    model.on("Where was I", calls("locate"), says("Never said."))
    client = await stage.client(automatic="tools", body={"tools": [LOCATE]})
    await client.send("Where was I")
    await stage.talk.stop()
    other = await stage.client(automatic="tools")
    seen = await other.resume()
    assert (seen.tool("locate")["state"], seen.requests, seen.status) == ("output-error", 1, "ready")


CUT_WORDS = "Tell me a short story"


@recent
async def test_a_connection_that_is_cut_at_any_frame_is_resumed_in_place(stage: Stage, model: Model) -> None:
    """Fault 33, as a person sees it: what is shown after coming back is what would have been shown."""
    story = says("Once upon a time there was an end.", reasoning="Short it is.")
    model.on(CUT_WORDS, calls("view", path="nowhere.txt"), story)
    whole = await stage.talk.send(CUT_WORDS)
    await whole.rest()
    for after in range(len(whole.chunks) + 1):
        async with Talk(stage.server) as talk:
            await check_cut(Stage(stage.node, stage.server, stage.library, talk), after)


async def check_cut(stage: Stage, after: int) -> None:
    client = await stage.client()
    await client.do("cut", after=after)
    seen = await client.send(CUT_WORDS)
    while seen.status == "error":
        seen = await client.resume()
    reloaded = await (await stage.client(messages=await stage.talk.messages())).resume()
    assert seen.answer == reloaded.answer
    assert seen.roles == ["user", "assistant"]
    assert seen.text == "Once upon a time there was an end."


@recent
async def test_a_connection_that_is_cut_while_the_turn_runs_is_resumed_in_place(stage: Stage, model: Model) -> None:
    model.on("Go on while I am away", says("One two three four five."))
    hold = model.hold("Go on while I am away", piece=3)
    client = await stage.client()
    await client.do("cut", after=3)
    seen = await client.send("Go on while I am away")
    assert seen.status == "error"
    assert seen.finished[-1]["isDisconnect"]
    resuming = client.start("resume")
    await client.do("until", status="streaming")
    hold.release()
    await ended(resuming)
    seen = await client.look()
    assert (seen.text, seen.status, seen.roles) == ("One two three four five.", "ready", ["user", "assistant"])


@every
async def test_a_page_that_is_reloaded_in_the_middle_shows_the_whole(stage: Stage, model: Model) -> None:
    model.on("Reload me", says("One two three four."))
    hold = model.hold("Reload me", piece=2)
    first = await stage.client()
    sending = first.start("send", text="Reload me")
    await first.do("until_text", text="One")
    second = await stage.client(messages=await stage.talk.messages())
    resuming = second.start("resume")
    await second.do("until_text", text="One")
    hold.release()
    await ended(resuming)
    await ended(sending)
    assert (await second.look()).messages == [
        {**found, **({} if found["role"] == "assistant" else {"metadata": mine["metadata"]})}
        for found, mine in zip((await first.look()).messages, (await second.look()).messages, strict=True)
    ]


@recent
async def test_coming_back_just_after_the_end_loses_nothing(stage: Stage, model: Model) -> None:
    """Fault 34."""
    model.on("End without me", says("One two three four."))
    client = await stage.client()
    await client.do("cut", after=4)
    await client.send("End without me")
    await (await stage.talk.replay()).rest()
    seen = await client.resume()
    assert (seen.text, seen.status) == ("One two three four.", "ready")


@recent
async def test_the_clients_own_stop_is_a_disconnect(stage: Stage, model: Model) -> None:
    """Fault 37."""
    model.on("Leave me alone", says("One two three four."))
    hold = model.hold("Leave me alone", piece=2)
    client = await stage.client()
    sending = client.start("send", text="Leave me alone")
    await client.do("until_text", text="One")
    await client.do("stop")
    await ended(sending)
    hold.release()
    seen = await client.resume()
    assert (seen.text, seen.answer["metadata"]["reason"]) == ("One two three four.", "completed")


@every
async def test_a_stop(stage: Stage, model: Model) -> None:
    model.on("Stop me", says("One two three four."))
    model.hold("Stop me", piece=2)
    client = await stage.client()
    sending = client.start("send", text="Stop me")
    await client.do("until_text", text="One")
    await stage.talk.stop()
    await ended(sending)
    seen = await client.look()
    assert (seen.status, seen.answer["parts"][-1]["state"]) == ("ready", "done")
    assert seen.answer["metadata"]["reason"] == "stopped"


@every
async def test_an_error(stage: Stage, model: Model) -> None:
    model.on("Break it", says("Never said.", fail=Failure(kind="unauthorized")))
    seen = await (await stage.client()).send("Break it")
    assert seen.status == "error"
    assert seen.error == seen.answer["metadata"]["error"]["message"]


@every
async def test_a_refused_message(stage: Stage) -> None:
    seen = await (await stage.client()).send("x" * 64_001)
    assert seen.status == "error"
    assert "message_too_long" in str(seen.error)


@every
async def test_words_said_anew(stage: Stage, model: Model) -> None:
    model.on("Say it wrong", says("Wrong."))
    model.on("Say it right", says("Right."))
    client = await stage.client()
    seen = await client.send("Say it wrong")
    first, answer = seen.messages
    seen = await client.send("Say it right", messageId=first["id"])
    assert (seen.roles, seen.text, seen.messages[0]["id"]) == (["user", "assistant"], "Right.", first["id"])
    assert seen.answer["id"] != answer["id"]


@every
async def test_an_answer_asked_for_again(stage: Stage, model: Model) -> None:
    model.on("Guess", says("", texts=("Seven.", "Eight.", "Nine.")))
    client = await stage.client()
    seen = await client.send("Guess")
    await client.do("regenerate", messageId=seen.answer["id"])
    seen = await client.look()
    assert (seen.roles, seen.text) == (["user", "assistant"], "Eight.")
    await client.do("regenerate")
    seen = await client.look()
    assert (seen.roles, seen.text) == (["user", "assistant"], "Nine.")


@every
async def test_words_that_join_a_running_turn(stage: Stage, model: Model) -> None:
    model.on("A long job", says("One two three four."))
    hold = model.hold("A long job", piece=2)
    first = await stage.client()
    sending = first.start("send", text="A long job")
    await first.do("until_text", text="One")
    second = await stage.client()
    seen = await second.send("And this too")
    assert (seen.status, seen.error, seen.roles) == ("ready", None, ["user"])
    assert [part["type"] for part in seen.data] == ["data-queued"]
    hold.release()
    await ended(sending)
    seen = await first.look()
    (follow_up,) = [part for part in seen.answer["parts"] if part["type"] == "data-follow-up"]
    assert follow_up["data"]["text"] == "And this too"


@every
async def test_a_loaded_message_equals_the_streamed_one(stage: Stage, model: Model) -> None:
    reply = calls("view", path="nowhere.txt")
    model.on("Stream and load", reply, says("All of it.", reasoning="Hm."))
    model.on("Something else", says("Else."))
    client = await stage.client()
    streamed = (await client.send("Stream and load")).answer
    await client.send("Something else")
    loaded = (await stage.talk.messages())[1]
    assert comparable(loaded) == comparable(streamed)


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """Without the ids that some releases keep for parts of reasoning, which mean nothing to them."""
    parts = [
        {name: part[name] for name in part if name != "id" or part["type"] != "reasoning"} for part in message["parts"]
    ]
    return {**message, "parts": parts}


@recent
async def test_a_client_of_release_7_may_be_told_how_an_approval_was_decided(
    stage: Stage, model: Model, library: Library
) -> None:
    model.on("Write and reload", calls("create", path=f"{stage.talk.name}.txt", file_text="Hi"), says("Written."))
    query = "?release=7" if library == "ai7" else ""
    client = await stage.client(automatic="approvals", query=query)
    part = (await client.send("Write and reload")).tool("create")
    await client.do("approve", id=part["approval"]["id"], approved=True)
    await client.do("until_text", text="Written.")
    await client.do("until", status="ready")
    reloaded = await (await stage.client(query=query)).resume()
    expected = {"id": part["approval"]["id"], **({"approved": True} if library == "ai7" else {})}
    assert reloaded.tool("create")["approval"] == expected


@pytest.mark.slow
@recent
async def test_a_server_that_is_killed_is_resumed_in_place(
    node: Node, library: Library, own_home: Home, model: Model
) -> None:
    model.on("Survive this", says("One two three four."))
    hold = model.hold("Survive this", piece=2)
    async with own_home.serve() as server:
        port = server.port
        client = await Client.of(node, server, library, "survivor")
        sending = client.start("send", text="Survive this")
        await client.do("until_text", text="One")
        await server.kill()
        await ended(sending)
        assert (await client.look()).status == "error", "a server that dies must not look like an answer that ended"
    hold.release()
    async with own_home.serve(port=port) as server:
        await client.do("token", token=server.token)
        seen = await client.resume()
        kinds = [part["type"] for part in seen.answer["parts"]]
        assert kinds == ["step-start", "text", "data-interrupted", "text"]
        assert (seen.answer["parts"][-1]["text"], seen.roles) == ("One two three four.", ["user", "assistant"])


@pytest.mark.slow
@recent
async def test_a_server_that_ends_is_not_taken_for_an_answer_that_ended(
    node: Node, library: Library, own_home: Home, model: Model
) -> None:
    model.on("End with me", says("One two three four."))
    hold = model.hold("End with me", piece=2)
    async with own_home.serve(HOLDFAST_DRAIN_SECONDS="0.1") as server:
        client = await Client.of(node, server, library, "ended")
        sending = client.start("send", text="End with me")
        await client.do("until_text", text="One")
        await asyncio.gather(server.terminate(), ended(sending))
        assert (await client.look()).status == "error"
    hold.release()
