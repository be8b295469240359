"""`holdfast` in a process whose writer thread fails, with a bug, at the first write of one kind: a message, unless told
otherwise."""

import os
import sys

from holdfast.cli.main import main
from holdfast.store import crash_points

POINT = os.environ.get("BROKEN_WRITER_POINT", "put:message:before")


class Bug(BaseException):
    """Not an error that the writer expects."""


def fail(point: str) -> None:
    if point == POINT:
        raise Bug


if __name__ == "__main__":
    crash_points.install(fail)
    sys.exit(main())
