"""A strict parser of the Prometheus text format: it asserts on everything that the format does not allow."""

import math
import re
from typing import NamedTuple

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = re.compile(r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
_SAMPLE = re.compile(rf"(?P<name>{_NAME})(?:\{{(?P<labels>.*)\}})? (?P<value>\S+)")
_KINDS = ("counter", "gauge", "histogram")
_SUFFIXES = ("_bucket", "_sum", "_count")


class Sample(NamedTuple):
    name: str
    labels: tuple[tuple[str, str], ...]


class Page:
    """The samples by name and labels, and the families by name."""

    def __init__(self, text: str) -> None:
        assert text.endswith("\n"), "the last line has no line break"
        self.kinds: dict[str, str] = {}
        self.samples: dict[Sample, float] = {}
        self._helped: set[str] = set()
        self._family = ""
        for line in text[:-1].split("\n"):
            self._take(line)
        for family, kind in self.kinds.items():
            if kind == "histogram":
                self._check_histogram(family)

    def figure(self, name: str, **labels: str) -> float:
        """The sample with exactly these labels; 0 if there is none, as a sum over samples would have it."""
        return self.samples.get(Sample(name, tuple(sorted(labels.items()))), 0.0)

    def labels(self, name: str, label: str) -> set[str]:
        return {dict(sample.labels)[label] for sample in self.samples if sample.name == name}

    def _take(self, line: str) -> None:
        if line.startswith("# HELP "):
            _, _, name, meaning = line.split(" ", 3)
            assert re.fullmatch(_NAME, name)
            assert meaning.strip()
            assert name not in self._helped, f"{name} has two HELP lines"
            self._helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name in self._helped
            assert name not in self.kinds
            assert kind in _KINDS
            assert name.endswith("_total") == (kind == "counter"), f"{name} is a {kind}"
            self.kinds[name] = kind
            self._family = name
        else:
            self._sample(line)

    def _sample(self, line: str) -> None:
        found = _SAMPLE.fullmatch(line)
        assert found is not None, line
        name = found["name"]
        ending = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), "")
        family = name.removesuffix(ending) if self.kinds[self._family] == "histogram" else name
        assert family == self._family, f"{name} stands among the lines of {self._family}"
        sample = Sample(name, tuple(sorted(_labels(found["labels"] or "").items())))
        assert sample not in self.samples, f"{line} comes twice"
        value = float(found["value"])
        assert not math.isnan(value)
        assert value >= 0
        self.samples[sample] = value

    def _check_histogram(self, family: str) -> None:
        buckets = [
            (float(dict(sample.labels)["le"]), count)
            for sample, count in self.samples.items()
            if sample.name == f"{family}_bucket"
        ]
        assert buckets == sorted(buckets), "bounds and counts both rise"
        assert buckets[-1] == (math.inf, self.figure(f"{family}_count"))
        assert Sample(f"{family}_sum", ()) in self.samples


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _LABEL.match(text, at)
        assert found is not None, text
        assert found["name"] not in labels
        labels[found["name"]] = re.sub(r"\\(.)", lambda sign: "\n" if sign[1] == "n" else sign[1], found["value"])
        at = found.end()
    return labels
