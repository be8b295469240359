"""`grep` and `glob`: what is found, what is left out, and that no pattern and no tree can hold anything up."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import event_loop
from holdfast.tools import search
from holdfast.tools.errors import ToolFailure
from holdfast.tools.paths import opened, resolve
from holdfast.tools.search import glob, grep
from holdfast.tools.search_program import glob_regex
from holdfast.tools.tool import Tool
from tests.faults.world import comes_true
from tests.tools.using import asked, is_alive, open_files, programs, use

pytestmark = pytest.mark.anyio


@pytest.fixture
def tree(home: Path) -> Path:
    """Files that are found, and others that never are."""
    (home / "src" / "deep").mkdir(parents=True)
    (home / "src" / "index.ts").write_text("import x\nexport const apple = 1\n")
    (home / "src" / "deep" / "pear.py").write_text("apple = 'pear'\n# Apple\n")
    for skipped in (".git", "node_modules", "src/node_modules"):
        (home / skipped).mkdir()
        (home / skipped / "apple.ts").write_text("apple\n")
    (home / "binary").write_bytes(b"apple\0\xff\n")
    (home.parent / "apple.txt").write_text("apple outside\n")
    (home / "to_apple").symlink_to(home.parent / "apple.txt")
    (home / "src" / "up").symlink_to(home.parent)
    os.mkfifo(home / "src" / "pipe")
    return home


# grep


@pytest.mark.parametrize(
    ("asked_for", "found"),
    [
        ({"pattern": "apple"}, ["./src/deep/pear.py:1:apple = 'pear'", "./src/index.ts:2:export const apple = 1"]),
        ({"pattern": "APPLE"}, ["No matches found."]),
        (
            {"pattern": "APPLE", "-i": True, "path": "src/deep"},
            ["src/deep/pear.py:1:apple = 'pear'", "src/deep/pear.py:2:# Apple"],
        ),
        ({"pattern": "^t", "path": "a.txt"}, ["a.txt:2:two", "a.txt:3:three"]),
        ({"pattern": "^t", "path": "a.txt", "-n": False}, ["a.txt:two", "a.txt:three"]),
        ({"pattern": "apple", "output_mode": "files_with_matches"}, ["./src/deep/pear.py", "./src/index.ts"]),
        ({"pattern": "(?i)apple", "output_mode": "count"}, ["./src/deep/pear.py:2", "./src/index.ts:1"]),
        ({"pattern": "apple", "glob": "*.ts"}, ["./src/index.ts:2:export const apple = 1"]),
        ({"pattern": "apple", "include": "*.{js,ts}"}, ["./src/index.ts:2:export const apple = 1"]),
        ({"pattern": "apple", "glob": "src/*.py"}, ["No matches found."]),
        ({"pattern": "apple", "glob": "**/*.py", "path": None}, ["./src/deep/pear.py:1:apple = 'pear'"]),
        ({"pattern": "apple", "glob": "node_modules/*"}, ["./node_modules/apple.ts:1:apple"]),
        ({"pattern": "apple", "path": "src/node_modules"}, ["src/node_modules/apple.ts:1:apple"]),
        ({"pattern": "two", "-C": 1}, ["./a.txt-1-one", "./a.txt:2:two", "./a.txt-3-three"]),
        ({"pattern": "two", "-A": 1}, ["./a.txt:2:two", "./a.txt-3-three"]),
        ({"pattern": "two", "-B": 1, "-n": False}, ["./a.txt-one", "./a.txt:two"]),
    ],
)
async def test_lines_are_found_by_a_regular_expression(tree: Path, asked_for: dict[str, Any], found: list[str]) -> None:
    assert (await use(grep, tree, **asked_for)).splitlines() == found


async def test_lines_around_are_shown_once_and_apart_from_the_next(home: Path) -> None:
    (home / "a.txt").write_text("".join(f"{number}\n" for number in range(1, 21)))
    shown = await use(grep, home, pattern="^(5|7|15)$", path="a.txt", **{"-C": 1})
    lines = ["4", "5", "6", "7", "8", "--", "14", "15", "16"]
    assert [line.rsplit("-", 1)[-1].rsplit(":", 1)[-1] or "--" for line in shown.splitlines()] == lines


async def test_an_absolute_path_gives_absolute_results(tree: Path) -> None:
    where = str(tree / "src")
    assert await use(grep, tree, pattern="import", path=where) == f"{where}/index.ts:1:import x"
    assert await use(glob, tree, pattern="*.ts", path=where) == f"{where}/index.ts"


async def test_more_than_was_asked_for_is_left_out_with_a_word(home: Path) -> None:
    (home / "many.txt").write_text("apple\n" * 10)
    shown = (await use(grep, home, pattern="apple", head_limit=3)).splitlines()
    assert shown[:3] == [f"./many.txt:{number}:apple" for number in (1, 2, 3)]
    assert shown[3:] == ["(the first 3 lines; there is more: search in a smaller place, or raise head_limit)"]
    assert len((await use(grep, home, pattern="apple", head_limit=10)).splitlines()) == 10
    assert len((await use(grep, home, pattern="apple", head_limit=-5)).splitlines()) == 2


async def test_a_long_line_is_searched_whole_and_shown_in_part(home: Path) -> None:
    (home / "long.txt").write_text("x" * 5000 + "apple" + "y" * 3_000_000 + "pear\nsecond\n" + "z" * 2000)
    shown = await use(grep, home, pattern="apple", path="long.txt")
    assert shown == "long.txt:1:[…] " + "x" * 250 + "apple" + "y" * 745 + " […]"
    assert (await use(grep, home, pattern="pear", path="long.txt")).endswith("yyypear")
    assert await use(grep, home, pattern="second", path="long.txt") == "long.txt:2:second"
    assert await use(grep, home, pattern="^z", path="long.txt") == "long.txt:3:" + "z" * 1000 + " […]"


async def test_text_in_another_encoding_is_searched_as_far_as_it_goes(home: Path) -> None:
    (home / "latin").write_bytes(b"caf\xe9 apple\r\n")
    assert await use(grep, home, pattern="apple") == "./latin:1:caf\ufffd apple"


async def test_names_can_not_forge_results(home: Path) -> None:
    (home / "docs" / "a\nb:1:c é").write_text("apple\n")
    assert await use(grep, home, pattern="apple") == "./docs/a\\nb:1:c é:1:apple"
    assert await use(glob, home, pattern="docs/*") == "./docs/a\\nb:1:c é"


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems refuse such names")
async def test_a_name_that_is_no_text_is_shown(home: Path) -> None:
    (home / "docs" / os.fsdecode(b"bad\xff")).write_text("apple\n")
    assert await use(grep, home, pattern="apple") == "./docs/bad\\udcff:1:apple"


@pytest.mark.parametrize("pattern", ["(", "*", "[z-a]", "(?P<a>x)(?P<a>y)", "a{99999999999}", "(" * 3000])
async def test_an_invalid_regular_expression_is_refused_with_its_reason(home: Path, pattern: str) -> None:
    with pytest.raises(ToolFailure, match="The pattern is not a regular expression: "):
        await use(grep, home, pattern=pattern)


@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        (grep, {"pattern": ""}, "pattern has 1 to 10,000 characters"),
        (grep, {"pattern": "x" * 10_001}, "this has 10,001"),
        (grep, {"pattern": "a\0b"}, "NUL"),
        (grep, {"pattern": "x", "glob": "a\0b"}, "NUL"),
        (grep, {"pattern": "x", "-A": -1}, "-A"),
        (grep, {"pattern": "x", "-C": 5000}, "-C"),
        (grep, {"pattern": "x", "output_mode": "lines"}, "output_mode"),
        (glob, {"pattern": ""}, "pattern has 1 to 10,000 characters"),
        (glob, {"pattern": "/etc/*"}, "give the directory as path"),
        (glob, {"pattern": "../*"}, "give the directory as path"),
        (glob, {"pattern": "a/../../*"}, "give the directory as path"),
        (glob, {"pattern": "~/*"}, "give the directory as path"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_anything_runs(
    home: Path, tool: Tool, arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(ToolFailure, match=why):
        asked(tool, home, **arguments)


async def test_a_place_that_can_not_be_searched_is_said_in_a_sentence(tree: Path) -> None:
    for tool in (grep, glob):
        with pytest.raises(ToolFailure, match="missing does not exist"):
            await use(tool, tree, pattern="x", path="missing")
        with pytest.raises(ToolFailure, match="src/pipe is not a file"):
            await use(tool, tree, pattern="x", path="src/pipe")
    with pytest.raises(ToolFailure, match=r"a\.txt is not a directory"):
        await use(glob, tree, pattern="x", path="a.txt")


# Bounds


async def test_a_pattern_that_would_take_for_ever_is_ended_and_what_was_found_is_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SEARCH_SECONDS", 0.1)
    monkeypatch.setattr(search, "LATE_SECONDS", 1.0)
    (home / "docs" / "1.txt").write_text("ab\n")
    (home / "docs" / "2.txt").write_text("a" * 60 + "b\n")
    with pytest.raises(ToolFailure, match=r"longer than 0\.1 seconds and was ended. Use a simpler pattern"):
        await use(grep, home, pattern="^(a+)+$", path="docs")
    before = open_files()
    shown = await use(grep, home, pattern="^((a+)+|ab)$", path="docs")
    assert shown == "docs/1.txt:1:ab\n(The search took longer than 0.1 seconds and was ended; there may be more)"
    assert open_files() == before


async def test_the_loop_goes_on_while_a_pattern_takes_for_ever(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process it could not: an expression holds up every thread."""
    monkeypatch.setattr(search, "SEARCH_SECONDS", 0.1)
    monkeypatch.setattr(search, "LATE_SECONDS", 0.5)
    (home / "a.txt").write_text("a" * 60 + "b\n")
    searching = asyncio.create_task(use(grep, home, pattern="^(a+)+$"))
    turns = 0
    while not searching.done():
        await asyncio.sleep(0.005)
        turns += 1
    assert turns > 20
    assert isinstance(searching.exception(), ToolFailure)


async def test_a_search_that_is_stopped_is_gone_and_never_knew_a_secret(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    (home / "a.txt").write_text("a" * 60 + "b\n")
    searching = asyncio.create_task(use(grep, home, pattern="^(a+)+$", glob="{the-one-that-is-stopped,*}"))
    await comes_true(lambda: bool(programs("the-one-that-is-stopped")))
    (seeker,) = programs("the-one-that-is-stopped")
    if sys.platform == "linux":
        environment = Path(f"/proc/{seeker}/environ").read_bytes()  # noqa: ASYNC240
        assert b"PATH=" in environment
        assert b"sk-secret" not in environment
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    assert not is_alive(seeker)


async def test_a_search_that_runs_out_of_time_says_that_there_may_be_more(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SEARCH_SECONDS", 0.0)
    shown = await use(glob, tree, pattern="**")
    assert shown == "No files matched the pattern.\n(not all of it was searched: 0 seconds had passed)"


def test_both_search_under_uvloop_too(tree: Path) -> None:
    async def both() -> tuple[str, str]:
        return await use(grep, tree, pattern="import"), await use(glob, tree, pattern="src/*.ts")

    assert event_loop.run(both()) == ("./src/index.ts:1:import x", "./src/index.ts")


# glob


@pytest.mark.parametrize(
    ("asked_for", "found"),
    [
        ({"pattern": "*"}, ["./a.txt", "./binary"]),
        ({"pattern": "**/*.ts"}, ["./src/index.ts"]),
        ({"pattern": "./**/*.ts"}, ["./src/index.ts"]),
        ({"pattern": "*.ts"}, ["No files matched the pattern."]),
        ({"pattern": "src/**/*.{ts,py}"}, ["./src/deep/pear.py", "./src/index.ts"]),
        ({"pattern": "src/**"}, ["./src/deep/pear.py", "./src/index.ts"]),
        ({"pattern": "**/[p-z]ear.??"}, ["./src/deep/pear.py"]),
        ({"pattern": "*.ts", "path": "src"}, ["src/index.ts"]),
        ({"pattern": "*.ts", "path": "src/"}, ["src/index.ts"]),
        ({"pattern": "node_modules/*.ts"}, ["./node_modules/apple.ts"]),
    ],
)
async def test_files_are_found_by_name(tree: Path, asked_for: dict[str, Any], found: list[str]) -> None:
    """A link is not one of them, and nothing is found through one: `to_parent`, `src/up`, `to_docs`."""
    assert sorted((await use(glob, tree, **asked_for)).splitlines()) == sorted(found)


async def test_the_newest_files_come_first_and_the_rest_is_counted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, name in enumerate(["b", "d", "a", "c"]):
        (home / "docs" / name).touch()
        os.utime(home / "docs" / name, (1_000_000 - age, 1_000_000 - age))
    assert await use(glob, home, pattern="*", path="docs") == "docs/b\ndocs/d\ndocs/a\ndocs/c"
    monkeypatch.setattr(search, "MAX_FILES", 2)
    assert await use(glob, home, pattern="*", path="docs") == "docs/b\ndocs/d\n(2 older files are left out)"


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("*.py", ["a.py", ".py"], ["a/b.py", "a.pyc"]),
        ("**/a", ["a", "x/a", "x/y/a"], ["xa", "x/ya"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a"]),
        ("a?c", ["abc"], ["a/c", "ac"]),
        ("[!a]b", ["cb"], ["ab"]),
        ("[]]", ["]"], ["["]),
        ("[a", ["[a"], ["a"]),
        ("{a,b/c}.x", ["a.x", "b/c.x"], ["b.x"]),
        ("{a,{b,c}}", ["a", "b", "c"], ["d"]),
        ("a}", ["a}"], ["a"]),
        ("a,b", ["a,b"], ["a"]),
        (r"\*", ["*"], ["a"]),
        ("a.b+(c)|^$", ["a.b+(c)|^$"], ["aXb+(c)|^$"]),
        ("é*\n", ["éa\n"], ["éa"]),
    ],
)
def test_patterns_of_names(pattern: str, fits: list[str], does_not: list[str]) -> None:
    wanted = glob_regex(pattern)
    assert [name for name in fits if not wanted.fullmatch(name)] == []
    assert [name for name in does_not if wanted.fullmatch(name)] == []


async def test_braces_that_are_not_closed_are_refused(home: Path) -> None:
    with pytest.raises(ToolFailure, match=r"The pattern \{a,b has a \{ without its \}"):
        await use(glob, home, pattern="{a,b")


async def test_a_search_stays_in_its_directory_when_the_path_is_replaced(home: Path) -> None:
    (home / "docs" / "inside.txt").touch()
    with opened(resolve("docs", home)) as root:
        (home / "docs").rename(home / "was_docs")
        (home / "docs").symlink_to(home.parent)
        asked_for = {"do": "glob", "pattern": "**", "limit": 9, "root": root, "base": "docs", "seconds": 9.0}
        assert await search.run_search(asked_for) == "docs/inside.txt"
