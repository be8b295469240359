"""`create` and `edit`: a file has its old content or its new one, and what can't be done is said."""

import asyncio
import itertools
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from holdfast.tools.errors import ToolFailure
from holdfast.tools.file_edits import create, edit, replace
from holdfast.tools.paths import resolve
from tests.tools.using import asked, outcome, use

pytestmark = pytest.mark.anyio

ENTRIES = ["a.txt", "docs", "to_docs", "to_parent", "to_secret"]


async def test_a_file_is_written_whole_with_its_folders(home: Path) -> None:
    text = "é\u2028\n"
    result = await outcome(create, home, path="new/deep/b.txt", file_text=text)
    assert result.content == "Created file new/deep/b.txt with 3 characters"
    assert result.details == f"--- a/new/deep/b.txt\n+++ b/new/deep/b.txt\n@@ -0,0 +1,1 @@\n+{text}"
    assert (home / "new/deep/b.txt").read_bytes() == text.encode()
    assert os.listdir(home / "new/deep") == ["b.txt"]


async def test_a_new_file_has_the_mode_that_new_files_have(home: Path) -> None:
    before = os.umask(0o027)
    try:
        await use(create, home, path="b.txt", file_text="")
    finally:
        os.umask(before)
    assert stat.S_IMODE((home / "b.txt").stat().st_mode) == 0o640


async def test_an_existing_file_is_replaced_and_keeps_its_mode(home: Path) -> None:
    os.chmod(home / "a.txt", 0o750)
    result = await outcome(create, home, path="a.txt", file_text="new")
    assert (home / "a.txt").read_text() == "new"
    assert stat.S_IMODE((home / "a.txt").stat().st_mode) == 0o750
    assert "-one\n-two\n-three\n+new\n" in result.details


async def test_writing_through_a_link_inside_writes_where_it_leads(home: Path) -> None:
    await use(create, home, path="to_docs/é\n.txt", file_text="x")
    assert (home / "docs" / "é\n.txt").read_text() == "x"
    assert (home / "to_docs").is_symlink()


async def test_a_file_that_can_not_be_written_is_reported_and_leaves_nothing_behind(home: Path) -> None:
    os.mkfifo(home / "pipe")
    for path in ("docs", "a.txt/b.txt", "x" * 300, "."):
        with pytest.raises(ToolFailure, match="can't be written"):
            await use(create, home, path=path, file_text="x")
    with pytest.raises(ToolFailure, match="pipe is not a file"):
        await use(create, home, path="pipe", file_text="x")
    with pytest.raises(ToolFailure, match="/ is a directory"):
        await use(create, home, path="/", file_text="x")
    assert sorted(os.listdir(home)) == sorted([*ENTRIES, "pipe"])
    assert (home / "a.txt").read_text() == "one\ntwo\nthree\n"


async def test_a_file_that_is_read_only_stays_as_it_is(home_without_root: Path) -> None:
    (home_without_root / "a.txt").chmod(0o444)
    with pytest.raises(ToolFailure, match=r"a\.txt can't be written: it is read-only"):
        await use(create, home_without_root, path="a.txt", file_text="x")


async def test_a_write_that_fails_half_way_leaves_the_old_content(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ToolFailure, match=r"a\.txt can't be written: No space left on device"):
        await use(create, home, path="a.txt", file_text="new")
    assert (home / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert sorted(os.listdir(home)) == ENTRIES


# Editing


async def test_a_piece_that_occurs_once_is_replaced(home: Path) -> None:
    os.chmod(home / "a.txt", 0o600)
    result = await outcome(edit, home, path="a.txt", old_str="two\n", new_str="2\nand more\n")
    assert result.content == "File a.txt updated with changes."
    assert result.details == "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n+and more\n three\n"
    assert (home / "a.txt").read_text() == "one\n2\nand more\nthree\n"
    assert stat.S_IMODE((home / "a.txt").stat().st_mode) == 0o600
    assert sorted(os.listdir(home)) == ENTRIES


async def test_a_piece_can_be_taken_out(home: Path) -> None:
    await use(edit, home, path="a.txt", old_str="two\n")
    assert (home / "a.txt").read_text() == "one\nthree\n"


async def test_the_ends_of_lines_and_every_other_byte_stay_as_they_were(home: Path) -> None:
    (home / "dos.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\x0c\xe2\x80\xa8")
    await use(edit, home, path="dos.txt", old_str="one\ntwo\n", new_str="1\n2\n")
    assert (home / "dos.txt").read_bytes() == b"\xef\xbb\xbf1\r\n2\r\nthree\x0c\xe2\x80\xa8"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"old_str": "four", "new_str": "4"}, r"old_str was not found in a\.txt; it must match exactly"),
        ({"old_str": "e", "new_str": "E"}, r"old_str was found 3 times in a\.txt; give more of what stands around"),
        ({"old_str": "", "new_str": "x"}, "old_str is empty"),
        ({"old_str": "one", "new_str": "one"}, "old_str and new_str are the same"),
    ],
)
async def test_an_edit_that_does_not_fit_changes_nothing(home: Path, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ToolFailure, match=why):
        await use(edit, home, path="a.txt", **arguments)
    assert (home / "a.txt").read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("missing", "missing does not exist"),
        ("missing/b.txt", "missing/b.txt does not exist"),
        ("docs", "docs is a directory"),
        ("pipe", "pipe is not a file"),
        ("binary", "binary is not a text file"),
        ("a.txt/b", "a.txt/b can't be edited"),
        ("large", "large is larger than 10,000,000 bytes"),
    ],
)
async def test_a_file_that_can_not_be_edited_is_reported_in_a_sentence(home: Path, path: str, why: str) -> None:
    os.mkfifo(home / "pipe")
    (home / "binary").write_bytes(b"one \xff")
    (home / "large").write_bytes(b"x" * 10_000_001)
    before = sorted(os.listdir(home))
    with pytest.raises(ToolFailure, match=why):
        await use(edit, home, path=path, old_str="one", new_str="1")
    assert sorted(os.listdir(home)) == before, "and nothing was made on the way"


async def test_edits_of_one_file_that_run_side_by_side_all_count(home: Path) -> None:
    """Models ask for several in one answer."""
    words = [f"word{number}" for number in range(1000, 1030)]
    (home / "b.txt").write_text("\n".join(words))
    await asyncio.gather(
        *(
            use(edit, home, path=path, old_str=word, new_str=word.upper())
            for word, path in zip(words, itertools.cycle(["b.txt", "to_docs/../b.txt"]), strict=False)
        )
    )
    assert (home / "b.txt").read_text() == "\n".join(words).upper()


def test_a_file_that_somebody_else_changed_since_it_was_read_is_not_overwritten(home: Path) -> None:
    place = resolve("a.txt", home)
    seen = (home / "a.txt").stat()
    replace(place, b"ours", seen=seen)
    with pytest.raises(ToolFailure, match=r"a\.txt changed while it was being edited"):
        replace(place, b"ours again", seen=seen)
    (home / "a.txt").unlink()
    with pytest.raises(FileNotFoundError):
        replace(place, b"ours again", seen=seen)
    assert sorted(os.listdir(home)) == ENTRIES[1:]


def test_asking_leaves_everything_as_it_is(home: Path) -> None:
    asked(edit, home, path="a.txt", old_str="two", new_str="2")
    asked(create, home, path="new/b.txt", file_text="x")
    assert (home / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert sorted(os.listdir(home)) == ENTRIES
