"""The faults of who runs what, of accepting, of requests and of lost hints, on PostgreSQL: the tests are those that
SQLite has to pass."""

import pytest

from tests.cluster.same_tests import those_of
from tests.faults import test_accepting, test_ownership, test_requests, test_streams

pytestmark = pytest.mark.anyio

ONLY_ON_ONE_MACHINE = (
    # There a death is noticed by a lock on a file. Here it is noticed when the lease is over.
    "test_fault_04_a_killed_process_is_noticed_without_waiting",
    "test_fault_07_a_file_left_behind",
)

globals().update(those_of(test_ownership, *range(1, 10), but=ONLY_ON_ONE_MACHINE))
globals().update(those_of(test_accepting, 10, 11, 12))
globals().update(those_of(test_requests, 30, 31))
globals().update(those_of(test_streams, 39))
