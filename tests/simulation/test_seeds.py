"""The runtime in two thousand worlds in which everything goes wrong: every promise is kept in each of them."""

import pytest

from proof.simulation.campaign import SEEDS, play

AT_ONCE = 100


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_every_promise_is_kept(first: int) -> None:
    tally = play(range(first, first + AT_ONCE))
    failed = [f"--seed {found.seed}: {found.violations[0]}" for found in tally.failed]
    assert failed == [], "play it again with python -m proof.simulation --seed …"
    assert tally.seeds == AT_ONCE
    assert tally.events > 10 * AT_ONCE, "something happens in them"
