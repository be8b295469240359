"""The random step by which a claim raises the fence of a session.

Fences only grow, and no two claims get the same fence: each raises it by a random step, drawn by the claiming process.
A database that forgot a claim (it failed over to a standby that had not received it, or was restored from a backup)
therefore gives the next claim another number, and refuses a write under the forgotten one.
"""

import secrets
from collections.abc import Callable
from typing import Final

LONGEST_STEP: Final = 1 << 31
"""Two claims that start from the same fence collide once in two thousand million times. A session can be claimed four
million times before its fence passes 2^53, above which JSON readers round numbers."""

FenceStep = Callable[[], int]
"""Draws the step of one claim, at least 1."""


def random_step() -> int:
    return 1 + secrets.randbelow(LONGEST_STEP)
