"""Runs the rules that all stores share within a transaction."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

_T = TypeVar("_T")
_F = TypeVar("_F")


async def decided(rule: Generator[_F, Any, _T], look: Callable[[_F], Awaitable[Any]]) -> _T:
    """Run a rule: answer each fact that it asks for."""
    try:
        fact = next(rule)
        while True:
            fact = rule.send(await look(fact))
    except StopIteration as end:
        decision: _T = end.value
        return decision
