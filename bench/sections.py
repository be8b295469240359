"""Sections: lines that belong together, on the page and for `--only`. Pure."""

from collections.abc import Collection

from bench.bars import LINES, Line

EMBEDDED = "embedded"

SECTIONS = (EMBEDDED, "copilot", "commands", "http", "cluster", "page")


def section_of(line: Line) -> str:
    """The section that the name of the line's probe begins with; without one, the line is about a single process."""
    first = line.probe.partition("_")[0]
    return first if first in SECTIONS else EMBEDDED


def names_of(line: Line) -> set[str]:
    """The names that select this line in `--only`."""
    return {line.name, line.probe, section_of(line)}


def selected(only: Collection[str]) -> list[Line]:
    """The lines that these names select; without any name, all of them."""
    return [line for line in LINES if not only or names_of(line) & set(only)]
