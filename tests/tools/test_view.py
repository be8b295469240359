"""`view`: files with numbered lines, directories, pictures, and what can't be shown."""

import base64
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.events.message import Image
from holdfast.tools import view as view_module
from holdfast.tools.errors import ToolFailure
from holdfast.tools.view import view
from tests.tools.using import asked, outcome, use

pytestmark = pytest.mark.anyio

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
GIF = (
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\xff\xff\xff\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
)
JPEG = b"\xff\xd8\xff\xe0" + bytes(40) + b"\xff\xd9"
WEBP = b"RIFF" + (24).to_bytes(4, "little") + b"WEBPVP8 " + bytes(16)


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ({}, "1. one\n2. two\n3. three"),
        ({"view_range": None}, "1. one\n2. two\n3. three"),
        ({"view_range": [2, 3]}, "2. two\n3. three"),
        ({"view_range": [2, -1]}, "2. two\n3. three"),
        ({"view_range": [1, 99]}, "1. one\n2. two\n3. three"),
        ({"view_range": [3, 3]}, "3. three"),
        ({"view_range": [9, 12]}, "(a.txt has 3 lines)"),
        ({"first_line": 2}, "2. two\n3. three"),
        ({"first_line": 2, "last_line": 2}, "2. two"),
        ({"first_line": -5, "last_line": 1}, "1. one"),
    ],
)
async def test_a_file_is_shown_with_numbered_lines(home: Path, lines: dict[str, Any], shown: str) -> None:
    assert await use(view, home, path="a.txt", **lines) == shown


@pytest.mark.parametrize("view_range", [[], [1], [1, 2, 3], [0, 2], [-1, 2], [3, 2], [2, -2]])
def test_a_range_that_is_none_is_refused(home: Path, view_range: list[int]) -> None:
    with pytest.raises(ToolFailure, match="view_range"):
        asked(view, home, path="a.txt", view_range=view_range)


async def test_only_a_line_feed_ends_a_line(home: Path) -> None:
    (home / "b.txt").write_bytes("é\u2028x\x0cy\r\n\r\nlast\rend".encode())
    assert await use(view, home, path="b.txt") == "1. é\u2028x\x0cy\n2. \n3. last\rend"


async def test_an_empty_file_is_said_to_be_empty(home: Path) -> None:
    (home / "none").touch()
    assert await use(view, home, path="none") == "(the file is empty)"


async def test_names_that_are_no_plain_text_can_be_viewed(home: Path) -> None:
    (home / "日本 é\n.txt").write_text("here")
    assert await use(view, home, path="日本 é\n.txt") == "1. here"


# Directories


async def test_a_directory_is_listed(home: Path) -> None:
    assert await use(view, home, path=".") == "a.txt\ndocs/\nto_docs/\nto_parent/\nto_secret"
    assert await use(view, home, path="docs") == "(empty)"


async def test_a_name_can_not_look_like_two(home: Path) -> None:
    (home / "docs" / "a\nb").touch()
    (home / "docs" / "\x1b[31mred").touch()
    assert await use(view, home, path="docs") == "\\x1b[31mred\na\\nb"


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems refuse such names")
async def test_a_name_that_is_no_text_at_all_is_listed(home: Path) -> None:
    (home / "docs" / os.fsdecode(b"bad\xff")).touch()
    assert await use(view, home, path="docs") == "bad\\udcff"


async def test_of_many_names_the_first_are_listed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "MAX_ENTRIES", 2)
    assert await use(view, home, path=".") == "a.txt\ndocs/\n(3 more; use glob to find one of them)"


# Pictures


@pytest.mark.parametrize(
    ("data", "media_type"),
    [(PNG, "image/png"), (GIF, "image/gif"), (JPEG, "image/jpeg"), (WEBP, "image/webp")],
    ids=["png", "gif", "jpeg", "webp"],
)
async def test_a_picture_under_any_name_is_shown_to_the_model(home: Path, data: bytes, media_type: str) -> None:
    (home / "some.txt").write_bytes(data)
    result = await outcome(view, home, path="some.txt")
    assert result.content == "Viewed image file successfully."
    assert result.images == (Image(media_type=media_type, data=data),)


@pytest.mark.parametrize("data", [PNG[:-20], GIF[:12], JPEG[:-2], WEBP[:-1]], ids=["png", "gif", "jpeg", "webp"])
async def test_a_picture_that_is_cut_off_never_reaches_a_provider(home: Path, data: bytes) -> None:
    (home / "cut").write_bytes(data)
    with pytest.raises(ToolFailure, match="damaged or cut off"):
        await use(view, home, path="cut")


async def test_a_picture_that_is_too_large_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "MAX_IMAGE_BYTES", len(PNG) - 1)
    (home / "large.png").write_bytes(PNG)
    with pytest.raises(ToolFailure, match=r"large\.png is a picture of more than"):
        await use(view, home, path="large.png")


# What can't be shown


async def test_a_file_that_can_not_be_shown_is_reported_in_a_sentence(home: Path) -> None:
    (home / "binary").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ToolFailure, match="missing does not exist"):
        await use(view, home, path="missing")
    with pytest.raises(ToolFailure, match="binary is not a text file"):
        await use(view, home, path="binary")
    with pytest.raises(ToolFailure, match=r"a\.txt/b can't be read"):
        await use(view, home, path="a.txt/b")
    with pytest.raises(ToolFailure, match="can't be read"):
        await use(view, home, path="x" * 300)


async def test_a_file_that_may_not_be_read_is_said_to_be_so(home_without_root: Path) -> None:
    (home_without_root / "a.txt").chmod(0)
    with pytest.raises(ToolFailure, match=r"a\.txt can't be read: Permission denied"):
        await use(view, home_without_root, path="a.txt")


async def test_a_pipe_a_socket_and_a_device_are_not_waited_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes into them: reading would never end."""
    monkeypatch.chdir(home)  # The path of a socket must be short.
    os.mkfifo(home / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for path in ("pipe", "socket", "/dev/zero", "/dev/tty"):
            with pytest.raises(ToolFailure, match="not a file"):
                await use(view, home, path=path)


async def test_of_a_huge_file_a_part_is_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "MAX_VIEW_BYTES", 50)
    (home / "huge").write_text("".join(f"line {number}\n" for number in range(1, 1001)))
    for part in ({}, {"view_range": [900, -1]}):
        with pytest.raises(ToolFailure, match=r"huge is larger than 50 bytes; ask for a part of it with view_range"):
            await use(view, home, path="huge", **part)
    assert await use(view, home, path="huge", view_range=[900, 901]) == "900. line 900\n901. line 901"
    shown = await use(view, home, path="huge", view_range=[1, 900])
    assert shown.splitlines()[-1] == "(line 8 and those after it are left out: more than 50 bytes)"


async def test_a_line_without_an_end_does_not_fill_the_memory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "MAX_VIEW_BYTES", 50)
    (home / "long").write_text("x" * 1000 + "\nsecond\n")
    assert await use(view, home, path="long", view_range=[2, 2]) == "2. second"
    assert "line 1 and those after it" in await use(view, home, path="long", view_range=[1, 2])
