"""The fuzzers by name: each is a Hypothesis test without fixtures, which the suite runs for a moment where it stands
and `make fuzz` runs for as long as it is told.

To add one, write the test beside those of its parser and add a line here.
"""

from collections.abc import Callable
from typing import Any, Final

from tests.session.test_permissions import test_no_rule_however_odd_breaks_a_decision

Fuzzer = Callable[..., Any]

FUZZERS: Final[dict[str, Fuzzer]] = {
    "rules": test_no_rule_however_odd_breaks_a_decision,
}
