"""Tools, and the people they ask: approvals, questions, and tools that the client itself runs."""

from pathlib import Path

import pytest

from holdfast import Runtime, ToolContext, tool
from holdfast.events.session import ClientTool
from holdfast.server.errors import Conflict
from tests.story.scripts import calls, says

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "story.db"


@tool(permission="allow")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_the_model_uses_a_tool(database: Path) -> None:
    model = says(calls("add", a=2, b=3), "It is {last_tool_result}.")
    async with Runtime(database=database, model=model, tools=[add]) as runtime:
        session = await runtime.session()
        assert (await session.run("2 + 3?")).text == "It is 5."


async def test_a_tool_that_asks_waits_for_your_approval(database: Path, tmp_path: Path) -> None:
    model = says(calls("create", path="notes.txt", file_text="Hi"), "Written.")
    async with Runtime(database=database, model=model) as runtime:
        session = await runtime.session(working_directory=str(tmp_path))
        turn = await session.run("Write my notes", message_id="m-1")
        (request,) = turn.requests
        assert (turn.reason, request.kind, request.title) == ("waiting", "permission", "write notes.txt")
        assert not (tmp_path / "notes.txt").exists()
        await session.approve(request.id)
        assert (await session.result_of("m-1")).text == "Written."
        assert (tmp_path / "notes.txt").read_text() == "Hi"


async def test_the_first_answer_wins(database: Path, tmp_path: Path) -> None:
    model = says(calls("create", path="notes.txt", file_text="Hi"), "I heard: {last_tool_result}")
    async with Runtime(database=database, model=model) as runtime:
        session = await runtime.session(working_directory=str(tmp_path))
        sent = await session.send("Write my notes")
        (request,) = (await session.result_of(sent.message_id)).requests
        await session.deny(request.id, feedback="Not there.", answer_id="a-1")
        assert (await session.deny(request.id, feedback="Not there.", answer_id="a-1")).duplicate
        with pytest.raises(Conflict, match="already answered"):
            await session.approve(request.id)
        turn = await session.result_of(sent.message_id)
        assert turn.text == "I heard: The user rejected this tool call. Not there."
        assert not (tmp_path / "notes.txt").exists()


async def test_an_approval_for_the_session_is_not_requested_again(database: Path, tmp_path: Path) -> None:
    model = says(
        calls("create", path="a.txt", file_text="A"), calls("create", path="b.txt", file_text="B"), "Both are written."
    )
    async with Runtime(database=database, model=model) as runtime:
        session = await runtime.session(working_directory=str(tmp_path))
        sent = await session.send("Write both")
        (request,) = (await session.result_of(sent.message_id)).requests
        await session.approve(request.id, for_session=True)
        assert (await session.result_of(sent.message_id)).text == "Both are written."
        assert (tmp_path / "b.txt").read_text() == "B"


async def test_an_unattended_call_that_would_ask_is_denied_unless_a_rule_allows_it(
    database: Path, tmp_path: Path
) -> None:
    model = says(calls("create", path="notes.txt", file_text="Hi"), "{last_tool_result}")
    async with Runtime(database=database, model=model) as runtime:
        alone = await runtime.session(working_directory=str(tmp_path))
        assert "Permission denied" in (await alone.run("Write", unattended=True)).text
        allowed = await runtime.session(working_directory=str(tmp_path), allow=("write(notes.*)",))
        assert "Created file" in (await allowed.run("Write", unattended=True)).text


async def test_the_model_asks_a_question_and_you_answer_it(database: Path) -> None:
    model = says(calls("ask_user", question="Which colour?", choices=["red", "blue"]), "{last_tool_result}.")
    async with Runtime(database=database, model=model) as runtime:
        session = await runtime.session()
        sent = await session.send("Paint it")
        (request,) = (await session.result_of(sent.message_id)).requests
        assert (request.kind, request.title) == ("question", "Which colour?")
        await session.answer(request.id, "blue", was_freeform=False)
        assert (await session.result_of(sent.message_id)).text == "User selected: blue."


async def test_a_tool_may_be_the_clients_own(database: Path) -> None:
    lamp = ClientTool(name="lamp", description="Switch the lamp.", parameters={"type": "object"})
    model = says(calls("lamp", on=True), "The lamp is {last_tool_result}.")
    async with Runtime(database=database, model=model) as runtime:
        session = await runtime.session(client_tools=(lamp,))
        sent = await session.send("Light, please")
        (request,) = (await session.result_of(sent.message_id)).requests
        assert request.kind == "client_tool"
        await session.give_result(request.id, "on")
        assert (await session.result_of(sent.message_id)).text == "The lamp is on."


async def test_a_dry_run_does_nothing_and_goes_on_as_if_it_had(database: Path, tmp_path: Path) -> None:
    model = says(calls("create", path="notes.txt", file_text="Hi"), "{last_tool_result}")
    async with Runtime(database=database, model=model) as runtime:
        session = await runtime.session(working_directory=str(tmp_path), dry_run=True)
        turn = await session.run("Write my notes")
        assert turn.text == "(dry run: create was not run; suppose that it succeeded)"
        assert not (tmp_path / "notes.txt").exists()


async def test_a_tool_that_fails_tells_the_model_and_the_turn_goes_on(database: Path) -> None:
    @tool(permission="allow")
    def breaks(context: ToolContext) -> None:
        raise RuntimeError(f"no power for {context.tool_call_id[:4]}")

    async with Runtime(database=database, model=says(calls("breaks"), "{last_tool_result}"), tools=[breaks]) as runtime:
        session = await runtime.session()
        assert (await session.run("Try")).text == "breaks failed: RuntimeError: no power for call"
