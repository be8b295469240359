"""A tool that writes a line for each of its effects, killed at every point of its life."""

from collections import Counter
from pathlib import Path

import pytest

from proof.crash.journal import Affected, read
from tests.crash.command import campaign


def lines_of(scratch: Path, tool: str) -> Counter[str]:
    """How many lines the tool wrote for each of its calls."""
    (file,) = scratch.glob("*/*/effects")
    return Counter(entry.tool_call_id for entry in read(file) if isinstance(entry, Affected) and entry.tool == tool)


def test_no_kill_in_the_life_of_a_tool_makes_a_second_line() -> None:
    ran = campaign("--scenario", "tools", "--every", jobs=2)
    assert ran.status == 0, ran.output
    assert ran.kills >= 30, ran.output


@pytest.mark.parametrize("tool", ["append_line", "note"])
@pytest.mark.parametrize(("moment", "lines"), [("before", 0), ("after", 1)])
def test_a_tool_that_is_not_repeatable_is_never_run_for_a_call_again(
    tmp_path: Path, tool: str, moment: str, lines: int
) -> None:
    """Killed between its attempt and its result: whether it took effect is unknown, and the model is told so."""
    ran = campaign(
        "--scenario", "tools", "--replay", f"kill@0/tool:{tool}:{moment}#1", "--keep", "--scratch", str(tmp_path)
    )
    assert ran.status == 0, ran.output
    assert sum(lines_of(tmp_path, tool).values()) == lines


def test_a_tool_that_declared_itself_repeatable_runs_again_for_the_same_call(tmp_path: Path) -> None:
    ran = campaign(
        "--scenario", "tools", "--replay", "kill@0/tool:put_line:after#1", "--keep", "--scratch", str(tmp_path)
    )
    assert ran.status == 0, ran.output
    assert list(lines_of(tmp_path, "put_line").values()) == [2]
