"""The fuzzers by name: each is a Hypothesis test without fixtures, which the suite runs for a moment where it stands
and `make fuzz` runs for as long as it is told.

To add one, write the test beside those of its parser and add a line here.
"""

from collections.abc import Callable
from typing import Any, Final

from tests.security.test_shell_rules import test_bash_starts_just_what_was_taken_apart
from tests.session.test_permissions import test_no_rule_however_odd_breaks_a_decision

Fuzzer = Callable[..., Any]

FUZZERS: Final[dict[str, Fuzzer]] = {
    "shell": test_bash_starts_just_what_was_taken_apart,
    "rules": test_no_rule_however_odd_breaks_a_decision,
}
