"""How far a claim raises the fence of a session.

Fences only grow, and a claim is unrepeatable: each one raises the fence by a random step, drawn by the process that
claims. A database that forgot a claim (it failed over to a standby that had not received it, or was restored from a
backup) therefore gives the next claim another number, and a write under the forgotten one is refused.
"""

import secrets
from collections.abc import Callable
from typing import Final

LONGEST_STEP: Final = 1 << 31
"""Two claims from the same fence are equal once in two thousand million times. A session can be claimed four million
times before its fence passes 2^53, above which JSON readers round numbers."""

FenceStep = Callable[[], int]
"""Draws the step of one claim, at least 1."""


def random_step() -> int:
    return 1 + secrets.randbelow(LONGEST_STEP)
