"""The built-in tools, with the texts that clients and recorded conversations rely on."""

import base64
from pathlib import Path
from typing import Any

import pytest
from copilot import CopilotClient, CopilotSession
from copilot.session_events import ToolExecutionCompleteData

from tests.wire.copilot.harness import (
    Model,
    approving,
    calls,
    calls_all,
    history,
    reply_to,
    says,
    tool_names,
    tool_results,
)

pytestmark = pytest.mark.anyio

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Using:
    """A session in its own directory, in which the model calls one tool after another."""

    def __init__(self, session: CopilotSession, model: Model, work: Path) -> None:
        self.session = session
        self.work = work
        self._model = model
        self._number = 0

    async def tool(self, name: str, /, **arguments: Any) -> str:
        """Call a tool and return its result as the model reads it."""
        self._number += 1
        prompt = f"Use number {self._number} of {self.session.session_id}"
        self._model.on(prompt, calls(name, **arguments), says("Used."))
        await reply_to(self.session, prompt)
        return tool_results(self._model.last_call_about(prompt))[-1]

    async def failed(self) -> bool:
        return not (await history(self.session, ToolExecutionCompleteData))[-1].success


@pytest.fixture
async def using(client: CopilotClient, model: Model, tmp_path: Path) -> Using:
    session = await client.create_session(**approving(working_directory=str(tmp_path)))
    return Using(session, model, tmp_path)


async def test_the_built_in_tools_are_offered(client: CopilotClient, model: Model) -> None:
    model.on("What is offered?", says("These."))
    session = await client.create_session(**approving())
    await reply_to(session, "What is offered?")
    offered = tool_names(model.last_call_about("What is offered?"))
    assert {"bash", "view", "create", "edit", "grep", "glob"} <= set(offered)
    assert len(offered) == len(set(offered))


async def test_should_capture_exit_code_in_output(using: Using) -> None:
    assert await using.tool("bash", command="echo hello && echo world") == "hello\nworld\n<exited with exit code 0>"
    assert (await using.tool("bash", command="echo bad; exit 3")).endswith("<exited with exit code 3>")


async def test_should_capture_stderr_output(using: Using) -> None:
    said = await using.tool("bash", command="echo error_msg >&2; echo ok")
    assert "error_msg" in said
    assert "ok" in said


async def test_a_command_runs_in_the_working_directory(using: Using) -> None:
    assert (await using.tool("bash", command="pwd -P")).splitlines()[0] == str(using.work.resolve())


async def test_should_read_file_with_line_range(using: Using) -> None:
    (using.work / "lines.txt").write_text("line1\nline2\nline3\nline4\nline5\n", encoding="utf-8")
    assert await using.tool("view", path="lines.txt", view_range=[2, 4]) == "2. line2\n3. line3\n4. line4"
    assert (await using.tool("view", path="lines.txt")).splitlines()[0] == "1. line1"


async def test_should_handle_nonexistent_file_gracefully(using: Using) -> None:
    said = await using.tool("view", path="does_not_exist.txt")
    assert "does_not_exist.txt" in said
    assert await using.failed()


async def test_an_image_is_shown_to_the_model(using: Using, model: Model) -> None:
    (using.work / "pixel.png").write_bytes(base64.b64decode(PIXEL))
    assert await using.tool("view", path="pixel.png") == "Viewed image file successfully."
    parts = [
        part
        for message in model.last_call_about(using.session.session_id)["messages"]
        if isinstance(message["content"], list)
        for part in message["content"]
    ]
    assert any(part["type"] == "image_url" for part in parts)


async def test_should_create_a_new_file(using: Using) -> None:
    text = "Created by test"
    said = await using.tool("create", path="new_file.txt", file_text=text)
    assert said == f"Created file new_file.txt with {len(text)} characters"
    assert (using.work / "new_file.txt").read_text(encoding="utf-8") == text


async def test_should_edit_a_file_successfully(using: Using) -> None:
    file = using.work / "edit_me.txt"
    file.write_text("Hello World\nGoodbye World\n", encoding="utf-8")
    said = await using.tool("edit", path="edit_me.txt", old_str="Hello World", new_str="Hi Universe")
    assert said == "File edit_me.txt updated with changes."
    assert file.read_text(encoding="utf-8") == "Hi Universe\nGoodbye World\n"


async def test_edit_without_a_unique_match_changes_nothing(using: Using) -> None:
    file = using.work / "twice.txt"
    file.write_text("same\nsame\n", encoding="utf-8")
    for old in ("same", "absent"):
        await using.tool("edit", path="twice.txt", old_str=old, new_str="other")
        assert await using.failed()
    assert file.read_text(encoding="utf-8") == "same\nsame\n"


async def test_should_search_for_patterns_in_files(using: Using) -> None:
    (using.work / "data.txt").write_text("apple\nbanana\napricot\ncherry\n", encoding="utf-8")
    said = await using.tool("grep", pattern="^ap", output_mode="content", **{"-n": True})
    assert sorted(line.split(":", 1)[1] for line in said.splitlines()) == ["1:apple", "3:apricot"]


async def test_should_find_files_by_pattern(using: Using) -> None:
    source = using.work / "src"
    source.mkdir()
    (source / "index.ts").write_text("export {}", encoding="utf-8")
    (using.work / "README.md").write_text("# Readme", encoding="utf-8")
    assert await using.tool("glob", pattern="**/*.ts") == "./src/index.ts"


async def test_a_long_output_is_cut_for_the_model(using: Using) -> None:
    said = await using.tool("bash", command="head -c 3000000 /dev/zero | tr '\\0' x")
    assert len(said) < 200_000
    assert "<exited with exit code 0>" in said


async def test_binary_file_does_not_break_the_turn(using: Using) -> None:
    said = await using.tool("bash", command=r"printf '\xff\xfe\x00\x1b[31mred'")
    assert "red" in said


async def test_several_commands_can_run_at_once(client: CopilotClient, model: Model, tmp_path: Path) -> None:
    """Two commands wait for each other, so they would never end if they ran one after the other."""
    one = "mkfifo meet 2>/dev/null; echo one > meet"
    two = "until [ -p meet ]; do :; done; cat meet"
    model.on("Let them meet", calls_all(("bash", {"command": one}), ("bash", {"command": two})), says("Met."))
    session = await client.create_session(**approving(working_directory=str(tmp_path)))
    await reply_to(session, "Let them meet")
    results = tool_results(model.last_call_about("Let them meet"))
    assert results[1] == "one\n<exited with exit code 0>"
