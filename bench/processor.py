"""How much of the processor another process has used."""

import sys
import time


def cpu_seconds_of(pid: int) -> float | None:
    """What all its threads have used, the ended ones too; None where a process can't be asked about another."""
    if sys.platform != "linux":
        return None
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid has it, which Python does not offer
