"""Tests that are told of a file, taken over for a database that is shared: what they say must hold there as well."""

import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

Test = Callable[..., Any]

_NAME = re.compile(r"test_fault_(\d+)_.+")


def those_of(module: ModuleType, *faults: int, but: tuple[str, ...] = ()) -> Iterator[tuple[str, Test]]:
    """The tests of these faults by their names, without those that begin with one of `but`."""
    unused = set(but)
    for name, found in vars(module).items():
        named = _NAME.fullmatch(name)
        if named is None or int(named[1]) not in faults:
            continue
        left_out = [start for start in but if name.startswith(start)]
        unused.difference_update(left_out)
        if not left_out:
            yield name, found
    assert not unused, f"there is no such test: {unused}"
