"""The file tools: what they do inside the working directory, and that nothing leads out of it unnoticed."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from holdfast.events.ids import SessionId, ToolCallId
from holdfast.events.request import PermissionAsk
from holdfast.tools import built_in
from holdfast.tools.built_in import ask_user, create, read_tool_output, view
from holdfast.tools.errors import ToolFailure
from holdfast.tools.tool import Tool, ToolContext

pytestmark = pytest.mark.anyio

RESULTS = {"c1": "0123456789", "empty": ""}


async def outputs(tool_call_id: str) -> str | None:
    return RESULTS.get(tool_call_id)


def context(directory: Path | None) -> ToolContext:
    return ToolContext(
        session_id=SessionId("s"),
        tool_call_id=ToolCallId("c"),
        key="k",
        attempt=1,
        working_directory=directory,
        report=lambda text: None,
        read_output=outputs,
    )


async def use(tool: Tool, directory: Path | None, **arguments: Any) -> Any:
    return await tool.run(tool.arguments(**arguments), context(directory))


def asked(tool: Tool, directory: Path | None, path: str) -> PermissionAsk | None:
    extra = {"file_text": ""} if tool is create else {}
    return tool.asks(tool.arguments(path=path, **extra), directory)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A working directory with a neighbour that is none of its business."""
    (tmp_path / "secret.txt").write_text("secret")
    work = tmp_path / "work"
    (work / "docs").mkdir(parents=True)
    (work / "a.txt").write_text("one\ntwo\nthree\n")
    (work / "to_secret").symlink_to(tmp_path / "secret.txt")
    (work / "to_parent").symlink_to(tmp_path)
    (work / "to_docs").symlink_to("docs")
    return work


# Where paths lead


@pytest.mark.parametrize("tool", [view, create], ids=lambda tool: str(tool.name))
@pytest.mark.parametrize(
    ("path", "subject"),
    [
        ("a.txt", "a.txt"),
        ("./docs/../a.txt", "a.txt"),
        ("docs/new/deep.txt", "docs/new/deep.txt"),
        ("to_docs/b.txt", "docs/b.txt"),
        (".", "."),
        ("", "."),
    ],
)
def test_a_path_inside_is_named_by_where_it_leads(home: Path, tool: Tool, path: str, subject: str) -> None:
    found = asked(tool, home, path)
    assert found
    assert (found.subject, found.inside) == (subject, True)
    assert found.kind == ("read" if tool is view else "write")


@pytest.mark.parametrize("tool", [view, create], ids=lambda tool: str(tool.name))
@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../secret.txt",
        "docs/../../secret.txt",
        "to_secret",
        "to_parent/secret.txt",
        "to_parent/new.txt",
        "/etc/passwd",
        "~",
        "~/x",
        "../work_next_door/x",
    ],
)
def test_a_path_that_leads_out_is_outside_also_through_links(home: Path, tool: Tool, path: str) -> None:
    found = asked(tool, home, path)
    assert found
    assert not found.inside
    assert Path(found.subject).is_absolute()


def test_an_absolute_path_may_lead_inside(home: Path) -> None:
    assert asked(view, home, str(home / "a.txt")) == PermissionAsk(kind="read", subject="a.txt")


@pytest.mark.parametrize("tool", [view, create], ids=lambda tool: str(tool.name))
def test_a_session_without_a_directory_has_no_files(tool: Tool) -> None:
    with pytest.raises(ToolFailure, match="no working directory"):
        asked(tool, None, "a.txt")


@pytest.mark.parametrize("path", ["a\0.txt", "\0"])
def test_a_nul_is_no_part_of_a_path(home: Path, path: str) -> None:
    with pytest.raises(ToolFailure, match="NUL"):
        asked(view, home, path)


def test_links_in_a_circle_are_an_error_and_not_a_loop(home: Path) -> None:
    (home / "x").symlink_to("y")
    (home / "y").symlink_to("x")
    with pytest.raises((OSError, RuntimeError)):
        asked(view, home, "x")


# Looking


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ({}, "1. one\n2. two\n3. three"),
        ({"first_line": 2}, "2. two\n3. three"),
        ({"first_line": 2, "last_line": 2}, "2. two"),
        ({"first_line": -5, "last_line": 1}, "1. one"),
        ({"first_line": 9}, ""),
    ],
)
async def test_a_file_is_shown_with_numbered_lines(home: Path, lines: dict[str, int], shown: str) -> None:
    assert await use(view, home, path="a.txt", **lines) == shown


async def test_a_directory_is_listed(home: Path) -> None:
    assert await use(view, home, path=".") == "a.txt\ndocs/\nto_docs/\nto_parent/\nto_secret"
    assert await use(view, home, path="docs") == "(empty)"


async def test_what_can_not_be_shown_is_said_in_a_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "picture").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ToolFailure, match="missing does not exist"):
        await use(view, home, path="missing")
    with pytest.raises(ToolFailure, match="picture is not a text file"):
        await use(view, home, path="picture")
    with pytest.raises(ToolFailure, match=r"a\.txt/b can't be read"):
        await use(view, home, path="a.txt/b")
    with pytest.raises(ToolFailure, match="can't be read"):
        await use(view, home, path="x" * 300)
    monkeypatch.setattr(built_in, "MAX_VIEW_BYTES", 3)
    with pytest.raises(ToolFailure, match="larger than 3 bytes"):
        await use(view, home, path="a.txt")


async def test_a_pipe_is_not_waited_for(home: Path) -> None:
    """Nobody writes into it: reading would never end."""
    os.mkfifo(home / "pipe")
    with pytest.raises(ToolFailure, match="not a file"):
        await use(view, home, path="pipe")


# Writing


async def test_a_file_is_written_whole_with_its_folders(home: Path) -> None:
    text = "é\u2028\n"
    assert await use(create, home, path="new/deep/b.txt", file_text=text) == (
        "Created file new/deep/b.txt with 3 characters"
    )
    assert (home / "new/deep/b.txt").read_bytes() == text.encode()
    assert [entry.name for entry in (home / "new/deep").iterdir()] == ["b.txt"]


async def test_a_file_that_is_replaced_keeps_its_mode(home: Path) -> None:
    os.chmod(home / "a.txt", 0o640)
    await use(create, home, path="a.txt", file_text="new")
    assert (home / "a.txt").read_text() == "new"
    assert stat.S_IMODE((home / "a.txt").stat().st_mode) == 0o640


async def test_what_can_not_be_written_is_said_and_leaves_nothing_behind(home: Path) -> None:
    for path in ("docs", "a.txt/b.txt", "x" * 300):
        with pytest.raises(ToolFailure, match="can't be written"):
            await use(create, home, path=path, file_text="x")
    assert sorted(os.listdir(home)) == ["a.txt", "docs", "to_docs", "to_parent", "to_secret"]
    assert (home / "a.txt").read_text() == "one\ntwo\nthree\n"


# Long results and questions


@pytest.mark.parametrize(
    ("asked_for", "shown"),
    [
        ({}, "0123456789"),
        ({"offset": 4}, "456789"),
        ({"offset": 4, "length": 2}, "45"),
        ({"offset": -9, "length": 1}, "0"),
        ({"offset": 0, "length": -1}, "0"),
        ({"offset": 99}, "(the result ends at 10)"),
    ],
)
async def test_a_part_of_a_long_result_is_read_by_offset(asked_for: dict[str, int], shown: str) -> None:
    assert await use(read_tool_output, None, tool_call_id="c1", **asked_for) == shown


async def test_a_result_that_never_was_is_said_to_be_missing() -> None:
    with pytest.raises(ToolFailure, match="no result of a call c9"):
        await use(read_tool_output, None, tool_call_id="c9")
    assert await use(read_tool_output, None, tool_call_id="empty") == "(the result ends at 0)"


async def test_a_question_is_asked_and_never_run() -> None:
    question = ask_user.parse('{"question": "Which?", "choices": ["a"], "allow_freeform": false}')
    assert (question.question, question.choices, question.allow_freeform) == ("Which?", ("a",), False)
    assert ask_user.asks_person
    with pytest.raises(ToolFailure):
        await ask_user.run(question, context(None))
