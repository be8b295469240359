"""A supervisor that the system lets signal nobody, as it does with one who became another user, until a file is there.

python -m tests.commands.powerless ROOT SETTINGS FILE
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.commands import supervisor


def powerless(send: Callable[..., Any], until: Path) -> Callable[..., Any]:
    def sent(whom: int, number: int, *more: Any) -> Any:
        # Zero only asks whether there is anybody.
        if number and not until.exists():
            raise PermissionError(1, "Operation not permitted")
        return send(whom, number, *more)

    return sent


def main() -> int:
    until = Path(sys.argv.pop())
    for module, name in ((os, "kill"), (os, "killpg"), (signal, "pidfd_send_signal")):
        if hasattr(module, name):
            setattr(module, name, powerless(getattr(module, name), until))
    return supervisor.main()


if __name__ == "__main__":
    sys.exit(main())
