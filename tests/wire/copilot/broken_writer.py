"""`holdfast-copilot` in a process whose writer thread fails, with a bug, at the first session that it is to write."""

import sys

from holdfast.cli.copilot import main
from holdfast.store import crash_points


class Bug(BaseException):
    """Not an error that the writer expects."""


def fail(point: str) -> None:
    if point.startswith("commit:") and point.endswith(":before"):
        raise Bug


if __name__ == "__main__":
    crash_points.install(fail)
    sys.exit(main())
