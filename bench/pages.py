"""The published pages, docs/performance.md and the README. A full run writes its figures into them; a partial run never
does."""

from collections.abc import Iterable
from pathlib import Path

from bench.calibration import Machine
from bench.processes import ROOT
from bench.report import Report, why_partial
from bench.report_page import with_figures

PUBLISHED = ("docs/performance.md", "README.md")


def write_published(report: Report, *, reference: Machine, root: Path = ROOT) -> Iterable[str]:
    """Write both pages if the run was a full one; yields for each whether it is written."""
    partial = why_partial(report.scope)
    for name in PUBLISHED:
        if partial is None:
            write_page(root / name, report, reference=reference)
            yield f"{name} is written{_gaps(report)}."
        else:
            yield f"{name} is not written: {partial}."


def write_page(page: Path, report: Report, *, reference: Machine) -> None:
    text = page.read_text(encoding="utf-8")
    page.write_text(with_figures(text, report, reference=reference), encoding="utf-8")


def _gaps(report: Report) -> str:
    """The lines with a bar that the page shows without a figure, in words."""
    missing = report.bounded_not_measured
    return f", without a figure for {', '.join(missing)}" if missing else ""


def is_published(page: Path) -> bool:
    return page.resolve() in {(ROOT / name).resolve() for name in PUBLISHED}
