"""Figures as text that Prometheus reads, and names that are safe to stand in it."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

MAX_LABEL_CHARACTERS: Final = 100

OTHER: Final = "(other)"
"""The label of whatever has no line of its own."""

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Histogram:
    """How often something took how long."""

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
    """Names that come from outside, as labels. Only so many get a line of their own, whatever anybody calls things."""

    def __init__(self, known: Iterable[str], *, more: int = 0) -> None:
        self._known = {name: _clean(name) for name in known}
        self._room = more

    def of(self, name: str) -> str:
        found = self._known.get(name)
        if found is None:
            if self._room <= 0:
                return OTHER
            self._room -= 1
            found = self._known[name] = _clean(name)
        return found


def counter(name: str, meaning: str, samples: Mapping[tuple[str, ...], float], labels: Sequence[str]) -> Iterator[str]:
    """A counter with a line for each set of labels that was seen."""
    yield from _head(name, "counter", meaning)
    for values, figure in sorted(samples.items()):
        yield f"{name}{_labelled(labels, values)} {_figure(figure)}"


def single(name: str, meaning: str, figure: float) -> Iterator[str]:
    """One figure: a counter if its name says so, else a gauge."""
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
    """Printable, not too long, and escaped."""
    shown = name[:MAX_LABEL_CHARACTERS]
    return "".join(letter if letter.isprintable() else "�" for letter in shown).translate(_ESCAPES)
