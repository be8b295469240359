"""Files that tools make: listed with the session, fetched, and deleted with it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.app import Runtime
from holdfast.models.scripted import Reply, Rule, Script, ScriptedCall, ScriptedModel
from holdfast.tools.tool import ToolContext, tool

pytestmark = pytest.mark.anyio

ENVIRON = {"HOLDFAST_TITLES": "words"}


def offering(*paths: str) -> ScriptedModel:
    calls = tuple(ScriptedCall("offer_file", {"path": path}) for path in paths)
    return ScriptedModel(Script((Rule((Reply(text="Here.", tool_calls=calls), Reply(text="{last_tool_result}"))),)))


async def test_a_file_of_the_working_directory_is_given_as_it_is_then(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "report.csv").write_text("a,b")
    async with Runtime(database=tmp_path / "h.db", model=offering("report.csv"), environ=ENVIRON) as home:
        session = await home.session(working_directory=str(work))
        turn = await session.run("make it")
        assert "The user can save report.csv now (3 bytes" in turn.text
        (work / "report.csv").write_text("changed")
        (file,) = [found async for found in home.files(session_id=session.id)]
        assert (file.name, file.media_type, bool(file.made_by)) == ("report.csv", "text/csv", True)
        assert b"".join([piece async for piece in home.read_file(file.id)]) == b"a,b"
        await home.operations.delete(session.key)
        assert [found async for found in home.files()] == []


@pytest.mark.parametrize(
    ("path", "said"), [("missing.txt", "does not exist"), (".", "can't be read"), ("large", "has at most 10 bytes")]
)
async def test_what_can_not_be_given_is_said_to_the_model(tmp_path: Path, path: str, said: str) -> None:
    (tmp_path / "large").write_bytes(bytes(11))
    environ = {**ENVIRON, "HOLDFAST_MAX_FILE_BYTES": "10"}
    async with Runtime(database=tmp_path / "db" / "h.db", model=offering(path), environ=environ) as home:
        session = await home.session(working_directory=str(tmp_path))
        assert said in (await session.run("make it")).text
        assert [found async for found in home.files()] == []


async def test_a_file_outside_of_the_working_directory_is_not_given(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "secret").write_text("secret")
    async with Runtime(database=tmp_path / "h.db", model=offering("../secret"), environ=ENVIRON) as home:
        session = await home.session(working_directory=str(work))
        await session.run("make it", unattended=True)
        assert [found async for found in home.files()] == []


async def test_a_tool_of_a_program_saves_a_file_once_however_often_it_is_tried(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"drawn"

    @tool(permission="allow", after_crash="repeat")
    async def draw(context: ToolContext) -> str:
        """Draw something."""
        first, second = [await context.save_file("drawing.txt", pieces()) for _ in range(2)]
        return "once" if first == second else "twice"

    script = Script((Rule((Reply(tool_calls=(ScriptedCall("draw", {}),)), Reply(text="{last_tool_result}"))),))
    async with Runtime(database=tmp_path / "h.db", model=ScriptedModel(script), tools=[draw], environ=ENVIRON) as home:
        session = await home.session()
        assert "once" in (await session.run("draw")).text
        assert [found.name async for found in home.files(session_id=session.id)] == ["drawing.txt"]
