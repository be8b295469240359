"""The page that shows a report: tables between the markers of a text, and the text around them as it was. Pure.

    <!-- bench:http -->
    … the table of the section `http` …
    <!-- /bench -->

`bench:machine` marks the machine and the number of runs, `bench:headlines` the few figures that the README quotes.
"""

import re

from bench.bars import LINES, UNIT_SIGNS, Judged, Line, stated
from bench.calibration import Machine
from bench.figure import figure
from bench.headlines import HEADLINES, quoted
from bench.report import Report, why_partial
from bench.sections import SECTIONS, section_of

BLOCKS = ("machine", "headlines", *SECTIONS)

NOT_MEASURED = "not measured yet"

_MARKER = re.compile(r"<!-- /?bench\b.*?-->", re.DOTALL)
_BLOCK = re.compile(r"(?P<start><!-- bench:(?P<name>[a-z]+) -->\n).*?(?P<end><!-- /bench -->)", re.DOTALL)


class MarkersBroken(Exception):
    """The text has no markers, one without its end, or one of a block that does not exist."""


def blocks_of(text: str) -> list[str]:
    """The names of the marked blocks, in their order."""
    found = list(_BLOCK.finditer(text))
    if not found:
        raise MarkersBroken("there is no <!-- bench:NAME --> … <!-- /bench -->")
    for block in found:
        if block["name"] not in BLOCKS:
            raise MarkersBroken(f"bench:{block['name']} is none of {', '.join(BLOCKS)}")
    if len(_MARKER.findall(text)) != 2 * len(found) or any(len(_MARKER.findall(block[0])) != 2 for block in found):
        raise MarkersBroken("every <!-- bench:NAME --> needs one <!-- /bench --> after it, and before the next")
    return [block["name"] for block in found]


def with_figures(text: str, report: Report, *, reference: Machine) -> str:
    """The text with every marked block made anew from the report."""
    blocks_of(text)
    return _BLOCK.sub(
        lambda block: f"{block['start']}\n{_block(block['name'], report, reference)}\n\n{block['end']}", text
    )


def row(line: Line, judged: Judged | None) -> str:
    """One row of a table; without a figure, it says so."""
    if judged is None:
        return _cells(line.what, _signs(stated(line)), NOT_MEASURED, "-", f"`{line.name}`")
    spread = f" ± {figure(judged.spread, like=judged.median)}" if judged.runs > 1 else ""
    median = f"{figure(judged.median)}{spread}{UNIT_SIGNS[line.unit]}{'' if judged.runs > 1 else ', one run'}"
    verdict = "-" if judged.verdict == "reported" else judged.verdict
    return _cells(line.what, _bar(line, judged), median, verdict, f"`{line.name}`")


def _block(name: str, report: Report, reference: Machine) -> str:
    judged = {found.name: found for found in report.lines}
    if name == "machine":
        return _machine(report, reference)
    if name == "headlines":
        said = [_cells(headline.what, quoted(headline, judged) or NOT_MEASURED) for headline in HEADLINES]
        return "\n".join([_cells("", ""), "|---|---|", *said])
    rows = [row(line, judged.get(line.name)) for line in LINES if section_of(line) == name]
    return "\n".join([_cells("", "bar", "median ± spread", "verdict", "line"), "|---|---|---|---|---|", *rows])


def _bar(line: Line, judged: Judged) -> str:
    """The bar as it is stated, and where this machine or this run moved it, the moved one."""
    said = _signs(judged.stated)
    unmoved = line.at_most if line.at_least is None else line.at_least
    if judged.bar is None or unmoved is None or figure(judged.bar) == figure(unmoved):
        return said
    return f"{said}; here {figure(judged.bar)}{UNIT_SIGNS[line.unit]}"


def _machine(report: Report, reference: Machine) -> str:
    machine = report.machine
    if machine is None:
        return "Nothing was measured."
    partial = why_partial(report.scope)
    said = [
        f"Medians of {report.scope.runs} interleaved runs on {machine.processor}, {machine.cores} cores, "
        f"Python {machine.python}, SQLite {machine.sqlite}.",
        f"Calibration loop: {machine.calibration_ms:.1f} ms, {machine.calibration_cpu_ms:.1f} ms of CPU; "
        f"the bars are stated for {reference.calibration_ms:.1f} and {reference.calibration_cpu_ms:.1f} ms.",
        f"Raw commit, p50: {machine.commit_p50_ms:.2f} ms.",
    ]
    return "\n".join(said if partial is None else [f"**Not a full run**: {partial}.", *said])


def _signs(said: str) -> str:
    return said.replace("<=", "≤").replace(">=", "≥")


def _cells(*cells: str) -> str:
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"
