"""`python -m bench` and the pages: a partial run leaves the published ones alone; a kept report gives the same page."""

import json
from pathlib import Path

import pytest

from bench.pages import PUBLISHED
from bench.processes import ROOT
from tests.bench.test_bench import LAX, bench, command


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a tiny run, with the page that the same run wrote beside it."""
    folder = tmp_path_factory.mktemp("kept")
    page_in(folder)
    measured = ("--runs", "2", "--only", "idle", "--strictness", LAX, "--json", folder / "report.json")
    done = bench(*measured, "--page", folder / "page.md")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{folder / 'page.md'} is written." in done.stdout
    return folder


def page_in(folder: Path) -> Path:
    page = folder / "page.md"
    page.write_text((ROOT / PUBLISHED[0]).read_text(encoding="utf-8"), encoding="utf-8")
    return page


def test_a_page_made_from_a_kept_report_is_the_page_that_its_run_wrote(kept: Path, tmp_path: Path) -> None:
    page = page_in(tmp_path)
    done = command("--from", kept / "report.json", "--page", page)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[idle_memory]" in done.stdout
    assert page.read_text(encoding="utf-8") == (kept / "page.md").read_text(encoding="utf-8")
    (line,) = json.loads((kept / "report.json").read_bytes())["lines"]
    (row,) = [found for found in page.read_text(encoding="utf-8").splitlines() if found.endswith("| `idle_memory` |")]
    assert f"| {line['median']:.1f} ± " in row
    assert "**Not a full run**: the run measured only idle." in page.read_text(encoding="utf-8")


def test_the_report_of_a_partial_run_does_not_write_the_published_pages(kept: Path) -> None:
    before = [(ROOT / name).read_bytes() for name in PUBLISHED]
    done = command("--from", kept / "report.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"{name} is not written: the run measured only idle." in done.stdout for name in PUBLISHED)
    assert [(ROOT / name).read_bytes() for name in PUBLISHED] == before


def test_a_partial_run_says_that_it_does_not_write_the_published_pages() -> None:
    before = [(ROOT / name).read_bytes() for name in PUBLISHED]
    done = bench("--runs", "1", "--only", "import", "--strictness", LAX)
    assert all(f"{name} is not written: the run measured only import." in done.stdout for name in PUBLISHED)
    assert [(ROOT / name).read_bytes() for name in PUBLISHED] == before


def test_without_a_page_nothing_is_said_about_it(kept: Path) -> None:
    done = command("--from", kept / "report.json", "--no-page")
    assert "written" not in done.stdout


@pytest.mark.parametrize("name", PUBLISHED)
def test_page_refuses_to_name_a_published_page(name: str) -> None:
    done = bench("--only", "import", "--page", name)
    assert done.returncode == 2
    assert "no other run may" in done.stderr


@pytest.mark.parametrize("text", [None, "No markers."])
def test_a_page_that_can_t_be_written_is_refused_before_anything_is_measured(text: str | None, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    if text is not None:
        page.write_text(text, encoding="utf-8")
    done = bench("--only", "import", "--page", page)
    assert done.returncode == 2
    assert "can't be written" in done.stderr
    assert "run 1" not in done.stderr


def test_a_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text('{"lines": []}', encoding="utf-8")
    done = command("--from", file)
    assert done.returncode == 2
    assert "Could not be read" in done.stderr


def test_a_kept_report_takes_no_options_of_measuring(kept: Path) -> None:
    done = command("--from", kept / "report.json", "--only", "idle")
    assert done.returncode == 2
    assert "--from measures nothing" in done.stderr
