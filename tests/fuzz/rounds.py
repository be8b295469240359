"""Runs one fuzzer in rounds of many examples until its time is up, or until it finds something."""

import asyncio
import functools
import inspect
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from hypothesis import HealthCheck, settings

PROFILE: Final = "fuzz"

EXAMPLES_IN_A_ROUND: Final = 1_000
"""A round is finished once it has begun, so it has to be short beside the time of a run. A fuzzer with settings of its
own has rounds of its own size."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    examples: int
    seconds: float
    finding: BaseException | None

    @property
    def examples_per_minute(self) -> float:
        return 60 * self.examples / max(self.seconds, 0.001)


def load_profile() -> None:
    """To be called before the fuzzers are imported: a test takes its settings when it is made."""
    settings.register_profile(
        PROFILE,
        max_examples=EXAMPLES_IN_A_ROUND,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile(PROFILE)


def run(fuzzer: Callable[..., Any], *, seconds: float) -> Report:
    """At least one round. A finding has the smallest example in its notes, and is tried first in the next run."""
    handle: Any = fuzzer.hypothesis  # type: ignore[attr-defined]
    inner = handle.inner_test
    examples = 0
    with asyncio.Runner() as runner:

        @functools.wraps(inner)
        def counted(*arguments: Any, **named: Any) -> None:
            nonlocal examples
            examples += 1
            outcome = inner(*arguments, **named)
            if inspect.iscoroutine(outcome):
                runner.run(outcome)

        started = time.monotonic()
        finding: BaseException | None = None
        handle.inner_test = counted
        try:
            while finding is None:
                finding = _round(fuzzer)
                if time.monotonic() - started >= seconds:
                    break
        finally:
            handle.inner_test = inner
    return Report(examples=examples, seconds=time.monotonic() - started, finding=finding)


def _round(fuzzer: Callable[..., Any]) -> BaseException | None:
    try:
        fuzzer()
    except Exception as finding:
        return finding
    except BaseExceptionGroup as findings:
        return findings
    return None
