"""Metrics in the text format of Prometheus, with label values escaped and bounded."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

MAX_LABEL_CHARACTERS: Final = 100

OTHER: Final = "(other)"
"""The label value of all names that have no line of their own."""

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Histogram:
    """Counts durations by bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, figure: float) -> None:
        self._counts[bisect_left(self._bounds, figure)] += 1
        self._sum += figure

    def lines(self, name: str, meaning: str) -> Iterator[str]:
        yield from _head(name, "histogram", meaning)
        for bound, count in zip((*self._bounds, "+Inf"), accumulate(self._counts), strict=True):
            le = bound if isinstance(bound, str) else f"{bound:g}"
            yield f'{name}_bucket{{le="{le}"}} {count}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {sum(self._counts)}"


class Labels:
    """Label values for names that come from outside. Only the known names and `more` others get a line of their own;
    the rest share `OTHER`, so that clients can't grow the number of lines without bound."""

    def __init__(self, known: Iterable[str], *, more: int = 0) -> None:
        self._known = {name: _clean(name) for name in known}
        self._room = more

    def of(self, name: str) -> str:
        label = self._known.get(name)
        if label is None:
            if self._room <= 0:
                return OTHER
            self._room -= 1
            label = self._known[name] = _clean(name)
        return label


def counter(name: str, meaning: str, samples: Mapping[tuple[str, ...], float], labels: Sequence[str]) -> Iterator[str]:
    """A counter with one line for each set of label values in `samples`."""
    yield from _head(name, "counter", meaning)
    for values, figure in sorted(samples.items()):
        yield f"{name}{_labelled(labels, values)} {_figure(figure)}"


def single(name: str, meaning: str, figure: float) -> Iterator[str]:
    """A metric without labels: a counter if its name ends in `_total`, else a gauge."""
    yield from _head(name, "counter" if name.endswith("_total") else "gauge", meaning)
    yield f"{name} {_figure(figure)}"


def _head(name: str, kind: Kind, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _labelled(names: Sequence[str], values: Sequence[str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in zip(names, values, strict=True)) + "}"


def _figure(figure: float) -> str:
    return str(figure) if isinstance(figure, int) else repr(float(figure))


def _clean(name: str) -> str:
    """The name as a label value: printable, not too long, and escaped."""
    short = name[:MAX_LABEL_CHARACTERS]
    return "".join(letter if letter.isprintable() else "�" for letter in short).translate(_ESCAPES)
