"""How much memory this process has."""

import resource
import sys
from pathlib import Path


def megabytes() -> float:
    """What is resident now; elsewhere than on Linux, the most that ever was."""
    rollup = Path("/proc/self/smaps_rollup")
    if rollup.exists():
        found = next(line for line in rollup.read_text().splitlines() if line.startswith("Rss:"))
        return int(found.split()[1]) * 1024 / 1_000_000
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1_000_000 if sys.platform == "darwin" else most * 1024 / 1_000_000
