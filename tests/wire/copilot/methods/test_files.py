"""The plan and the workspace of a session: whole files inside its folder, whatever else is placed there."""

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.server.copilot import session_files
from tests.wire.copilot.methods.world import Refused, Session

pytestmark = pytest.mark.anyio

OUTSIDE = "Path must be within the workspace files directory"


async def test_plan_is_a_file_in_the_sessions_folder(session: Session) -> None:
    path = str(session.folder / "plan.md")
    assert await session.ask("plan.read") == {"exists": False, "content": None, "path": path}
    assert await session.ask("plan.update", content="# Plan\n") is None
    assert await session.ask("plan.read") == {"exists": True, "content": "# Plan\n", "path": path}
    assert (session.folder / "plan.md").read_text() == "# Plan\n"


async def test_plan_changes_are_announced(session: Session) -> None:
    await session.ask("plan.delete")
    await session.ask("plan.update", content="One")
    await session.ask("plan.update", content="Two")
    await session.ask("plan.delete")
    await session.client.until("session.plan_changed", lambda data: data["operation"] == "delete")
    told = [data["operation"] for data in session.client.data("session.plan_changed")]
    assert told == ["create", "update", "delete"]


async def test_plan_that_is_a_link_is_neither_read_nor_followed(session: Session, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (session.folder / "plan.md").symlink_to(secret)
    with pytest.raises(Refused, match=OUTSIDE):
        await session.ask("plan.read")
    await session.ask("plan.update", content="Mine")
    assert (await session.ask("plan.read"))["content"] == "Mine"
    assert secret.read_text() == "secret"


async def test_files_are_written_read_listed_renamed_and_removed(session: Session) -> None:
    await session.ask("workspaces.createFile", path="a/b/c.txt", content="deep")
    await session.ask("workspaces.createFile", path="top.txt", content="zoë")
    assert await session.ask("workspaces.listFiles") == {"files": ["a/b/c.txt", "top.txt"]}
    assert await session.ask("workspaces.readFile", path="./a/../top.txt") == {"content": "zoë"}
    await session.ask("workspaces.renamePath", source="top.txt", destination="a/low.txt")
    await session.ask("workspaces.createFile", path="a/low.txt", content="again")
    assert await session.ask("workspaces.readFile", path="a/low.txt") == {"content": "again"}
    about = await session.ask("workspaces.statFile", path="a/low.txt")
    assert (about["size"], about["isFile"], about["isDirectory"]) == (5, True, False)
    await session.ask("workspaces.removePath", path="a", recursive=True)
    assert await session.ask("workspaces.listFiles") == {"files": []}
    assert sorted(os.listdir(session.folder)) == ["files"]


async def test_absolute_path_inside_the_workspace_is_accepted(session: Session) -> None:
    await session.ask("workspaces.createFile", path=str(session.folder / "files" / "x"), content="whole")
    assert await session.ask("workspaces.listFiles") == {"files": ["x"]}


async def test_parent_folders_are_made_only_with_recursive(session: Session) -> None:
    with pytest.raises(Refused, match="a/b does not exist"):
        await session.ask("workspaces.createDirectory", path="a/b")
    await session.ask("workspaces.createDirectory", path="a/b", recursive=True)
    await session.ask("workspaces.createDirectory", path="a/c")
    assert (await session.ask("workspaces.statFile", path="a/c"))["isDirectory"] is True
    with pytest.raises(Refused, match="Directory not empty"):
        await session.ask("workspaces.removePath", path="a")


async def test_file_is_not_accepted_as_a_folder(session: Session) -> None:
    await session.ask("workspaces.createFile", path="x", content="")
    with pytest.raises(Refused, match=OUTSIDE):
        await session.ask("workspaces.createFile", path="x/y", content="")
    with pytest.raises(Refused, match=OUTSIDE):
        await session.ask("workspaces.createDirectory", path="x")


async def test_missing_path_is_removed_only_with_force(session: Session) -> None:
    await session.ask("workspaces.removePath", path="nothing", force=True)
    with pytest.raises(Refused, match="nothing does not exist"):
        await session.ask("workspaces.removePath", path="nothing")


PATHS = ["../x", "/etc/passwd", "a/../../x", "..", "a/../../files2/x"]
CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("createFile", "path", {"content": "x"}),
    ("readFile", "path", {}),
    ("statFile", "path", {}),
    ("createDirectory", "path", {"recursive": True}),
    ("removePath", "path", {"recursive": True, "force": True}),
    ("renamePath", "source", {"destination": "inside"}),
    ("renamePath", "destination", {"source": "inside"}),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("verb", "name", "more"), CALLS, ids=[f"{verb}-{name}" for verb, name, _ in CALLS])
async def test_paths_never_lead_outside(
    session: Session, verb: str, name: str, more: dict[str, Any], path: str
) -> None:
    await session.ask("workspaces.createFile", path="inside", content="")
    with pytest.raises(Refused, match=OUTSIDE):
        await session.ask(f"workspaces.{verb}", **{name: path}, **more)


@pytest.mark.parametrize(("verb", "name", "more"), CALLS, ids=[f"{verb}-{name}" for verb, name, _ in CALLS])
async def test_links_never_lead_outside(
    session: Session, tmp_path: Path, verb: str, name: str, more: dict[str, Any]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    await session.ask("workspaces.createFile", path="inside", content="")
    (session.folder / "files" / "link").symlink_to(outside)
    with pytest.raises(Refused, match=OUTSIDE):
        await session.ask(f"workspaces.{verb}", **{name: "link/kept"}, **more)
    assert [file.name for file in outside.iterdir()] == ["kept"]
    assert (outside / "kept").read_text() == "kept"


async def test_link_in_place_of_the_workspace_is_not_followed(session: Session, tmp_path: Path) -> None:
    (session.folder / "files").symlink_to(tmp_path)
    with pytest.raises(Refused, match=OUTSIDE):
        await session.ask("workspaces.createFile", path="x", content="x")
    with pytest.raises(Refused, match=OUTSIDE):
        await session.ask("workspaces.listFiles")


async def test_links_are_not_listed_and_are_removed_themselves(session: Session, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    await session.ask("workspaces.createFile", path="real", content="")
    (session.folder / "files" / "link").symlink_to(outside)
    assert await session.ask("workspaces.listFiles") == {"files": ["real"]}
    await session.ask("workspaces.removePath", path="link", recursive=True)
    assert (outside / "kept").exists()


async def test_a_pipe_is_not_read(session: Session) -> None:
    await session.ask("workspaces.createDirectory", path="a", recursive=True)
    os.mkfifo(session.folder / "files" / "pipe")
    with pytest.raises(Refused, match="pipe is not a file"):
        await session.ask("workspaces.readFile", path="pipe")


async def test_binary_file_is_refused_with_a_sentence(session: Session) -> None:
    await session.ask("workspaces.createFile", path="x", content="")
    (session.folder / "files" / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Refused, match="x is not a text file in UTF-8"):
        await session.ask("workspaces.readFile", path="x")


async def test_file_size_is_bounded_on_write_and_on_read(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_files, "MAX_FILE_BYTES", 10)
    with pytest.raises(Refused, match="A file has at most 10 bytes; this has 11"):
        await session.ask("workspaces.createFile", path="x", content="é" * 5 + "x")
    await session.ask("workspaces.createFile", path="x", content="é" * 5)
    (session.folder / "files" / "x").write_text("x" * 11)
    with pytest.raises(Refused, match="x has more than 10 bytes"):
        await session.ask("workspaces.readFile", path="x")


async def test_workspace_with_too_many_files_is_refused_not_cut(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_files, "MAX_FILES", 2)
    for number in range(3):
        await session.ask("workspaces.createFile", path=f"{number}", content="")
    with pytest.raises(Refused, match="more than 2 files"):
        await session.ask("workspaces.listFiles")


async def test_failed_write_leaves_the_old_file_and_no_temporary_file(session: Session) -> None:
    await session.ask("workspaces.createDirectory", path="taken/full", recursive=True)
    with pytest.raises(Refused, match=r"taken: Is a directory|taken: Directory not empty"):
        await session.ask("workspaces.createFile", path="taken", content="x")
    assert sorted(os.listdir(session.folder)) == ["files"]
    assert sorted(os.listdir(session.folder / "files")) == ["taken"]


async def test_large_paste_becomes_a_file(session: Session) -> None:
    saved = (await session.ask("workspaces.saveLargePaste", content="long"))["saved"]
    assert saved["filePath"] == str(session.folder / "files" / saved["filename"])
    assert await session.ask("workspaces.readFile", path=saved["filename"]) == {"content": "long"}
    assert await session.ask("workspaces.listFiles") == {"files": [saved["filename"]]}


async def test_workspace_metadata_names_the_session(session: Session, tmp_path: Path) -> None:
    found = await session.ask("workspaces.getWorkspace")
    assert found["path"] == str(session.folder)
    workspace = found["workspace"]
    assert (workspace["id"], workspace["cwd"]) == (session.id, str(tmp_path / "work"))
    assert workspace["user_named"] is False
    await session.ask("name.set", name="Mine")
    assert (await session.ask("workspaces.getWorkspace"))["workspace"]["user_named"] is True


async def test_a_deleted_session_leaves_no_files(session: Session) -> None:
    await session.ask("plan.update", content="x")
    await session.ask("workspaces.createFile", path="x", content="x")
    await session.ask("delete")
    assert not session.folder.exists()
