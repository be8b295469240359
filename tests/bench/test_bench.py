"""`python -m bench` as it is run, at tiny sizes: every line is measured, in order, and a miss is an exit code.

How long anything takes is nobody's business here: the bars are made absurdly lax or absurdly strict.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.bars import LINES
from bench.calibration import reference
from bench.processes import ROOT
from bench.report import Scope, judge_all
from bench.sections import names_of

LAX, STRICT = "1e-9", "1e9"

FETCHED = "http_peers"
"""Skipped here because it needs a download: no test may need a network."""

PAGE = "page_"
"""These need a browser, and have tests of their own."""


def command(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "bench", *map(str, arguments)]
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, check=False)


def bench(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return command("--quick", *arguments, **environ)


@pytest.mark.slow
def test_every_line_can_be_measured(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    lines = [line for line in LINES if line.probe != FETCHED and not line.probe.startswith(PAGE)]
    asked = [word for probe in sorted({line.probe for line in lines}) for word in ("--only", probe)]
    done = bench("--runs", "1", "--strictness", LAX, "--json", report, *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(report.read_bytes())
    assert [line["name"] for line in found["lines"]] == [line.name for line in lines]
    assert found["not_measured"] == []
    for line in found["lines"]:
        assert line["runs"] == 1
        assert math.isfinite(line["median"])
        assert line["verdict"] in ("met", "reported")
    assert all(f"[{line.name}]" in done.stdout for line in lines)
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


def test_peers_that_can_t_be_installed_are_a_miss_and_the_rest_is_measured(tmp_path: Path) -> None:
    nowhere = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(tmp_path)}
    asked = ("--runs", "1", "--only", FETCHED, "--only", "import", "--strictness", LAX)
    done = bench(*asked, "--peers", tmp_path / "peers", **nowhere)
    assert done.returncode == 1, done.stdout + done.stderr
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("COULD NOT BE PREPARED")]
    assert FETCHED in said
    assert "PeersMissing" in said
    missing = [line.what for line in LINES if line.probe == FETCHED]
    assert all(f"NOT MEASURED: {what}" in done.stdout for what in missing)
    (row,) = [line for line in done.stdout.splitlines() if "[import]" in line]
    assert row.endswith("met")


def test_a_bar_that_no_run_could_measure_is_not_passed_over() -> None:
    bounded = next(line for line in LINES if line.name == "http_stream_20")
    reported = next(line for line in LINES if line.name == "http_tokens_20")
    scope = Scope(only=[bounded.name, reported.name])
    report = judge_all({"http_streams": []}, {}, scope=scope, machine=None, reference=reference())
    assert report.not_measured == [bounded.what, reported.what]
    assert report.bounded_not_measured == [bounded.name]


def test_a_section_is_all_of_its_lines() -> None:
    named = {line.name for line in LINES if "http" in names_of(line)}
    assert named == {line.name for line in LINES if line.name.startswith("http_")}
    assert "http_stream_20" in named
    assert {"turns", "waiting"} <= {line.probe for line in LINES if "embedded" in names_of(line)}


def test_a_name_that_is_no_line_is_refused() -> None:
    done = bench("--only", "imports")
    assert done.returncode == 2
    assert "invalid choice" in done.stderr
