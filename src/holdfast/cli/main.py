"""The entry point of the command line. Prints the version before it imports anything else: tools ask for it often."""

import os
import sys

from holdfast.version import __version__


def main() -> int:
    _open_closed_streams()
    if sys.argv[1:] == ["--version"]:
        print(f"holdfast {__version__}")
        return 0
    from holdfast.cli.commands import app

    app(prog_name="holdfast")
    return 0


def _open_closed_streams() -> None:
    """Open /dev/null for each closed standard stream; otherwise the database's file could get that number, and a print
    would write into it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
