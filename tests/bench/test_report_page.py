"""The page of a report: pure, from invented figures; then the published pages as they are."""

import re
from pathlib import Path

import msgspec
import pytest

from bench.bars import LINES, MIN_RUNS, Line
from bench.calibration import Machine
from bench.headlines import HEADLINES
from bench.pages import PUBLISHED, write_published
from bench.place import Measured
from bench.processes import ROOT
from bench.report import Report, Scope, judge_again, judge_all, why_partial
from bench.report_page import BLOCKS, NOT_MEASURED, MarkersBroken, blocks_of, row, with_figures
from bench.sections import SECTIONS, section_of

REFERENCE = Machine(
    calibration_ms=10,
    calibration_cpu_ms=10,
    processor="abacus",
    cores=2,
    python="3.11.7",
    sqlite="3.40.1",
    commit_p50_ms=0.5,
)
SLOWER = msgspec.structs.replace(REFERENCE, calibration_ms=20.0, calibration_cpu_ms=20.0)

NAMED = {line.name: line for line in LINES}


def report(scope: Scope | None = None, *, without: str = "", figure: float = 1.5) -> Report:
    """A run on a machine that is half as fast as the reference; every line has the same figure."""
    scope = scope or Scope()
    runs: dict[str, list[Measured]] = {}
    for line in LINES:
        figures = {each.name: figure for each in LINES if each.probe == line.probe and each.name != without}
        measured = Measured(
            figures=figures, calibration_ms=20, calibration_cpu_ms=20, commit_p50_ms=0.5, commit_p99_ms=1
        )
        runs[line.probe] = [measured] * scope.runs
    return judge_all(runs, {}, scope=scope, machine=SLOWER, reference=REFERENCE)


def page(*names: str) -> str:
    return "\n".join(["Before.", *(f"<!-- bench:{name} -->\nold\n<!-- /bench -->\nAfter {name}." for name in names)])


def written(text: str, given: Report) -> str:
    return with_figures(text, given, reference=REFERENCE)


def rows_of(text: str) -> dict[str, list[str]]:
    """The cells of every row that names a line, by that name."""
    cells = [re.split(r" \| ", found[2:-2]) for found in text.splitlines() if re.fullmatch(r"\| .* \| `\w+` \|", found)]
    return {found[-1].strip("`"): found[:-1] for found in cells}


def copy_published(root: Path) -> None:
    for name in PUBLISHED:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes((ROOT / name).read_bytes())


def block(text: str, name: str) -> str:
    return text.partition(f"<!-- bench:{name} -->")[2].partition("<!-- /bench -->")[0]


def test_the_text_around_the_markers_is_kept() -> None:
    found = written(page(*BLOCKS), report())
    assert "\nold\n" not in found
    outside = re.split(r"<!-- bench:\w+ -->.*?<!-- /bench -->", found, flags=re.DOTALL)
    assert outside == ["Before.\n", *(f"\nAfter {name}.\n" for name in BLOCKS[:-1]), f"\nAfter {BLOCKS[-1]}."]


def test_writing_the_same_report_again_changes_nothing() -> None:
    once = written(page(*BLOCKS), report())
    assert written(once, report()) == once


def test_every_line_is_in_its_section_once() -> None:
    found = written(page(*SECTIONS), report())
    for section in SECTIONS:
        assert list(rows_of(block(found, section))) == [line.name for line in LINES if section_of(line) == section]


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("turn_200_cpu", ["≤ 8 ms; here 16.0 ms", "1.50 ± 0.00 ms", "met"]),
        ("turn_200_rate", ["≥ 120 /s; here 60.0 /s", "1.50 ± 0.00 /s", "MISSED"]),
        ("first_chunk", ["≤ 2 ms + 3 commits; here 5.50 ms", "1.50 ± 0.00 ms", "met"]),
        ("paced_token_cpu", ["-", "1.50 ± 0.00 µs", "-"]),
        ("http_stream_20", ["≥ 0.8, goal 1", "1.50 ± 0.00", "met"]),
        ("idle_memory", ["≤ 60 MB", "1.50 ± 0.00 MB", "met"]),
        ("page_scroll_frame", ["≤ 50 ms on any machine, or as an empty page", "1.50 ± 0.00 ms", "met"]),
        ("page_input_p99", ["≤ 100 ms on any machine", "1.50 ± 0.00 ms", "met"]),
    ],
)
def test_a_row_has_the_bar_the_bar_here_the_figure_and_the_verdict(name: str, cells: list[str]) -> None:
    assert rows_of(written(page(*SECTIONS), report()))[name] == [NAMED[name].what, *cells]


def test_a_line_that_was_measured_once_has_no_spread() -> None:
    found = rows_of(written(page(*SECTIONS), report(Scope(runs=1))))
    assert found["page_bytes"][2] == "1.50 KB, one run"


def test_large_figures_have_separators_and_small_ones_no_exponent() -> None:
    assert rows_of(written(page("http"), report(figure=61_234.5)))["http_tokens_20"][2] == "61,234 ± 0 /s"
    assert rows_of(written(page("commands"), report(figure=0.00004)))["command_memory"][2] == "0.000 ± 0.000 MB"


def test_a_line_without_a_figure_says_so() -> None:
    found = written(page("embedded", "headlines"), report(without="long_session"))
    assert rows_of(found)["long_session"][1:] == ["≤ 1.3", NOT_MEASURED, "-"]
    assert f"| {HEADLINES[-1].what} | {NOT_MEASURED} |" in found


def test_the_machine_and_the_number_of_runs_are_named() -> None:
    assert block(written(page("machine"), report()), "machine").split("\n") == [
        "",
        "",
        "Medians of 7 interleaved runs on abacus, 2 cores, Python 3.11.7, SQLite 3.40.1.",
        "Calibration loop: 20.0 ms, 20.0 ms of CPU; the bars are stated for 10.0 and 10.0 ms.",
        "Raw commit, p50: 0.50 ms.",
        "",
        "",
    ]
    assert "**Not a full run**" in written(page("machine"), report(Scope(runs=1)))


@pytest.mark.parametrize(
    "text",
    [
        "No markers.",
        "<!-- bench:http -->\n",
        "<!-- /bench -->\n" + page("http"),
        "<!-- bench:http -->\n" + page("http"),
        page("http") + "\n<!-- bench:page -->",
        page("nowhere"),
        page("http") + "\n<!-- bench: page -->\n<!-- /bench -->",
    ],
)
def test_broken_markers_are_refused(text: str) -> None:
    with pytest.raises(MarkersBroken):
        written(text, report())


@pytest.mark.parametrize(
    ("scope", "reason"),
    [
        (Scope(only=["http"]), "the run measured only http"),
        (Scope(quick=True), "a quick run measures tiny sizes"),
        (Scope(runs=MIN_RUNS - 1), "the bars are stated for 7 runs, and there were 6"),
        (Scope(strictness=2), "the bars were made 2 times as strict"),
        (Scope(), None),
        (Scope(runs=MIN_RUNS + 1), None),
    ],
)
def test_only_a_full_run_writes_the_published_pages(scope: Scope, reason: str | None, tmp_path: Path) -> None:
    copy_published(tmp_path)
    given = report(scope)
    assert why_partial(scope) == reason
    said = list(write_published(given, reference=REFERENCE, root=tmp_path))
    for name, about in zip(PUBLISHED, said, strict=True):
        before, after = ((root / name).read_text(encoding="utf-8") for root in (ROOT, tmp_path))
        assert about == (f"{name} is written." if reason is None else f"{name} is not written: {reason}.")
        assert after == (written(before, given) if reason is None else before)
        assert (after == before) == (reason is not None)


def test_a_full_run_that_could_not_measure_a_line_says_which_figure_the_pages_lack(tmp_path: Path) -> None:
    copy_published(tmp_path)
    said = list(write_published(report(without="page_bytes"), reference=REFERENCE, root=tmp_path))
    assert said == [f"{name} is written, without a figure for page_bytes." for name in PUBLISHED]
    assert rows_of((tmp_path / PUBLISHED[0]).read_text(encoding="utf-8"))["page_bytes"][2:] == [NOT_MEASURED, "-"]


def test_a_kept_report_follows_the_bars_as_they_are_now() -> None:
    kept = msgspec.json.decode(msgspec.json.encode(report()), type=Report)
    older = msgspec.structs.replace(kept, lines=[], not_measured=["a line that is gone"])
    assert judge_again(older, reference=REFERENCE) == report()


def test_a_line_that_is_newer_than_a_kept_report_is_not_measured_yet() -> None:
    kept = msgspec.structs.replace(report(without="page_bytes"), bounded_not_measured=[])
    again = judge_again(kept, reference=REFERENCE)
    assert again.bounded_not_measured == []
    assert rows_of(written(page("page"), again))["page_bytes"][2] == NOT_MEASURED


@pytest.fixture
def published() -> str:
    return (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


def test_the_published_page_has_the_machine_and_every_section(published: str) -> None:
    assert sorted(blocks_of(published)) == sorted(["machine", *SECTIONS])


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_the_published_page_states_every_line_with_its_bar(line: Line, published: str) -> None:
    """A new line or another bar: copy the row of this message; the next full run fills it in."""
    expected = row(line, None)
    found = rows_of(block(published, section_of(line))).get(line.name)
    assert found is not None, expected
    what, bar, *_ = found
    assert [what, bar.partition("; here")[0]] == rows_of(expected)[line.name][:2], expected


def test_the_published_page_names_only_lines_that_exist(published: str) -> None:
    tables = [found for found in published.splitlines() if found.startswith("| ") and not found.startswith("| | ")]
    assert sorted(rows_of(published)) == sorted(NAMED)
    assert len(tables) == len(NAMED)


def test_a_published_figure_has_a_verdict_if_its_line_has_a_bar(published: str) -> None:
    for name, (_, _, figure, verdict) in rows_of(published).items():
        judged = figure != NOT_MEASURED and NAMED[name].has_bar
        assert verdict in (("met", "MISSED") if judged else ("-",)), name


def test_the_readme_quotes_figures_of_the_published_page(published: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert blocks_of(readme) == ["headlines"]
    figures = {name: cells[2] for name, cells in rows_of(published).items()}
    quotes = re.findall(r"^\| (\S.*?) \| (.*) \|$", block(readme, "headlines"), re.MULTILINE)
    assert quotes == [
        (headline.what, quote([figures[name] for name in headline.lines], unit=NAMED[headline.lines[0]].unit))
        for headline in HEADLINES
    ]


def quote(figures: list[str], *, unit: str) -> str:
    if NOT_MEASURED in figures:
        return NOT_MEASURED
    return f"{' / '.join(figure.split(' ')[0] for figure in figures)} {unit}"


def test_headlines_quote_lines_of_one_unit() -> None:
    for headline in HEADLINES:
        assert len({NAMED[name].unit for name in headline.lines}) == 1, headline
