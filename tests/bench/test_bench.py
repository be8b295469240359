"""`python -m bench` as it is run, at tiny sizes: every line is measured, in order, and a miss is an exit code.

How long anything takes is nobody's business here: the bars are made absurdly lax or absurdly strict.
"""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.bars import LINES
from bench.processes import ROOT

LAX, STRICT = "1e-9", "1e9"


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "--quick", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_every_line_can_be_measured(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = bench("--runs", "1", "--strictness", LAX, "--json", report)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(report.read_bytes())
    assert [line["name"] for line in found["lines"]] == [line.name for line in LINES]
    assert found["not_measured"] == []
    for line in found["lines"]:
        assert line["runs"] == 1
        assert math.isfinite(line["median"])
        assert line["verdict"] in ("met", "reported")
    assert all(f"[{line.name}]" in done.stdout for line in LINES)
    assert "Calibration loop" in done.stdout


def test_runs_are_interleaved() -> None:
    done = bench("--runs", "2", "--only", "idle", "--only", "import", "--strictness", LAX)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.removesuffix(" …") for line in done.stderr.splitlines() if line.startswith("run ")]
    assert said == ["run 1 of 2: idle", "run 1 of 2: startup", "run 2 of 2: idle", "run 2 of 2: startup"]


def test_a_miss_exits_with_one_and_says_which() -> None:
    done = bench("--runs", "1", "--only", "import", "--strictness", STRICT)
    assert done.returncode == 1, done.stdout + done.stderr
    (row,) = [line for line in done.stdout.splitlines() if "[import]" in line]
    assert row.endswith("MISSED")


def test_a_name_that_is_no_line_is_refused() -> None:
    done = bench("--only", "imports")
    assert done.returncode == 2
    assert "invalid choice" in done.stderr
