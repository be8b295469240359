"""Where paths lead: nothing leads out of the working directory unnoticed, also not through a link that is put in the
way at the last moment."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from copilot.generated.session_events import PermissionRequestRead, PermissionRequestWrite

from holdfast.events.request import PermissionAsk
from holdfast.tools.errors import ToolFailure
from holdfast.tools.file_edits import create, edit
from holdfast.tools.paths import ResolvedPath, opened, parent_of, resolve
from holdfast.tools.search import glob, grep
from holdfast.tools.tool import Tool
from holdfast.tools.view import view
from tests.tools.using import asked, context, open_files, use

pytestmark = pytest.mark.anyio

OTHERS: dict[str, dict[str, Any]] = {
    "create": {"file_text": "x"},
    "edit": {"old_str": "one", "new_str": "1"},
    "grep": {"pattern": "x"},
    "glob": {"pattern": "*"},
}

every_tool = pytest.mark.parametrize("tool", [view, create, edit, grep, glob], ids=lambda tool: str(tool.name))


def asked_for(tool: Tool, directory: Path | None, path: str) -> PermissionAsk:
    return asked(tool, directory, path=path, **OTHERS.get(tool.name, {}))


@every_tool
@pytest.mark.parametrize(
    ("path", "subject"),
    [
        ("a.txt", "a.txt"),
        ("./docs/../a.txt", "a.txt"),
        ("docs/new/deep.txt", "docs/new/deep.txt"),
        ("to_docs/b.txt", "docs/b.txt"),
        (".", "."),
        ("", "."),
        ("a\nb é.txt", "a\nb é.txt"),
    ],
)
def test_a_path_inside_is_named_by_where_it_leads(home: Path, tool: Tool, path: str, subject: str) -> None:
    found = asked_for(tool, home, path)
    assert (found.subject, found.inside) == (subject, True)
    assert found.kind == ("write" if tool in (create, edit) else "read")


@every_tool
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
        "/",
        "~",
        "~/x",
        "../work_next_door/x",
    ],
)
def test_a_path_that_leads_out_is_outside_also_through_links(home: Path, tool: Tool, path: str) -> None:
    found = asked_for(tool, home, path)
    assert not found.inside
    assert Path(found.subject).is_absolute()
    assert "hidden" not in found.details.get("diff", ""), "nothing of it is shown before it is allowed"


def test_an_absolute_path_may_lead_inside(home: Path) -> None:
    found = asked(view, home, path=str(home / "a.txt"))
    assert (found.subject, found.inside) == ("a.txt", True)


def test_a_working_directory_that_is_a_link_is_where_it_leads(home: Path) -> None:
    (home.parent / "link").symlink_to(home)
    found = asked(view, home.parent / "link", path="a.txt")
    assert (found.subject, found.inside) == ("a.txt", True)


@every_tool
def test_a_session_without_a_directory_has_no_files(tool: Tool) -> None:
    with pytest.raises(ToolFailure, match="no working directory"):
        asked_for(tool, None, "a.txt")


@every_tool
@pytest.mark.parametrize(
    ("path", "why"),
    [("a\0.txt", "NUL"), ("\0", "NUL"), ("x" * 4097, "4,096 characters"), ("~nobody-of-this-name/x", "followed")],
)
def test_an_impossible_path_is_refused(home: Path, tool: Tool, path: str, why: str) -> None:
    with pytest.raises(ToolFailure, match=why):
        asked_for(tool, home, path)


@every_tool
async def test_links_in_a_circle_are_an_error_and_not_a_loop(home: Path, tool: Tool) -> None:
    (home / "x").symlink_to("y")
    (home / "y").symlink_to("x")
    with pytest.raises(ToolFailure):
        await use(tool, home, path="x", **OTHERS.get(tool.name, {}))


# What people are shown


def test_a_request_to_read_is_what_the_client_expects(home: Path) -> None:
    for tool, intention in ((view, "Read docs\\nx"), (grep, "Search in docs\\nx")):
        wire = PermissionRequestRead.from_dict(asked_for(tool, home, "docs\nx").details)
        assert (wire.intention, wire.path) == (intention, str(home / "docs\nx"))


def test_a_request_to_write_is_what_the_client_expects(home: Path) -> None:
    wire = PermissionRequestWrite.from_dict(asked(create, home, path="to_docs/b.txt", file_text="hello\n").details)
    assert (wire.intention, wire.file_name) == ("Create to_docs/b.txt", str(home / "docs/b.txt"))
    assert wire.diff == "--- a/docs/b.txt\n+++ b/docs/b.txt\n@@ -0,0 +1,1 @@\n+hello\n"
    assert (wire.new_file_contents, wire.can_offer_session_approval) == ("hello\n", True)
    wire = PermissionRequestWrite.from_dict(asked_for(edit, home, "a.txt").details)
    assert (wire.intention, wire.file_name) == ("Edit a.txt", str(home / "a.txt"))
    assert wire.diff == "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n-one\n+1\n two\n three\n"
    assert wire.new_file_contents == "1\ntwo\nthree\n"


def test_asking_about_what_can_not_be_read_still_asks(home: Path) -> None:
    os.mkfifo(home / "pipe")
    (home / "huge").write_bytes(b"x" * 600_000)
    (home / "binary").write_bytes(b"\xff\xfe")
    for path in ("pipe", "huge", "binary", "docs", "missing", "a.txt/b"):
        found = asked(edit, home, path=path, old_str="one", new_str="1")
        assert found.details["diff"].endswith("-one\n\\ No newline at end of file\n+1\n\\ No newline at end of file\n")
        assert "newFileContents" not in found.details
        assert asked_for(create, home, path).details["diff"].endswith("+x\n\\ No newline at end of file\n")


def test_a_huge_file_is_not_stored_with_the_request(home: Path) -> None:
    details = asked(create, home, path="b.txt", file_text="line\n" * 300_000).details
    assert "newFileContents" not in details
    assert len(json.dumps(details)) < 1_000


def test_whether_an_edit_fits_is_not_told_before_it_is_allowed(home: Path) -> None:
    """Else the model could read a file by asking to change it."""
    found = asked(edit, home, path="a.txt", old_str="not in it", new_str="x")
    assert found.details["diff"].startswith("--- a/a.txt")


# Between the permission and the act


@every_tool
async def test_a_path_that_leads_elsewhere_by_now_is_not_what_was_permitted(home: Path, tool: Tool) -> None:
    (home / "b").symlink_to("a.txt" if tool is not glob else "docs")
    arguments = tool.parse(json.dumps({"path": "b", **OTHERS.get(tool.name, {})}))
    permitted = tool.asks(arguments, home)
    (home / "b").unlink()
    (home / "b").symlink_to("../secret.txt" if tool is not glob else "..")
    with pytest.raises(ToolFailure, match="b leads elsewhere than it did when this was permitted; nothing was done"):
        await tool.run(arguments, context(home, permitted=permitted))
    assert (home.parent / "secret.txt").read_text() == "hidden"


@pytest.mark.parametrize("path", ["docs/x", "docs/deep/x", "docs/deep"])
def test_a_link_that_is_put_in_the_way_of_a_place_is_not_followed(home: Path, path: str) -> None:
    (home / "docs" / "deep").mkdir()
    place = resolve(path, home)
    (home / "docs" / "deep").rmdir()
    (home / "docs").rmdir()
    (home / "docs").symlink_to(home.parent)
    (home.parent / "x").write_text("outside")
    with pytest.raises(NotADirectoryError), opened(place):
        pass
    with pytest.raises(NotADirectoryError), parent_of(place, create=True):
        pass
    assert not (home.parent / "deep").exists()


def test_a_last_step_that_became_a_link_is_not_followed(home: Path) -> None:
    place = resolve("a.txt", home)
    (home / "a.txt").unlink()
    (home / "a.txt").symlink_to("../secret.txt")
    with pytest.raises(ToolFailure, match="not a file"), opened(place):
        pass


def test_places_outside_and_the_root_itself_are_opened_too(home: Path) -> None:
    for path, holds in (("../secret.txt", b"hidden"), ("a.txt", b"one\ntwo\nthree\n")):
        with opened(resolve(path, home)) as descriptor:
            assert os.read(descriptor, 100) == holds
    for path in (".", "/", ".."):
        with opened(resolve(path, home)) as descriptor:
            assert os.path.samestat(os.fstat(descriptor), os.stat(home / path))


def test_nothing_stays_open(home: Path) -> None:
    os.mkfifo(home / "pipe")
    before = open_files()
    for path in ("a.txt", ".", "missing", "a.txt/x", "missing/x", "pipe", "/dev/null"):
        try:
            with opened(ResolvedPath(path, home, home / path)):
                pass
        except (OSError, ToolFailure):
            pass
    assert open_files() == before
