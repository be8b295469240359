"""The entry of the command line. The version is answered before anything else is imported: tools ask for it often."""

import os
import sys

from holdfast.version import __version__


def main() -> int:
    _open_what_is_closed()
    if sys.argv[1:] == ["--version"]:
        print(f"holdfast {__version__}")
        return 0
    from holdfast.cli.commands import app

    app(prog_name="holdfast")
    return 0


def _open_what_is_closed() -> None:
    """A process started with a stream closed would get the database's file under that number, and write into it."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
