"""How much memory a process has."""

import resource
import subprocess
import sys
from pathlib import Path


def megabytes() -> float:
    """What is resident now of this process; elsewhere than on Linux, the most that ever was."""
    rollup = Path("/proc/self/smaps_rollup")
    if rollup.exists():
        return _resident(rollup)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 1_000_000 if sys.platform == "darwin" else most * 1024 / 1_000_000


def megabytes_of(pid: int) -> float:
    """What is resident now of another process."""
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    if rollup.exists():
        return _resident(rollup)
    said = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(said.stdout) * 1024 / 1_000_000


def own_megabytes_of(pid: int) -> float | None:
    """What a process has for itself, with its share of what it shares; None where nobody counts that."""
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    return _counted(rollup, "Pss") if rollup.exists() else None


def _resident(rollup: Path) -> float:
    return _counted(rollup, "Rss")


def _counted(rollup: Path, what: str) -> float:
    found = next(line for line in rollup.read_text().splitlines() if line.startswith(f"{what}:"))
    return int(found.split()[1]) * 1024 / 1_000_000
