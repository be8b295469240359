"""`make verify`: every step runs, the table tells how each ended, and one failure fails the whole."""

import sys
from pathlib import Path

from proof.verify import Step, run, table


def python(name: str, code: str) -> Step:
    return Step(name, (sys.executable, "-c", code))


def test_a_failed_step_does_not_keep_the_next_one_from_running(tmp_path: Path) -> None:
    finished = run(
        [
            python("first", "print('3 kills, 0 violations')"),
            python("second", "raise SystemExit(3)"),
            python("third", "print('done'); print()"),
        ],
        tmp_path,
    )
    assert [(ended.name, ended.passed, ended.last_line) for ended in finished] == [
        ("first", True, "3 kills, 0 violations"),
        ("second", False, ""),
        ("third", True, "done"),
    ]
    assert (tmp_path / "first.log").read_text() == "3 kills, 0 violations\n"


def test_the_table_has_a_row_for_each_step(tmp_path: Path) -> None:
    rows = table(run([python("one", "print('fine')"), python("two", "raise SystemExit(1)")], tmp_path)).splitlines()
    assert [row.split()[0] for row in rows] == ["step", "one", "two"]
    assert rows[1].endswith("fine")
    assert "FAILED (1)" in rows[2]
