"""A clock whose deadlines a test can let pass."""

from holdfast.store.clock import SystemClock


class LeapingClock(SystemClock):
    """The real clock; its monotonic time is ahead by `leapt` seconds."""

    leapt = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.leapt
