"""The figures of the page, at tiny sizes, in a real browser; where there is none, it is said that they are missing."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench import page
from bench.bars import LINES
from tests.bench.test_bench import LAX, bench
from tests.web import chromium

PAGE = [line for line in LINES if line.probe.startswith("page_")]


@pytest.mark.slow
def test_every_line_of_the_page_can_be_measured(tmp_path: Path) -> None:
    if chromium.found() is None:
        pytest.skip("THE PAGE IS NOT TESTED: no chromium is installed")
    report = tmp_path / "report.json"
    done = bench("--runs", "1", "--strictness", LAX, "--only", "page", "--json", report)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(report.read_bytes())
    assert [line["name"] for line in found["lines"]] == [line.name for line in PAGE]
    assert all(math.isfinite(line["median"]) for line in found["lines"])


def test_without_a_browser_the_page_is_not_measured_and_that_is_no_pass(tmp_path: Path) -> None:
    done = bench("--runs", "1", "--strictness", LAX, "--only", "page", PATH=str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert all(f"NOT MEASURED: {line.what}. This is not a pass." in done.stdout for line in PAGE)


def test_the_browser_is_looked_for_under_the_names_that_the_tests_know() -> None:
    assert page.chromium() == chromium.found()
