"""A supervisor that kills itself at the Nth step that touches the disk or lets a command through.

python -m tests.commands.mortal ROOT SETTINGS N
"""

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.commands import supervisor

STEPS = ("mkdir", "rename", "fsync", "fork", "write", "open", "close", "link", "unlink", "rmdir")


def mortal(step: Callable[..., Any], at: int) -> Callable[..., Any]:
    supervisor_itself = os.getpid()

    def stepped(*args: Any, **kwargs: Any) -> Any:
        # Not what it forks: those are commands.
        if os.getpid() == supervisor_itself and next(passed) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*args, **kwargs)

    return stepped


passed = count(1)


def arm(at: int) -> None:
    """From here on this process dies at its Nth step."""
    for name in STEPS:
        setattr(os, name, mortal(getattr(os, name), at))


def main() -> int:
    at = int(sys.argv.pop())
    forget = supervisor._detach_from_launcher

    def begin(root: Path) -> None:
        forget(root)
        arm(at)

    supervisor._detach_from_launcher = begin
    return supervisor.main()


if __name__ == "__main__":
    sys.exit(main())
