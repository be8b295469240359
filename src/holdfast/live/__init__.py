"""Hints: deltas and wake-ups that tell of what has just been committed. Losing any of them costs latency only."""
